//! Names and directories: mkdir(2), unlink(2), rename(2), link(2), readlink(2), getdents(2), chdir(2), and mounts.

use std::sync::Arc;

use abi::fs::{AT_FDCWD, AtFlags, DIRENT64_HEAD, FileType, MountFlags, RenameFlags, ResolveFlags};
use abi::{Errno, UserCStr, UserPtr};

use super::decode::Fd;
use super::io::get;
use super::table::rows;
use crate::task::Task;
use crate::vfs::PathCx;

rows! {
    mkdir => full (self::mkdir);
    mkdirat => full (self::mkdirat);
    rmdir => full (self::rmdir);
    unlink => full (self::unlink);
    unlinkat => full (self::unlinkat);
    rename => full (self::rename);
    renameat => full (self::renameat);
    renameat2 => partial (self::renameat2) ("no RENAME_WHITEOUT");
    link => full (self::link);
    linkat => full (self::linkat);
    symlink => full (self::symlink);
    symlinkat => full (self::symlinkat);
    mknod => full (self::mknod);
    mknodat => full (self::mknodat);
    readlink => full (self::readlink);
    readlinkat => full (self::readlinkat);
    getdents => full (self::getdents);
    getdents64 => full (self::getdents64);
    getcwd => full (self::getcwd);
    chdir => full (self::chdir);
    fchdir => full (self::fchdir);
    chroot => full (self::chroot);
    umask => full (self::umask);
    mount => partial (self::mount) ("MS_BIND of one mount, MS_REMOUNT, changes of propagation (without effect), tmpfs");
    umount2 => partial (self::umount2) ("no MNT_EXPIRE");
    pivot_root => error (EPERM) ("the root is the sandbox's");
    move_mount => error (EPERM) ("not offered");
    open_tree => error (EPERM) ("not offered");
    fsopen => error (EPERM) ("not offered");
    fsconfig => error (EPERM) ("not offered");
    fsmount => error (EPERM) ("not offered");
    fspick => error (EPERM) ("not offered");
    mount_setattr => error (EPERM) ("not offered");
    statmount => error (ENOSYS) ("not offered");
    listmount => error (ENOSYS) ("not offered");
    quotactl => error (ENOSYS) ("no file system has quotas");
    quotactl_fd => error (ENOSYS) ("no file system has quotas");
}

/// Runs `with` with the context that a path of this call is walked in.
pub(super) fn with_path<R>(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    with: impl FnOnce(&PathCx<'_>, &[u8]) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let path = task.mm().get_path(path)?;
    let fs = task.fs();
    let creds = task.creds();
    let dirfd = if dirfd.0 == abi::fs::AT_FDCWD || path.starts_with(b"/") {
        None
    } else {
        Some(task.files().get(dirfd.0)?)
    };
    with(
        &PathCx {
            fs: &fs,
            creds: &creds,
            dirfd,
        },
        &path,
    )
}

/// The current directory.
pub(super) const CWD: Fd = Fd(AT_FDCWD);

/// Runs `with` with the contexts that the two paths of this call are walked in.
fn with_paths<R>(
    task: &Arc<Task>,
    from: (Fd, UserCStr),
    to: (Fd, UserCStr),
    with: impl FnOnce(&PathCx<'_>, &[u8], &PathCx<'_>, &[u8]) -> Result<R, Errno>,
) -> Result<R, Errno> {
    with_path(task, from.0, from.1, |from_cx, from| {
        with_path(task, to.0, to.1, |to_cx, to| with(from_cx, from, to_cx, to))
    })
}

/// Flags of an `*at` call; EINVAL where one is not among those it takes.
pub(super) fn at_flags(raw: u32, allowed: AtFlags) -> Result<AtFlags, Errno> {
    AtFlags::from_bits(raw)
        .filter(|flags| allowed.contains(*flags))
        .ok_or(Errno::EINVAL)
}

fn mkdir(task: &Arc<Task>, path: UserCStr, mode: u32) -> Result<(), Errno> {
    mkdirat(task, CWD, path, mode)
}

fn mkdirat(task: &Arc<Task>, dirfd: Fd, path: UserCStr, mode: u32) -> Result<(), Errno> {
    with_path(task, dirfd, path, |cx, path| {
        task.vfs().mkdir(cx, path, mode)
    })
}

fn rmdir(task: &Arc<Task>, path: UserCStr) -> Result<(), Errno> {
    with_path(task, CWD, path, |cx, path| task.vfs().rmdir(cx, path))
}

fn unlink(task: &Arc<Task>, path: UserCStr) -> Result<(), Errno> {
    with_path(task, CWD, path, |cx, path| task.vfs().unlink(cx, path))
}

fn unlinkat(task: &Arc<Task>, dirfd: Fd, path: UserCStr, flags: u32) -> Result<(), Errno> {
    let flags = at_flags(flags, AtFlags::REMOVEDIR)?;
    with_path(task, dirfd, path, |cx, path| {
        if flags.contains(AtFlags::REMOVEDIR) {
            task.vfs().rmdir(cx, path)
        } else {
            task.vfs().unlink(cx, path)
        }
    })
}

fn rename(task: &Arc<Task>, from: UserCStr, to: UserCStr) -> Result<(), Errno> {
    renameat2(task, CWD, from, CWD, to, 0)
}

fn renameat(
    task: &Arc<Task>,
    from_dir: Fd,
    from: UserCStr,
    to_dir: Fd,
    to: UserCStr,
) -> Result<(), Errno> {
    renameat2(task, from_dir, from, to_dir, to, 0)
}

fn renameat2(
    task: &Arc<Task>,
    from_dir: Fd,
    from: UserCStr,
    to_dir: Fd,
    to: UserCStr,
    flags: u32,
) -> Result<(), Errno> {
    let flags = RenameFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
    with_paths(
        task,
        (from_dir, from),
        (to_dir, to),
        |from_cx, from, to_cx, to| task.vfs().rename(from_cx, from, to_cx, to, flags),
    )
}

fn link(task: &Arc<Task>, from: UserCStr, to: UserCStr) -> Result<(), Errno> {
    linkat(task, CWD, from, CWD, to, 0)
}

fn linkat(
    task: &Arc<Task>,
    from_dir: Fd,
    from: UserCStr,
    to_dir: Fd,
    to: UserCStr,
    flags: u32,
) -> Result<(), Errno> {
    let flags = at_flags(flags, AtFlags::SYMLINK_FOLLOW | AtFlags::EMPTY_PATH)?;
    with_paths(
        task,
        (from_dir, from),
        (to_dir, to),
        |from_cx, from, to_cx, to| task.vfs().link(from_cx, from, to_cx, to, flags),
    )
}

fn symlink(task: &Arc<Task>, target: UserCStr, path: UserCStr) -> Result<(), Errno> {
    symlinkat(task, target, CWD, path)
}

fn symlinkat(task: &Arc<Task>, target: UserCStr, dirfd: Fd, path: UserCStr) -> Result<(), Errno> {
    let target = task.mm().get_path(target)?;
    with_path(task, dirfd, path, |cx, path| {
        task.vfs().symlink(cx, &target, path)
    })
}

fn mknod(task: &Arc<Task>, path: UserCStr, mode: u32, dev: u32) -> Result<(), Errno> {
    mknodat(task, CWD, path, mode, dev)
}

fn mknodat(task: &Arc<Task>, dirfd: Fd, path: UserCStr, mode: u32, dev: u32) -> Result<(), Errno> {
    with_path(task, dirfd, path, |cx, path| {
        task.vfs().mknod(cx, path, mode, u64::from(dev))
    })
}

fn readlink(task: &Arc<Task>, path: UserCStr, to: UserPtr<u8>, size: i32) -> Result<usize, Errno> {
    readlinkat(task, CWD, path, to, size)
}

fn readlinkat(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    to: UserPtr<u8>,
    size: i32,
) -> Result<usize, Errno> {
    let size = usize::try_from(size)
        .ok()
        .filter(|size| *size > 0)
        .ok_or(Errno::EINVAL)?;
    let target = with_path(task, dirfd, path, |cx, path| task.vfs().readlink(cx, path))?;
    let len = target.len().min(size);
    task.mm().write(to.addr(), &target[..len])?;
    Ok(len)
}

/// Entries of a directory as `emit` writes one; EINVAL where not even the first fits.
fn entries(
    task: &Arc<Task>,
    fd: Fd,
    to: u64,
    size: u32,
    emit: &mut dyn FnMut(&mut Vec<u8>, &crate::vfs::DirEntry<'_>) -> usize,
) -> Result<usize, Errno> {
    let file = get(task, fd)?;
    let size = (size as usize).min(1 << 20);
    let mut out: Vec<u8> = Vec::with_capacity(size.min(32 << 10));
    let mut full = false;
    file.readdir(&mut |entry| {
        let before = out.len();
        let end = before + emit(&mut out, entry);
        if end > size {
            out.truncate(before);
            full = true;
            return false;
        }
        out.resize(end, 0);
        true
    })?;
    if out.is_empty() && full {
        return Err(Errno::EINVAL);
    }
    task.mm().write(to, &out)?;
    Ok(out.len())
}

fn getdents64(task: &Arc<Task>, fd: Fd, to: u64, size: u32) -> Result<usize, Errno> {
    entries(task, fd, to, size, &mut |out, entry| {
        let len = (DIRENT64_HEAD + entry.name.len() + 1).next_multiple_of(8);
        out.extend_from_slice(&entry.ino.to_ne_bytes());
        out.extend_from_slice(&entry.next.to_ne_bytes());
        out.extend_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_ne_bytes());
        out.push(entry.kind.map_or(0, FileType::dirent));
        out.extend_from_slice(entry.name);
        len
    })
}

/// getdents(2), the old form: no type among the fields, but in the record's last byte.
fn getdents(task: &Arc<Task>, fd: Fd, to: u64, size: u32) -> Result<usize, Errno> {
    const HEAD: usize = 18;
    entries(task, fd, to, size, &mut |out, entry| {
        let before = out.len();
        let len = (HEAD + entry.name.len() + 2).next_multiple_of(8);
        out.extend_from_slice(&entry.ino.to_ne_bytes());
        out.extend_from_slice(&entry.next.to_ne_bytes());
        out.extend_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_ne_bytes());
        out.extend_from_slice(entry.name);
        out.resize(before + len - 1, 0);
        out.push(entry.kind.map_or(0, FileType::dirent));
        len
    })
}

fn getcwd(task: &Arc<Task>, to: UserPtr<u8>, size: usize) -> Result<usize, Errno> {
    let mut path = task.vfs().getcwd(&task.fs())?;
    path.push(0);
    if path.len() > size {
        return Err(Errno::ERANGE);
    }
    task.mm().write(to.addr(), &path)?;
    Ok(path.len())
}

fn chdir(task: &Arc<Task>, path: UserCStr) -> Result<(), Errno> {
    with_path(task, CWD, path, |cx, path| task.vfs().chdir(cx, path))
}

fn fchdir(task: &Arc<Task>, fd: Fd) -> Result<(), Errno> {
    let file = task.files().get(fd.0)?;
    task.vfs().fchdir(&task.fs(), &task.creds(), &file)
}

fn chroot(task: &Arc<Task>, path: UserCStr) -> Result<(), Errno> {
    with_path(task, CWD, path, |cx, path| task.vfs().chroot(cx, path))
}

fn umask(task: &Arc<Task>, mask: u32) -> Result<u32, Errno> {
    Ok(task.fs().set_umask(mask))
}

fn mount(
    task: &Arc<Task>,
    source: UserCStr,
    target: UserCStr,
    kind: UserCStr,
    flags: u64,
    data: UserCStr,
) -> Result<(), Errno> {
    const REMOUNT: u64 = 32;
    const BIND: u64 = 4096;
    const MOVE: u64 = 8192;
    const PROPAGATION: u64 = 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20;
    const MAGIC: u64 = 0xc0ed_0000;
    let flags = if flags & 0xffff_0000 == MAGIC {
        flags & 0xffff
    } else {
        flags
    };
    let kept = MountFlags::from_bits_truncate(flags);
    let vfs = task.vfs();
    let mm = task.mm();
    let optional = |text: UserCStr| {
        if text.0 == 0 {
            Ok(Vec::new())
        } else {
            mm.get_path(text)
        }
    };
    let (source, kind) = (optional(source)?, optional(kind)?);
    with_path(task, CWD, target, |cx, path| {
        let place = vfs.resolve(cx, path, true, ResolveFlags::empty())?;
        if !cx.creds.has(abi::cap::Cap::SYS_ADMIN) {
            return Err(Errno::EPERM);
        }
        let at_root = Arc::ptr_eq(&place.dentry, place.mount.root());
        if flags & REMOUNT != 0 {
            if !at_root {
                return Err(Errno::EINVAL);
            }
            place.mount.set_flags(kept);
            return Ok(());
        }
        if flags & BIND != 0 {
            let from = vfs.resolve(cx, &source, true, ResolveFlags::empty())?;
            let flags = from.mount.flags();
            return vfs.bind(&from, place, flags);
        }
        if flags & PROPAGATION != 0 {
            // Each namespace has its own mounts as it is: nothing propagates.
            return if at_root { Ok(()) } else { Err(Errno::EINVAL) };
        }
        if flags & MOVE != 0 {
            return Err(Errno::EPERM);
        }
        let data = optional(data)?;
        let fs = crate::fs::root::new_file_system(task.container(), &kind, &data)?;
        vfs.mount(
            &crate::vfs::Mount::of(fs, kept, &String::from_utf8_lossy(&source)),
            place,
        )
    })
}

fn umount2(task: &Arc<Task>, target: UserCStr, flags: u32) -> Result<(), Errno> {
    const DETACH: u32 = 2;
    const EXPIRE: u32 = 4;
    const NOFOLLOW: u32 = 8;
    if flags & !(1 | DETACH | EXPIRE | NOFOLLOW) != 0 || flags & EXPIRE != 0 {
        return Err(Errno::EINVAL);
    }
    with_path(task, CWD, target, |cx, path| {
        if !cx.creds.has(abi::cap::Cap::SYS_ADMIN) {
            return Err(Errno::EPERM);
        }
        let vfs = task.vfs();
        let place = vfs.resolve(cx, path, flags & NOFOLLOW == 0, ResolveFlags::empty())?;
        vfs.umount(&place, flags & DETACH != 0)
    })
}
