//! [`HostInode`]: a host file, known by its parent and name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use abi::Errno;
use abi::fs::{FileType, OpenFlags, RenameFlags};
use host::fs::{Access, HostStat};

use super::dir::DirOps;
use super::file::FileOpsOf;
use super::{HostFile, HostFs};
use crate::sync::Mutex;
use crate::sync::order::{InodeAttrs, Leaf};
use crate::task::credentials::Credentials;
use crate::vfs::{
    Attrs, Caching, FileOps, Inode, InodeKey, NewKind, NewNode, Owner, RenameEnd, SetAttrs,
    SetTime, SetXattr, new_id,
};

/// A host file.
pub struct HostInode {
    id: u64,
    this: Weak<HostInode>,
    pub(super) fs: Arc<HostFs>,
    key: InodeKey,
    host_key: (u64, u64),
    kind: FileType,
    attrs: Mutex<Attrs, InodeAttrs>,
    /// Whether `attrs` were asked for just now.
    fresh: AtomicBool,
    place: Mutex<Place, Leaf>,
    opened: Mutex<Opened, Leaf>,
}

/// An open descriptor of a file.
enum Open {
    /// The tree's own, where that is a single file.
    Root(Arc<OwnedFd>),
    File(Arc<HostFile>),
}

impl AsFd for Open {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Open::Root(fd) => fd.as_fd(),
            Open::File(file) => file.as_fd(),
        }
    }
}

struct Place {
    /// `None` for the root.
    parent: Option<Arc<HostInode>>,
    name: Arc<[u8]>,
    /// Whether the name was taken away.
    gone: bool,
}

/// A directory, and a name in it.
type Known = (Arc<HostInode>, Arc<[u8]>);

#[derive(Default)]
struct Opened {
    /// An open file, whatever for.
    any: Weak<HostFile>,
    /// What creating it left open, for the open that comes next.
    ready: Option<Arc<HostFile>>,
}

impl HostInode {
    pub(super) fn root(fs: &Arc<HostFs>) -> Arc<HostInode> {
        let place = Place {
            parent: None,
            name: Arc::from([]),
            gone: false,
        };
        HostInode::new(fs, &fs.stat, place)
    }

    fn child(&self, name: &[u8], stat: &HostStat) -> Arc<HostInode> {
        let place = Place {
            parent: Some(self.arc()),
            name: Arc::from(name),
            gone: false,
        };
        HostInode::new(&self.fs, stat, place)
    }

    fn new(fs: &Arc<HostFs>, stat: &HostStat, place: Place) -> Arc<HostInode> {
        let attrs = attrs_of(fs, stat);
        Arc::new_cyclic(|this| HostInode {
            id: new_id(),
            this: Weak::clone(this),
            fs: Arc::clone(fs),
            key: InodeKey {
                dev: attrs.dev,
                ino: attrs.ino,
            },
            host_key: (stat.dev, stat.ino),
            kind: FileType::from_mode(stat.mode).unwrap_or(FileType::Regular),
            attrs: Mutex::new(attrs),
            fresh: AtomicBool::new(true),
            place: Mutex::new(place),
            opened: Mutex::default(),
        })
    }

    /// Whether nothing about it changes.
    pub(super) fn assumed(&self) -> bool {
        self.fs.caching == Caching::Assume
    }

    /// The file was changed through a descriptor: attributes are to be asked for again.
    pub(super) fn touched(&self) {
        self.fresh.store(false, Ordering::Release);
    }

    /// The size that was seen last.
    pub(super) fn known_size(&self) -> u64 {
        self.attrs.lock().size
    }

    /// The directory that it is in, and its name there; ENOENT where that was taken away. `None` for the root.
    fn place(&self) -> Result<Option<Known>, Errno> {
        let place = self.place.lock();
        if place.gone {
            return Err(Errno::ENOENT);
        }
        Ok(place
            .parent
            .as_ref()
            .map(|parent| (Arc::clone(parent), Arc::clone(&place.name))))
    }

    /// A handle on this directory.
    pub(super) fn handle(&self) -> Result<Arc<OwnedFd>, Errno> {
        let mut missing: Vec<Known> = Vec::new();
        let mut at = self.arc();
        let mut handle = loop {
            let known = self.fs.handles.lock().get(at.id);
            if let Some(handle) = known {
                break handle;
            }
            let Some((parent, name)) = at.place()? else {
                break Arc::clone(&self.fs.root);
            };
            missing.push((at, name));
            at = parent;
        };
        while let Some((inode, name)) = missing.pop() {
            let opened = host::fs::open_dir_handle(handle.as_fd(), &name)?;
            if !self.assumed() {
                let stat = host::fs::stat(opened.as_fd())?;
                if (stat.dev, stat.ino) != inode.host_key {
                    return Err(Errno::ESTALE);
                }
            }
            handle = Arc::new(opened);
            let gone = self.fs.handles.lock().insert(inode.id, Arc::clone(&handle));
            drop(gone);
        }
        Ok(handle)
    }

    /// Acts on the file by its directory's handle and its name, or on the root by its own descriptor.
    fn by_name<R>(
        &self,
        act: impl FnOnce(BorrowedFd<'_>, &[u8]) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        match self.place()? {
            Some((parent, name)) => act(parent.handle()?.as_fd(), &name),
            None if self.kind == FileType::Directory => act(self.fs.root.as_fd(), b"."),
            None => Err(Errno::EOPNOTSUPP),
        }
    }

    /// An open descriptor of the file, where there is one.
    fn any_open(&self) -> Option<Open> {
        if self.kind != FileType::Directory && matches!(self.place(), Ok(None)) {
            return Some(Open::Root(Arc::clone(&self.fs.root)));
        }
        self.opened.lock().any.upgrade().map(Open::File)
    }

    /// Opens a regular file.
    pub(super) fn open_host(&self, access: Access) -> Result<Arc<HostFile>, Errno> {
        let keep = self.assumed() && access == Access::Read;
        if keep {
            if let Some(file) = self.opened.lock().any.upgrade() {
                return Ok(file);
            }
            let known = self.fs.files.lock().get(self.id);
            if let Some(file) = known {
                return Ok(file);
            }
        }
        let ready = self.opened.lock().ready.take();
        if let Some(file) = ready {
            return Ok(file);
        }
        let (fd, path) = match self.place()? {
            Some((parent, name)) => (
                host::fs::open(parent.handle()?.as_fd(), &name, access)?,
                self.path(),
            ),
            None => (host::fs::duplicate(&*self.fs.root)?, Vec::new()),
        };
        let stat = host::fs::stat(fd.as_fd())?;
        if (stat.dev, stat.ino) != self.host_key {
            return Err(Errno::ESTALE);
        }
        let file = Arc::new(HostFile::new(fd, path, &stat, access != Access::Read));
        if keep {
            let gone = self.fs.files.lock().insert(self.id, Arc::clone(&file));
            drop(gone);
        }
        self.opened.lock().any = Arc::downgrade(&file);
        Ok(file)
    }

    /// Its path below the tree's root.
    fn path(&self) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = self.place().ok().flatten();
        while let Some((parent, name)) = at {
            names.push(name);
            at = parent.place().ok().flatten();
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        path
    }

    /// Opens it for a call on its attributes.
    fn open_any(&self) -> Result<OwnedFd, Errno> {
        match self.kind {
            FileType::Directory => host::fs::open_entries(self.handle()?.as_fd()),
            FileType::Regular => match self.place()? {
                Some((parent, name)) => {
                    host::fs::open(parent.handle()?.as_fd(), &name, Access::Read)
                }
                None => host::fs::duplicate(&*self.fs.root),
            },
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn refresh(&self, stat: &HostStat) {
        *self.attrs.lock() = attrs_of(&self.fs, stat);
    }

    fn moved(&self, parent: &Arc<HostInode>, name: &[u8]) {
        let old = core::mem::replace(
            &mut *self.place.lock(),
            Place {
                parent: Some(Arc::clone(parent)),
                name: Arc::from(name),
                gone: false,
            },
        );
        drop(old);
    }

    fn unnamed(&self) {
        self.place.lock().gone = true;
        let gone = self.fs.files.lock().remove(self.id);
        drop(gone);
        let gone = self.fs.handles.lock().remove(self.id);
        drop(gone);
    }
}

impl Drop for HostInode {
    fn drop(&mut self) {
        let gone = self.fs.handles.lock().remove(self.id);
        drop(gone);
        let gone = self.fs.files.lock().remove(self.id);
        drop(gone);
        // A chain of parents goes one by one: a deep tree could use up the stack.
        let mut next = self.place.get_mut().parent.take();
        while let Some(parent) = next {
            next =
                Arc::into_inner(parent).and_then(|mut parent| parent.place.get_mut().parent.take());
        }
    }
}

fn attrs_of(fs: &HostFs, stat: &HostStat) -> Attrs {
    Attrs {
        dev: fs.virtual_dev(stat.dev),
        ino: stat.ino,
        mode: stat.mode,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        size: stat.size,
        blksize: stat.blksize,
        blocks: stat.blocks,
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
        btime: None,
    }
}

/// The inode as one of ours; EXDEV where it is another file system's.
fn ours(inode: &Arc<dyn Inode>) -> Result<Arc<HostInode>, Errno> {
    let any: Arc<dyn core::any::Any + Send + Sync> = Arc::clone(inode) as _;
    any.downcast().map_err(|_| Errno::EXDEV)
}

impl HostInode {
    fn arc(&self) -> Arc<HostInode> {
        self.this
            .upgrade()
            .expect("inodes are only reached through an Arc")
    }

    fn make(&self, name: &[u8], new: &NewNode<'_>) -> Result<Arc<HostInode>, Errno> {
        let handle = self.handle()?;
        let dir = handle.as_fd();
        let (uid, gid) = (Some(new.uid), Some(new.gid));
        match new.kind {
            NewKind::File => {
                let fd = host::fs::create(dir, name, new.perm)?;
                return self.adopt(name, fd, new);
            }
            NewKind::Directory => host::fs::mkdir(dir, name, new.perm)?,
            NewKind::Symlink(target) => host::fs::symlink(target, dir, name)?,
            NewKind::Fifo => host::fs::mknod(dir, name, false, new.perm)?,
            NewKind::Socket => host::fs::mknod(dir, name, true, new.perm)?,
            NewKind::CharDevice(_) | NewKind::BlockDevice(_) => return Err(Errno::EPERM),
        }
        host::fs::chown_at(dir, name, uid, gid)?;
        let mut stat = host::fs::stat_at(dir, name)?;
        // A umask that the launcher left, or a set-group-ID directory of the host's, may have changed it.
        if !matches!(new.kind, NewKind::Symlink(_)) && stat.mode & 0o7777 != new.perm & 0o1777 {
            host::fs::chmod_at(dir, name, new.perm)?;
            stat = host::fs::stat_at(dir, name)?;
        }
        Ok(self.child(name, &stat))
    }

    /// An inode for a file that was made just now, its descriptor kept for the open that comes.
    fn adopt(&self, name: &[u8], fd: OwnedFd, new: &NewNode<'_>) -> Result<Arc<HostInode>, Errno> {
        host::fs::chown(fd.as_fd(), Some(new.uid), Some(new.gid))?;
        let mut stat = host::fs::stat(fd.as_fd())?;
        if stat.mode & 0o7777 != new.perm & 0o1777 {
            host::fs::chmod(fd.as_fd(), new.perm)?;
            stat = host::fs::stat(fd.as_fd())?;
        }
        let inode = self.child(name, &stat);
        let file = Arc::new(HostFile::new(fd, inode.path(), &stat, true));
        let mut opened = inode.opened.lock();
        opened.any = Arc::downgrade(&file);
        opened.ready = Some(file);
        drop(opened);
        Ok(inode)
    }
}

impl Inode for HostInode {
    fn key(&self) -> InodeKey {
        self.key
    }

    fn file_type(&self) -> FileType {
        self.kind
    }

    fn attrs(&self) -> Result<Attrs, Errno> {
        if !self.assumed() && !self.fresh.swap(false, Ordering::AcqRel) {
            let stat = match self.any_open() {
                Some(file) => Some(host::fs::stat(file.as_fd())?),
                None => match self.by_name(host::fs::stat_at) {
                    Ok(stat) if (stat.dev, stat.ino) == self.host_key => Some(stat),
                    // Nothing leads to it any more: what was seen last must do.
                    _ => None,
                },
            };
            if let Some(stat) = stat {
                self.refresh(&stat);
            }
        }
        Ok(*self.attrs.lock())
    }

    fn owner(&self) -> Result<Owner, Errno> {
        Ok(self.attrs.lock().owner())
    }

    fn set_attrs(&self, change: &SetAttrs) -> Result<(), Errno> {
        let open = self.any_open();
        if let Some(size) = change.size {
            match &open {
                Some(Open::File(file)) if !file.writable => {
                    host::fs::truncate(self.open_host(Access::Write)?.as_fd(), size)?
                }
                Some(open) => host::fs::truncate(open.as_fd(), size)?,
                None => host::fs::truncate(self.open_host(Access::Write)?.as_fd(), size)?,
            }
        }
        let fd = open.as_ref().map(|file| file.as_fd());
        if change.uid.is_some() || change.gid.is_some() {
            match fd {
                Some(fd) => host::fs::chown(fd, change.uid, change.gid)?,
                None => {
                    self.by_name(|dir, name| host::fs::chown_at(dir, name, change.uid, change.gid))?
                }
            }
        }
        if let Some(perm) = change.perm {
            match fd {
                Some(fd) => host::fs::chmod(fd, perm)?,
                None => self.by_name(|dir, name| host::fs::chmod_at(dir, name, perm))?,
            }
        }
        if change.atime.is_some() || change.mtime.is_some() {
            let time = |time: Option<SetTime>| match time {
                None => host::fs::SetTime::Omit,
                Some(SetTime::Now) => host::fs::SetTime::Now,
                Some(SetTime::At(time)) => host::fs::SetTime::At(time),
            };
            let (atime, mtime) = (time(change.atime), time(change.mtime));
            match fd {
                Some(fd) => host::fs::utimens(fd, atime, mtime)?,
                None => self.by_name(|dir, name| host::fs::utimens_at(dir, name, atime, mtime))?,
            }
        }
        let stat = match fd {
            Some(fd) => host::fs::stat(fd)?,
            None => self.by_name(host::fs::stat_at)?,
        };
        self.refresh(&stat);
        Ok(())
    }

    fn caching(&self) -> Caching {
        self.fs.caching
    }

    fn revalidate(&self, name: &[u8], child: &Arc<dyn Inode>) -> Result<bool, Errno> {
        let Ok(child) = ours(child) else {
            return Ok(false);
        };
        match host::fs::stat_at(self.handle()?.as_fd(), name) {
            Ok(stat)
                if (stat.dev, stat.ino) == child.host_key
                    && FileType::from_mode(stat.mode) == Some(child.kind) =>
            {
                child.refresh(&stat);
                child.fresh.store(true, Ordering::Release);
                Ok(true)
            }
            Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        let stat = host::fs::stat_at(self.handle()?.as_fd(), name)?;
        Ok(self.child(name, &stat))
    }

    fn create(&self, name: &[u8], new: &NewNode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        Ok(self.make(name, new)?)
    }

    fn tmpfile(&self, new: &NewNode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        let fd = host::fs::create_unnamed(self.handle()?.as_fd(), new.perm)?;
        let inode = self.adopt(b"", fd, new)?;
        inode.place.lock().gone = true;
        Ok(inode)
    }

    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<(), Errno> {
        let target = ours(target)?;
        let (parent, old) = target.place()?.ok_or(Errno::EXDEV)?;
        host::fs::link(parent.handle()?.as_fd(), &old, self.handle()?.as_fd(), name)?;
        target.fresh.store(false, Ordering::Release);
        Ok(())
    }

    fn unlink(&self, name: &[u8], child: &Arc<dyn Inode>) -> Result<(), Errno> {
        host::fs::unlink(self.handle()?.as_fd(), name, false)?;
        if let Ok(child) = ours(child) {
            child.fresh.store(false, Ordering::Release);
            child.forget_name(self, name);
        }
        Ok(())
    }

    fn rmdir(&self, name: &[u8], child: &Arc<dyn Inode>) -> Result<(), Errno> {
        host::fs::unlink(self.handle()?.as_fd(), name, true)?;
        if let Ok(child) = ours(child) {
            child.unnamed();
        }
        Ok(())
    }

    fn rename(
        &self,
        from: RenameEnd<'_>,
        to: RenameEnd<'_>,
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let (old, new) = (ours(from.dir)?, ours(to.dir)?);
        host::fs::rename(
            old.handle()?.as_fd(),
            from.name,
            new.handle()?.as_fd(),
            to.name,
            flags,
        )?;
        if let Some(child) = from.child {
            ours(child)?.moved(&new, to.name);
        }
        if let Some(child) = to.child {
            let child = ours(child)?;
            child.fresh.store(false, Ordering::Release);
            if flags.contains(RenameFlags::EXCHANGE) {
                child.moved(&old, from.name);
            } else {
                child.forget_name(&new, to.name);
            }
        }
        Ok(())
    }

    fn readlink(&self) -> Result<Vec<u8>, Errno> {
        self.by_name(host::fs::readlink)
    }

    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        // Without a descriptor that can be opened (links, sockets) they read as absent.
        match self.open_any() {
            Ok(fd) => host::fs::xattr(fd.as_fd(), name),
            Err(Errno::EOPNOTSUPP) => Err(Errno::ENODATA),
            Err(error) => Err(error),
        }
    }

    fn xattrs(&self) -> Result<Vec<Vec<u8>>, Errno> {
        match self.open_any() {
            Ok(fd) => host::fs::xattrs(fd.as_fd()),
            Err(Errno::EOPNOTSUPP) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], how: SetXattr) -> Result<(), Errno> {
        // Only names of the guest's own: others would act on the host.
        if !name.starts_with(b"user.") {
            return Err(Errno::EOPNOTSUPP);
        }
        let flags = match how {
            SetXattr::Any => 0,
            SetXattr::Create => 1,
            SetXattr::Replace => 2,
        };
        host::fs::set_xattr(self.open_any()?.as_fd(), name, value, flags)
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        if !name.starts_with(b"user.") {
            return Err(Errno::EOPNOTSUPP);
        }
        host::fs::remove_xattr(self.open_any()?.as_fd(), name)
    }

    fn open(
        self: Arc<Self>,
        flags: OpenFlags,
        _creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno> {
        match self.kind {
            FileType::Directory => Ok(Arc::new(DirOps::new(self))),
            FileType::Regular => {
                let access = match flags & OpenFlags::ACCMODE {
                    OpenFlags::WRONLY => Access::Write,
                    access if access.is_empty() && !flags.contains(OpenFlags::TRUNC) => {
                        Access::Read
                    }
                    _ => Access::ReadWrite,
                };
                let file = self.open_host(access)?;
                if flags.contains(OpenFlags::TRUNC) {
                    host::fs::truncate(file.as_fd(), 0)?;
                    self.fresh.store(false, Ordering::Release);
                }
                Ok(Arc::new(FileOpsOf::new(self, file)))
            }
            _ => Err(Errno::ENXIO),
        }
    }
}

impl HostInode {
    /// One of its names was taken away: where that is the one it is known by, it is known by none.
    fn forget_name(&self, dir: &HostInode, name: &[u8]) {
        let place = self.place.lock();
        let known = place
            .parent
            .as_ref()
            .is_some_and(|parent| parent.id == dir.id)
            && *place.name == *name;
        drop(place);
        if known {
            self.unnamed();
        }
    }
}
