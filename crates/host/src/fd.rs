//! Descriptors that a process is born with, and what is done to descriptors as such.
//!
//! Invariant of the unsafe code: a number becomes an `OwnedFd` at most once, and only while nothing else owns it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use abi::Errno;
use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;

use crate::error::{check, errno};

/// The descriptors that this process was executed with.
///
/// There is one of these in a process; it must be claimed before anything else opens descriptors.
#[derive(Debug)]
pub struct Inherited {
    taken: Vec<RawFd>,
}

static CLAIMED: AtomicBool = AtomicBool::new(false);

impl Inherited {
    /// The process's inherited descriptors; `None` where they were claimed before.
    pub fn claim() -> Option<Inherited> {
        (!CLAIMED.swap(true, Ordering::Relaxed)).then_some(Inherited { taken: Vec::new() })
    }

    /// Takes the descriptor with this number, and makes it close-on-exec. Of standard error a copy is given: 2 stays where this process's own lines go, whatever
    /// becomes of the copy.
    ///
    /// EBADF where it is not open or was taken before.
    pub fn take(&mut self, number: RawFd) -> Result<OwnedFd, Errno> {
        if number < 0 || self.taken.contains(&number) {
            return Err(Errno::EBADF);
        }
        // SAFETY: F_SETFD works on a number alone and touches no memory.
        check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) }.into())?;
        self.taken.push(number);
        if number == libc::STDERR_FILENO {
            // SAFETY: the number is open (the call above succeeded), and stays so.
            let stderr = unsafe { BorrowedFd::borrow_raw(number) };
            return stderr.try_clone_to_owned().map_err(|_| Errno::EMFILE);
        }
        // SAFETY: the number is open (the call above succeeded), nothing in this process opened it (it was
        // inherited), and `taken` shows that it has no owner yet.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

/// Opens what the descriptor refers to once more, non-blocking and close-on-exec, so that it has flags of its own.
///
/// Only pipes and character devices (terminals among them) are reopened: `None` for the rest, and where the host
/// refuses, as it does for sockets. Needs procfs.
pub fn reopen(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    let stat = rustix::fs::fstat(fd).ok()?;
    match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::Fifo | rustix::fs::FileType::CharacterDevice => (),
        _ => return None,
    }
    let mode = rustix::fs::fcntl_getfl(fd).ok()? & OFlags::ACCMODE;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = mode | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok()
}

/// A regular file that is known by a handle (O_PATH), opened: for reading, and for writing as well where that is wanted and the file can be written. Anything
/// else is given back as it is. Needs procfs.
pub fn open_file(handle: OwnedFd, write: bool) -> Result<OwnedFd, Errno> {
    let stat = rustix::fs::fstat(&handle).map_err(errno)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
        return Ok(handle);
    }
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let open = |mode: OFlags| rustix::fs::open(&path, mode | OFlags::CLOEXEC, Mode::empty());
    if write && let Ok(file) = open(OFlags::RDWR) {
        return Ok(file);
    }
    open(OFlags::RDONLY).map_err(errno)
}

/// Another descriptor of the same open file, close-on-exec, with a number of at least 3.
pub fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(errno)
}

/// Makes 0, 1 and 2 refer to these three, which must have numbers of 3 or more.
pub fn become_stdio(stdio: [BorrowedFd<'_>; 3]) -> Result<(), Errno> {
    rustix::stdio::dup2_stdin(stdio[0]).map_err(errno)?;
    rustix::stdio::dup2_stdout(stdio[1]).map_err(errno)?;
    rustix::stdio::dup2_stderr(stdio[2]).map_err(errno)
}

/// Leaves just 0, 1, 2 and these open at the next execve, and closes all else then or at once.
///
/// For a process that is about to execute another program: the numbers that it closes may have owners.
pub fn hand_over(keep: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut numbers: Vec<u32> = Vec::with_capacity(keep.len());
    for fd in keep {
        rustix::io::fcntl_setfd(fd.as_fd(), FdFlags::empty()).map_err(errno)?;
        numbers.push(fd.as_raw_fd().unsigned_abs());
    }
    numbers.sort_unstable();
    let mut first = 3;
    for number in numbers {
        if number > first {
            mark_range(first, number - 1)?;
        }
        first = first.max(number + 1);
    }
    mark_range(first, u32::MAX)
}

/// Makes the range close-on-exec.
fn mark_range(first: u32, last: u32) -> Result<(), Errno> {
    // SAFETY: CLOSE_RANGE_CLOEXEC changes flags of descriptors alone: nothing that owns one loses it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            last,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    check(result).map(|_| ())
}
