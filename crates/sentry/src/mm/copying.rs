//! Memory operations by copying, where a feature of the host's memory management is switched off ([`platform::HostMm`]).
//!
//! Private mappings of files become anonymous memory that is filled when it is mapped; mappings move, and processes fork, by having their contents
//! copied. What is not resident was never touched, or is a file's own page: so only resident pages are copied, which takes a host that does not swap.
//!
//! It is slower and takes more memory, and what a file's private mapping shows is the file as it was then. Nothing here is used while all features are on.

use std::os::fd::AsFd;
use std::sync::Arc;

use abi::Errno;
use platform::{Backing, MemOp, Space, Start, Thread};

use super::area::{Area, AreaFlags, Areas, Mapping, Prot};
use super::{Mm, PAGE, page_up};

/// How many bytes are copied at a time.
const STEP: usize = 256 << 10;
/// `PROT_READ|PROT_WRITE`
const READ_WRITE: u32 = 3;

/// A run of pages, and which of them are resident, a byte each.
struct Mapped {
    start: u64,
    resident: Vec<u8>,
}

impl Mapped {
    fn len(&self) -> u64 {
        self.resident.len() as u64 * PAGE
    }
}

/// Where contents come from and go to.
struct Copy<'a> {
    from: &'a dyn Space,
    to: &'a dyn Space,
    /// What is added to an address there for the one here, modulo 2^64.
    shift: u64,
    /// Whether the pages that are written to are zero so far.
    blank: bool,
}

/// A space's answer to a batch, as an error of mmap(2)'s.
fn failed(error: (usize, Errno)) -> Errno {
    if error.1 == Errno::ESRCH {
        Errno::ENOMEM
    } else {
        error.1
    }
}

/// The host's pages in a range, in runs: a private copy of a file has none past the file's end.
fn mapped(space: &dyn Space, start: u64, len: u64) -> Result<Vec<Mapped>, Errno> {
    let mut found: Vec<Mapped> = Vec::new();
    let mut left = vec![(start, len)];
    while let Some((start, len)) = left.pop() {
        match space.residency(start, len) {
            Ok(resident) => match found.last_mut() {
                Some(last) if last.start + last.len() == start => last.resident.extend(resident),
                _ => found.push(Mapped { start, resident }),
            },
            Err(Errno::ENOMEM) if len > PAGE => {
                let half = (len / 2).next_multiple_of(PAGE);
                // The lower half first.
                left.push((start + half, len - half));
                left.push((start, half));
            }
            Err(Errno::ENOMEM) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

impl Copy<'_> {
    /// Copies what is resident of a run. The source can be read and the target written.
    fn run(&self, run: &Mapped) -> Result<(), Errno> {
        let mut pages = vec![0; STEP];
        let mut there = vec![0; STEP];
        let mut at = 0;
        while at < run.resident.len() {
            let here = |page: &u8| page & 1 != 0;
            if !here(&run.resident[at]) {
                at += 1;
                continue;
            }
            let most = (run.resident.len() - at).min(STEP / PAGE as usize);
            let count = run.resident[at..at + most]
                .iter()
                .take_while(|page| here(page))
                .count();
            let from = run.start + at as u64 * PAGE;
            let len = count * PAGE as usize;
            let got = self.from.read(from, &mut pages[..len]).unwrap_or(0);
            let whole = got / PAGE as usize * PAGE as usize;
            self.write(from.wrapping_add(self.shift), &pages[..whole], &mut there)?;
            // A page of a file's that is past its end now is resident for some, and can't be read.
            at += (whole / PAGE as usize).max(1);
        }
        Ok(())
    }

    /// Writes those pages that differ from what is there.
    fn write(&self, to: u64, pages: &[u8], there: &mut [u8]) -> Result<(), Errno> {
        let there = &mut there[..pages.len()];
        if self.blank {
            there.fill(0);
        } else if self.to.read(to, there) != Ok(there.len()) {
            return Err(Errno::ENOMEM);
        }
        let size = PAGE as usize;
        let mut at = 0;
        while at < pages.len() {
            let differs = |at: usize| pages[at..at + size] != there[at..at + size];
            let mut end = at;
            while end < pages.len() && differs(end) {
                end += size;
            }
            if end == at {
                at += size;
                continue;
            }
            if self.to.write(to + at as u64, &pages[at..end]) != Ok(end - at) {
                return Err(Errno::ENOMEM);
            }
            at = end;
        }
        Ok(())
    }
}

impl Mm {
    /// Whether an area's pages are a copy of a file's.
    pub(super) fn is_file_copy(&self, area: &Area) -> bool {
        !self.host.platform.host_mm().private_files
            && !area.shared()
            && matches!(area.mapping, Mapping::Host { .. } | Mapping::Memory { .. })
    }

    /// How much of an area its file has: whole pages.
    fn there(area: &Area, start: u64) -> Result<u64, Errno> {
        let len = area.end - start;
        let (size, offset) = match &area.mapping {
            Mapping::Host { file, offset } => (host::fs::stat(file.as_fd())?.size, *offset),
            Mapping::Memory { object, offset, .. } => (object.size(), *offset),
            Mapping::Anonymous | Mapping::PastEnd { .. } => return Ok(len),
        };
        let size = page_up(size).ok_or(Errno::EOVERFLOW)?;
        Ok(size.saturating_sub(offset).min(len))
    }

    /// Maps an area as anonymous memory with its file's contents; past the file's end nothing. ENOMEM where they are more than the sandbox may
    /// have.
    pub(super) fn install_file_copy(&self, start: u64, area: &Area) -> Result<(), Errno> {
        let len = area.end - start;
        let there = Mm::there(area, start)?;
        if there > self.host.memory.limit() {
            return Err(Errno::ENOMEM);
        }
        let mut ops = vec![MemOp::Unmap { addr: start, len }];
        if there > 0 {
            ops.push(MemOp::Map {
                addr: start,
                len: there,
                prot: READ_WRITE,
                backing: Backing::Anonymous,
            });
        }
        self.space.apply(&ops).map_err(failed)?;
        let mut buffer = vec![0; STEP];
        let mut at = 0;
        while at < there {
            let want = usize::try_from(there - at).unwrap_or(STEP).min(STEP);
            let got = match &area.mapping {
                Mapping::Host { file, offset } => {
                    host::fs::pread(file.as_fd(), &mut buffer[..want], offset + at)?
                }
                Mapping::Memory { window, offset, .. } => {
                    window.read(offset + at, &mut buffer[..want])?;
                    want
                }
                Mapping::Anonymous | Mapping::PastEnd { .. } => 0,
            };
            if got == 0 {
                break;
            }
            if buffer[..got].iter().any(|byte| *byte != 0)
                && self.space.write(start + at, &buffer[..got]) != Ok(got)
            {
                return Err(Errno::ENOMEM);
            }
            at += got as u64;
        }
        self.set_prot(start, there, area.prot)
    }

    fn set_prot(&self, addr: u64, len: u64, prot: Prot) -> Result<(), Errno> {
        if len == 0 || prot.bits() == READ_WRITE {
            return Ok(());
        }
        let op = MemOp::Protect {
            addr,
            len,
            prot: prot.bits(),
        };
        self.space.apply(&[op]).map_err(failed)
    }

    /// The touch of a page of a file's copy that is not there: the file may have grown since. False where it has not.
    pub(super) fn fill_file_copy(&self, page: u64, area: &Area) -> bool {
        if self.space.residency(page, PAGE).is_ok() {
            // Another thread was first, or the page missed a change of its protection while it was not there.
            return self.set_prot(page, PAGE, area.prot).is_ok();
        }
        Mm::there(area, page).is_ok_and(|there| there > 0)
            && self.install_file_copy(page, area).is_ok()
    }

    /// Maps an area's first `len` bytes at another place, in this space or another, with what is in them. The source is at `start`; whatever was
    /// at the target is gone.
    fn copy_area(
        &self,
        start: u64,
        len: u64,
        area: &Area,
        to: &dyn Space,
        target: u64,
    ) -> Result<(), Errno> {
        let map = |addr: u64, len: u64, prot: u32, backing: Backing| MemOp::Map {
            addr,
            len,
            prot,
            backing,
        };
        let held;
        let backing = match &area.mapping {
            Mapping::Anonymous => Backing::Anonymous,
            _ if self.is_file_copy(area) => Backing::Anonymous,
            Mapping::Host { file, offset } => {
                held = self.host.files.hold(&self.host.platform, file)?;
                if area.shared() {
                    let backing = Backing::SharedFile(held.number(), *offset);
                    let op = map(target, len, area.prot.bits(), backing);
                    return to.apply(&[op]).map_err(failed);
                }
                Backing::PrivateFile(held.number(), *offset)
            }
            Mapping::Memory { window, offset, .. } if !area.shared() => {
                Backing::PrivateMemory(window.offset() + offset)
            }
            // Their pages come with their first touch.
            Mapping::Memory { .. } | Mapping::PastEnd { .. } => return Ok(()),
        };
        if area.flags.contains(AreaFlags::BLANK) {
            // Nobody could ever write there.
            let op = map(target, len, area.prot.bits(), backing);
            return to.apply(&[op]).map_err(failed);
        }
        let copy = Copy {
            from: self.space.as_ref(),
            to,
            shift: target.wrapping_sub(start),
            blank: backing == Backing::Anonymous,
        };
        let len = if self.is_file_copy(area) {
            Mm::there(area, start)?.min(len)
        } else {
            len
        };
        let runs = mapped(copy.from, start, len)?;
        let some = runs
            .iter()
            .any(|run| run.resident.iter().any(|page| page & 1 != 0));
        let readable = area.prot.contains(Prot::READ) || !some;
        for run in &runs {
            let at = run.start.wrapping_add(copy.shift);
            let backing = match backing {
                // Only a copy has holes.
                Backing::PrivateFile(file, offset) => {
                    Backing::PrivateFile(file, offset + (run.start - start))
                }
                Backing::PrivateMemory(offset) => {
                    Backing::PrivateMemory(offset + (run.start - start))
                }
                other => other,
            };
            to.apply(&[map(at, run.len(), READ_WRITE, backing)])
                .map_err(failed)?;
            if !readable {
                self.set_prot(run.start, run.len(), area.prot | Prot::READ)?;
            }
            let copied = copy.run(run);
            if !readable {
                self.set_prot_exactly(run.start, run.len(), area.prot)?;
            }
            copied?;
            if area.prot.bits() != READ_WRITE {
                let op = MemOp::Protect {
                    addr: at,
                    len: run.len(),
                    prot: area.prot.bits(),
                };
                to.apply(&[op]).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn set_prot_exactly(&self, addr: u64, len: u64, prot: Prot) -> Result<(), Errno> {
        let op = MemOp::Protect {
            addr,
            len,
            prot: prot.bits(),
        };
        self.space.apply(&[op]).map_err(failed)
    }

    /// Whether an area has to be copied to be moved.
    pub(super) fn moves_by_copy(&self, area: &Area) -> bool {
        !self.host.platform.host_mm().mremap || self.is_file_copy(area)
    }

    /// Moves `old_len` bytes of an area to `to`, where it gets `new_len`, over whatever is there.
    pub(super) fn move_by_copy(
        &self,
        old: u64,
        old_len: u64,
        area: &Area,
        to: u64,
        new_len: u64,
    ) -> Result<(), Errno> {
        let target = MemOp::Unmap {
            addr: to,
            len: new_len,
        };
        self.space.apply(&[target]).map_err(failed)?;
        let head = old_len.min(new_len);
        if head > 0 {
            self.copy_area(old, head, area, self.space.as_ref(), to)?;
        }
        if new_len > head {
            let mut tail = area.clone();
            tail.advance(head);
            tail.end = to + new_len;
            self.install(to + head, &tail)?;
        }
        if old_len > 0 {
            let source = MemOp::Unmap {
                addr: old,
                len: old_len,
            };
            self.space.apply(&[source]).map_err(failed)?;
        }
        Ok(())
    }

    /// A copy of the space, with one thread that starts as told: every mapping made anew, and its contents copied while nothing of the guest's runs in
    /// the original.
    pub(super) fn fork_by_copy(
        &self,
        areas: &Areas,
        start: &Start,
    ) -> Result<(Arc<dyn Space>, Arc<dyn Thread>), Errno> {
        let child = self.host.platform.new_space()?;
        self.space.while_halted(&mut || {
            for (at, area) in areas.iter() {
                let len = area.end - at;
                if area.flags.contains(AreaFlags::DONT_FORK) {
                    continue;
                }
                if area.flags.contains(AreaFlags::WIPE_ON_FORK) {
                    let op = MemOp::Map {
                        addr: at,
                        len,
                        prot: area.prot.bits(),
                        backing: Backing::Anonymous,
                    };
                    child.apply(&[op]).map_err(failed)?;
                    continue;
                }
                self.copy_area(at, len, area, child.as_ref(), at)?;
            }
            Ok(())
        })?;
        let thread = child.thread(start)?;
        Ok((child, thread))
    }
}
