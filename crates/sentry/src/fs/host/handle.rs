//! [`HostFile`]: an open host file, the one place where kernel state holds a host descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use abi::time::Timespec;

use crate::vfs::new_id;

/// An open host file, and what it takes to open and to recognise it again.
#[derive(Debug)]
pub struct HostFile {
    id: u64,
    fd: OwnedFd,
    /// Its path below the donated tree, as it was when it was opened.
    pub path: Vec<u8>,
    /// Host device and inode number.
    pub key: (u64, u64),
    /// Its time of change when it was opened.
    pub mtime: Timespec,
    /// Its size when it was opened.
    pub size: u64,
    /// Whether it was opened for writing.
    pub writable: bool,
}

impl HostFile {
    /// Takes charge of an open descriptor.
    pub fn new(fd: OwnedFd, path: Vec<u8>, stat: &host::fs::HostStat, writable: bool) -> HostFile {
        HostFile {
            id: new_id(),
            fd,
            path,
            key: (stat.dev, stat.ino),
            mtime: stat.mtime,
            size: stat.size,
            writable,
        }
    }

    /// Its identity.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl AsFd for HostFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
