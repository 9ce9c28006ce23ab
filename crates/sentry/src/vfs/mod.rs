//! The virtual file system: names, mounts, open files and descriptors, over the file systems of [`crate::fs`].
//!
//! [`Vfs`] is a mount namespace with the calls that take paths; [`OpenFile`] has those that take descriptors, [`FdTable`] the descriptors themselves.
//! Paths are walked from dentry to dentry through a bounded cache. Nothing waits: see [`OpenFile`].
//!
//! Lock classes: `MountTable`, `RenameLock`, `InodeOp`, `DentryChildren`, `FileLocks`, `FdTable`, `FsContext`, `Leaf`.
//! Not done: POSIX ACLs, mount propagation, quotas.

pub mod anon;
mod attributes;
mod context;
mod dentry;
mod fd_table;
mod file;
mod inode;
pub mod locks;
mod mount;
mod names;
mod open;
mod permission;
#[cfg(test)]
pub(crate) mod tests;
mod uses;
mod walk;

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use abi::Errno;
use abi::cap::Cap;
use abi::fs::{FileType, MountFlags, ResolveFlags};

use self::dentry::DentryCache;
use crate::fs::pipe::Pipe;
use crate::fs::pseudo;
use crate::sync::Mutex;
use crate::sync::order::{Leaf, RenameLock};
use crate::task::credentials::Credentials;

pub use attributes::Target;
pub use context::FsContext;
pub use dentry::{Dentry, Location};
pub use fd_table::{FdTable, NR_OPEN, ReservedFd};
pub use file::{AsyncOwner, CHANGEABLE, CloseHook, DirEntry, FileOps, MmapSource, OpenFile, Seek};
pub use inode::{
    Attrs, Caching, FileSystem, Inode, InodeKey, LinkTarget, NewKind, NewNode, Owner, RenameEnd,
    SetAttrs, SetTime, SetXattr, new_dev, new_id,
};
pub use mount::{Mount, MountTable};
pub use open::CharDevice;
pub use uses::{Use, Uses};

/// How many names the cache of a namespace keeps that nobody uses.
const NAMES_KEPT: usize = 8192;

/// On whose behalf, and from where, a path is walked.
pub struct PathCx<'a> {
    /// Root, working directory, umask.
    pub fs: &'a FsContext,
    /// Who asks.
    pub creds: &'a Credentials,
    /// Where relative paths begin; `None` for the working directory (`AT_FDCWD`).
    pub dirfd: Option<Arc<OpenFile>>,
}

/// A mount namespace, with the cache of names of its file systems.
pub struct Vfs {
    mounts: MountTable,
    cache: DentryCache,
    renames: Mutex<(), RenameLock>,
    uses: Arc<Uses>,
    fifos: Mutex<HashMap<InodeKey, Weak<Pipe>>, Leaf>,
    devices: Mutex<HashMap<u64, Arc<dyn CharDevice>>, Leaf>,
    /// Where files are placed that have no place, when a link of procfs leads to them.
    placeless: Arc<Mount>,
}

impl Vfs {
    /// A namespace with this root.
    pub fn new(root: Arc<Mount>) -> Arc<Vfs> {
        Arc::new(Vfs {
            mounts: MountTable::new(root),
            cache: DentryCache::new(NAMES_KEPT),
            renames: Mutex::new(()),
            uses: Arc::default(),
            fifos: Mutex::default(),
            devices: Mutex::default(),
            placeless: Mount::hidden(pseudo::PseudoFs::empty("anon_inodefs")),
        })
    }

    /// The mounts.
    pub fn mounts(&self) -> &MountTable {
        &self.mounts
    }

    /// Which of its files are being written or run.
    pub fn uses(&self) -> &Arc<Uses> {
        &self.uses
    }

    /// The root, or what is mounted on it.
    pub fn root(&self) -> Location {
        self.mounts.top(self.mounts.root().clone())
    }

    /// Says what opens a character device; whoever did before no longer does.
    pub fn register_device(&self, rdev: u64, device: Arc<dyn CharDevice>) {
        let old = self.devices.lock().insert(rdev, device);
        drop(old);
    }

    /// Mounts a file system (or a bind of a part of one, made by [`Mount::new`]) at a place. Directories go on directories only (ENOTDIR).
    pub fn mount(&self, mount: &Arc<Mount>, at: Location) -> Result<(), Errno> {
        let dir = |inode: &Arc<dyn Inode>| inode.file_type() == FileType::Directory;
        if dir(mount.root().inode()) != dir(at.inode()) {
            return Err(Errno::ENOTDIR);
        }
        self.mounts.attach(mount, at)
    }

    /// mount(2) with `MS_BIND`: what `from` leads to appears at `to` as well.
    pub fn bind(&self, from: &Location, to: Location, flags: MountFlags) -> Result<(), Errno> {
        let mount = Mount::new(
            Arc::clone(from.mount.fs()),
            Arc::clone(&from.dentry),
            flags,
            from.mount.source(),
        );
        self.mount(&mount, to)
    }

    /// umount2(2): EINVAL unless the place is a mount's root, EBUSY for mounts below it unless `lazy`.
    pub fn umount(&self, at: &Location, lazy: bool) -> Result<(), Errno> {
        if !Arc::ptr_eq(&at.dentry, at.mount.root()) {
            return Err(Errno::EINVAL);
        }
        self.mounts.detach(&at.mount, lazy)?;
        self.cache.shrink();
        Ok(())
    }

    /// A directory to be in: ENOTDIR, and EACCES where it can't be searched.
    fn directory(&self, cx: &PathCx<'_>, path: &[u8]) -> Result<Location, Errno> {
        let place = self.resolve(cx, path, true, ResolveFlags::empty())?;
        if place.inode().file_type() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        permission::search(&**place.inode(), cx.creds)?;
        Ok(place)
    }

    /// chdir(2).
    pub fn chdir(&self, cx: &PathCx<'_>, path: &[u8]) -> Result<(), Errno> {
        cx.fs.set_cwd(self.directory(cx, path)?);
        Ok(())
    }

    /// fchdir(2).
    pub fn fchdir(
        &self,
        fs: &FsContext,
        creds: &Credentials,
        file: &OpenFile,
    ) -> Result<(), Errno> {
        let place = file.location().ok_or(Errno::ENOTDIR)?;
        if place.inode().file_type() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        permission::search(&**place.inode(), creds)?;
        fs.set_cwd(place.clone());
        Ok(())
    }

    /// chroot(2): asks for CAP_SYS_CHROOT.
    pub fn chroot(&self, cx: &PathCx<'_>, path: &[u8]) -> Result<(), Errno> {
        let place = self.directory(cx, path)?;
        if !cx.creds.has(Cap::SYS_CHROOT) {
            return Err(Errno::EPERM);
        }
        cx.fs.set_root(place);
        Ok(())
    }

    /// getcwd(2): ENOENT where the directory's name is gone.
    pub fn getcwd(&self, fs: &FsContext) -> Result<Vec<u8>, Errno> {
        let cwd = fs.cwd();
        if cwd.dentry.is_dead() {
            return Err(Errno::ENOENT);
        }
        Ok(self.path_of(&cwd, &fs.root()))
    }

    /// What `/proc/PID/fd/N` says of an open file.
    pub fn file_path(&self, file: &OpenFile, root: &Location) -> Vec<u8> {
        match file.location() {
            Some(place) => self.path_of(place, root),
            None => file.anonymous_name().unwrap_or_default().into_bytes(),
        }
    }

    /// sync(2). May block.
    pub fn sync(&self) {
        for mount in self.mounts.all() {
            // sync(2) has no errors.
            let _ = mount.fs().sync();
        }
    }

    /// Drops names that nobody uses.
    pub fn shrink(&self) {
        self.cache.shrink();
    }

    /// A place for a file that has none, with this name.
    fn placeless(&self, inode: Arc<dyn Inode>, name: &str) -> Location {
        Location {
            mount: Arc::clone(&self.placeless),
            dentry: Dentry::detached(self.placeless.root(), name.as_bytes(), inode),
        }
    }
}

impl core::fmt::Debug for Vfs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Vfs({} mounts)", self.mounts.all().len())
    }
}
