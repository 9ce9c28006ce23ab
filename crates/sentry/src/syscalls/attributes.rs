//! Attributes: stat(2), access(2), chmod(2), chown(2), utimensat(2), truncate(2), fallocate(2), fsync(2), statfs(2), xattr(7).

use std::sync::Arc;

use abi::fs::{AtFlags, Stat, Statfs, Statx};
use abi::time::{Timespec, Timeval};
use abi::{Errno, UserCStr, UserPtr, UserSlice};

use super::decode::Fd;
use super::io::{check_size, get};
use super::names::{CWD, at_flags, with_path};
use super::table::rows;
use crate::task::Task;
use crate::vfs::{SetTime, SetXattr, Target};

rows! {
    stat => full (self::stat);
    lstat => full (self::lstat);
    fstat => full (self::fstat);
    newfstatat => full (self::newfstatat);
    statx => full (self::statx);
    access => full (self::access);
    faccessat => full (self::faccessat);
    faccessat2 => full (self::faccessat2);
    chmod => full (self::chmod);
    fchmod => full (self::fchmod);
    fchmodat => full (self::fchmodat);
    fchmodat2 => full (self::fchmodat2);
    chown => full (self::chown);
    fchown => full (self::fchown);
    lchown => full (self::lchown);
    fchownat => full (self::fchownat);
    utime => full (self::utime);
    utimes => full (self::utimes);
    futimesat => full (self::futimesat);
    utimensat => full (self::utimensat);
    truncate => full (self::truncate);
    ftruncate => full (self::ftruncate);
    fallocate => full (self::fallocate);
    fadvise64 => partial (self::fadvise64) ("checked, and without effect");
    readahead => partial (self::readahead) ("checked, and without effect");
    fsync => full (self::fsync);
    fdatasync => full (self::fdatasync);
    sync => full (self::sync);
    syncfs => full (self::syncfs);
    sync_file_range => partial (self::sync_file_range) ("syncs the whole file");
    statfs => full (self::statfs);
    fstatfs => full (self::fstatfs);
    ustat => error (ENOSYS) ("file systems have no devices");
    getxattr => full (self::getxattr);
    lgetxattr => full (self::lgetxattr);
    fgetxattr => full (self::fgetxattr);
    setxattr => full (self::setxattr);
    lsetxattr => full (self::lsetxattr);
    fsetxattr => full (self::fsetxattr);
    listxattr => full (self::listxattr);
    llistxattr => full (self::llistxattr);
    flistxattr => full (self::flistxattr);
    removexattr => full (self::removexattr);
    lremovexattr => full (self::lremovexattr);
    fremovexattr => full (self::fremovexattr);
}

fn stat(task: &Arc<Task>, path: UserCStr, to: UserPtr<Stat>) -> Result<(), Errno> {
    newfstatat(task, CWD, path, to, 0)
}

fn lstat(task: &Arc<Task>, path: UserCStr, to: UserPtr<Stat>) -> Result<(), Errno> {
    newfstatat(task, CWD, path, to, AtFlags::SYMLINK_NOFOLLOW.bits())
}

fn fstat(task: &Arc<Task>, fd: Fd, to: UserPtr<Stat>) -> Result<(), Errno> {
    let attrs = task.files().get(fd.0)?.attrs()?;
    task.mm().put(to, &attrs.to_stat())
}

fn newfstatat(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    to: UserPtr<Stat>,
    flags: u32,
) -> Result<(), Errno> {
    let flags = at_flags(
        flags,
        AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH,
    )?;
    let attrs = with_path(task, dirfd, path, |cx, path| {
        task.vfs().stat(cx, path, flags)
    })?;
    task.mm().put(to, &attrs.to_stat())
}

fn statx(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    flags: u32,
    mask: u32,
    to: UserPtr<Statx>,
) -> Result<(), Errno> {
    // AT_STATX_*: how fresh the answer is to be; it always is.
    const SYNC: u32 = 0x6000;
    if mask & 0x8000_0000 != 0 || flags & SYNC == SYNC {
        return Err(Errno::EINVAL);
    }
    let flags = at_flags(
        flags & !SYNC,
        AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH,
    )?;
    let statx = with_path(task, dirfd, path, |cx, path| {
        task.vfs().statx(cx, path, flags)
    })?;
    task.mm().put(to, &statx)
}

fn access(task: &Arc<Task>, path: UserCStr, want: u32) -> Result<(), Errno> {
    faccessat2(task, CWD, path, want, 0)
}

fn faccessat(task: &Arc<Task>, dirfd: Fd, path: UserCStr, want: u32) -> Result<(), Errno> {
    faccessat2(task, dirfd, path, want, 0)
}

fn faccessat2(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    want: u32,
    flags: u32,
) -> Result<(), Errno> {
    let flags = at_flags(
        flags,
        AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH,
    )?;
    with_path(task, dirfd, path, |cx, path| {
        task.vfs().access(cx, path, want, flags)
    })
}

/// The file that a path leads to.
fn target(task: &Arc<Task>, dirfd: Fd, path: UserCStr, flags: AtFlags) -> Result<Target, Errno> {
    with_path(task, dirfd, path, |cx, path| {
        task.vfs().target(cx, path, flags)
    })
}

/// The file of a descriptor, `O_PATH` not among them.
fn opened(task: &Arc<Task>, fd: Fd) -> Result<Target, Errno> {
    Ok(Target::from(&*get(task, fd)?))
}

const FOLLOW: AtFlags = AtFlags::empty();
const NOFOLLOW: AtFlags = AtFlags::SYMLINK_NOFOLLOW;

fn chmod(task: &Arc<Task>, path: UserCStr, mode: u32) -> Result<(), Errno> {
    fchmodat(task, CWD, path, mode)
}

fn fchmod(task: &Arc<Task>, fd: Fd, mode: u32) -> Result<(), Errno> {
    task.vfs().chmod(&task.creds(), &opened(task, fd)?, mode)
}

fn fchmodat(task: &Arc<Task>, dirfd: Fd, path: UserCStr, mode: u32) -> Result<(), Errno> {
    fchmodat2(task, dirfd, path, mode, 0)
}

fn fchmodat2(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    mode: u32,
    flags: u32,
) -> Result<(), Errno> {
    let flags = at_flags(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
    task.vfs()
        .chmod(&task.creds(), &target(task, dirfd, path, flags)?, mode)
}

fn chown(task: &Arc<Task>, path: UserCStr, uid: u32, gid: u32) -> Result<(), Errno> {
    fchownat(task, CWD, path, uid, gid, 0)
}

fn lchown(task: &Arc<Task>, path: UserCStr, uid: u32, gid: u32) -> Result<(), Errno> {
    fchownat(task, CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW.bits())
}

fn fchown(task: &Arc<Task>, fd: Fd, uid: u32, gid: u32) -> Result<(), Errno> {
    task.vfs()
        .chown(&task.creds(), &opened(task, fd)?, uid, gid)
}

fn fchownat(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    uid: u32,
    gid: u32,
    flags: u32,
) -> Result<(), Errno> {
    let flags = at_flags(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
    task.vfs()
        .chown(&task.creds(), &target(task, dirfd, path, flags)?, uid, gid)
}

/// Times to set: the last access, the last change of the data.
type Times = (Option<SetTime>, Option<SetTime>);
const NOW: Times = (Some(SetTime::Now), Some(SetTime::Now));

fn set_times(task: &Arc<Task>, target: &Target, times: Times) -> Result<(), Errno> {
    task.vfs().utimens(&task.creds(), target, times.0, times.1)
}

fn utime(task: &Arc<Task>, path: UserCStr, times: UserPtr<[i64; 2]>) -> Result<(), Errno> {
    let times = match times.non_null() {
        Some(times) => {
            let [access, change] = task.mm().get(times)?;
            let at = |sec| Some(SetTime::At(Timespec { sec, nsec: 0 }));
            (at(access), at(change))
        }
        None => NOW,
    };
    set_times(task, &target(task, CWD, path, FOLLOW)?, times)
}

fn utimes(task: &Arc<Task>, path: UserCStr, times: UserPtr<[Timeval; 2]>) -> Result<(), Errno> {
    futimesat(task, CWD, path, times)
}

fn futimesat(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    times: UserPtr<[Timeval; 2]>,
) -> Result<(), Errno> {
    let times = match times.non_null() {
        Some(times) => {
            let [access, change] = task.mm().get(times)?;
            let at = |time: Timeval| {
                let nsec = Some(time.usec)
                    .filter(|usec| (0..1_000_000).contains(usec))
                    .ok_or(Errno::EINVAL)?
                    * 1000;
                Ok(Some(SetTime::At(Timespec {
                    sec: time.sec,
                    nsec,
                })))
            };
            (at(access)?, at(change)?)
        }
        None => NOW,
    };
    let target = if path.0 == 0 && dirfd != CWD {
        opened(task, dirfd)?
    } else {
        target(task, dirfd, path, FOLLOW)?
    };
    set_times(task, &target, times)
}

fn utimensat(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    times: UserPtr<[Timespec; 2]>,
    flags: u32,
) -> Result<(), Errno> {
    const UTIME_NOW: i64 = 0x3fff_ffff;
    const UTIME_OMIT: i64 = 0x3fff_fffe;
    let times = match times.non_null() {
        Some(times) => {
            let [access, change] = task.mm().get(times)?;
            let at = |time: Timespec| match time.nsec {
                UTIME_NOW => Ok(Some(SetTime::Now)),
                UTIME_OMIT => Ok(None),
                0..1_000_000_000 => Ok(Some(SetTime::At(time))),
                _ => Err(Errno::EINVAL),
            };
            (at(access)?, at(change)?)
        }
        None => NOW,
    };
    if times == (None, None) {
        return Ok(());
    }
    let flags = at_flags(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
    let target = if path.0 == 0 && dirfd != CWD {
        if !flags.is_empty() {
            return Err(Errno::EINVAL);
        }
        opened(task, dirfd)?
    } else {
        target(task, dirfd, path, flags)?
    };
    set_times(task, &target, times)
}

fn truncate(task: &Arc<Task>, path: UserCStr, size: i64) -> Result<(), Errno> {
    check_size(task, size)?;
    with_path(task, CWD, path, |cx, path| {
        task.vfs().truncate(cx, path, size)
    })
}

fn ftruncate(task: &Arc<Task>, fd: Fd, size: i64) -> Result<(), Errno> {
    let file = get(task, fd)?;
    check_size(task, size)?;
    file.truncate(size)
}

fn fallocate(task: &Arc<Task>, fd: Fd, mode: u32, at: i64, len: i64) -> Result<(), Errno> {
    const KEEP_SIZE: u32 = 1;
    let file = get(task, fd)?;
    if mode & KEEP_SIZE == 0 && at >= 0 && len > 0 {
        check_size(task, at.saturating_add(len))?;
    }
    file.fallocate(mode, at, len)
}

fn fadvise64(task: &Arc<Task>, fd: Fd, _at: i64, len: i64, advice: u32) -> Result<(), Errno> {
    let file = get(task, fd)?;
    if file.inode().file_type() == abi::fs::FileType::Fifo {
        return Err(Errno::ESPIPE);
    }
    if len < 0 || advice > 5 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

fn readahead(task: &Arc<Task>, fd: Fd, _at: i64, _count: usize) -> Result<(), Errno> {
    let file = get(task, fd)?;
    if !file.readable() {
        return Err(Errno::EBADF);
    }
    if file.inode().file_type() == abi::fs::FileType::Regular {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

fn fsync(task: &Arc<Task>, fd: Fd) -> Result<(), Errno> {
    get(task, fd)?.sync(false)
}

fn fdatasync(task: &Arc<Task>, fd: Fd) -> Result<(), Errno> {
    get(task, fd)?.sync(true)
}

fn sync(task: &Arc<Task>) -> Result<(), Errno> {
    task.vfs().sync();
    Ok(())
}

fn syncfs(task: &Arc<Task>, fd: Fd) -> Result<(), Errno> {
    match get(task, fd)?.location() {
        Some(place) => place.mount.fs().sync(),
        None => Ok(()),
    }
}

fn sync_file_range(task: &Arc<Task>, fd: Fd, at: i64, len: i64, flags: u32) -> Result<(), Errno> {
    let file = get(task, fd)?;
    if at < 0 || len < 0 || at.checked_add(len).is_none() || flags & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    match file.inode().file_type() {
        abi::fs::FileType::Regular
        | abi::fs::FileType::Directory
        | abi::fs::FileType::BlockDevice => file.sync(true),
        _ => Err(Errno::ESPIPE),
    }
}

fn statfs(task: &Arc<Task>, path: UserCStr, to: UserPtr<Statfs>) -> Result<(), Errno> {
    let statfs = task.vfs().statfs(&target(task, CWD, path, FOLLOW)?)?;
    task.mm().put(to, &statfs)
}

fn fstatfs(task: &Arc<Task>, fd: Fd, to: UserPtr<Statfs>) -> Result<(), Errno> {
    let file = task.files().get(fd.0)?;
    let statfs = task.vfs().statfs(&Target::from(&*file))?;
    task.mm().put(to, &statfs)
}

/// The name of an extended attribute; ERANGE where it is too long.
fn xattr_name(task: &Arc<Task>, name: UserCStr) -> Result<Vec<u8>, Errno> {
    task.mm()
        .get_cstr(name, 255)?
        .filter(|name| !name.is_empty())
        .ok_or(Errno::ERANGE)
}

/// Hands out a value or a list: size 0 asks how long it is; ERANGE where it does not fit.
fn give(task: &Arc<Task>, value: &[u8], to: u64, size: usize) -> Result<usize, Errno> {
    if size == 0 {
        return Ok(value.len());
    }
    if value.len() > size {
        return Err(Errno::ERANGE);
    }
    task.mm().write(to, value)?;
    Ok(value.len())
}

fn get_of(
    task: &Arc<Task>,
    target: &Target,
    name: UserCStr,
    to: u64,
    size: usize,
) -> Result<usize, Errno> {
    let name = xattr_name(task, name)?;
    let value = task.vfs().xattr(&task.creds(), target, &name)?;
    give(task, &value, to, size)
}

fn getxattr(
    task: &Arc<Task>,
    path: UserCStr,
    name: UserCStr,
    to: u64,
    size: usize,
) -> Result<usize, Errno> {
    get_of(task, &target(task, CWD, path, FOLLOW)?, name, to, size)
}

fn lgetxattr(
    task: &Arc<Task>,
    path: UserCStr,
    name: UserCStr,
    to: u64,
    size: usize,
) -> Result<usize, Errno> {
    get_of(task, &target(task, CWD, path, NOFOLLOW)?, name, to, size)
}

fn fgetxattr(
    task: &Arc<Task>,
    fd: Fd,
    name: UserCStr,
    to: u64,
    size: usize,
) -> Result<usize, Errno> {
    get_of(task, &opened(task, fd)?, name, to, size)
}

fn set_of(
    task: &Arc<Task>,
    target: &Target,
    name: UserCStr,
    value: UserSlice,
    flags: u32,
) -> Result<(), Errno> {
    let how = match flags {
        0 => SetXattr::Any,
        1 => SetXattr::Create,
        2 => SetXattr::Replace,
        _ => return Err(Errno::EINVAL),
    };
    let name = xattr_name(task, name)?;
    if value.len > 65536 {
        return Err(Errno::E2BIG);
    }
    let value = task.mm().get_bytes(value)?;
    task.vfs()
        .set_xattr(&task.creds(), target, &name, &value, how)
}

fn setxattr(
    task: &Arc<Task>,
    path: UserCStr,
    name: UserCStr,
    addr: u64,
    len: usize,
    flags: u32,
) -> Result<(), Errno> {
    set_of(
        task,
        &target(task, CWD, path, FOLLOW)?,
        name,
        UserSlice { addr, len },
        flags,
    )
}

fn lsetxattr(
    task: &Arc<Task>,
    path: UserCStr,
    name: UserCStr,
    addr: u64,
    len: usize,
    flags: u32,
) -> Result<(), Errno> {
    set_of(
        task,
        &target(task, CWD, path, NOFOLLOW)?,
        name,
        UserSlice { addr, len },
        flags,
    )
}

fn fsetxattr(
    task: &Arc<Task>,
    fd: Fd,
    name: UserCStr,
    addr: u64,
    len: usize,
    flags: u32,
) -> Result<(), Errno> {
    set_of(
        task,
        &opened(task, fd)?,
        name,
        UserSlice { addr, len },
        flags,
    )
}

fn list_of(task: &Arc<Task>, target: &Target, to: u64, size: usize) -> Result<usize, Errno> {
    let list = task.vfs().xattrs(&task.creds(), target)?;
    give(task, &list, to, size)
}

fn listxattr(task: &Arc<Task>, path: UserCStr, to: u64, size: usize) -> Result<usize, Errno> {
    list_of(task, &target(task, CWD, path, FOLLOW)?, to, size)
}

fn llistxattr(task: &Arc<Task>, path: UserCStr, to: u64, size: usize) -> Result<usize, Errno> {
    list_of(task, &target(task, CWD, path, NOFOLLOW)?, to, size)
}

fn flistxattr(task: &Arc<Task>, fd: Fd, to: u64, size: usize) -> Result<usize, Errno> {
    list_of(task, &opened(task, fd)?, to, size)
}

fn remove_of(task: &Arc<Task>, target: &Target, name: UserCStr) -> Result<(), Errno> {
    let name = xattr_name(task, name)?;
    task.vfs().remove_xattr(&task.creds(), target, &name)
}

fn removexattr(task: &Arc<Task>, path: UserCStr, name: UserCStr) -> Result<(), Errno> {
    remove_of(task, &target(task, CWD, path, FOLLOW)?, name)
}

fn lremovexattr(task: &Arc<Task>, path: UserCStr, name: UserCStr) -> Result<(), Errno> {
    remove_of(task, &target(task, CWD, path, NOFOLLOW)?, name)
}

fn fremovexattr(task: &Arc<Task>, fd: Fd, name: UserCStr) -> Result<(), Errno> {
    remove_of(task, &opened(task, fd)?, name)
}
