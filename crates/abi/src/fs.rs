//! Files as the ABI writes them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct stat` of x86-64 (stat(2)).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Stat {
    /// The device that holds the file.
    pub dev: u64,
    /// The inode's number.
    pub ino: u64,
    /// How many hard links.
    pub nlink: u64,
    /// Type and permissions.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Padding.
    pub pad0: u32,
    /// For device nodes: the device.
    pub rdev: u64,
    /// Bytes.
    pub size: i64,
    /// The block size that suits I/O.
    pub blksize: i64,
    /// 512-byte blocks that are allocated.
    pub blocks: i64,
    /// Last access.
    pub atime: crate::time::Timespec,
    /// Last change of the data.
    pub mtime: crate::time::Timespec,
    /// Last change of the inode.
    pub ctime: crate::time::Timespec,
    /// Reserved.
    pub unused: [i64; 3],
}

/// `struct iovec` (readv(2)).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Iovec {
    /// Where it begins.
    pub base: u64,
    /// How many bytes.
    pub len: u64,
}
