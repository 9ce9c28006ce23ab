//! Host files (directfs): trees of host files below donated directory descriptors.
//!
//! [`HostFs`] is one detached host mount. Its inodes hold no descriptor: they know their parent and name. Handles on directories, and open files of
//! trees that do not change, are kept in small caches; everything else is opened as it is used. All access is by `*at` calls, one component at a
//! time, links never followed. Numbers of inodes are the host's, its devices are mapped to virtual ones (few, so a list).
//!
//! A tree is either assumed not to change ([`Caching::Assume`]: attributes are asked for once), or revalidated at each look-up
//! ([`Caching::Revalidate`]). Set-ID bits are never given to host files. Lock classes: `InodeData`, `InodeAttrs`, `Leaf`.

mod dir;
mod file;
mod handle;
mod inode;
mod recent;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use abi::Errno;
use abi::fs::{FileType, Statfs};

use self::inode::HostInode;
use self::recent::Recent;
use crate::sync::Mutex;
use crate::sync::order::Leaf;
use crate::vfs::{Caching, FileSystem, Inode, new_dev};

pub use handle::HostFile;

/// How many directory handles a tree keeps open.
const HANDLES_KEPT: usize = 128;
/// How many files a tree that does not change keeps open.
const FILES_KEPT: usize = 256;

/// A tree of host files.
pub struct HostFs {
    /// The donated descriptor: the root, a directory or a file.
    root: Arc<OwnedFd>,
    stat: host::fs::HostStat,
    dev: u64,
    caching: Caching,
    /// Host devices that were met, and the virtual one of each.
    devices: Mutex<Vec<(u64, u64)>, Leaf>,
    handles: Mutex<Recent<Arc<OwnedFd>>, Leaf>,
    files: Mutex<Recent<Arc<HostFile>>, Leaf>,
}

impl HostFs {
    /// The tree below this descriptor, which names a detached host mount.
    pub fn new(root: OwnedFd, caching: Caching) -> Result<Arc<HostFs>, Errno> {
        let stat = host::fs::stat(root.as_fd())?;
        let dev = new_dev();
        Ok(Arc::new(HostFs {
            root: Arc::new(root),
            stat,
            dev,
            caching,
            devices: Mutex::new(vec![(stat.dev, dev)]),
            handles: Mutex::new(Recent::new(HANDLES_KEPT)),
            files: Mutex::new(Recent::new(FILES_KEPT)),
        }))
    }

    /// Whether its root is a directory.
    pub fn is_dir(&self) -> bool {
        FileType::from_mode(self.stat.mode) == Some(FileType::Directory)
    }

    /// The device number of its files.
    pub fn device(&self) -> u64 {
        self.dev
    }

    /// Its root.
    pub fn root_inode(self: &Arc<Self>) -> Arc<HostInode> {
        HostInode::root(self)
    }

    /// The virtual device for a host one.
    fn virtual_dev(&self, dev: u64) -> u64 {
        let mut devices = self.devices.lock();
        if let Some((_, known)) = devices.iter().find(|(host, _)| *host == dev) {
            return *known;
        }
        let new = new_dev();
        devices.push((dev, new));
        new
    }
}

/// A mounted tree of host files.
pub struct HostMount(pub Arc<HostFs>);

impl FileSystem for HostMount {
    fn kind(&self) -> &'static str {
        "directfs"
    }

    fn dev(&self) -> u64 {
        self.0.dev
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.0.root_inode()
    }

    fn statfs(&self) -> Result<Statfs, Errno> {
        host::fs::statfs(self.0.root.as_fd())
    }
}
