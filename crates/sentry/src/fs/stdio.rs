//! Standard input, output and error: open files over descriptors that the launcher handed over.
//!
//! Reads and writes never wait: where the descriptor itself would, readiness is looked at first and little is written at a time. Terminals
//! take the ioctls of a list, never one that puts input into the terminal. Lock class: `Leaf`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Weak};

use abi::Errno;
use abi::fs::{FileType, OpenFlags, PIPE_BUF};

use crate::io::{GuestMemory, Sink, Source};
use crate::sync::{EventMask, WaitQueue};
use crate::task::credentials::Credentials;
use crate::vfs::{Attrs, FileOps, Inode, InodeKey, OpenFile, SetAttrs, new_dev, new_id};

/// Who watches host descriptors for readiness: one epoll of the kernel's.
pub trait HostPoller: Send + Sync {
    /// Notifies the queue, with what became ready, whenever the descriptor's readiness changes, until [`HostPoller::unwatch`]. EPERM for
    /// descriptors that have no readiness.
    fn watch(&self, fd: BorrowedFd<'_>, queue: &Arc<WaitQueue>) -> Result<(), Errno>;
    /// No longer.
    fn unwatch(&self, fd: BorrowedFd<'_>);
}

/// A terminal's state that the guest sees and the host does not: shared by all descriptors of it.
#[derive(Debug, Default)]
pub struct Terminal {
    /// The foreground process group, as the guest numbers it; 0 for none.
    pub foreground: AtomicI32,
    /// The session that it controls; 0 for none.
    pub session: AtomicI32,
}

/// A descriptor of the launcher's.
pub struct HostStream {
    this: Weak<HostStream>,
    fd: OwnedFd,
    key: InodeKey,
    kind: FileType,
    terminal: Option<Arc<Terminal>>,
    poller: Arc<dyn HostPoller>,
    queue: Option<Arc<WaitQueue>>,
    /// Whether the host's calls on it wait.
    waits: bool,
    /// Whether the host puts writes at the end.
    appends: bool,
}

const TCGETS: u32 = 0x5401;
const TCSETSF: u32 = 0x5404;
const TCSETS: u32 = 0x5402;
const TIOCSCTTY: u32 = 0x540e;
const TIOCGPGRP: u32 = 0x540f;
const TIOCSPGRP: u32 = 0x5410;
const TIOCGWINSZ: u32 = 0x5413;
const TIOCSWINSZ: u32 = 0x5414;
const FIONREAD: u32 = 0x541b;
const TIOCGSID: u32 = 0x5429;

/// An open file over a descriptor that was handed over. Descriptors of one terminal share `terminal`.
pub fn open(
    fd: OwnedFd,
    terminal: &Arc<Terminal>,
    poller: &Arc<dyn HostPoller>,
) -> Result<Arc<OpenFile>, Errno> {
    let stat = host::fs::stat(fd.as_fd())?;
    let kind = FileType::from_mode(stat.mode).unwrap_or(FileType::CharDevice);
    let is_terminal = kind == FileType::CharDevice && host::tty::attributes(fd.as_fd()).is_ok();
    let (reads, writes) = host::fs::access(fd.as_fd())?;
    let (waits, appends) = host::fs::modes(fd.as_fd())?;
    let queue = Arc::new(WaitQueue::new());
    // Regular files, and devices such as /dev/null, are always ready.
    let watched = poller.watch(fd.as_fd(), &queue).is_ok();
    let stream = Arc::new_cyclic(|this| HostStream {
        this: Weak::clone(this),
        key: InodeKey {
            dev: new_dev(),
            ino: new_id(),
        },
        kind,
        terminal: is_terminal.then(|| Arc::clone(terminal)),
        poller: Arc::clone(poller),
        queue: watched.then_some(queue),
        waits,
        appends,
        fd,
    });
    let access = match (reads, writes) {
        (true, true) => OpenFlags::RDWR,
        (false, true) => OpenFlags::WRONLY,
        _ => OpenFlags::empty(),
    };
    let file = OpenFile::anonymous(Arc::clone(&stream) as _, Arc::clone(&stream) as _, access);
    if kind == FileType::Regular {
        file.set_position(host::fs::tell(stream.fd.as_fd())?);
    }
    Ok(file)
}

/// Whether two of the descriptors are one open file description for all that can be told: then they share a position and flags (`> log 2>&1`).
pub fn same(a: &OpenFile, b: &OpenFile) -> bool {
    let place = |file: &OpenFile| {
        let stat = host::fs::stat(file.ops_as::<HostStream>()?.fd.as_fd()).ok()?;
        Some((stat.dev, stat.ino, file.flags(), file.position()))
    };
    place(a).is_some_and(|found| Some(found) == place(b))
}

/// The terminal behind an open file, where it is one.
pub fn terminal_of(file: &OpenFile) -> Option<&Arc<Terminal>> {
    file.ops_as::<HostStream>()?.terminal.as_ref()
}

impl HostStream {
    fn ready(&self) -> EventMask {
        EventMask::from_bits_truncate(host::fs::poll(self.fd.as_fd()))
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        if self.queue.is_some() {
            self.poller.unwatch(self.fd.as_fd());
        }
    }
}

impl FileOps for HostStream {
    fn seekable(&self) -> bool {
        self.kind == FileType::Regular
    }

    fn read(&self, _file: &OpenFile, to: &mut Sink<'_>, at: u64) -> Result<usize, Errno> {
        let fd = self.fd.as_fd();
        let most = to.remaining();
        if self.kind == FileType::Regular {
            return to.fill(most, &mut |buffer, done| {
                host::fs::pread(fd, buffer, at.saturating_add(done as u64))
            });
        }
        // One read, of what fits a chunk: a second could wait, or take what can't be put.
        to.fill(most.min(crate::io::CHUNK), &mut |buffer, done| {
            if done > 0 {
                return Ok(0);
            }
            if self.waits
                && self.queue.is_some()
                && !self
                    .ready()
                    .intersects(EventMask::IN | EventMask::HUP | EventMask::ERR)
            {
                return Err(Errno::EAGAIN);
            }
            host::fs::read(fd, buffer)
        })
    }

    fn write(
        &self,
        _file: &OpenFile,
        from: &mut Source<'_>,
        at: &mut u64,
        append: bool,
    ) -> Result<usize, Errno> {
        let fd = self.fd.as_fd();
        if self.kind == FileType::Regular {
            let start = *at;
            let put = from.drain(usize::MAX, &mut |buffer, done| {
                if append || self.appends {
                    return host::fs::append(fd, buffer);
                }
                host::fs::pwrite(fd, buffer, start.saturating_add(done as u64))
            })?;
            *at = start.saturating_add(put as u64);
            if append || self.appends {
                *at = host::fs::stat(fd)?.size;
            }
            // Whoever shares the descriptor goes on where we stopped.
            host::fs::seek_entries(fd, *at)?;
            return Ok(put);
        }
        from.drain(usize::MAX, &mut |buffer, _| {
            if !self.waits || self.queue.is_none() {
                return host::fs::write(fd, buffer);
            }
            let ready = self.ready();
            if ready.contains(EventMask::ERR) {
                return Err(Errno::EPIPE);
            }
            if !ready.contains(EventMask::OUT) {
                return Err(Errno::EAGAIN);
            }
            // A pipe that is ready takes this much without waiting.
            host::fs::write(fd, &buffer[..buffer.len().min(PIPE_BUF)])
        })
    }

    fn poll(&self, _file: &OpenFile) -> EventMask {
        if self.queue.is_none() {
            return EventMask::IN | EventMask::OUT | EventMask::RDNORM | EventMask::WRNORM;
        }
        let mut ready = self.ready();
        if ready.contains(EventMask::IN) {
            ready |= EventMask::RDNORM;
        }
        if ready.contains(EventMask::OUT) {
            ready |= EventMask::WRNORM;
        }
        ready
    }

    fn queue(&self) -> Option<&Arc<WaitQueue>> {
        self.queue.as_ref()
    }

    fn sync(&self, _file: &OpenFile, data: bool) -> Result<(), Errno> {
        host::fs::sync(self.fd.as_fd(), data)
    }

    fn truncate(&self, _file: &OpenFile, size: u64) -> Result<(), Errno> {
        host::fs::truncate(self.fd.as_fd(), size)
    }

    fn ioctl(
        &self,
        _file: &OpenFile,
        request: u32,
        arg: u64,
        memory: &dyn GuestMemory,
    ) -> Result<u64, Errno> {
        let fd = self.fd.as_fd();
        if request == FIONREAD {
            super::put(memory, arg, &host::tty::unread(fd)?)?;
            return Ok(0);
        }
        let terminal = self.terminal.as_ref().ok_or(Errno::ENOTTY)?;
        match request {
            TCGETS => super::put(memory, arg, &host::tty::attributes(fd)?)?,
            TCSETS..=TCSETSF => {
                let termios: [u8; host::tty::TERMIOS_LEN] = super::get(memory, arg)?;
                host::tty::set_attributes(fd, request - TCSETS, &termios)?;
            }
            TIOCGWINSZ => super::put(memory, arg, &host::tty::window_size(fd)?)?,
            TIOCSWINSZ => {
                let size: [u8; host::tty::WINSIZE_LEN] = super::get(memory, arg)?;
                host::tty::set_window_size(fd, &size)?;
            }
            TIOCGPGRP => super::put(memory, arg, &terminal.foreground.load(Ordering::Acquire))?,
            TIOCSPGRP => {
                let group: i32 = super::get(memory, arg)?;
                if group <= 0 {
                    return Err(Errno::EINVAL);
                }
                terminal.foreground.store(group, Ordering::Release);
            }
            TIOCGSID => super::put(memory, arg, &terminal.session.load(Ordering::Acquire))?,
            TIOCSCTTY => {}
            _ => return Err(Errno::ENOTTY),
        }
        Ok(0)
    }
}

impl Inode for HostStream {
    fn key(&self) -> InodeKey {
        self.key
    }

    fn file_type(&self) -> FileType {
        self.kind
    }

    fn attrs(&self) -> Result<Attrs, Errno> {
        let stat = host::fs::stat(self.fd.as_fd())?;
        Ok(Attrs {
            dev: self.key.dev,
            ino: self.key.ino,
            mode: stat.mode,
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            rdev: stat.rdev,
            size: stat.size,
            blksize: stat.blksize,
            blocks: stat.blocks,
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
            btime: None,
        })
    }

    fn set_attrs(&self, change: &SetAttrs) -> Result<(), Errno> {
        // The size only (`>` through /dev/stdout): owners and permissions are the launcher's.
        match change.size {
            Some(size) => host::fs::truncate(self.fd.as_fd(), size),
            None => Err(Errno::EPERM),
        }
    }

    fn anonymous_name(&self) -> String {
        match (self.kind, &self.terminal) {
            (_, Some(_)) => "/dev/tty".to_owned(),
            (FileType::Fifo, _) => format!("pipe:[{}]", self.key.ino),
            (FileType::Socket, _) => format!("socket:[{}]", self.key.ino),
            (FileType::CharDevice, _) => "/dev/null".to_owned(),
            _ => format!("host:[{}]", self.key.ino),
        }
    }

    fn open(
        self: Arc<Self>,
        flags: OpenFlags,
        _creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno> {
        let (reads, writes) = host::fs::access(self.fd.as_fd())?;
        let access = flags & OpenFlags::ACCMODE;
        if access != OpenFlags::WRONLY && !reads || !access.is_empty() && !writes {
            return Err(Errno::EACCES);
        }
        Ok(self.this.upgrade().ok_or(Errno::ENXIO)?)
    }
}

#[cfg(test)]
mod tests;
