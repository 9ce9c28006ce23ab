//! Inodes of what has no place in any tree: pipes, sockets, eventfds, epoll instances.

use std::sync::Arc;
use std::sync::OnceLock;

use abi::Errno;
use abi::fs::{FileType, OpenFlags};
use abi::time::Timespec;

use super::file::FileOps;
use super::inode::{Attrs, Inode, InodeKey, SetAttrs, new_dev, new_id};
use crate::sync::Mutex;
use crate::sync::order::InodeAttrs;
use crate::task::credentials::Credentials;

/// An inode without a place.
pub struct AnonInode {
    key: InodeKey,
    /// `pipe`, `socket`, or for all others the whole name, `[eventfd]`.
    label: &'static str,
    mode: u32,
    made: Timespec,
    owner: Mutex<(u32, u32, u32), InodeAttrs>,
    reopen: Option<Arc<dyn Reopen>>,
}

/// What can be opened anew through `/proc/PID/fd`: pipes.
pub trait Reopen: Send + Sync {
    /// Opens it.
    fn reopen(&self, flags: OpenFlags) -> Result<Arc<dyn FileOps>, Errno>;
}

/// The device of all of them.
fn dev() -> u64 {
    static DEV: OnceLock<u64> = OnceLock::new();
    *DEV.get_or_init(new_dev)
}

impl AnonInode {
    /// An `anon_inode:` of this name, such as `[eventfd]`.
    pub fn new(label: &'static str) -> Arc<AnonInode> {
        AnonInode::make(label, 0o600, (0, 0), None)
    }

    /// A pipe's.
    pub fn pipe(uid: u32, gid: u32, reopen: Arc<dyn Reopen>) -> Arc<AnonInode> {
        AnonInode::make(
            "pipe",
            FileType::Fifo.mode() | 0o600,
            (uid, gid),
            Some(reopen),
        )
    }

    /// A socket's.
    pub fn socket(uid: u32, gid: u32) -> Arc<AnonInode> {
        AnonInode::make("socket", FileType::Socket.mode() | 0o777, (uid, gid), None)
    }

    fn make(
        label: &'static str,
        mode: u32,
        owner: (u32, u32),
        reopen: Option<Arc<dyn Reopen>>,
    ) -> Arc<AnonInode> {
        Arc::new(AnonInode {
            key: InodeKey {
                dev: dev(),
                ino: new_id(),
            },
            label,
            mode,
            made: host::fs::file_time(),
            owner: Mutex::new((owner.0, owner.1, mode)),
            reopen,
        })
    }
}

impl Inode for AnonInode {
    fn key(&self) -> InodeKey {
        self.key
    }

    fn file_type(&self) -> FileType {
        // Anonymous inodes proper have no type at all; what asks for one means "not a directory, not a link".
        FileType::from_mode(self.mode).unwrap_or(FileType::CharDevice)
    }

    fn attrs(&self) -> Result<Attrs, Errno> {
        let (uid, gid, mode) = *self.owner.lock();
        Ok(Attrs {
            dev: self.key.dev,
            ino: self.key.ino,
            mode,
            nlink: 1,
            uid,
            gid,
            blksize: 4096,
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            ..Attrs::default()
        })
    }

    fn anonymous_name(&self) -> String {
        if self.label.starts_with('[') {
            format!("anon_inode:{}", self.label)
        } else {
            format!("{}:[{}]", self.label, self.key.ino)
        }
    }

    fn set_attrs(&self, change: &SetAttrs) -> Result<(), Errno> {
        if change.size.is_some() {
            return Err(Errno::EINVAL);
        }
        let mut owner = self.owner.lock();
        owner.0 = change.uid.unwrap_or(owner.0);
        owner.1 = change.gid.unwrap_or(owner.1);
        if let Some(perm) = change.perm {
            owner.2 = owner.2 & abi::fs::S_IFMT | perm;
        }
        Ok(())
    }

    fn open(
        self: Arc<Self>,
        flags: OpenFlags,
        _creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno> {
        self.reopen.as_ref().ok_or(Errno::ENXIO)?.reopen(flags)
    }
}
