//! Calls that read and change attributes: stat(2), chmod(2), chown(2), utimensat(2), truncate(2), access(2), statfs(2), xattr(7).

use std::sync::Arc;

use abi::Errno;
use abi::cap::Cap;
use abi::fs::{AtFlags, FileType, MountFlags, ResolveFlags, S_ISGID, S_ISVTX, Statfs, Statx};

use super::dentry::Location;
use super::file::OpenFile;
use super::inode::{Attrs, Inode, SetAttrs, SetTime, SetXattr};
use super::mount::Mount;
use super::permission::{self, EXEC, READ, WRITE};
use super::{PathCx, Vfs};
use crate::task::credentials::{Credentials, NO_ID};

/// The longest value of an extended attribute (`XATTR_SIZE_MAX`).
const XATTR_SIZE_MAX: usize = 65536;

/// A file to act on: by a path, or by a descriptor.
#[derive(Clone)]
pub struct Target {
    /// The file.
    pub inode: Arc<dyn Inode>,
    /// The mount through which it was reached; `None` for what has no place.
    pub mount: Option<Arc<Mount>>,
    /// Whether it is its mount's root.
    pub mount_root: bool,
}

impl Target {
    fn check_writable(&self) -> Result<(), Errno> {
        self.mount
            .as_ref()
            .map_or(Ok(()), |mount| mount.check_writable())
    }
}

impl From<&Location> for Target {
    fn from(place: &Location) -> Self {
        Target {
            inode: Arc::clone(place.inode()),
            mount_root: Arc::ptr_eq(&place.dentry, place.mount.root()),
            mount: Some(Arc::clone(&place.mount)),
        }
    }
}

impl From<&OpenFile> for Target {
    fn from(file: &OpenFile) -> Self {
        match file.location() {
            Some(place) => Target::from(place),
            None => Target {
                inode: Arc::clone(file.inode()),
                mount: None,
                mount_root: false,
            },
        }
    }
}

impl Vfs {
    /// What the `*at` calls act on: `AT_SYMLINK_NOFOLLOW` leaves a last link alone, with `AT_EMPTY_PATH` an empty path means `dirfd`
    /// itself (or the working directory).
    pub fn target(&self, cx: &PathCx<'_>, path: &[u8], flags: AtFlags) -> Result<Target, Errno> {
        if path.is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
            return Ok(match &cx.dirfd {
                Some(file) => Target::from(&**file),
                None => Target::from(&cx.fs.cwd()),
            });
        }
        let follow = !flags.contains(AtFlags::SYMLINK_NOFOLLOW);
        Ok(Target::from(&self.resolve(
            cx,
            path,
            follow,
            ResolveFlags::empty(),
        )?))
    }

    /// stat(2), lstat(2), fstatat(2).
    pub fn stat(&self, cx: &PathCx<'_>, path: &[u8], flags: AtFlags) -> Result<Attrs, Errno> {
        if path.is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
            return match &cx.dirfd {
                Some(file) => file.attrs(),
                None => cx.fs.cwd().inode().attrs(),
            };
        }
        let follow = !flags.contains(AtFlags::SYMLINK_NOFOLLOW);
        self.resolve(cx, path, follow, ResolveFlags::empty())?
            .inode()
            .attrs()
    }

    /// statx(2).
    pub fn statx(&self, cx: &PathCx<'_>, path: &[u8], flags: AtFlags) -> Result<Statx, Errno> {
        let target = self.target(cx, path, flags)?;
        let mut statx = target.inode.attrs()?.to_statx();
        if let Some(mount) = &target.mount {
            statx.mask |= abi::fs::STATX_MNT_ID;
            statx.mnt_id = mount.id();
        }
        statx.attributes_mask |= abi::fs::STATX_ATTR_MOUNT_ROOT;
        if target.mount_root {
            statx.attributes |= abi::fs::STATX_ATTR_MOUNT_ROOT;
        }
        Ok(statx)
    }

    /// chmod(2).
    pub fn chmod(&self, creds: &Credentials, target: &Target, mode: u32) -> Result<(), Errno> {
        target.check_writable()?;
        let owner = target.inode.owner()?;
        if !permission::owns(owner, creds) {
            return Err(Errno::EPERM);
        }
        if target.inode.file_type() == FileType::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut perm = mode & 0o7777;
        if !creds.in_group(owner.gid) && !creds.has(Cap::FSETID) {
            perm &= !S_ISGID;
        }
        target.inode.set_attrs(&SetAttrs {
            perm: Some(perm),
            ..SetAttrs::default()
        })
    }

    /// chown(2): an id of -1 leaves it as it is.
    pub fn chown(
        &self,
        creds: &Credentials,
        target: &Target,
        uid: u32,
        gid: u32,
    ) -> Result<(), Errno> {
        target.check_writable()?;
        let owner = target.inode.owner()?;
        let pick = |id: u32| (id != NO_ID).then_some(id);
        let (uid, gid) = (pick(uid), pick(gid));
        if !creds.has(Cap::CHOWN) {
            let mine = creds.uid.fs == owner.uid;
            if uid.is_some_and(|uid| !mine || uid != owner.uid)
                || gid.is_some_and(|gid| !mine || gid != owner.gid && !creds.in_group(gid))
            {
                return Err(Errno::EPERM);
            }
        }
        let perm = if target.inode.file_type() == FileType::Directory {
            None
        } else {
            permission::without_setid(owner.mode)
        };
        target.inode.set_attrs(&SetAttrs {
            perm,
            uid,
            gid,
            ..SetAttrs::default()
        })
    }

    /// utimensat(2): `None` leaves a time as it is.
    pub fn utimens(
        &self,
        creds: &Credentials,
        target: &Target,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<(), Errno> {
        if atime.is_none() && mtime.is_none() {
            return Ok(());
        }
        target.check_writable()?;
        let owner = target.inode.owner()?;
        if !permission::owns(owner, creds) {
            // To now, both, may be done by whoever may write.
            if atime != Some(SetTime::Now) || mtime != Some(SetTime::Now) {
                return Err(Errno::EPERM);
            }
            permission::check(owner, creds, WRITE)?;
        }
        target.inode.set_attrs(&SetAttrs {
            atime,
            mtime,
            ..SetAttrs::default()
        })
    }

    /// truncate(2).
    pub fn truncate(&self, cx: &PathCx<'_>, path: &[u8], size: i64) -> Result<(), Errno> {
        let size = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
        let place = self.resolve(cx, path, true, ResolveFlags::empty())?;
        match place.inode().file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        place.mount.check_writable()?;
        let owner = place.inode().owner()?;
        permission::check(owner, cx.creds, WRITE)?;
        let perm = if cx.creds.has(Cap::FSETID) {
            None
        } else {
            permission::without_setid(owner.mode)
        };
        let _writes = self.uses().write(place.inode().key())?;
        place.inode().set_attrs(&SetAttrs {
            size: Some(size),
            perm,
            ..SetAttrs::default()
        })
    }

    /// access(2), faccessat2(2): `want` is `R_OK | W_OK | X_OK`, 0 for existence. The real ids count, unless `AT_EACCESS`.
    pub fn access(
        &self,
        cx: &PathCx<'_>,
        path: &[u8],
        want: u32,
        flags: AtFlags,
    ) -> Result<(), Errno> {
        if want & !7 != 0 {
            return Err(Errno::EINVAL);
        }
        let creds;
        let real;
        let cx = if flags.contains(AtFlags::EACCESS)
            || cx.creds.uid.real == cx.creds.uid.fs && cx.creds.gid.real == cx.creds.gid.fs
        {
            cx
        } else {
            creds = cx.creds.for_access();
            real = PathCx {
                fs: cx.fs,
                creds: &creds,
                dirfd: cx.dirfd.clone(),
            };
            &real
        };
        let target = self.target(cx, path, flags.difference(AtFlags::EACCESS))?;
        if want == 0 {
            return Ok(());
        }
        let kind = target.inode.file_type();
        if want & EXEC != 0
            && kind == FileType::Regular
            && target
                .mount
                .as_ref()
                .is_some_and(|mount| mount.flags().contains(MountFlags::NOEXEC))
        {
            return Err(Errno::EACCES);
        }
        permission::check(target.inode.owner()?, cx.creds, want)?;
        if want & WRITE != 0
            && matches!(
                kind,
                FileType::Regular | FileType::Directory | FileType::Symlink
            )
        {
            target.check_writable()?;
        }
        Ok(())
    }

    /// statfs(2), fstatfs(2).
    pub fn statfs(&self, target: &Target) -> Result<Statfs, Errno> {
        let Some(mount) = &target.mount else {
            return Ok(Statfs {
                kind: 0x0904_1934,
                bsize: 4096,
                frsize: 4096,
                namelen: 255,
                ..Statfs::default()
            });
        };
        let mut statfs = mount.fs().statfs()?;
        let flags = mount.flags();
        // ST_VALID, and MS_* bits as ST_* where they are the same.
        statfs.flags = 0x20;
        for (flag, bit) in [
            (MountFlags::RDONLY, 1),
            (MountFlags::NOSUID, 2),
            (MountFlags::NODEV, 4),
            (MountFlags::NOEXEC, 8),
            (MountFlags::NOATIME, 0x400),
            (MountFlags::NODIRATIME, 0x800),
            (MountFlags::RELATIME, 0x1000),
        ] {
            if flags.contains(flag) {
                statfs.flags |= bit;
            }
        }
        Ok(statfs)
    }

    /// getxattr(2): ENODATA.
    pub fn xattr(
        &self,
        creds: &Credentials,
        target: &Target,
        name: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        check_xattr(creds, &target.inode, name, false)?;
        target.inode.xattr(name)
    }

    /// listxattr(2): the names, each with its NUL.
    pub fn xattrs(&self, creds: &Credentials, target: &Target) -> Result<Vec<u8>, Errno> {
        let mut list = Vec::new();
        for name in target.inode.xattrs()? {
            if name.starts_with(b"trusted.") && !creds.has(Cap::SYS_ADMIN) {
                continue;
            }
            list.extend_from_slice(&name);
            list.push(0);
        }
        Ok(list)
    }

    /// setxattr(2).
    pub fn set_xattr(
        &self,
        creds: &Credentials,
        target: &Target,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), Errno> {
        target.check_writable()?;
        if value.len() > XATTR_SIZE_MAX {
            return Err(Errno::E2BIG);
        }
        check_xattr(creds, &target.inode, name, true)?;
        target.inode.set_xattr(name, value, how)
    }

    /// removexattr(2).
    pub fn remove_xattr(
        &self,
        creds: &Credentials,
        target: &Target,
        name: &[u8],
    ) -> Result<(), Errno> {
        target.check_writable()?;
        check_xattr(creds, &target.inode, name, true)?;
        target.inode.remove_xattr(name)
    }
}

/// Who may touch which extended attribute (xattr(7)).
fn check_xattr(
    creds: &Credentials,
    inode: &Arc<dyn Inode>,
    name: &[u8],
    write: bool,
) -> Result<(), Errno> {
    if name.is_empty() || name.len() > 255 {
        return Err(Errno::ERANGE);
    }
    if name.starts_with(b"user.") {
        if !matches!(inode.file_type(), FileType::Regular | FileType::Directory) {
            return Err(if write { Errno::EPERM } else { Errno::ENODATA });
        }
        let owner = inode.owner()?;
        if write
            && inode.file_type() == FileType::Directory
            && owner.mode & S_ISVTX != 0
            && !permission::owns(owner, creds)
        {
            return Err(Errno::EPERM);
        }
        return permission::check(owner, creds, if write { WRITE } else { READ });
    }
    if name.starts_with(b"trusted.") {
        if creds.has(Cap::SYS_ADMIN) {
            return Ok(());
        }
        return Err(if write { Errno::EPERM } else { Errno::ENODATA });
    }
    if name.starts_with(b"security.") {
        if write
            && !creds.has(Cap::SYS_ADMIN)
            && !(name == b"security.capability" && creds.has(Cap::SETFCAP))
        {
            return Err(Errno::EPERM);
        }
        return Ok(());
    }
    // POSIX ACLs (`system.`) and namespaces that are not there.
    Err(Errno::EOPNOTSUPP)
}
