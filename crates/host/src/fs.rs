//! Host files, by descriptors alone: one component at a time, links never followed, nothing relative to a working directory.
//!
//! No unsafe code: all calls go through `rustix`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use abi::Errno;
use abi::time::Timespec;
use rustix::fs as sys;

/// A host error as the guest's.
pub fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error()).unwrap_or(Errno::EIO)
}

/// What the host knows of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStat {
    /// Device.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device, of a device node.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Block size.
    pub blksize: u32,
    /// 512-byte blocks.
    pub blocks: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of the data.
    pub mtime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
}

/// The time that file systems in memory stamp with: the host's coarse realtime clock, as Linux does.
pub fn file_time() -> Timespec {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timespec {
        sec: now.tv_sec,
        nsec: now.tv_nsec,
    }
}
