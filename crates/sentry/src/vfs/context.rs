//! A process's place in the tree: [`FsContext`]. Lock class: `FsContext`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::dentry::Location;
use crate::sync::RwLock;
use crate::sync::order;

/// Working directory, root and umask: shared by CLONE_FS, else copied.
pub struct FsContext {
    places: RwLock<Places, order::FsContext>,
    umask: AtomicU32,
}

#[derive(Clone)]
struct Places {
    root: Location,
    cwd: Location,
}

impl FsContext {
    /// At the root, with the usual umask.
    pub fn new(root: Location) -> Arc<FsContext> {
        Arc::new(FsContext {
            places: RwLock::new(Places {
                cwd: root.clone(),
                root,
            }),
            umask: AtomicU32::new(0o022),
        })
    }

    /// A copy, as fork(2) without CLONE_FS makes it.
    pub fn fork(&self) -> Arc<FsContext> {
        Arc::new(FsContext {
            places: RwLock::new(self.places.read().clone()),
            umask: AtomicU32::new(self.umask()),
        })
    }

    /// The root.
    pub fn root(&self) -> Location {
        self.places.read().root.clone()
    }

    /// The working directory.
    pub fn cwd(&self) -> Location {
        self.places.read().cwd.clone()
    }

    /// Sets the root; permission was checked (chroot(2)).
    pub fn set_root(&self, root: Location) {
        let old = core::mem::replace(&mut self.places.write().root, root);
        drop(old);
    }

    /// Sets the working directory.
    pub fn set_cwd(&self, cwd: Location) {
        let old = core::mem::replace(&mut self.places.write().cwd, cwd);
        drop(old);
    }

    /// The permissions that new files do not get.
    pub fn umask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    /// umask(2): sets it, says the old one.
    pub fn set_umask(&self, umask: u32) -> u32 {
        self.umask.swap(umask & 0o777, Ordering::Relaxed)
    }
}
