//! `/proc/PID/maps` and `/proc/PID/smaps`.

use std::sync::Arc;

use abi::Errno;
use abi::fs::dev_parts;

use super::process::Subject;
use crate::mm::{Area, AreaFlags, Mapping, Mm, Prot};
use crate::vfs::{Location, Vfs};

/// How many pages residency is asked for at the most, in one text: the rest counts as not resident.
const PAGES_ASKED: u64 = 1 << 18;

/// Pages that are resident.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Resident {
    /// Private and anonymous.
    pub(super) anonymous: u64,
    /// Of files.
    pub(super) file: u64,
    /// Of shared memory.
    pub(super) shared: u64,
}

impl Resident {
    pub(super) fn total(self) -> u64 {
        self.anonymous + self.file + self.shared
    }
}

/// What of an address space is resident, as far as it is asked for.
pub(super) fn resident(mm: &Mm) -> Resident {
    let mut left = PAGES_ASKED;
    let mut sum = Resident::default();
    for (start, area) in mm.snapshot() {
        let one = resident_in(mm, start, &area, &mut left);
        sum.anonymous += one.anonymous;
        sum.file += one.file;
        sum.shared += one.shared;
    }
    sum
}

fn resident_in(mm: &Mm, start: u64, area: &Area, left: &mut u64) -> Resident {
    let pages = (area.end - start) / 4096;
    if area.prot.is_empty() || pages > *left || mm.space().is_dead() {
        return Resident::default();
    }
    *left -= pages;
    // An area that went meanwhile has nothing resident.
    let count = mm.residency(start, area.end - start).map_or(0, |bytes| {
        bytes.iter().filter(|byte| **byte & 1 != 0).count() as u64
    });
    match &area.mapping {
        Mapping::Anonymous => Resident {
            anonymous: count,
            ..Resident::default()
        },
        Mapping::Host { .. } => Resident {
            file: count,
            ..Resident::default()
        },
        Mapping::Memory { .. } => Resident {
            shared: count,
            ..Resident::default()
        },
        Mapping::PastEnd { .. } => Resident::default(),
    }
}

/// An area's line, with its newline.
fn line(vfs: &Vfs, root: &Location, start: u64, area: &Area, to: &mut Vec<u8>) {
    let flag = |prot: Prot, letter: char| {
        if area.prot.contains(prot) {
            letter
        } else {
            '-'
        }
    };
    let (mut dev, mut ino, mut offset) = (0, 0, 0);
    if let Some((file, at)) = &area.file {
        let key = file.inode().key();
        (dev, ino, offset) = (key.dev, key.ino, *at);
    }
    let (major, minor) = dev_parts(dev);
    let shared = if area.shared() { 's' } else { 'p' };
    let (r, w, x) = (
        flag(Prot::READ, 'r'),
        flag(Prot::WRITE, 'w'),
        flag(Prot::EXEC, 'x'),
    );
    let mut text = format!(
        "{start:08x}-{:08x} {r}{w}{x}{shared} {offset:08x} {major:02x}:{minor:02x} {ino} ",
        area.end
    );
    let name = match (&area.file, area.name) {
        (Some((file, _)), _) => vfs.file_path(file, root),
        (None, Some(name)) => name.as_bytes().to_vec(),
        (None, None) if area.shared() => b"/dev/zero (deleted)".to_vec(),
        (None, None) => Vec::new(),
    };
    if !name.is_empty() {
        while text.len() < 73 {
            text.push(' ');
        }
    }
    to.extend_from_slice(text.as_bytes());
    for byte in name {
        if byte == b'\n' {
            to.extend_from_slice(b"\\012")
        } else {
            to.push(byte)
        }
    }
    to.push(b'\n');
}

fn areas(subject: &Subject) -> Result<(Arc<Mm>, Vec<(u64, Area)>), Errno> {
    let mm = subject.guarded()?.mm();
    let areas = mm.snapshot();
    Ok((mm, areas))
}

pub(super) fn maps(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let (vfs, root) = (subject.vfs()?, subject.shown_from()?);
    let mut text = Vec::new();
    for (start, area) in areas(subject)?.1 {
        line(&vfs, &root, start, &area, &mut text);
    }
    Ok(text)
}

/// The sizes of an area, or of all together; kilobytes of `resident` are its pages times four.
fn sizes(size: Option<u64>, resident: Resident, locked: u64) -> String {
    let kb = |pages: u64| pages * 4;
    let private = resident.anonymous;
    let shared = resident.file + resident.shared;
    let mut text = String::new();
    if let Some(size) = size {
        text.push_str(&format!(
            "Size:           {:>8} kB\nKernelPageSize: {:>8} kB\nMMUPageSize:    {:>8} kB\n",
            size / 1024,
            4,
            4
        ));
    }
    for (name, value) in [
        ("Rss", kb(resident.total())),
        ("Pss", kb(resident.total())),
        ("Pss_Dirty", kb(private)),
        ("Shared_Clean", kb(shared)),
        ("Shared_Dirty", 0),
        ("Private_Clean", 0),
        ("Private_Dirty", kb(private)),
        ("Referenced", kb(resident.total())),
        ("Anonymous", kb(private)),
        ("LazyFree", 0),
        ("AnonHugePages", 0),
        ("ShmemPmdMapped", 0),
        ("FilePmdMapped", 0),
        ("Shared_Hugetlb", 0),
        ("Private_Hugetlb", 0),
        ("Swap", 0),
        ("SwapPss", 0),
        ("Locked", locked / 1024),
    ] {
        text.push_str(&format!("{:<15} {value:>8} kB\n", format!("{name}:")));
    }
    text
}

pub(super) fn smaps(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let (vfs, root) = (subject.vfs()?, subject.shown_from()?);
    let (mm, areas) = areas(subject)?;
    let mut left = PAGES_ASKED;
    let mut text = Vec::new();
    for (start, area) in areas {
        line(&vfs, &root, start, &area, &mut text);
        let size = area.end - start;
        let locked = if area.flags.contains(AreaFlags::LOCKED) {
            size
        } else {
            0
        };
        text.extend_from_slice(
            sizes(
                Some(size),
                resident_in(&mm, start, &area, &mut left),
                locked,
            )
            .as_bytes(),
        );
        text.extend_from_slice(b"THPeligible:           0\nVmFlags:");
        for (has, name) in [
            (area.prot.contains(Prot::READ), " rd"),
            (area.prot.contains(Prot::WRITE), " wr"),
            (area.prot.contains(Prot::EXEC), " ex"),
            (area.shared(), " sh"),
            (true, " mr"),
            (!area.flags.contains(AreaFlags::NO_WRITE), " mw"),
            (true, " me"),
            (area.flags.contains(AreaFlags::GROWS_DOWN), " gd"),
            (area.flags.contains(AreaFlags::LOCKED), " lo"),
            (area.flags.contains(AreaFlags::DONT_FORK), " dc"),
            (area.flags.contains(AreaFlags::WIPE_ON_FORK), " wf"),
            (area.flags.contains(AreaFlags::DONT_DUMP), " dd"),
        ] {
            if has {
                text.extend_from_slice(name.as_bytes());
            }
        }
        text.extend_from_slice(b" \n");
    }
    Ok(text)
}

pub(super) fn smaps_rollup(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let (mm, areas) = areas(subject)?;
    let (start, end) = match (areas.first(), areas.last()) {
        (Some((start, _)), Some((_, last))) => (*start, last.end),
        _ => (0, 0),
    };
    let locked = areas
        .iter()
        .filter(|(_, area)| area.flags.contains(AreaFlags::LOCKED))
        .map(|(start, area)| area.end - start)
        .sum();
    let text = format!(
        "{start:08x}-{end:08x} ---p 00000000 00:00 0                          [rollup]\n{}",
        sizes(None, resident(&mm), locked)
    );
    Ok(text.into_bytes())
}
