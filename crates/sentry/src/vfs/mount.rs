//! Mounts: [`Mount`], and the table of them, [`MountTable`].
//!
//! Lock classes: `MountTable`, `Leaf`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi::Errno;
use abi::fs::MountFlags;

use super::dentry::{Dentry, Location};
use super::inode::{FileSystem, new_id};
use crate::sync::order::{self, Leaf};
use crate::sync::{Mutex, RwLock};

/// A file system, or a part of one, at a place.
pub struct Mount {
    id: u64,
    fs: Arc<dyn FileSystem>,
    root: Arc<Dentry>,
    flags: AtomicU64,
    source: String,
    hidden: bool,
    at: Mutex<Option<Location>, Leaf>,
}

impl Mount {
    /// A mount that is not attached yet. `source` is what `/proc/mounts` names first.
    pub fn new(
        fs: Arc<dyn FileSystem>,
        root: Arc<Dentry>,
        flags: MountFlags,
        source: &str,
    ) -> Arc<Mount> {
        Mount::make(fs, root, flags, source, false)
    }

    /// A mount that is never attached, for files without a place that can be walked to (memfd_create(2)).
    pub fn hidden(fs: Arc<dyn FileSystem>) -> Arc<Mount> {
        let root = Dentry::root(fs.root());
        Mount::make(fs, root, MountFlags::empty(), "none", true)
    }

    fn make(
        fs: Arc<dyn FileSystem>,
        root: Arc<Dentry>,
        flags: MountFlags,
        source: &str,
        hidden: bool,
    ) -> Arc<Mount> {
        Arc::new(Mount {
            id: new_id(),
            fs,
            root,
            flags: AtomicU64::new(flags.bits()),
            source: source.to_owned(),
            hidden,
            at: Mutex::new(None),
        })
    }

    /// Whether it is never attached.
    pub fn is_hidden(&self) -> bool {
        self.hidden
    }

    /// A mount of a whole file system.
    pub fn of(fs: Arc<dyn FileSystem>, flags: MountFlags, source: &str) -> Arc<Mount> {
        let root = Dentry::root(fs.root());
        Mount::new(fs, root, flags, source)
    }

    /// Its identity, and its number in `/proc/self/mountinfo`.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The file system.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// What of the file system is mounted.
    pub fn root(&self) -> &Arc<Dentry> {
        &self.root
    }

    /// Its root as a place.
    pub fn location(self: &Arc<Self>) -> Location {
        Location {
            mount: Arc::clone(self),
            dentry: Arc::clone(&self.root),
        }
    }

    /// Its flags.
    pub fn flags(&self) -> MountFlags {
        MountFlags::from_bits_truncate(self.flags.load(Ordering::Relaxed))
    }

    /// Replaces its flags (`MS_REMOUNT`).
    pub fn set_flags(&self, flags: MountFlags) {
        self.flags.store(flags.bits(), Ordering::Relaxed);
    }

    /// EROFS where nothing can be written.
    pub fn check_writable(&self) -> Result<(), Errno> {
        if self.flags().contains(MountFlags::RDONLY) {
            Err(Errno::EROFS)
        } else {
            Ok(())
        }
    }

    /// What it was mounted from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Where it is mounted; `None` for a root or a detached mount.
    pub fn at(&self) -> Option<Location> {
        self.at.lock().clone()
    }
}

impl core::fmt::Debug for Mount {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Mount({}, {})", self.id, self.fs.kind())
    }
}

/// The mounts of a mount namespace.
pub struct MountTable {
    root: Location,
    inner: RwLock<Inner, order::MountTable>,
}

#[derive(Default)]
struct Inner {
    /// By the mount and the dentry that it covers.
    by_place: HashMap<(u64, u64), Arc<Mount>>,
    /// In the order of mounting.
    all: Vec<Arc<Mount>>,
}

/// The most mounts of a namespace (`fs.mount-max` is 100000 on Linux).
const MOUNTS_MAX: usize = 10_000;

impl MountTable {
    /// A namespace with this root.
    pub fn new(root: Arc<Mount>) -> MountTable {
        let location = root.location();
        MountTable {
            root: location,
            inner: RwLock::new(Inner {
                by_place: HashMap::new(),
                all: vec![root],
            }),
        }
    }

    /// The root.
    pub fn root(&self) -> &Location {
        &self.root
    }

    /// What is mounted right on this place.
    pub fn covering(&self, mount: &Mount, dentry: &Dentry) -> Option<Arc<Mount>> {
        if dentry.mounted.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.inner
            .read()
            .by_place
            .get(&(mount.id, dentry.id()))
            .cloned()
    }

    /// The place, or the root of the topmost mount on it.
    pub fn top(&self, mut at: Location) -> Location {
        while let Some(mount) = self.covering(&at.mount, &at.dentry) {
            at = mount.location();
        }
        at
    }

    /// Mounts at a place, on top of what is mounted there. ENOSPC where there are too many.
    pub fn attach(&self, mount: &Arc<Mount>, at: Location) -> Result<(), Errno> {
        let mut inner = self.inner.write();
        if inner.all.len() >= MOUNTS_MAX {
            return Err(Errno::ENOSPC);
        }
        // Somebody may have been faster.
        let mut at = at;
        while let Some(over) = inner.by_place.get(&(at.mount.id, at.dentry.id())) {
            at = over.location();
        }
        if at.dentry.is_dead() {
            return Err(Errno::ENOENT);
        }
        at.dentry.mounted.fetch_add(1, Ordering::AcqRel);
        inner
            .by_place
            .insert((at.mount.id, at.dentry.id()), Arc::clone(mount));
        inner.all.push(Arc::clone(mount));
        *mount.at.lock() = Some(at);
        Ok(())
    }

    /// Takes a mount off, with all that is mounted below it where `lazy`, else EBUSY for those. EINVAL for the root.
    pub fn detach(&self, mount: &Arc<Mount>, lazy: bool) -> Result<(), Errno> {
        let mut inner = self.inner.write();
        if Arc::ptr_eq(mount, &self.root.mount)
            || !inner.all.iter().any(|known| Arc::ptr_eq(known, mount))
        {
            return Err(Errno::EINVAL);
        }
        let mut gone: Vec<Arc<Mount>> = vec![Arc::clone(mount)];
        let mut next = 0;
        while next < gone.len() {
            for known in &inner.all {
                if known
                    .at
                    .lock()
                    .as_ref()
                    .is_some_and(|at| Arc::ptr_eq(&at.mount, &gone[next]))
                {
                    gone.push(Arc::clone(known));
                }
            }
            next += 1;
        }
        if gone.len() > 1 && !lazy {
            return Err(Errno::EBUSY);
        }
        let mut places = Vec::new();
        for mount in &gone {
            let Some(at) = mount.at.lock().take() else {
                continue;
            };
            at.dentry.mounted.fetch_sub(1, Ordering::AcqRel);
            inner.by_place.remove(&(at.mount.id, at.dentry.id()));
            places.push(at);
        }
        inner
            .all
            .retain(|known| !gone.iter().any(|mount| Arc::ptr_eq(known, mount)));
        drop(inner);
        drop((gone, places));
        Ok(())
    }

    /// All mounts, in the order of mounting.
    pub fn all(&self) -> Vec<Arc<Mount>> {
        self.inner.read().all.clone()
    }
}
