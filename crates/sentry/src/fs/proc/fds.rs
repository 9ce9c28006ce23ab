//! `/proc/PID/fd` and `/proc/PID/fdinfo`.

use std::sync::Arc;

use abi::Errno;
use abi::fs::{FileType, OpenFlags};

use super::process::{Subject, parse};
use crate::fs::pseudo::{Dynamic, PseudoDir, PseudoFile, PseudoLink};
use crate::vfs::{Inode, LinkTarget, OpenFile};

/// The descriptors of a process: links to their files, or texts about them.
pub(super) struct Descriptors {
    pub(super) subject: Subject,
    pub(super) links: bool,
}

fn open_file(subject: &Subject, fd: i32) -> Result<Arc<OpenFile>, Errno> {
    subject
        .guarded()?
        .files()
        .get(fd)
        .map_err(|_| Errno::ENOENT)
}

impl Descriptors {
    fn place(&self, fd: i32) -> u64 {
        // Descriptors stay below 2 to the 20th.
        (if self.links { 1 << 20 } else { 1 << 21 }) | u64::from(fd.unsigned_abs())
    }

    fn file_type(&self) -> FileType {
        if self.links {
            FileType::Symlink
        } else {
            FileType::Regular
        }
    }
}

impl Dynamic for Descriptors {
    fn lookup(&self, dir: &PseudoDir, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        let fd = i32::try_from(parse(name)?).map_err(|_| Errno::ENOENT)?;
        let file = open_file(&self.subject, fd).map_err(|error| {
            if error == Errno::ESRCH {
                Errno::ENOENT
            } else {
                error
            }
        })?;
        let subject = self.subject.clone();
        if !self.links {
            let attrs = subject.attrs(dir.dev(), self.place(fd), FileType::Regular.mode() | 0o444);
            return Ok(PseudoFile::with(attrs, move || info(&subject, fd), None));
        }
        let perm =
            if file.readable() { 0o500 } else { 0 } | if file.writable() { 0o300 } else { 0 };
        let attrs = subject.attrs(dir.dev(), self.place(fd), FileType::Symlink.mode() | perm);
        let shown = subject.clone();
        let text = move || {
            Ok(shown
                .vfs()?
                .file_path(&*open_file(&shown, fd)?, &shown.shown_from()?))
        };
        let follow = move || {
            let file = open_file(&subject, fd)?;
            Ok(match file.location() {
                Some(place) => LinkTarget::Place(place.clone()),
                None => LinkTarget::Inode(
                    Arc::clone(file.inode()),
                    file.anonymous_name().unwrap_or_default(),
                ),
            })
        };
        Ok(PseudoLink::with(attrs, follow, Some(Box::new(text))))
    }

    fn next(&self, _dir: &PseudoDir, from: u64) -> Option<(u64, Vec<u8>, FileType, u64)> {
        let least = i32::try_from(from).ok()?;
        let fd = self.subject.guarded().ok()?.files().next(least)?;
        Some((
            u64::from(fd.unsigned_abs()),
            fd.to_string().into_bytes(),
            self.file_type(),
            self.subject.ino(self.place(fd)),
        ))
    }
}

/// The text of `/proc/PID/fdinfo/N`.
fn info(subject: &Subject, fd: i32) -> Result<Vec<u8>, Errno> {
    let task = subject.guarded()?;
    let files = task.files();
    let file = files.get(fd).map_err(|_| Errno::ENOENT)?;
    let mut flags = file.flags();
    flags.set(OpenFlags::CLOEXEC, files.cloexec(fd).unwrap_or(false));
    let position = if file.ops().seekable() {
        file.last_position()
    } else {
        0
    };
    let mount = file.location().map_or(0, |place| place.mount.id());
    let ino = file.inode().key().ino;
    let text = format!(
        "pos:\t{position}\nflags:\t0{:o}\nmnt_id:\t{mount}\nino:\t{ino}\n{}",
        flags.bits(),
        file.ops().fdinfo(&file)
    );
    Ok(text.into_bytes())
}
