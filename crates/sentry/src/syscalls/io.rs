//! Reading and writing: read(2), write(2), their kin with vectors and offsets, lseek(2).

use std::sync::Arc;

use abi::fs::{FileType, Iovec, OpenFlags};
use abi::signal::{SI_KERNEL, SI_USER, SigInfo, Signal};
use abi::{Errno, UserPtr};

use super::decode::Fd;
use super::message;
use super::table::rows;
use crate::fs::signalfd;
use crate::io::{Sink, Source};
use crate::mm::Mm;
use crate::sync::EventMask;
use crate::task::limits::INFINITY;
use crate::task::{CallState, OnSignal, Resource, Step, Task, Wait};
use crate::vfs::{OpenFile, Seek};

rows! {
    read => full (self::read);
    write => full (self::write);
    readv => full (self::readv);
    writev => full (self::writev);
    pread64 => full (self::pread64);
    pwrite64 => full (self::pwrite64);
    preadv => full (self::preadv);
    pwritev => full (self::pwritev);
    preadv2 => partial (self::preadv2) ("RWF_NOWAIT for pipes and sockets alone");
    pwritev2 => partial (self::pwritev2) ("RWF_NOWAIT for pipes and sockets alone, no RWF_ATOMIC");
    lseek => full (self::lseek);
}

/// How many segments a vector may have (`IOV_MAX`).
const IOV_MAX: usize = 1024;
/// The most that one call moves (`MAX_RW_COUNT`).
pub(super) const MAX_MOVE: usize = 0x7fff_f000;

/// The open file of a descriptor; EBADF.
pub(super) fn get(task: &Arc<Task>, fd: Fd) -> Result<Arc<OpenFile>, Errno> {
    task.files().get_file(fd.0)
}

/// Sends the thread a signal for what its own call did.
fn raise(task: &Arc<Task>, signal: Signal, code: i32) {
    // The thread itself is alive to take it.
    let _ = task.send(SigInfo::sent_by(
        signal,
        code,
        task.process.pid,
        task.creds().uid.real,
    ));
}

/// What a transfer comes to: it waits where nothing was moved and `waits`; EPIPE comes with SIGPIPE.
pub(super) fn transfer(
    task: &Arc<Task>,
    file: &OpenFile,
    waits: bool,
    events: EventMask,
    result: Result<usize, Errno>,
) -> Step {
    match result {
        Err(Errno::EAGAIN) if waits => match file.queue() {
            Some(queue) => Step::Wait(Wait::on(queue, events)),
            None => Step::Done(Err(Errno::EAGAIN)),
        },
        Err(Errno::EPIPE) => {
            raise(task, Signal::SIGPIPE, SI_USER);
            Step::Done(Err(Errno::EPIPE))
        }
        result => Step::Done(result),
    }
}

/// How many of `len` bytes may be written from `at` on under RLIMIT_FSIZE: EFBIG, with SIGXFSZ, where none may.
pub(super) fn within_limit(task: &Arc<Task>, at: u64, len: u64) -> Result<u64, Errno> {
    let limit = task.limit(Resource::Fsize);
    if limit == INFINITY || len == 0 {
        return Ok(len);
    }
    if at >= limit {
        raise(task, Signal::SIGXFSZ, SI_KERNEL);
        return Err(Errno::EFBIG);
    }
    Ok(len.min(limit - at))
}

/// EFBIG, with SIGXFSZ, where a file may not get this long (truncate(2), fallocate(2)).
pub(super) fn check_size(task: &Arc<Task>, size: i64) -> Result<(), Errno> {
    let size = u64::try_from(size).unwrap_or(0);
    if size > task.limit(Resource::Fsize) {
        raise(task, Signal::SIGXFSZ, SI_KERNEL);
        return Err(Errno::EFBIG);
    }
    Ok(())
}

/// Where a transfer begins, and what is special about it.
#[derive(Clone, Copy, Default)]
pub(super) struct How {
    /// The offset; `None` for the file's position.
    pub(super) at: Option<i64>,
    /// `RWF_*`.
    pub(super) flags: u32,
}

impl How {
    const DSYNC: u32 = 2;
    const SYNC: u32 = 4;
    pub(super) const NOWAIT: u32 = 8;
    const APPEND: u32 = 16;
    const NOAPPEND: u32 = 32;

    fn at(at: i64) -> How {
        How {
            at: Some(at),
            flags: 0,
        }
    }

    /// As preadv2(2) and pwritev2(2) are told: offset -1 is the position; EOPNOTSUPP for flags that are not there.
    fn flagged(at: i64, flags: u32) -> Result<How, Errno> {
        const HIPRI: u32 = 1;
        if flags & !(HIPRI | How::DSYNC | How::SYNC | How::NOWAIT | How::APPEND | How::NOAPPEND)
            != 0
        {
            return Err(Errno::EOPNOTSUPP);
        }
        if flags & How::APPEND != 0 && flags & How::NOAPPEND != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(How {
            at: (at != -1).then_some(at),
            flags,
        })
    }

    fn has(self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether the call waits where the file is not ready; EOPNOTSUPP for RWF_NOWAIT on what is always ready.
    fn waits(self, file: &OpenFile) -> Result<bool, Errno> {
        if self.has(How::NOWAIT) && file.queue().is_none() {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(file.blocking() && !self.has(How::NOWAIT))
    }
}

fn one(addr: u64, len: usize) -> [Iovec; 1] {
    [Iovec {
        base: addr,
        len: len.min(MAX_MOVE) as u64,
    }]
}

/// A vector of segments: EINVAL where there are too many or they are too long together.
pub(super) fn segments(mm: &Mm, from: UserPtr<Iovec>, count: usize) -> Result<Vec<Iovec>, Errno> {
    if count > IOV_MAX {
        return Err(Errno::EINVAL);
    }
    let mut segments = mm.get_array(from, count)?;
    let mut total = 0usize;
    for segment in &mut segments {
        let len = usize::try_from(segment.len)
            .ok()
            .filter(|len| isize::try_from(*len).is_ok())
            .ok_or(Errno::EINVAL)?;
        let room = MAX_MOVE - total;
        segment.len = len.min(room) as u64;
        total += len.min(room);
    }
    Ok(segments)
}

fn read_segments(
    task: &Arc<Task>,
    fd: Fd,
    segments: &[Iovec],
    how: How,
    state: &mut CallState,
) -> Step {
    let (file, waits) =
        match get(task, fd).and_then(|file| how.waits(&file).map(|waits| (file, waits))) {
            Ok(found) => found,
            Err(error) => return Step::Done(Err(error)),
        };
    if how.at.is_none() && crate::net::of(&file).is_ok() {
        if segments.iter().all(|segment| segment.len == 0) {
            return Step::Done(Ok(0));
        }
        return message::read(task, fd, segments, waits, state);
    }
    let mm = task.mm();
    let mut sink = Sink::guest(mm.as_ref(), segments);
    if let (Some(signals), None) = (signalfd::of(&file), how.at) {
        // What is read is what is pending for whoever reads.
        return match signals.read(task, &mut sink) {
            Err(Errno::EAGAIN) if waits => {
                Step::Wait(Wait::on(&task.process.signalled, EventMask::IN))
            }
            result => Step::Done(result),
        };
    }
    let result = match how.at {
        Some(at) => file.pread(&mut sink, at),
        None => file.read(&mut sink),
    };
    transfer(task, &file, waits, EventMask::IN, result)
}

/// The segments as far as RLIMIT_FSIZE lets them be written; `None` where it does not matter.
fn limited(
    task: &Arc<Task>,
    file: &OpenFile,
    segments: &[Iovec],
    how: How,
) -> Result<Option<Vec<Iovec>>, Errno> {
    if task.limit(Resource::Fsize) == INFINITY || file.inode().file_type() != FileType::Regular {
        return Ok(None);
    }
    let append =
        file.flags().contains(OpenFlags::APPEND) && !how.has(How::NOAPPEND) || how.has(How::APPEND);
    let at = match how.at {
        _ if append => file.attrs()?.size,
        Some(at) => u64::try_from(at).map_err(|_| Errno::EINVAL)?,
        None => file.position(),
    };
    let mut left = within_limit(task, at, segments.iter().map(|segment| segment.len).sum())?;
    let mut cut = segments.to_vec();
    for segment in &mut cut {
        segment.len = segment.len.min(left);
        left -= segment.len;
    }
    Ok(Some(cut))
}

fn write_segments(
    task: &Arc<Task>,
    fd: Fd,
    segments: &[Iovec],
    how: How,
    state: &mut CallState,
) -> Step {
    loop {
        // A writer waits only once there is no room at all: of anything less it would not be told.
        if let Some(step) = write_some(task, fd, segments, how, state) {
            return step;
        }
    }
}

/// Writes what can be written now; `None` where that was some, and a blocking write goes on.
fn write_some(
    task: &Arc<Task>,
    fd: Fd,
    segments: &[Iovec],
    how: How,
    state: &mut CallState,
) -> Option<Step> {
    let (file, waits) =
        match get(task, fd).and_then(|file| how.waits(&file).map(|waits| (file, waits))) {
            Ok(found) => found,
            Err(error) => return Some(Step::Done(Err(error))),
        };
    if how.at.is_none() && crate::net::of(&file).is_ok() {
        return Some(message::write(task, fd, segments, waits, state));
    }
    let cut = match limited(task, &file, segments, how) {
        Ok(cut) => cut,
        Err(error) => return Some(Step::Done(Err(error))),
    };
    let segments = cut.as_deref().unwrap_or(segments);
    let mm = task.mm();
    let done = if let CallState::Moved(done) = *state {
        done
    } else {
        0
    };
    let rest = (done > 0).then(|| skip(segments, done));
    let mut source = Source::guest(mm.as_ref(), rest.as_deref().unwrap_or(segments));
    let left = source.remaining();
    let mut result = match how.at {
        _ if how.has(How::APPEND) => file.append(&mut source, how.at.is_none()),
        Some(at) if how.has(How::NOAPPEND) => file.pwrite_there(&mut source, at),
        Some(at) => file.pwrite(
            &mut source,
            at.saturating_add(i64::try_from(done).unwrap_or(i64::MAX)),
        ),
        None => file.write(&mut source),
    };
    if result.is_ok() && (how.has(How::DSYNC) || how.has(How::SYNC)) {
        result = result.and_then(|wrote| file.sync(!how.has(How::SYNC)).map(|()| wrote));
    }
    let wait = |done| match file.queue() {
        Some(queue) => {
            Step::Wait(Wait::on(queue, EventMask::OUT).on_signal(OnSignal::Partial(done)))
        }
        None => Step::Done(Ok(done)),
    };
    Some(match result {
        // A pipe took some: a blocking write goes on until all is written.
        Ok(wrote) if wrote > 0 && wrote < left && waits && file.queue().is_some() => {
            *state = CallState::Moved(done + wrote);
            return None;
        }
        Ok(wrote) => Step::Done(Ok(done + wrote)),
        Err(Errno::EAGAIN) if done > 0 && waits => wait(done),
        Err(_) if done > 0 => Step::Done(Ok(done)),
        result => transfer(task, &file, waits, EventMask::OUT, result),
    })
}

/// The segments without their first `done` bytes.
pub(super) fn skip(segments: &[Iovec], done: usize) -> Vec<Iovec> {
    let mut left = done as u64;
    let mut rest = Vec::with_capacity(segments.len());
    for segment in segments {
        let gone = left.min(segment.len);
        left -= gone;
        if gone < segment.len {
            rest.push(Iovec {
                base: segment.base.wrapping_add(gone),
                len: segment.len - gone,
            });
        }
    }
    rest
}

fn read(task: &Arc<Task>, fd: Fd, to: u64, len: usize, state: &mut CallState) -> Step {
    read_segments(task, fd, &one(to, len), How::default(), state)
}

fn write(task: &Arc<Task>, fd: Fd, from: u64, len: usize, state: &mut CallState) -> Step {
    write_segments(task, fd, &one(from, len), How::default(), state)
}

fn pread64(task: &Arc<Task>, fd: Fd, to: u64, len: usize, at: i64, state: &mut CallState) -> Step {
    read_segments(task, fd, &one(to, len), How::at(at), state)
}

fn pwrite64(
    task: &Arc<Task>,
    fd: Fd,
    from: u64,
    len: usize,
    at: i64,
    state: &mut CallState,
) -> Step {
    write_segments(task, fd, &one(from, len), How::at(at), state)
}

pub(super) fn read_vector(
    task: &Arc<Task>,
    fd: Fd,
    vector: UserPtr<Iovec>,
    count: usize,
    how: How,
    state: &mut CallState,
) -> Step {
    match segments(&task.mm(), vector, count) {
        Ok(segments) => read_segments(task, fd, &segments, how, state),
        Err(error) => Step::Done(Err(error)),
    }
}

pub(super) fn write_vector(
    task: &Arc<Task>,
    fd: Fd,
    vector: UserPtr<Iovec>,
    count: usize,
    how: How,
    state: &mut CallState,
) -> Step {
    match segments(&task.mm(), vector, count) {
        Ok(segments) => write_segments(task, fd, &segments, how, state),
        Err(error) => Step::Done(Err(error)),
    }
}

fn readv(
    task: &Arc<Task>,
    fd: Fd,
    vector: UserPtr<Iovec>,
    count: usize,
    state: &mut CallState,
) -> Step {
    read_vector(task, fd, vector, count, How::default(), state)
}

fn writev(
    task: &Arc<Task>,
    fd: Fd,
    vector: UserPtr<Iovec>,
    count: usize,
    state: &mut CallState,
) -> Step {
    write_vector(task, fd, vector, count, How::default(), state)
}

fn preadv(
    task: &Arc<Task>,
    fd: Fd,
    vector: UserPtr<Iovec>,
    count: usize,
    at: i64,
    state: &mut CallState,
) -> Step {
    read_vector(task, fd, vector, count, How::at(at), state)
}

fn pwritev(
    task: &Arc<Task>,
    fd: Fd,
    vector: UserPtr<Iovec>,
    count: usize,
    at: i64,
    state: &mut CallState,
) -> Step {
    write_vector(task, fd, vector, count, How::at(at), state)
}

#[allow(clippy::too_many_arguments, reason = "the call has six")]
fn preadv2(
    task: &Arc<Task>,
    fd: Fd,
    vector: UserPtr<Iovec>,
    count: usize,
    at: i64,
    _high: u64,
    flags: u32,
    state: &mut CallState,
) -> Step {
    match How::flagged(at, flags) {
        Ok(how) if !how.has(How::APPEND) => read_vector(task, fd, vector, count, how, state),
        Ok(_) => Step::Done(Err(Errno::EOPNOTSUPP)),
        Err(error) => Step::Done(Err(error)),
    }
}

#[allow(clippy::too_many_arguments, reason = "the call has six")]
fn pwritev2(
    task: &Arc<Task>,
    fd: Fd,
    vector: UserPtr<Iovec>,
    count: usize,
    at: i64,
    _high: u64,
    flags: u32,
    state: &mut CallState,
) -> Step {
    match How::flagged(at, flags) {
        Ok(how) => write_vector(task, fd, vector, count, how, state),
        Err(error) => Step::Done(Err(error)),
    }
}

fn lseek(task: &Arc<Task>, fd: Fd, offset: i64, whence: i32) -> Result<u64, Errno> {
    get(task, fd)?.seek(offset, Seek::from_raw(whence)?)
}
