//! Calls that change names: mkdir(2), mknod(2), symlink(2), link(2), unlink(2), rmdir(2), rename(2).

use std::borrow::Cow;
use std::sync::Arc;

use abi::Errno;
use abi::cap::Cap;
use abi::fs::{AtFlags, FileType, OpenFlags, PATH_MAX, RenameFlags, ResolveFlags, S_ISVTX};

use super::dentry::{Dentry, Location};
use super::inode::{Inode, NewKind, RenameEnd};
use super::permission::{self, EXEC, WRITE};
use super::walk::{Last, LastName, Walker};
use super::{PathCx, Vfs};

impl Vfs {
    fn parent<'p>(&self, cx: &PathCx<'_>, path: &'p [u8]) -> Result<Last<'p>, Errno> {
        Walker::new(self, cx, path, ResolveFlags::empty())?.parent(Cow::Borrowed(path))
    }

    /// Makes an entry; EEXIST where there is one, which goes before permission as on Linux.
    fn make(
        &self,
        cx: &PathCx<'_>,
        path: &[u8],
        kind: NewKind<'_>,
        perm: u32,
    ) -> Result<Arc<Dentry>, Errno> {
        let last = self.parent(cx, path)?;
        let name = last.name.name(Errno::EEXIST)?;
        let _held = last.dir.dentry.lock();
        if self.child_locked(&last.dir.dentry, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        if last.slash && !matches!(kind, NewKind::Directory) {
            return Err(Errno::ENOENT);
        }
        self.create_locked(cx, &last.dir, name, kind, perm)
    }

    /// mkdir(2).
    pub fn mkdir(&self, cx: &PathCx<'_>, path: &[u8], mode: u32) -> Result<(), Errno> {
        let perm = mode & (0o777 | S_ISVTX) & !cx.fs.umask();
        self.make(cx, path, NewKind::Directory, perm).map(drop)
    }

    /// mknod(2): devices ask for CAP_MKNOD.
    pub fn mknod(&self, cx: &PathCx<'_>, path: &[u8], mode: u32, dev: u64) -> Result<(), Errno> {
        let kind = match mode & abi::fs::S_IFMT {
            0 | abi::fs::S_IFREG => NewKind::File,
            abi::fs::S_IFIFO => NewKind::Fifo,
            abi::fs::S_IFSOCK => NewKind::Socket,
            abi::fs::S_IFCHR => NewKind::CharDevice(dev),
            abi::fs::S_IFBLK => NewKind::BlockDevice(dev),
            abi::fs::S_IFDIR => return Err(Errno::EPERM),
            _ => return Err(Errno::EINVAL),
        };
        if matches!(kind, NewKind::CharDevice(_) | NewKind::BlockDevice(_))
            && !super::open::may_make_devices(cx.creds)
        {
            return Err(Errno::EPERM);
        }
        self.make(cx, path, kind, mode & 0o7777 & !cx.fs.umask())
            .map(drop)
    }

    /// Makes a socket's name (bind(2) of a UNIX socket). EADDRINUSE where the name is taken.
    pub fn bind_socket(
        &self,
        cx: &PathCx<'_>,
        path: &[u8],
        mode: u32,
    ) -> Result<Arc<dyn Inode>, Errno> {
        match self.make(cx, path, NewKind::Socket, mode & 0o7777 & !cx.fs.umask()) {
            Ok(dentry) => Ok(Arc::clone(dentry.inode())),
            Err(Errno::EEXIST) => Err(Errno::EADDRINUSE),
            Err(error) => Err(error),
        }
    }

    /// The socket that connect(2) finds at a path: EACCES without write permission, ECONNREFUSED where it is no socket.
    pub fn find_socket(&self, cx: &PathCx<'_>, path: &[u8]) -> Result<super::InodeKey, Errno> {
        const WRITE: u32 = 2;
        let place = self.resolve(cx, path, true, ResolveFlags::empty())?;
        let inode = place.inode();
        super::permission::check(inode.owner()?, cx.creds, WRITE)?;
        if inode.file_type() != abi::fs::FileType::Socket {
            return Err(Errno::ECONNREFUSED);
        }
        Ok(inode.key())
    }

    /// symlink(2).
    pub fn symlink(&self, cx: &PathCx<'_>, target: &[u8], path: &[u8]) -> Result<(), Errno> {
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        self.make(cx, path, NewKind::Symlink(target), 0o777)
            .map(drop)
    }

    /// link(2), linkat(2): `from` as `cx` sees it, `to` relative to `to_cx`.
    pub fn link(
        &self,
        cx: &PathCx<'_>,
        from: &[u8],
        to_cx: &PathCx<'_>,
        to: &[u8],
        flags: AtFlags,
    ) -> Result<(), Errno> {
        let source = if from.is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
            let file = cx.dirfd.as_ref().ok_or(Errno::ENOENT)?;
            if !cx.creds.has(Cap::DAC_READ_SEARCH) && !file.is_path() {
                return Err(Errno::ENOENT);
            }
            file.location().cloned().ok_or(Errno::EXDEV)?
        } else {
            let follow = flags.contains(AtFlags::SYMLINK_FOLLOW);
            self.resolve(cx, from, follow, ResolveFlags::empty())?
        };
        let last = self.parent(to_cx, to)?;
        let name = last.name.name(Errno::EEXIST)?;
        let dir = &last.dir;
        let _held = dir.dentry.lock();
        if self.child_locked(&dir.dentry, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        if last.slash {
            return Err(Errno::ENOENT);
        }
        if !Arc::ptr_eq(&source.mount, &dir.mount) {
            return Err(Errno::EXDEV);
        }
        dir.mount.check_writable()?;
        let inode = source.inode();
        if inode.file_type() == FileType::Directory {
            return Err(Errno::EPERM);
        }
        permission::check(dir.inode().owner()?, to_cx.creds, WRITE | EXEC)?;
        if dir.dentry.is_dead() {
            return Err(Errno::ENOENT);
        }
        dir.inode().link(name, inode)?;
        // Looked up anew when it is next asked for: an inode may know itself by one name only.
        self.cache.forget(&dir.dentry, name);
        Ok(())
    }

    /// unlink(2), and unlinkat(2) without `AT_REMOVEDIR`.
    pub fn unlink(&self, cx: &PathCx<'_>, path: &[u8]) -> Result<(), Errno> {
        let last = self.parent(cx, path)?;
        let name = last.name.name(Errno::EISDIR)?;
        let dir = &last.dir;
        let held = dir.dentry.lock();
        let child = self.child_locked(&dir.dentry, name)?.ok_or(Errno::ENOENT)?;
        let directory = child.inode().file_type() == FileType::Directory;
        if last.slash {
            return Err(if directory {
                Errno::EISDIR
            } else {
                Errno::ENOTDIR
            });
        }
        dir.mount.check_writable()?;
        permission::check_delete(dir.inode().owner()?, child.inode().owner()?, cx.creds)?;
        if directory {
            return Err(Errno::EISDIR);
        }
        if self.mounts.covering(&dir.mount, &child).is_some() {
            return Err(Errno::EBUSY);
        }
        dir.inode().unlink(name, child.inode())?;
        self.cache.unlink(&dir.dentry, &child);
        drop(held);
        Ok(())
    }

    /// rmdir(2), and unlinkat(2) with `AT_REMOVEDIR`.
    pub fn rmdir(&self, cx: &PathCx<'_>, path: &[u8]) -> Result<(), Errno> {
        let last = self.parent(cx, path)?;
        let name = match &last.name {
            LastName::Name(name) => name,
            LastName::Dot if path.iter().all(|byte| *byte == b'/') => return Err(Errno::EBUSY),
            LastName::Dot => return Err(Errno::EINVAL),
            LastName::DotDot => return Err(Errno::ENOTEMPTY),
        };
        let dir = &last.dir;
        let held = dir.dentry.lock();
        let child = self.child_locked(&dir.dentry, name)?.ok_or(Errno::ENOENT)?;
        dir.mount.check_writable()?;
        permission::check_delete(dir.inode().owner()?, child.inode().owner()?, cx.creds)?;
        if child.inode().file_type() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        if child.mounted.load(core::sync::atomic::Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        dir.inode().rmdir(name, child.inode())?;
        self.cache.unlink(&dir.dentry, &child);
        drop(held);
        Ok(())
    }

    /// rename(2), renameat2(2): `from` as `cx` sees it, `to` as `to_cx` does.
    pub fn rename(
        &self,
        cx: &PathCx<'_>,
        from: &[u8],
        to_cx: &PathCx<'_>,
        to: &[u8],
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        if flags.contains(RenameFlags::EXCHANGE)
            && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT)
            || flags.contains(RenameFlags::WHITEOUT)
        {
            return Err(Errno::EINVAL);
        }
        let (old, new) = (self.parent(cx, from)?, self.parent(to_cx, to)?);
        if !Arc::ptr_eq(&old.dir.mount, &new.dir.mount) {
            return Err(Errno::EXDEV);
        }
        let old_name = old.name.name(Errno::EBUSY)?;
        let new_name = new.name.name(if flags.contains(RenameFlags::NOREPLACE) {
            Errno::EEXIST
        } else {
            Errno::EBUSY
        })?;
        let (old_dir, new_dir) = (&old.dir.dentry, &new.dir.dentry);
        // No directory moves while loops are looked for.
        let _renames = (!Arc::ptr_eq(old_dir, new_dir)).then(|| self.renames.lock());
        let _held = Dentry::lock_two(old_dir, new_dir);
        let child = self.child_locked(old_dir, old_name)?.ok_or(Errno::ENOENT)?;
        let target = self.child_locked(new_dir, new_name)?;
        if target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
            return Err(Errno::EEXIST);
        }
        if target.is_none() && flags.contains(RenameFlags::EXCHANGE) {
            return Err(Errno::ENOENT);
        }
        let is_dir = |dentry: &Arc<Dentry>| dentry.inode().file_type() == FileType::Directory;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if !is_dir(&child) && (old.slash || !exchange && new.slash) {
            return Err(Errno::ENOTDIR);
        }
        if exchange && new.slash && target.as_ref().is_some_and(|target| !is_dir(target)) {
            return Err(Errno::ENOTDIR);
        }
        if is_dir(&child) && new_dir.is_within(&child) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = &target
            && old_dir.is_within(target)
        {
            return Err(if exchange {
                Errno::EINVAL
            } else {
                Errno::ENOTEMPTY
            });
        }
        old.dir.mount.check_writable()?;
        // Two names of one file: nothing to do (rename(2)).
        if let Some(target) = &target
            && target.inode().key() == child.inode().key()
        {
            return Ok(());
        }
        self.check_rename(cx, &old.dir, &new.dir, &child, target.as_ref(), exchange)?;
        old_dir.inode().rename(
            RenameEnd {
                dir: old_dir.inode(),
                name: old_name,
                child: Some(child.inode()),
            },
            RenameEnd {
                dir: new_dir.inode(),
                name: new_name,
                child: target.as_ref().map(|target| target.inode()),
            },
            flags,
        )?;
        match target {
            Some(target) if exchange => self.cache.exchange(&child, &target),
            target => {
                if let Some(target) = target {
                    self.cache.unlink(new_dir, &target);
                }
                self.cache.rename(&child, new_dir, new_name);
            }
        }
        Ok(())
    }

    /// Permissions, types and mounts of a rename.
    fn check_rename(
        &self,
        cx: &PathCx<'_>,
        old_dir: &Location,
        new_dir: &Location,
        child: &Arc<Dentry>,
        target: Option<&Arc<Dentry>>,
        exchange: bool,
    ) -> Result<(), Errno> {
        let is_dir = |dentry: &Arc<Dentry>| dentry.inode().file_type() == FileType::Directory;
        let (from, to, moved) = (
            old_dir.inode().owner()?,
            new_dir.inode().owner()?,
            child.inode().owner()?,
        );
        permission::check_delete(from, moved, cx.creds)?;
        match target {
            Some(target) => {
                permission::check_delete(to, target.inode().owner()?, cx.creds)?;
                if !exchange && is_dir(child) != is_dir(target) {
                    return Err(if is_dir(child) {
                        Errno::ENOTDIR
                    } else {
                        Errno::EISDIR
                    });
                }
            }
            None => permission::check(to, cx.creds, WRITE | EXEC)?,
        }
        if new_dir.dentry.is_dead() {
            return Err(Errno::ENOENT);
        }
        // A directory that goes elsewhere gets another `..`.
        if !Arc::ptr_eq(&old_dir.dentry, &new_dir.dentry) {
            if is_dir(child) {
                permission::check(moved, cx.creds, WRITE)?;
            }
            if let Some(target) = target
                && exchange
                && is_dir(target)
            {
                permission::check(target.inode().owner()?, cx.creds, WRITE)?;
            }
        }
        let busy =
            |dentry: &Arc<Dentry>| dentry.mounted.load(core::sync::atomic::Ordering::Acquire) > 0;
        if busy(child) || target.is_some_and(busy) {
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    /// readlink(2), readlinkat(2) with an empty path for `dirfd` itself.
    pub fn readlink(&self, cx: &PathCx<'_>, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let inode = match (&cx.dirfd, path.is_empty()) {
            (Some(file), true) => {
                if !file.flags().contains(OpenFlags::PATH)
                    || file.inode().file_type() != FileType::Symlink
                {
                    return Err(Errno::ENOENT);
                }
                Arc::clone(file.inode())
            }
            _ => Arc::clone(
                self.resolve(cx, path, false, ResolveFlags::empty())?
                    .inode(),
            ),
        };
        if inode.file_type() != FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        inode.readlink()
    }
}
