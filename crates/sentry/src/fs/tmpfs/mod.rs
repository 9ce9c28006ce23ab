//! tmpfs: files in memory (tmpfs(5)).
//!
//! Contents are [`Pages`] of the memory file, or in the inode as long as they are a few hundred bytes and not mapped. Inodes are numbered one after
//! another, or (for the upper layer of an overlay) by whoever makes them. Lock classes: `InodeData` (a directory's entries, a
//! file's contents), `InodeAttrs`, `Leaf` (xattrs).

mod dir;
mod file;
mod inode;
mod memfd;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi::Errno;
use abi::fs::{FileType, Statfs};

use crate::mm::memory_file::{MemoryFile, Quota};
use crate::vfs::{FileSystem, Inode, NewKind, NewNode, new_dev};

pub(super) use dir::Node;
pub use inode::TmpInode;
pub use memfd::{MemfdSeals, add_seals, memfd, seals};

/// What all inodes of a file system share.
pub struct Super {
    dev: u64,
    memory: Arc<MemoryFile>,
    quota: Arc<Quota>,
    next_ino: AtomicU64,
}

impl Super {
    /// Files of this device, in this memory, within this quota, numbered from `first_ino` on.
    pub fn new(dev: u64, memory: Arc<MemoryFile>, quota: Arc<Quota>, first_ino: u64) -> Arc<Super> {
        Arc::new(Super {
            dev,
            memory,
            quota,
            next_ino: AtomicU64::new(first_ino),
        })
    }

    /// A new inode's number.
    pub fn number(&self) -> u64 {
        self.next_ino.fetch_add(1, Ordering::Relaxed)
    }

    /// statfs(2).
    pub fn statfs(&self) -> Statfs {
        let blocks = self.quota.bytes / 4096;
        let left = self.quota.bytes.saturating_sub(self.quota.bytes_used());
        // The root takes a block.
        let free = (left.min(self.memory.limit().saturating_sub(self.memory.used())) / 4096)
            .min(blocks.saturating_sub(1));
        Statfs {
            kind: 0x0102_1994,
            bsize: 4096,
            frsize: 4096,
            blocks,
            bfree: free,
            bavail: free,
            files: self.quota.inodes,
            ffree: self.quota.inodes.saturating_sub(self.quota.inodes_used()),
            namelen: 255,
            ..Statfs::default()
        }
    }
}

/// A mounted tmpfs.
pub struct TmpFs {
    shared: Arc<Super>,
    root: Arc<TmpInode>,
    kind: &'static str,
}

impl TmpFs {
    /// An empty one, its root with these permissions, root's.
    pub fn new(memory: Arc<MemoryFile>, quota: Arc<Quota>, perm: u32) -> Result<Arc<TmpFs>, Errno> {
        TmpFs::of_kind("tmpfs", memory, quota, perm)
    }

    /// One that `/proc/mounts` calls something else (`devtmpfs`).
    pub fn of_kind(
        kind: &'static str,
        memory: Arc<MemoryFile>,
        quota: Arc<Quota>,
        perm: u32,
    ) -> Result<Arc<TmpFs>, Errno> {
        let shared = Super::new(new_dev(), memory, quota, 1);
        let root = TmpInode::new(
            &shared,
            shared.number(),
            &NewNode {
                kind: NewKind::Directory,
                perm,
                uid: 0,
                gid: 0,
            },
        )?;
        Ok(Arc::new(TmpFs { shared, root, kind }))
    }

    /// Its root.
    pub fn root_inode(&self) -> &Arc<TmpInode> {
        &self.root
    }

    /// A file without a name in it (memfd_create(2), shared anonymous memory).
    pub fn unnamed(&self, perm: u32, uid: u32, gid: u32) -> Result<Arc<TmpInode>, Errno> {
        let inode = TmpInode::new(
            &self.shared,
            self.shared.number(),
            &NewNode {
                kind: NewKind::File,
                perm,
                uid,
                gid,
            },
        )?;
        debug_assert_eq!(inode.file_type(), FileType::Regular);
        Ok(inode)
    }
}

impl FileSystem for TmpFs {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn dev(&self) -> u64 {
        self.shared.dev
    }

    fn root(&self) -> Arc<dyn Inode> {
        Arc::clone(&self.root) as _
    }

    fn statfs(&self) -> Result<Statfs, Errno> {
        Ok(self.shared.statfs())
    }

    fn options(&self) -> String {
        format!(
            ",size={}k,nr_inodes={}",
            self.shared.quota.bytes / 1024,
            self.shared.quota.inodes
        )
    }
}
