//! The virtual file system: names, mounts, open files and descriptors, over the file systems of [`crate::fs`].
//!
//! [`Vfs`] is a mount namespace with the calls that take paths; [`OpenFile`] has those that take descriptors, [`FdTable`] the descriptors themselves.
//! Paths are walked from dentry to dentry through a bounded cache. Nothing waits: see [`OpenFile`].
//! ETXTBSY is not told, and access times follow `relatime` only on file systems in memory.

pub mod anon;
mod context;
mod dentry;
mod fd_table;
mod file;
mod inode;
pub mod locks;
mod mount;

pub use context::FsContext;
pub use dentry::{Dentry, Location};
pub use fd_table::{FdTable, NR_OPEN, ReservedFd};
pub use file::{AsyncOwner, CHANGEABLE, CloseHook, DirEntry, FileOps, MmapSource, OpenFile, Seek};
pub use inode::{
    Attrs, Caching, FileSystem, Inode, InodeKey, LinkTarget, NewKind, NewNode, Owner, RenameEnd, SetAttrs, SetTime,
    SetXattr, new_dev, new_id,
};
pub use mount::{Mount, MountTable};
