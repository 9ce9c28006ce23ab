//! Bytes from file to file: sendfile(2), copy_file_range(2), splice(2), tee(2), vmsplice(2). They go through the sentry.

use std::sync::Arc;

use abi::fs::{FileType, Iovec, OpenFlags};
use abi::{Errno, UserPtr};

use super::decode::Fd;
use super::io::{How, MAX_MOVE, get, read_vector, transfer, within_limit, write_vector};
use super::table::rows;
use crate::fs::pipe::{self, Pipe};
use crate::io::{Sink, Source};
use crate::sync::EventMask;
use crate::task::{CallState, OnSignal, Step, Task, Wait};
use crate::vfs::OpenFile;

rows! {
    sendfile => partial (self::sendfile) ("from files with offsets alone");
    copy_file_range => full (self::copy_file_range);
    splice => full (self::splice);
    tee => full (self::tee);
    vmsplice => partial (self::vmsplice) ("copies");
}

/// How many bytes go at a time.
const CHUNK: usize = 128 << 10;
/// `SPLICE_F_NONBLOCK`
const NONBLOCK: u32 = 2;
/// All of `SPLICE_F_*`.
const FLAGS: u32 = 15;

/// Where a file's bytes come from or go to.
struct Place {
    file: Arc<OpenFile>,
    /// The offset in guest memory; `None` for the position.
    offset: Option<UserPtr<i64>>,
}

impl Place {
    /// The offset as the call found it: EINVAL for a negative one.
    fn at(&self, task: &Arc<Task>) -> Result<u64, Errno> {
        match self.offset {
            Some(offset) => u64::try_from(task.mm().get(offset)?).map_err(|_| Errno::EINVAL),
            None => Ok(self.file.position()),
        }
    }

    /// Moves it on, once, when the call ends.
    fn advance(&self, task: &Arc<Task>, at: u64, by: usize) -> Result<(), Errno> {
        match self.offset {
            Some(offset) => task
                .mm()
                .put(offset, &i64::try_from(at + by as u64).unwrap_or(i64::MAX)),
            None => {
                self.file.advance(by as u64);
                Ok(())
            }
        }
    }
}

fn signed(at: u64) -> Result<i64, Errno> {
    i64::try_from(at).map_err(|_| Errno::EINVAL)
}

fn moved(state: &CallState) -> usize {
    if let CallState::Moved(done) = *state {
        done
    } else {
        0
    }
}

fn sendfile(
    task: &Arc<Task>,
    to: Fd,
    from: Fd,
    offset: UserPtr<i64>,
    count: usize,
    state: &mut CallState,
) -> Step {
    let checked = (|| {
        let (from, to) = (get(task, from)?, get(task, to)?);
        if !from.readable() || !to.writable() {
            return Err(Errno::EBADF);
        }
        if !from.ops().seekable()
            || from.inode().file_type() == FileType::Directory
            || to.flags().contains(OpenFlags::APPEND)
        {
            return Err(Errno::EINVAL);
        }
        Ok((
            Place {
                file: from,
                offset: offset.non_null(),
            },
            to,
        ))
    })();
    let (from, to) = match checked {
        Ok(checked) => checked,
        Err(error) => return Step::Done(Err(error)),
    };
    let start = match from.at(task) {
        Ok(start) => start,
        Err(error) => return Step::Done(Err(error)),
    };
    let mut done = moved(state);
    let count = count.min(MAX_MOVE);
    let mut buffer = vec![0; CHUNK.min(count)];
    let waits = to.blocking();
    let mut failed = None;
    while done < count && failed.is_none() {
        let most = buffer.len().min(count - done);
        match send_some(
            task,
            &from.file,
            start + done as u64,
            &to,
            &mut buffer[..most],
        ) {
            Ok(0) => break,
            Ok(put) => done += put,
            Err(error) => failed = Some(error),
        }
    }
    let step = match failed {
        Some(error) if done == 0 => transfer(task, &to, waits, EventMask::OUT, Err(error)),
        Some(Errno::EAGAIN) if waits => match to.queue() {
            Some(queue) => {
                *state = CallState::Moved(done);
                Step::Wait(Wait::on(queue, EventMask::OUT).on_signal(OnSignal::Partial(done)))
            }
            None => Step::Done(Ok(done)),
        },
        _ => Step::Done(Ok(done)),
    };
    // The offset is written at the end, and before an interruption, which does not come back here.
    let ends = matches!(step, Step::Done(_)) || task.interrupted();
    match if ends && done > 0 {
        from.advance(task, start, done)
    } else {
        Ok(())
    } {
        Ok(()) => step,
        Err(error) => Step::Done(Err(error)),
    }
}

/// Moves one buffer's worth.
fn send_some(
    task: &Arc<Task>,
    from: &OpenFile,
    at: u64,
    to: &OpenFile,
    buffer: &mut [u8],
) -> Result<usize, Errno> {
    let got = from.pread(&mut Sink::slice(buffer), signed(at)?)?;
    if got == 0 {
        return Ok(0);
    }
    let got = match to.inode().file_type() {
        FileType::Regular => {
            usize::try_from(within_limit(task, to.position(), got as u64)?).unwrap_or(got)
        }
        _ => got,
    };
    to.write(&mut Source::slice(&buffer[..got]))
}

fn copy_file_range(
    task: &Arc<Task>,
    from: Fd,
    from_offset: UserPtr<i64>,
    to: Fd,
    to_offset: UserPtr<i64>,
    count: usize,
    flags: u32,
) -> Result<usize, Errno> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let from = Place {
        file: get(task, from)?,
        offset: from_offset.non_null(),
    };
    let to = Place {
        file: get(task, to)?,
        offset: to_offset.non_null(),
    };
    for file in [&from.file, &to.file] {
        match file.inode().file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
    }
    if !from.file.readable() || !to.file.writable() || to.file.flags().contains(OpenFlags::APPEND) {
        return Err(Errno::EBADF);
    }
    let (source, target) = (from.file.inode().key(), to.file.inode().key());
    if source.dev != target.dev {
        return Err(Errno::EXDEV);
    }
    let (read_at, write_at) = (from.at(task)?, to.at(task)?);
    let count = count.min(MAX_MOVE);
    let end = |at: u64| {
        at.checked_add(count as u64)
            .filter(|end| signed(*end).is_ok())
            .ok_or(Errno::EOVERFLOW)
    };
    let (read_end, write_end) = (end(read_at)?, end(write_at)?);
    if source == target && read_at < write_end && write_at < read_end {
        return Err(Errno::EINVAL);
    }
    let mut done = 0;
    let mut buffer = vec![0; CHUNK.min(count)];
    while done < count {
        let most = buffer.len().min(count - done);
        let part = (|| {
            let (read_at, write_at) = (read_at + done as u64, write_at + done as u64);
            let got = from
                .file
                .pread(&mut Sink::slice(&mut buffer[..most]), signed(read_at)?)?;
            let got = usize::try_from(within_limit(task, write_at, got as u64)?).unwrap_or(got);
            if got == 0 {
                Ok(0)
            } else {
                to.file
                    .pwrite(&mut Source::slice(&buffer[..got]), signed(write_at)?)
            }
        })();
        let put = match part {
            Ok(0) => break,
            Ok(put) => put,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        };
        done += put;
    }
    from.advance(task, read_at, done)?;
    to.advance(task, write_at, done)?;
    Ok(done)
}

fn splice(
    task: &Arc<Task>,
    from: Fd,
    from_offset: UserPtr<i64>,
    to: Fd,
    to_offset: UserPtr<i64>,
    count: usize,
    flags: u32,
) -> Step {
    let checked = (|| {
        if flags & !FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        let from = Place {
            file: get(task, from)?,
            offset: from_offset.non_null(),
        };
        let to = Place {
            file: get(task, to)?,
            offset: to_offset.non_null(),
        };
        if !from.file.readable() || !to.file.writable() {
            return Err(Errno::EBADF);
        }
        for place in [&from, &to] {
            if place.offset.is_some() && !place.file.ops().seekable() {
                return Err(Errno::ESPIPE);
            }
        }
        match (pipe::of(&from.file), pipe::of(&to.file)) {
            (None, None) => return Err(Errno::EINVAL),
            (Some(a), Some(b)) if Arc::ptr_eq(a, b) => return Err(Errno::EINVAL),
            _ => {}
        }
        if to.file.flags().contains(OpenFlags::APPEND) {
            return Err(Errno::EINVAL);
        }
        Ok((from, to))
    })();
    let (from, to) = match checked {
        Ok(checked) => checked,
        Err(error) => return Step::Done(Err(error)),
    };
    let count = count.min(CHUNK);
    if count == 0 {
        return Step::Done(Ok(0));
    }
    let waits = |file: &OpenFile| flags & NONBLOCK == 0 && file.blocking();
    let mut buffer = vec![0; count];
    // What can't be put is not taken: from a pipe by looking first, into a pipe by asking for the room.
    if let Some(pipe) = pipe::of(&to.file) {
        let room = pipe.room();
        if room == 0 {
            let error = if pipe.has_readers() {
                Errno::EAGAIN
            } else {
                Errno::EPIPE
            };
            return transfer(task, &to.file, waits(&to.file), EventMask::OUT, Err(error));
        }
        buffer.truncate(room);
    }
    let got = match pipe::of(&from.file) {
        Some(pipe) => pipe.peek(&mut buffer).map(|got| (got, 0)),
        None if from.file.ops().seekable() => from.at(task).and_then(|at| {
            from.file
                .pread(&mut Sink::slice(&mut buffer), signed(at)?)
                .map(|got| (got, at))
        }),
        None => from
            .file
            .read(&mut Sink::slice(&mut buffer))
            .map(|got| (got, 0)),
    };
    let (got, read_at) = match got {
        Ok((0, _)) => return Step::Done(Ok(0)),
        Ok(got) => got,
        Err(error) => {
            return transfer(
                task,
                &from.file,
                waits(&from.file),
                EventMask::IN,
                Err(error),
            );
        }
    };
    let put = put_some(task, &to, &buffer[..got]);
    match put {
        Ok(put) => {
            let after = match pipe::of(&from.file) {
                Some(pipe) => {
                    pipe.consume(put);
                    Ok(())
                }
                None if from.file.ops().seekable() => from.advance(task, read_at, put),
                None => Ok(()),
            };
            Step::Done(after.map(|()| put))
        }
        Err(error) => transfer(task, &to.file, waits(&to.file), EventMask::OUT, Err(error)),
    }
}

/// Writes what was taken, at the place's offset where it has one.
fn put_some(task: &Arc<Task>, to: &Place, bytes: &[u8]) -> Result<usize, Errno> {
    if to.offset.is_none() {
        return to.file.write(&mut Source::slice(bytes));
    }
    let at = to.at(task)?;
    let put = to.file.pwrite(&mut Source::slice(bytes), signed(at)?)?;
    to.advance(task, at, put)?;
    Ok(put)
}

fn tee(task: &Arc<Task>, from: Fd, to: Fd, count: usize, flags: u32) -> Step {
    let checked = (|| {
        if flags & !FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        let (from, to) = (get(task, from)?, get(task, to)?);
        if !from.readable() || !to.writable() {
            return Err(Errno::EBADF);
        }
        let pipes: (&Arc<Pipe>, &Arc<Pipe>) = (
            pipe::of(&from).ok_or(Errno::EINVAL)?,
            pipe::of(&to).ok_or(Errno::EINVAL)?,
        );
        if Arc::ptr_eq(pipes.0, pipes.1) {
            return Err(Errno::EINVAL);
        }
        let source = Arc::clone(pipes.0);
        Ok((source, from, to))
    })();
    let (source, from, to) = match checked {
        Ok(checked) => checked,
        Err(error) => return Step::Done(Err(error)),
    };
    let waits = flags & NONBLOCK == 0;
    let mut buffer = vec![0; count.min(CHUNK)];
    match source.peek(&mut buffer) {
        Ok(got) => {
            let room = pipe::of(&to).map_or(0, |pipe| pipe.room());
            let put = if room == 0 && got > 0 {
                Err(Errno::EAGAIN)
            } else {
                to.write(&mut Source::slice(&buffer[..got.min(room)]))
            };
            transfer(task, &to, waits && to.blocking(), EventMask::OUT, put)
        }
        Err(error) => transfer(
            task,
            &from,
            waits && from.blocking(),
            EventMask::IN,
            Err(error),
        ),
    }
}

fn vmsplice(
    task: &Arc<Task>,
    fd: Fd,
    vector: UserPtr<Iovec>,
    count: usize,
    flags: u32,
    state: &mut CallState,
) -> Step {
    let file = match get(task, fd) {
        Ok(file) => file,
        Err(error) => return Step::Done(Err(error)),
    };
    if flags & !FLAGS != 0 {
        return Step::Done(Err(Errno::EINVAL));
    }
    if pipe::of(&file).is_none() {
        return Step::Done(Err(Errno::EBADF));
    }
    let how = How {
        flags: if flags & NONBLOCK != 0 {
            How::NOWAIT
        } else {
            0
        },
        ..How::default()
    };
    if file.writable() {
        write_vector(task, fd, vector, count, how, state)
    } else {
        read_vector(task, fd, vector, count, how, state)
    }
}
