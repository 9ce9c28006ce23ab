//! Files by descriptor and by path: reading and writing, opening, names and attributes.

use std::sync::Arc;

use abi::fs::{AtFlags, DIRENT64_HEAD, Iovec, OpenFlags, ResolveFlags, Stat, Statx};
use abi::{Errno, UserCStr, UserPtr};

use super::decode::Fd;
use super::table::rows;
use crate::io::{Sink, Source};
use crate::mm::Mm;
use crate::sync::EventMask;
use crate::task::{CallState, Resource, Step, Task, Wait};
use crate::vfs::{OpenFile, PathCx, Seek};

rows! {
    read => full (self::read);
    write => full (self::write);
    readv => full (self::readv);
    writev => full (self::writev);
    pread64 => full (self::pread64);
    pwrite64 => full (self::pwrite64);
    open => full (self::open);
    openat => full (self::openat);
    creat => full (self::creat);
    close => full (self::close);
    close_range => full (self::close_range);
    stat => full (self::stat);
    lstat => full (self::lstat);
    fstat => full (self::fstat);
    newfstatat => full (self::newfstatat);
    statx => full (self::statx);
    lseek => full (self::lseek);
    dup => full (self::dup);
    dup2 => full (self::dup2);
    dup3 => full (self::dup3);
    ioctl => full (self::ioctl);
    getcwd => full (self::getcwd);
    chdir => full (self::chdir);
    fchdir => full (self::fchdir);
    access => full (self::access);
    faccessat => full (self::faccessat);
    faccessat2 => full (self::faccessat2);
    readlink => full (self::readlink);
    readlinkat => full (self::readlinkat);
    getdents64 => full (self::getdents64);
    pipe => full (self::pipe);
    pipe2 => full (self::pipe2);
    umask => full (self::umask);
}

/// How many segments a vector may have (`IOV_MAX`).
const IOV_MAX: usize = 1024;
/// The most that one call moves (`MAX_RW_COUNT`).
const MAX_MOVE: usize = 0x7fff_f000;

/// Runs `with` with the context that a path of this call is walked in.
pub(super) fn with_path<R>(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    with: impl FnOnce(&PathCx<'_>, &[u8]) -> Result<R, Errno>,
) -> Result<R, Errno> {
    with_path_bytes(task, dirfd, &task.mm().get_path(path)?, with)
}

/// The same for a path that was copied in already.
pub(super) fn with_path_bytes<R>(
    task: &Arc<Task>,
    dirfd: Fd,
    path: &[u8],
    with: impl FnOnce(&PathCx<'_>, &[u8]) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let fs = task.fs();
    let creds = task.creds();
    let dirfd = if dirfd.0 == abi::fs::AT_FDCWD || path.starts_with(b"/") { None } else { Some(task.files().get(dirfd.0)?) };
    with(&PathCx { fs: &fs, creds: &creds, dirfd }, path)
}

/// The current directory.
pub(super) const CWD: Fd = Fd(abi::fs::AT_FDCWD);

/// What a transfer comes to: it waits where nothing was moved and the file waits at all.
fn transfer(task: &Arc<Task>, file: &OpenFile, events: EventMask, result: Result<usize, Errno>) -> Step {
    match result {
        Err(Errno::EAGAIN) if file.blocking() => match file.queue() {
            Some(queue) => Step::Wait(Wait::on(queue, events)),
            None => Step::Done(Err(Errno::EAGAIN)),
        },
        Err(Errno::EPIPE) => {
            let info = abi::signal::SigInfo::sent_by(
                abi::signal::Signal::SIGPIPE,
                abi::signal::SI_USER,
                task.process.pid,
                task.creds().uid.real,
            );
            // The thread itself is alive to take it.
            let _ = task.send(info);
            Step::Done(Err(Errno::EPIPE))
        }
        result => Step::Done(result),
    }
}

fn get(task: &Arc<Task>, fd: Fd) -> Result<Arc<OpenFile>, Errno> {
    task.files().get_file(fd.0)
}

fn one(addr: u64, len: usize) -> [Iovec; 1] {
    [Iovec { base: addr, len: len.min(MAX_MOVE) as u64 }]
}

/// A vector of segments: EINVAL where there are too many or they are too long together.
pub(super) fn segments(mm: &Mm, from: UserPtr<Iovec>, count: usize) -> Result<Vec<Iovec>, Errno> {
    if count > IOV_MAX {
        return Err(Errno::EINVAL);
    }
    let mut segments = mm.get_array(from, count)?;
    let mut total = 0usize;
    for segment in &mut segments {
        let len = usize::try_from(segment.len).ok().filter(|len| isize::try_from(*len).is_ok()).ok_or(Errno::EINVAL)?;
        let room = MAX_MOVE - total;
        segment.len = len.min(room) as u64;
        total += len.min(room);
    }
    Ok(segments)
}

fn read_segments(task: &Arc<Task>, fd: Fd, segments: &[Iovec], at: Option<i64>) -> Step {
    let file = match get(task, fd) {
        Ok(file) => file,
        Err(error) => return Step::Done(Err(error)),
    };
    let mm = task.mm();
    let mut sink = Sink::guest(mm.as_ref(), segments);
    let result = match at {
        Some(at) => file.pread(&mut sink, at),
        None => file.read(&mut sink),
    };
    transfer(task, &file, EventMask::IN, result)
}

fn write_segments(task: &Arc<Task>, fd: Fd, segments: &[Iovec], at: Option<i64>, state: &mut CallState) -> Step {
    let file = match get(task, fd) {
        Ok(file) => file,
        Err(error) => return Step::Done(Err(error)),
    };
    let mm = task.mm();
    let done = if let CallState::Moved(done) = *state { done } else { 0 };
    let rest = skip(segments, done);
    let mut source = Source::guest(mm.as_ref(), &rest);
    let left = source.remaining();
    let result = match at {
        Some(at) => file.pwrite(&mut source, at.saturating_add(i64::try_from(done).unwrap_or(i64::MAX))),
        None => file.write(&mut source),
    };
    match result {
        // A pipe took some: a blocking write goes on until all is written.
        Ok(wrote) if wrote < left && file.blocking() && file.queue().is_some() && wrote > 0 => {
            *state = CallState::Moved(done + wrote);
            match file.queue() {
                Some(queue) => {
                    let rule = crate::task::OnSignal::Partial(done + wrote);
                    Step::Wait(Wait::on(queue, EventMask::OUT).on_signal(rule))
                }
                None => Step::Done(Ok(done + wrote)),
            }
        }
        Ok(wrote) => Step::Done(Ok(done + wrote)),
        Err(Errno::EAGAIN) if done > 0 && file.blocking() => match file.queue() {
            Some(queue) => Step::Wait(Wait::on(queue, EventMask::OUT).on_signal(crate::task::OnSignal::Partial(done))),
            None => Step::Done(Ok(done)),
        },
        Err(_) if done > 0 => Step::Done(Ok(done)),
        result => transfer(task, &file, EventMask::OUT, result),
    }
}

/// The segments without their first `done` bytes.
pub(super) fn skip(segments: &[Iovec], done: usize) -> Vec<Iovec> {
    let mut left = done as u64;
    let mut rest = Vec::with_capacity(segments.len());
    for segment in segments {
        let gone = left.min(segment.len);
        left -= gone;
        if gone < segment.len {
            rest.push(Iovec { base: segment.base.wrapping_add(gone), len: segment.len - gone });
        }
    }
    rest
}

fn read(task: &Arc<Task>, fd: Fd, to: u64, len: usize) -> Step {
    read_segments(task, fd, &one(to, len), None)
}

fn write(task: &Arc<Task>, fd: Fd, from: u64, len: usize, state: &mut CallState) -> Step {
    write_segments(task, fd, &one(from, len), None, state)
}

fn pread64(task: &Arc<Task>, fd: Fd, to: u64, len: usize, at: i64) -> Step {
    read_segments(task, fd, &one(to, len), Some(at))
}

fn pwrite64(task: &Arc<Task>, fd: Fd, from: u64, len: usize, at: i64, state: &mut CallState) -> Step {
    write_segments(task, fd, &one(from, len), Some(at), state)
}

fn readv(task: &Arc<Task>, fd: Fd, vector: UserPtr<Iovec>, count: usize) -> Step {
    match segments(&task.mm(), vector, count) {
        Ok(segments) => read_segments(task, fd, &segments, None),
        Err(error) => Step::Done(Err(error)),
    }
}

fn writev(task: &Arc<Task>, fd: Fd, vector: UserPtr<Iovec>, count: usize, state: &mut CallState) -> Step {
    match segments(&task.mm(), vector, count) {
        Ok(segments) => write_segments(task, fd, &segments, None, state),
        Err(error) => Step::Done(Err(error)),
    }
}

fn open(task: &Arc<Task>, path: UserCStr, flags: u32, mode: u32, state: &mut CallState) -> Step {
    openat(task, CWD, path, flags, mode, state)
}

fn creat(task: &Arc<Task>, path: UserCStr, mode: u32, state: &mut CallState) -> Step {
    let flags = OpenFlags::CREAT | OpenFlags::WRONLY | OpenFlags::TRUNC;
    openat(task, CWD, path, flags.bits(), mode, state)
}

fn openat(task: &Arc<Task>, dirfd: Fd, path: UserCStr, flags: u32, mode: u32, state: &mut CallState) -> Step {
    // open(2) ignores flags that it does not know.
    open_with(task, dirfd, path, OpenFlags::from_bits_truncate(flags), mode & 0o7777, ResolveFlags::empty(), state)
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
        _ => match with_path(task, dirfd, path, |cx, path| task.kernel.vfs().open(cx, path, flags, mode, resolve)) {
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
    let inserted = task.files().insert(file, flags.contains(OpenFlags::CLOEXEC), 0, task.limit(Resource::Nofile));
    Step::Done(inserted.map(|fd| fd.unsigned_abs() as usize))
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
    if flags & CLOEXEC != 0 { files.cloexec_range(first, last) } else { files.close_range(first, last) }
    Ok(())
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

/// Flags of an `*at` call; EINVAL where one is not among those it takes.
pub(super) fn at_flags(raw: u32, allowed: AtFlags) -> Result<AtFlags, Errno> {
    AtFlags::from_bits(raw).filter(|flags| allowed.contains(*flags)).ok_or(Errno::EINVAL)
}

fn newfstatat(task: &Arc<Task>, dirfd: Fd, path: UserCStr, to: UserPtr<Stat>, flags: u32) -> Result<(), Errno> {
    let flags = at_flags(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH)?;
    let attrs = with_path(task, dirfd, path, |cx, path| task.kernel.vfs().stat(cx, path, flags))?;
    task.mm().put(to, &attrs.to_stat())
}

fn statx(task: &Arc<Task>, dirfd: Fd, path: UserCStr, flags: u32, mask: u32, to: UserPtr<Statx>) -> Result<(), Errno> {
    // AT_STATX_*: how fresh the answer is to be; it always is.
    const SYNC: u32 = 0x6000;
    if mask & 0x8000_0000 != 0 || flags & SYNC == SYNC {
        return Err(Errno::EINVAL);
    }
    let flags = at_flags(flags & !SYNC, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH)?;
    let statx = with_path(task, dirfd, path, |cx, path| task.kernel.vfs().statx(cx, path, flags))?;
    task.mm().put(to, &statx)
}

fn lseek(task: &Arc<Task>, fd: Fd, offset: i64, whence: i32) -> Result<u64, Errno> {
    get(task, fd)?.seek(offset, Seek::from_raw(whence)?)
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
    files.replace(new.0, files.get(old.0)?, flags != 0, task.limit(Resource::Nofile))?;
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

fn getcwd(task: &Arc<Task>, to: UserPtr<u8>, size: usize) -> Result<usize, Errno> {
    let mut path = task.kernel.vfs().getcwd(&task.fs())?;
    path.push(0);
    if path.len() > size {
        return Err(Errno::ERANGE);
    }
    task.mm().write(to.addr(), &path)?;
    Ok(path.len())
}

fn chdir(task: &Arc<Task>, path: UserCStr) -> Result<(), Errno> {
    with_path(task, CWD, path, |cx, path| task.kernel.vfs().chdir(cx, path))
}

fn fchdir(task: &Arc<Task>, fd: Fd) -> Result<(), Errno> {
    let file = task.files().get(fd.0)?;
    task.kernel.vfs().fchdir(&task.fs(), &task.creds(), &file)
}

fn access(task: &Arc<Task>, path: UserCStr, want: u32) -> Result<(), Errno> {
    faccessat2(task, CWD, path, want, 0)
}

fn faccessat(task: &Arc<Task>, dirfd: Fd, path: UserCStr, want: u32) -> Result<(), Errno> {
    faccessat2(task, dirfd, path, want, 0)
}

fn faccessat2(task: &Arc<Task>, dirfd: Fd, path: UserCStr, want: u32, flags: u32) -> Result<(), Errno> {
    let flags = at_flags(flags, AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
    with_path(task, dirfd, path, |cx, path| task.kernel.vfs().access(cx, path, want, flags))
}

fn readlink(task: &Arc<Task>, path: UserCStr, to: UserPtr<u8>, size: i32) -> Result<usize, Errno> {
    readlinkat(task, CWD, path, to, size)
}

fn readlinkat(task: &Arc<Task>, dirfd: Fd, path: UserCStr, to: UserPtr<u8>, size: i32) -> Result<usize, Errno> {
    let size = usize::try_from(size).ok().filter(|size| *size > 0).ok_or(Errno::EINVAL)?;
    let target = with_path(task, dirfd, path, |cx, path| task.kernel.vfs().readlink(cx, path))?;
    let len = target.len().min(size);
    task.mm().write(to.addr(), &target[..len])?;
    Ok(len)
}

fn getdents64(task: &Arc<Task>, fd: Fd, to: u64, size: u32) -> Result<usize, Errno> {
    let file = get(task, fd)?;
    let size = (size as usize).min(1 << 20);
    let mut out: Vec<u8> = Vec::with_capacity(size.min(32 << 10));
    let mut full = false;
    file.readdir(&mut |entry| {
        let len = (DIRENT64_HEAD + entry.name.len() + 1).next_multiple_of(8);
        if out.len() + len > size {
            full = true;
            return false;
        }
        let end = out.len() + len;
        out.extend_from_slice(&entry.ino.to_ne_bytes());
        out.extend_from_slice(&entry.next.to_ne_bytes());
        out.extend_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_ne_bytes());
        out.push(entry.kind.map_or(0, abi::fs::FileType::dirent));
        out.extend_from_slice(entry.name);
        out.resize(end, 0);
        true
    })?;
    if out.is_empty() && full {
        return Err(Errno::EINVAL);
    }
    task.mm().write(to, &out)?;
    Ok(out.len())
}

fn pipe(task: &Arc<Task>, to: UserPtr<[i32; 2]>) -> Result<(), Errno> {
    pipe2(task, to, 0)
}

fn pipe2(task: &Arc<Task>, to: UserPtr<[i32; 2]>, flags: u32) -> Result<(), Errno> {
    let flags = OpenFlags::from_bits(flags)
        .filter(|flags| (OpenFlags::CLOEXEC | OpenFlags::NONBLOCK | OpenFlags::DIRECT).contains(*flags))
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

fn umask(task: &Arc<Task>, mask: u32) -> Result<u32, Errno> {
    Ok(task.fs().set_umask(mask))
}
