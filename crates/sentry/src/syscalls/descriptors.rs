//! Descriptors: open(2) and its kin, close(2), dup(2), pipe(2), memfd_create(2), ioctl(2), and fcntl(2) where it is about descriptors.

use std::sync::Arc;

use abi::fs::{OpenFlags, ResolveFlags};
use abi::{Errno, UserCStr, UserPtr, UserSlice};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::decode::Fd;
use super::io::get;
use super::names::{CWD, with_path};
use super::table::rows;
use crate::fs::tmpfs;
use crate::sync::EventMask;
use crate::task::{CallState, Resource, Step, Task, Wait};

rows! {
    open => full (self::open);
    openat => full (self::openat);
    openat2 => partial (self::openat2) ("RESOLVE_CACHED is EAGAIN");
    creat => full (self::creat);
    close => full (self::close);
    close_range => full (self::close_range);
    dup => full (self::dup);
    dup2 => full (self::dup2);
    dup3 => full (self::dup3);
    ioctl => full (self::ioctl);
    pipe => full (self::pipe);
    pipe2 => full (self::pipe2);
    memfd_create => partial (self::memfd_create) ("no huge pages");
    memfd_secret => error (ENOSYS) ("not offered");
    name_to_handle_at => error (EOPNOTSUPP) ("files have no handles");
    open_by_handle_at => error (EPERM) ("files have no handles");
    inotify_init => error (ENOSYS) ("not implemented yet");
    inotify_init1 => error (ENOSYS) ("not implemented yet");
    inotify_add_watch => error (EBADF) ("there are no instances");
    inotify_rm_watch => error (EBADF) ("there are no instances");
    fanotify_init => error (ENOSYS) ("not offered");
    fanotify_mark => error (ENOSYS) ("not offered");
}

fn open(task: &Arc<Task>, path: UserCStr, flags: u32, mode: u32, state: &mut CallState) -> Step {
    openat(task, CWD, path, flags, mode, state)
}

fn creat(task: &Arc<Task>, path: UserCStr, mode: u32, state: &mut CallState) -> Step {
    let flags = OpenFlags::CREAT | OpenFlags::WRONLY | OpenFlags::TRUNC;
    openat(task, CWD, path, flags.bits(), mode, state)
}

fn openat(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    flags: u32,
    mode: u32,
    state: &mut CallState,
) -> Step {
    // open(2) ignores flags that it does not know.
    open_with(
        task,
        dirfd,
        path,
        OpenFlags::from_bits_truncate(flags) | OpenFlags::LARGEFILE,
        mode & 0o7777,
        ResolveFlags::empty(),
        state,
    )
}

/// Opens; a FIFO's open waits for its other side.
pub(super) fn open_with(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    flags: OpenFlags,
    mode: u32,
    resolve: ResolveFlags,
    state: &mut CallState,
) -> Step {
    let file = match state {
        CallState::Opening(file) => Arc::clone(file),
        _ => match with_path(task, dirfd, path, |cx, path| {
            task.vfs().open(cx, path, flags, mode, resolve)
        }) {
            Ok(file) => file,
            Err(error) => return Step::Done(Err(error)),
        },
    };
    if file.open_pending() {
        let step = match file.queue() {
            Some(queue) => Step::Wait(Wait::on(queue, EventMask::IN | EventMask::OUT)),
            None => Step::Done(Err(Errno::ENXIO)),
        };
        *state = CallState::Opening(file);
        return step;
    }
    let inserted = task.files().insert(
        file,
        flags.contains(OpenFlags::CLOEXEC),
        0,
        task.limit(Resource::Nofile),
    );
    Step::Done(inserted.map(|fd| fd.unsigned_abs() as usize))
}

/// `struct open_how` (openat2(2)).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// Reads a structure that may grow: shorter ones are filled up with zeros, of longer ones the rest must be zero (E2BIG).
pub(super) fn get_growing<T: FromBytes + IntoBytes>(
    task: &Arc<Task>,
    addr: u64,
    size: usize,
) -> Result<T, Errno> {
    let mut value = T::new_zeroed();
    let known = size_of::<T>();
    if size > 4096 {
        return Err(Errno::E2BIG);
    }
    let bytes = task.mm().get_bytes(UserSlice { addr, len: size })?;
    if bytes.iter().skip(known).any(|byte| *byte != 0) {
        return Err(Errno::E2BIG);
    }
    let len = known.min(size);
    value.as_mut_bytes()[..len].copy_from_slice(&bytes[..len]);
    Ok(value)
}

fn openat2(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    how: u64,
    size: usize,
    state: &mut CallState,
) -> Step {
    let checked = (|| {
        if size < size_of::<OpenHow>() {
            return Err(Errno::EINVAL);
        }
        let how: OpenHow = get_growing(task, how, size)?;
        let known = OpenFlags::from_bits_retain(0o37_777_703);
        let flags = u32::try_from(how.flags)
            .ok()
            .map(OpenFlags::from_bits_retain)
            .ok_or(Errno::EINVAL)?;
        let resolve = ResolveFlags::from_bits(how.resolve).ok_or(Errno::EINVAL)?;
        let makes = flags.contains(OpenFlags::CREAT) || flags.contains(OpenFlags::TMPFILE_ONLY);
        let mode = u32::try_from(how.mode)
            .ok()
            .filter(|mode| mode & !0o7777 == 0 && (makes || *mode == 0));
        let place =
            OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW | OpenFlags::CLOEXEC;
        if !known.contains(flags)
            || resolve.contains(ResolveFlags::BENEATH | ResolveFlags::IN_ROOT)
            || flags.contains(OpenFlags::PATH) && !place.contains(flags)
        {
            return Err(Errno::EINVAL);
        }
        if resolve.contains(ResolveFlags::CACHED) {
            return Err(Errno::EAGAIN);
        }
        Ok((
            flags | OpenFlags::LARGEFILE,
            mode.ok_or(Errno::EINVAL)?,
            resolve,
        ))
    })();
    match checked {
        Ok((flags, mode, resolve)) => open_with(task, dirfd, path, flags, mode, resolve, state),
        Err(error) => Step::Done(Err(error)),
    }
}

fn close(task: &Arc<Task>, fd: Fd) -> Result<(), Errno> {
    task.files().close(fd.0)
}

fn close_range(task: &Arc<Task>, first: u32, last: u32, flags: u32) -> Result<(), Errno> {
    const UNSHARE: u32 = 2;
    const CLOEXEC: u32 = 4;
    if flags & !(UNSHARE | CLOEXEC) != 0 || first > last {
        return Err(Errno::EINVAL);
    }
    if flags & UNSHARE != 0 {
        task.set_files(task.files().fork());
    }
    let files = task.files();
    if flags & CLOEXEC != 0 {
        files.cloexec_range(first, last)
    } else {
        files.close_range(first, last)
    }
    Ok(())
}

fn dup(task: &Arc<Task>, fd: Fd) -> Result<i32, Errno> {
    let files = task.files();
    files.insert(files.get(fd.0)?, false, 0, task.limit(Resource::Nofile))
}

fn dup2(task: &Arc<Task>, old: Fd, new: Fd) -> Result<i32, Errno> {
    if old == new {
        task.files().get(old.0)?;
        return Ok(new.0);
    }
    dup3(task, old, new, 0)
}

fn dup3(task: &Arc<Task>, old: Fd, new: Fd, flags: u32) -> Result<i32, Errno> {
    if old == new || flags & !OpenFlags::CLOEXEC.bits() != 0 {
        return Err(Errno::EINVAL);
    }
    let files = task.files();
    files.replace(
        new.0,
        files.get(old.0)?,
        flags != 0,
        task.limit(Resource::Nofile),
    )?;
    Ok(new.0)
}

fn ioctl(task: &Arc<Task>, fd: Fd, request: u32, arg: u64) -> Result<u64, Errno> {
    let file = get(task, fd)?;
    let mm = task.mm();
    match request {
        // FIOCLEX, FIONCLEX
        0x5451 => task.files().set_cloexec(fd.0, true).map(|()| 0),
        0x5450 => task.files().set_cloexec(fd.0, false).map(|()| 0),
        // FIONBIO
        0x5421 => {
            let on: i32 = mm.get(UserPtr::new(arg))?;
            let mut flags = file.flags();
            flags.set(OpenFlags::NONBLOCK, on != 0);
            file.set_flags(flags).map(|()| 0)
        }
        _ => file.ioctl(request, arg, mm.as_ref()),
    }
}

fn pipe(task: &Arc<Task>, to: UserPtr<[i32; 2]>) -> Result<(), Errno> {
    pipe2(task, to, 0)
}

fn pipe2(task: &Arc<Task>, to: UserPtr<[i32; 2]>, flags: u32) -> Result<(), Errno> {
    let flags = OpenFlags::from_bits(flags)
        .filter(|flags| {
            (OpenFlags::CLOEXEC | OpenFlags::NONBLOCK | OpenFlags::DIRECT).contains(*flags)
        })
        .ok_or(Errno::EINVAL)?;
    let (reader, writer) = crate::fs::pipe::pipe(flags, &task.creds());
    let files = task.files();
    let limit = task.limit(Resource::Nofile);
    let first = files.reserve(limit)?;
    let second = files.reserve(limit)?;
    task.mm().put(to, &[first.fd(), second.fd()])?;
    let cloexec = flags.contains(OpenFlags::CLOEXEC);
    first.fill(reader, cloexec);
    second.fill(writer, cloexec);
    Ok(())
}

fn memfd_create(task: &Arc<Task>, name: UserCStr, flags: u32) -> Result<i32, Errno> {
    const CLOEXEC: u32 = 1;
    const ALLOW_SEALING: u32 = 2;
    const NOEXEC_SEAL: u32 = 8;
    const EXEC: u32 = 16;
    if flags & !(CLOEXEC | ALLOW_SEALING | NOEXEC_SEAL | EXEC) != 0
        || flags & (NOEXEC_SEAL | EXEC) == NOEXEC_SEAL | EXEC
    {
        return Err(Errno::EINVAL);
    }
    let name = task.mm().get_cstr(name, 249)?.ok_or(Errno::EINVAL)?;
    let creds = task.creds();
    let (fs, mount) = task.container().unseen();
    let sealable = flags & (ALLOW_SEALING | NOEXEC_SEAL) != 0;
    let file = tmpfs::memfd(mount, fs, &name, sealable, (creds.uid.fs, creds.gid.fs))?;
    if flags & NOEXEC_SEAL != 0 {
        file.inode().set_attrs(&crate::vfs::SetAttrs {
            perm: Some(0o666),
            ..crate::vfs::SetAttrs::default()
        })?;
        tmpfs::add_seals(&file, tmpfs::MemfdSeals::EXEC, false)?;
    }
    task.files()
        .insert(file, flags & CLOEXEC != 0, 0, task.limit(Resource::Nofile))
}
