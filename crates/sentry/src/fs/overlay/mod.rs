//! Overlays: a lower tree that never changes, and an upper one in memory that takes all changes (after Linux's overlayfs).
//!
//! A name leads to the upper file where there is one, to nothing where the upper tree has a whiteout, else to the lower file; directories of both
//! are merged, unless the upper one is opaque. A lower file is copied up, its directories first, before it changes. Renaming a directory
//! that has a lower part is EXDEV, as with overlayfs without `redirect_dir`: callers such as mv(1) copy.
//!
//! A copied file keeps its number. One that had several names in the lower tree gets a new one, since the other names go on to lead to
//! the lower file (overlayfs without `index`). Numbers of new files start at 2^52, where host file systems have none. A mapping made before a
//! file is copied goes on to show the lower file.
//!
//! Lock classes: `OverlayState` (one a mount: the upper tree's names), `InodeData`, `Leaf`. A file's data is copied without a lock.

mod dir;
mod file;
mod inode;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use abi::Errno;
use abi::fs::Statfs;

use self::inode::OverlayInode;
use super::host::HostFs;
use super::tmpfs::Super;
use crate::mm::memory_file::{MemoryFile, Quota};
use crate::sync::Mutex;
use crate::sync::order::OverlayState;
use crate::vfs::{FileSystem, Inode};

/// The first number of files that only the upper tree has.
const FIRST_INO: u64 = 1 << 52;

/// What all inodes of an overlay share.
struct Shared {
    upper: Arc<Super>,
    /// Held while names of the upper tree change.
    names: Mutex<(), OverlayState>,
}

/// A mounted overlay.
pub struct OverlayFs {
    shared: Arc<Shared>,
    dev: u64,
    root: Arc<OverlayInode>,
}

impl OverlayFs {
    /// An overlay over a host tree (or a single host file), changes going to memory within the quota.
    pub fn new(lower: &Arc<HostFs>, memory: Arc<MemoryFile>, quota: Arc<Quota>) -> Arc<OverlayFs> {
        let dev = lower.device();
        let shared = Arc::new(Shared {
            upper: Super::new(dev, memory, quota, FIRST_INO),
            names: Mutex::new(()),
        });
        let root = OverlayInode::root(&shared, lower.root_inode());
        Arc::new(OverlayFs { shared, dev, root })
    }
}

impl FileSystem for OverlayFs {
    fn kind(&self) -> &'static str {
        "overlay"
    }

    fn dev(&self) -> u64 {
        self.dev
    }

    fn root(&self) -> Arc<dyn Inode> {
        Arc::clone(&self.root) as _
    }

    fn statfs(&self) -> Result<Statfs, Errno> {
        Ok(Statfs {
            kind: 0x794c_7630,
            ..self.shared.upper.statfs()
        })
    }
}
