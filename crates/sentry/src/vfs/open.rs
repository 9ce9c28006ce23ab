//! open(2), openat2(2), and what they make of each type of file.

use std::borrow::Cow;
use std::sync::Arc;

use abi::Errno;
use abi::cap::Cap;
use abi::fs::{FileType, MountFlags, OpenFlags, ResolveFlags};

use super::dentry::{Dentry, Location};
use super::file::{FileOps, OpenFile};
use super::inode::{Inode, InodeKey, NewKind, NewNode};
use super::permission::{self, EXEC, READ, WRITE};
use super::walk::{LastName, Walker};
use super::{PathCx, Vfs};
use crate::fs::pipe;
use crate::task::credentials::Credentials;

/// The operations of a file that is opened for its place only.
struct PathOps;
impl FileOps for PathOps {}

impl Vfs {
    /// open(2), openat(2), openat2(2). `mode` is what a new file gets, less the umask. A FIFO that would wait for its other side
    /// is open, and [`OpenFile::open_pending`] until the other side came.
    pub fn open(
        &self,
        cx: &PathCx<'_>,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        resolve: ResolveFlags,
    ) -> Result<Arc<OpenFile>, Errno> {
        if flags.contains(OpenFlags::PATH) {
            return self.open_path(cx, path, flags, resolve);
        }
        let writes = flags & OpenFlags::ACCMODE == OpenFlags::WRONLY
            || flags & OpenFlags::ACCMODE == OpenFlags::RDWR;
        if flags.contains(OpenFlags::TMPFILE_ONLY) {
            if !flags.contains(OpenFlags::DIRECTORY) || flags.contains(OpenFlags::CREAT) || !writes
            {
                return Err(Errno::EINVAL);
            }
            return self.open_unnamed(cx, path, flags, mode, resolve);
        }
        if flags.contains(OpenFlags::CREAT | OpenFlags::DIRECTORY) {
            return Err(Errno::EINVAL);
        }
        if flags.contains(OpenFlags::CREAT) {
            return self.open_or_create(cx, path, flags, mode, resolve);
        }
        let follow = !flags.contains(OpenFlags::NOFOLLOW);
        let place = self.resolve(cx, path, follow, resolve)?;
        self.open_place(cx.creds, place, flags, false)
    }

    /// Opens a place that was found before, checking permission.
    pub fn open_location(
        &self,
        creds: &Credentials,
        place: Location,
        flags: OpenFlags,
    ) -> Result<Arc<OpenFile>, Errno> {
        self.open_place(creds, place, flags, false)
    }

    /// Opens a file that is to be run (execve(2)): EACCES unless it is a regular file with permission to run it, on a mount that allows it; ETXTBSY where
    /// it is open for writing.
    /// With `at` an empty path means `dirfd` itself.
    pub fn open_exec(
        &self,
        cx: &PathCx<'_>,
        path: &[u8],
        at: abi::fs::AtFlags,
    ) -> Result<Arc<OpenFile>, Errno> {
        let place = if path.is_empty() && at.contains(abi::fs::AtFlags::EMPTY_PATH) {
            let file = cx.dirfd.as_ref().ok_or(Errno::EACCES)?;
            file.location().cloned().ok_or(Errno::EACCES)?
        } else {
            let follow = !at.contains(abi::fs::AtFlags::SYMLINK_NOFOLLOW);
            self.resolve(cx, path, follow, ResolveFlags::empty())?
        };
        let inode = place.inode();
        match inode.file_type() {
            FileType::Symlink => return Err(Errno::ELOOP),
            FileType::Regular => {}
            _ => return Err(Errno::EACCES),
        }
        if place.mount.flags().contains(MountFlags::NOEXEC) {
            return Err(Errno::EACCES);
        }
        permission::check(inode.owner()?, cx.creds, EXEC)?;
        // Whoever runs it for long says so by itself.
        drop(self.uses().run(inode.key())?);
        let ops = Arc::clone(inode).open(OpenFlags::empty(), cx.creds)?;
        let inode = Arc::clone(inode);
        Ok(OpenFile::new(place, inode, ops, OpenFlags::empty()))
    }

    fn open_path(
        &self,
        cx: &PathCx<'_>,
        path: &[u8],
        flags: OpenFlags,
        resolve: ResolveFlags,
    ) -> Result<Arc<OpenFile>, Errno> {
        let place = self.resolve(cx, path, !flags.contains(OpenFlags::NOFOLLOW), resolve)?;
        if flags.contains(OpenFlags::DIRECTORY) && place.inode().file_type() != FileType::Directory
        {
            return Err(Errno::ENOTDIR);
        }
        let inode = Arc::clone(place.inode());
        let flags = flags & (OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW);
        Ok(OpenFile::new(place, inode, Arc::new(PathOps), flags))
    }

    fn open_unnamed(
        &self,
        cx: &PathCx<'_>,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        resolve: ResolveFlags,
    ) -> Result<Arc<OpenFile>, Errno> {
        let dir = self.resolve(cx, path, true, resolve)?;
        if dir.inode().file_type() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        dir.mount.check_writable()?;
        let owner = dir.inode().owner()?;
        permission::check(owner, cx.creds, WRITE | EXEC)?;
        let perm = mode & 0o7777 & !cx.fs.umask();
        let (perm, gid) = permission::inherit(owner, cx.creds, false, perm);
        let inode = dir.inode().tmpfile(&NewNode {
            kind: NewKind::File,
            perm,
            uid: cx.creds.uid.fs,
            gid,
        })?;
        let name = format!("#{}", inode.key().ino);
        let dentry = Dentry::detached(&dir.dentry, name.as_bytes(), inode);
        dentry.kill();
        let place = Location {
            mount: dir.mount,
            dentry,
        };
        self.open_place(cx.creds, place, flags, true)
    }

    fn open_or_create(
        &self,
        cx: &PathCx<'_>,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        resolve: ResolveFlags,
    ) -> Result<Arc<OpenFile>, Errno> {
        let mut walker = Walker::new(self, cx, path, resolve)?;
        let mut path = Cow::Borrowed(path);
        loop {
            let last = walker.parent(path)?;
            let name = match &last.name {
                LastName::Name(name) if !last.slash => name,
                _ => return Err(Errno::EISDIR),
            };
            let dir = &last.dir;
            let (child, made) = match self.child(&dir.dentry, name)? {
                Some(child) => (child, false),
                None => self.create_file(cx, dir, name, mode)?,
            };
            if made {
                let place = Location {
                    mount: Arc::clone(&dir.mount),
                    dentry: child,
                };
                return self.open_place(cx.creds, place, flags, true);
            }
            if flags.contains(OpenFlags::EXCL) {
                return Err(Errno::EEXIST);
            }
            if child.inode().file_type() == FileType::Symlink {
                if flags.contains(OpenFlags::NOFOLLOW) {
                    return Err(Errno::ELOOP);
                }
                if let Some(target) = walker.follow(&child)? {
                    path = Cow::Owned(target);
                    continue;
                }
            } else {
                walker.enter(child)?;
            }
            let place = walker.into_location();
            if place.inode().file_type() == FileType::Directory {
                return Err(Errno::EISDIR);
            }
            return self.open_place(cx.creds, place, flags, false);
        }
    }

    /// Makes a file, unless somebody was faster; says whether it did.
    fn create_file(
        &self,
        cx: &PathCx<'_>,
        dir: &Location,
        name: &[u8],
        mode: u32,
    ) -> Result<(Arc<Dentry>, bool), Errno> {
        let _held = dir.dentry.lock();
        if let Some(child) = self.child_locked(&dir.dentry, name)? {
            return Ok((child, false));
        }
        let perm = mode & 0o7777 & !cx.fs.umask();
        Ok((
            self.create_locked(cx, dir, name, NewKind::File, perm)?,
            true,
        ))
    }

    /// Makes an entry. The directory's lock is held, and nothing of this name is there.
    pub(super) fn create_locked(
        &self,
        cx: &PathCx<'_>,
        dir: &Location,
        name: &[u8],
        kind: NewKind<'_>,
        perm: u32,
    ) -> Result<Arc<Dentry>, Errno> {
        dir.mount.check_writable()?;
        if dir.dentry.is_dead() {
            return Err(Errno::ENOENT);
        }
        let owner = dir.inode().owner()?;
        permission::check(owner, cx.creds, WRITE | EXEC)?;
        let directory = matches!(kind, NewKind::Directory);
        let (perm, gid) = permission::inherit(owner, cx.creds, directory, perm);
        let inode = dir.inode().create(
            name,
            &NewNode {
                kind,
                perm,
                uid: cx.creds.uid.fs,
                gid,
            },
        )?;
        Ok(if dir.dentry.keeps(name) {
            self.cache.insert(&dir.dentry, name, inode)
        } else {
            Dentry::detached(&dir.dentry, name, inode)
        })
    }

    fn open_place(
        &self,
        creds: &Credentials,
        place: Location,
        flags: OpenFlags,
        made: bool,
    ) -> Result<Arc<OpenFile>, Errno> {
        let inode = place.inode();
        let kind = inode.file_type();
        if kind == FileType::Symlink {
            return Err(Errno::ELOOP);
        }
        if flags.contains(OpenFlags::DIRECTORY)
            && kind != FileType::Directory
            && !flags.contains(OpenFlags::TMPFILE_ONLY)
        {
            return Err(Errno::ENOTDIR);
        }
        let access = flags & OpenFlags::ACCMODE;
        let writes = !access.is_empty() || flags.contains(OpenFlags::TRUNC);
        if kind == FileType::Directory && writes {
            return Err(Errno::EISDIR);
        }
        if !made {
            let mut want = if writes { WRITE } else { 0 };
            if access != OpenFlags::WRONLY {
                want |= READ;
            }
            let owner = inode.owner()?;
            permission::check(owner, creds, want)?;
            if flags.contains(OpenFlags::NOATIME) && !permission::owns(owner, creds) {
                return Err(Errno::EPERM);
            }
        }
        let mount_flags = place.mount.flags();
        if writes && kind == FileType::Regular {
            place.mount.check_writable()?;
        }
        let writing = (writes && kind == FileType::Regular)
            .then(|| self.uses().write(inode.key()))
            .transpose()?;
        let ops = match kind {
            FileType::Regular | FileType::Directory => {
                let mut how = flags.difference(OpenFlags::CREAT | OpenFlags::EXCL);
                if made {
                    how.remove(OpenFlags::TRUNC);
                }
                Arc::clone(inode).open(how, creds)?
            }
            FileType::CharDevice | FileType::BlockDevice
                if mount_flags.contains(MountFlags::NODEV) =>
            {
                return Err(Errno::EACCES);
            }
            _ => self.open_special(inode, kind, flags, creds)?,
        };
        let inode = Arc::clone(inode);
        let strips = kind == FileType::Regular && !creds.has(Cap::FSETID);
        let file = OpenFile::writing(
            place,
            inode,
            ops,
            flags.difference(OpenFlags::TMPFILE_ONLY),
            writing,
        );
        if strips {
            file.set_strips();
        }
        Ok(file)
    }

    /// Opens what the file system itself may not know how to: FIFOs, devices. Sockets can't be opened (ENXIO).
    fn open_special(
        &self,
        inode: &Arc<dyn Inode>,
        kind: FileType,
        flags: OpenFlags,
        creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno> {
        match Arc::clone(inode).open(flags, creds) {
            Err(Errno::ENXIO) => {}
            opened => return opened,
        }
        match kind {
            FileType::Fifo => {
                let pipe = self.fifo(inode.key());
                pipe::open_fifo(&pipe, flags)
            }
            FileType::CharDevice => {
                let rdev = inode.attrs()?.rdev;
                let open = self.devices.lock().get(&rdev).cloned();
                open.ok_or(Errno::ENXIO)?.open(inode, flags, creds)
            }
            _ => Err(Errno::ENXIO),
        }
    }

    /// The pipe behind a FIFO, the same for all who have it open.
    fn fifo(&self, key: InodeKey) -> Arc<pipe::Pipe> {
        let mut fifos = self.fifos.lock();
        if let Some(pipe) = fifos.get(&key).and_then(std::sync::Weak::upgrade) {
            return pipe;
        }
        fifos.retain(|_, pipe| pipe.strong_count() > 0);
        let pipe = pipe::Pipe::new();
        fifos.insert(key, Arc::downgrade(&pipe));
        pipe
    }
}

/// What opens a character device, by device number.
pub trait CharDevice: Send + Sync {
    /// Opens it.
    fn open(
        &self,
        inode: &Arc<dyn Inode>,
        flags: OpenFlags,
        creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno>;
}

/// Whether these credentials may make device nodes.
pub(super) fn may_make_devices(creds: &Credentials) -> bool {
    creds.has(Cap::MKNOD)
}
