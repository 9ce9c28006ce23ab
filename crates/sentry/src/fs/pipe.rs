//! Pipes and FIFOs (pipe(7), fifo(7)): [`Pipe`], and the ends of one.
//!
//! A pipe is a ring of bytes that grows to its capacity as it is used, or with `O_DIRECT` a queue of packets in the same ring. Lock class:
//! `PipeState`, never held across a copy to or from guest memory or a wake-up.

use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

use abi::Errno;
use abi::fs::{OpenFlags, PIPE_BUF};

use crate::io::{GuestMemory, Sink, Source};
use crate::sync::order::PipeState;
use crate::sync::{EventMask, Mutex, WaitQueue};
use crate::task::credentials::Credentials;
use crate::vfs::anon::{AnonInode, Reopen};
use crate::vfs::{FileOps, OpenFile};

/// What a pipe holds unless `F_SETPIPE_SZ` says otherwise.
pub const DEFAULT_CAPACITY: usize = 64 << 10;
/// The most that `F_SETPIPE_SZ` gives to those without CAP_SYS_RESOURCE (`/proc/sys/fs/pipe-max-size`).
pub const MAX_CAPACITY: usize = 1 << 20;
/// The least.
const MIN_CAPACITY: usize = 4096;
/// Small transfers go through the caller's stack.
const SMALL: usize = 512;
/// `FIONREAD`
const FIONREAD: u32 = 0x541b;

/// A pipe.
pub struct Pipe {
    state: Mutex<State, PipeState>,
    queue: Arc<WaitQueue>,
    readers: AtomicU32,
    writers: AtomicU32,
    /// How many readers and writers there ever were: what the open of a FIFO waits for.
    readers_ever: AtomicU32,
    writers_ever: AtomicU32,
}

struct State {
    bytes: Ring,
    /// Lengths of packets, where any were written with `O_DIRECT`; else one run of bytes.
    packets: VecDeque<usize>,
    capacity: usize,
}

/// One open end, or both.
struct End {
    pipe: Arc<Pipe>,
    reads: bool,
    writes: bool,
    /// For an open that waits: which side, and how many of it there ever were.
    waits: Option<(Side, u32)>,
}

#[derive(Clone, Copy)]
enum Side {
    Reader,
    Writer,
}

impl Pipe {
    /// An empty pipe without ends.
    pub fn new() -> Arc<Pipe> {
        Arc::new(Pipe {
            state: Mutex::new(State {
                bytes: Ring::default(),
                packets: VecDeque::new(),
                capacity: DEFAULT_CAPACITY,
            }),
            queue: Arc::new(WaitQueue::new()),
            readers: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            readers_ever: AtomicU32::new(0),
            writers_ever: AtomicU32::new(0),
        })
    }

    /// Who tells of readiness.
    pub fn queue(&self) -> &Arc<WaitQueue> {
        &self.queue
    }

    /// How many bytes it can hold (`F_GETPIPE_SZ`).
    pub fn capacity(&self) -> usize {
        self.state.lock().capacity
    }

    /// Changes how many bytes it can hold (`F_SETPIPE_SZ`): rounded up to a power of two of pages. EBUSY where more is in it, EPERM past the
    /// limit without `privileged`.
    pub fn set_capacity(&self, capacity: usize, privileged: bool) -> Result<usize, Errno> {
        if capacity > 1 << 31 {
            return Err(Errno::EINVAL);
        }
        let capacity = capacity.max(MIN_CAPACITY).next_power_of_two();
        if capacity > MAX_CAPACITY && !privileged {
            return Err(Errno::EPERM);
        }
        let mut state = self.state.lock();
        if state.bytes.len() > capacity {
            return Err(Errno::EBUSY);
        }
        state.capacity = capacity;
        drop(state);
        self.queue.notify(EventMask::OUT | EventMask::WRNORM);
        Ok(capacity)
    }

    /// How many bytes are in it.
    pub fn len(&self) -> usize {
        self.state.lock().bytes.len()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether somebody could read what is put in.
    pub fn has_readers(&self) -> bool {
        self.readers.load(Ordering::Acquire) > 0
    }

    fn has_writers(&self) -> bool {
        self.writers.load(Ordering::Acquire) > 0
    }

    /// Takes bytes out without a copy to a guest: at most `to`, EAGAIN where it is empty and can be filled.
    fn take(&self, to: &mut [u8]) -> Result<usize, Errno> {
        let mut state = self.state.lock();
        if state.bytes.len() == 0 {
            drop(state);
            return if self.has_writers() {
                Err(Errno::EAGAIN)
            } else {
                Ok(0)
            };
        }
        let was_full = state.room() < PIPE_BUF;
        let got = match state.packets.pop_front() {
            // What of a packet does not fit is lost (pipe(2)).
            Some(packet) => {
                let got = packet.min(to.len());
                state.bytes.pop(&mut to[..got]);
                state.bytes.skip(packet - got);
                got
            }
            None => {
                let got = to.len().min(state.bytes.len());
                state.bytes.pop(&mut to[..got]);
                got
            }
        };
        let wake = was_full && state.room() >= PIPE_BUF;
        drop(state);
        if wake {
            self.queue.notify(EventMask::OUT | EventMask::WRNORM);
        }
        Ok(got)
    }

    /// Copies the first bytes that are in it and leaves them there (tee(2)): EAGAIN where it is empty and can be filled.
    pub fn peek(&self, to: &mut [u8]) -> Result<usize, Errno> {
        let state = self.state.lock();
        let got = to.len().min(state.bytes.len());
        state.bytes.peek(&mut to[..got]);
        drop(state);
        if got == 0 && !to.is_empty() && self.has_writers() {
            return Err(Errno::EAGAIN);
        }
        Ok(got)
    }

    /// Takes away the first bytes, which were copied before.
    pub fn consume(&self, count: usize) {
        let mut state = self.state.lock();
        let count = count.min(state.bytes.len());
        state.bytes.skip(count);
        let mut left = count;
        while left > 0
            && let Some(packet) = state.packets.front_mut()
        {
            let gone = left.min(*packet);
            *packet -= gone;
            left -= gone;
            if *packet == 0 {
                state.packets.pop_front();
            }
        }
        drop(state);
        self.queue.notify(EventMask::OUT | EventMask::WRNORM);
    }

    /// How many bytes can be put in.
    pub fn room(&self) -> usize {
        self.state.lock().room()
    }

    /// Puts bytes in: all of them where they must stay `whole`, else as many as fit. EAGAIN where that is none, EPIPE without readers.
    fn put(&self, from: &[u8], whole: bool, packet: bool) -> Result<usize, Errno> {
        if !self.has_readers() {
            return Err(Errno::EPIPE);
        }
        let mut state = self.state.lock();
        let room = state.room();
        let put = from.len().min(room);
        if put == 0 || whole && put < from.len() {
            return Err(Errno::EAGAIN);
        }
        state.bytes.push(&from[..put]);
        if packet || !state.packets.is_empty() {
            state.packets.push_back(put);
        }
        drop(state);
        // Each write, since an edge-triggered watcher is told of each (epoll(7)); nobody is told where nobody waits.
        self.queue.notify(EventMask::IN | EventMask::RDNORM);
        Ok(put)
    }

    fn opened(&self, reads: bool, writes: bool) {
        if reads {
            self.readers.fetch_add(1, Ordering::AcqRel);
            self.readers_ever.fetch_add(1, Ordering::AcqRel);
        }
        if writes {
            self.writers.fetch_add(1, Ordering::AcqRel);
            self.writers_ever.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl State {
    fn room(&self) -> usize {
        self.capacity.saturating_sub(self.bytes.len())
    }
}

struct PipeHandle(Arc<Pipe>);

impl Reopen for PipeHandle {
    /// Unlike a FIFO's, this open does not wait for the other side: a pipe had it (`/proc/self/fd/N`, a shell's `<(...)`).
    fn reopen(&self, flags: OpenFlags) -> Result<Arc<dyn FileOps>, Errno> {
        let access = flags & OpenFlags::ACCMODE;
        let (reads, writes) = (access != OpenFlags::WRONLY, !access.is_empty());
        Ok(End::new(&self.0, reads, writes, None))
    }
}

/// pipe2(2): the end to read from and the end to write to. `flags` are those of both: `O_NONBLOCK`, `O_DIRECT`.
pub fn pipe(flags: OpenFlags, creds: &Credentials) -> (Arc<OpenFile>, Arc<OpenFile>) {
    let pipe = Pipe::new();
    let inode = AnonInode::pipe(
        creds.uid.fs,
        creds.gid.fs,
        Arc::new(PipeHandle(Arc::clone(&pipe))),
    );
    let flags = flags & (OpenFlags::NONBLOCK | OpenFlags::DIRECT);
    let reader = OpenFile::anonymous(
        Arc::clone(&inode) as _,
        End::new(&pipe, true, false, None),
        flags,
    );
    let writer = OpenFile::anonymous(
        inode,
        End::new(&pipe, false, true, None),
        flags | OpenFlags::WRONLY,
    );
    (reader, writer)
}

/// Opens an end of a FIFO (fifo(7)): for reading and writing at once; for reading or writing it waits for the other side
/// ([`FileOps::open_pending`]) unless `O_NONBLOCK`, with which an open for writing without a reader is ENXIO.
pub fn open_fifo(pipe: &Arc<Pipe>, flags: OpenFlags) -> Result<Arc<dyn FileOps>, Errno> {
    let access = flags & OpenFlags::ACCMODE;
    let nonblock = flags.contains(OpenFlags::NONBLOCK);
    let (reads, writes) = (access != OpenFlags::WRONLY, !access.is_empty());
    let waits = if reads && writes {
        None
    } else if reads {
        let seen = pipe.writers_ever.load(Ordering::Acquire);
        (!nonblock && !pipe.has_writers()).then_some((Side::Writer, seen))
    } else {
        if nonblock && !pipe.has_readers() {
            return Err(Errno::ENXIO);
        }
        let seen = pipe.readers_ever.load(Ordering::Acquire);
        (!pipe.has_readers()).then_some((Side::Reader, seen))
    };
    let end = End::new(pipe, reads, writes, waits);
    // Who waits for this side is let go.
    pipe.queue.notify(EventMask::IN | EventMask::OUT);
    Ok(end)
}

/// The pipe behind an open file, where it is one.
pub fn of(file: &OpenFile) -> Option<&Arc<Pipe>> {
    file.ops_as::<End>().map(|end| &end.pipe)
}

impl End {
    fn new(pipe: &Arc<Pipe>, reads: bool, writes: bool, waits: Option<(Side, u32)>) -> Arc<End> {
        pipe.opened(reads, writes);
        Arc::new(End {
            pipe: Arc::clone(pipe),
            reads,
            writes,
            waits,
        })
    }
}

impl FileOps for End {
    fn read(&self, _file: &OpenFile, to: &mut Sink<'_>, _at: u64) -> Result<usize, Errno> {
        let most = to.remaining();
        if most == 0 {
            return Ok(0);
        }
        if most <= SMALL {
            let mut buffer = [0; SMALL];
            let got = self.pipe.take(&mut buffer[..most])?;
            return to.write(&buffer[..got]);
        }
        to.fill(most, &mut |buffer, done| {
            // A reader of packets gets one at a time.
            if done > 0 && !self.pipe.state.lock().packets.is_empty() {
                return Ok(0);
            }
            self.pipe.take(buffer)
        })
    }

    fn write(
        &self,
        file: &OpenFile,
        from: &mut Source<'_>,
        _at: &mut u64,
        _append: bool,
    ) -> Result<usize, Errno> {
        let most = from.remaining();
        if !self.pipe.has_readers() {
            return Err(Errno::EPIPE);
        }
        if most == 0 {
            return Ok(0);
        }
        let packet = file.flags().contains(OpenFlags::DIRECT);
        if most <= SMALL {
            let mut buffer = [0; SMALL];
            let got = from.read(&mut buffer[..most])?;
            return self.pipe.put(&buffer[..got], true, packet);
        }
        // Whether there is room is looked at before bytes are copied: a writer that waits would copy them each time it is woken.
        let room = {
            let state = self.pipe.state.lock();
            state.room()
        };
        let whole = most <= PIPE_BUF;
        if room == 0 || whole && room < most {
            return Err(Errno::EAGAIN);
        }
        let most = if packet { most } else { most.min(room) };
        from.drain(most, &mut |buffer, _| {
            if packet {
                let mut done = 0;
                while done < buffer.len() {
                    let end = buffer.len().min(done + PIPE_BUF);
                    match self.pipe.put(&buffer[done..end], true, true) {
                        Ok(put) => done += put,
                        Err(error) if done == 0 => return Err(error),
                        Err(_) => break,
                    }
                }
                return Ok(done);
            }
            self.pipe.put(buffer, whole, false)
        })
    }

    fn ioctl(
        &self,
        _file: &OpenFile,
        request: u32,
        arg: u64,
        memory: &dyn GuestMemory,
    ) -> Result<u64, Errno> {
        match request {
            FIONREAD => {
                let len = i32::try_from(self.pipe.len()).unwrap_or(i32::MAX);
                crate::fs::put(memory, arg, &len)?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn poll(&self, _file: &OpenFile) -> EventMask {
        let mut events = EventMask::empty();
        let state = self.pipe.state.lock();
        let (len, room) = (state.bytes.len(), state.room());
        drop(state);
        if self.reads {
            if len > 0 {
                events |= EventMask::IN | EventMask::RDNORM;
            }
            if !self.pipe.has_writers() && self.pipe.writers_ever.load(Ordering::Acquire) > 0 {
                events |= EventMask::HUP;
            }
        }
        if self.writes {
            if room >= PIPE_BUF {
                events |= EventMask::OUT | EventMask::WRNORM;
            }
            if !self.pipe.has_readers() {
                events |= EventMask::ERR;
            }
        }
        events
    }

    fn queue(&self) -> Option<&Arc<WaitQueue>> {
        Some(&self.pipe.queue)
    }

    fn open_pending(&self) -> bool {
        match self.waits {
            None => false,
            Some((Side::Reader, seen)) => self.pipe.readers_ever.load(Ordering::Acquire) == seen,
            Some((Side::Writer, seen)) => self.pipe.writers_ever.load(Ordering::Acquire) == seen,
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let last_reader = self.reads && self.pipe.readers.fetch_sub(1, Ordering::AcqRel) == 1;
        let last_writer = self.writes && self.pipe.writers.fetch_sub(1, Ordering::AcqRel) == 1;
        if (last_reader || last_writer) && !self.pipe.has_readers() && !self.pipe.has_writers() {
            // A FIFO that nobody has open is empty.
            let mut state = self.pipe.state.lock();
            state.bytes = Ring::default();
            state.packets.clear();
        }
        if last_writer {
            self.pipe
                .queue
                .notify(EventMask::HUP | EventMask::IN | EventMask::RDNORM);
        }
        if last_reader {
            self.pipe
                .queue
                .notify(EventMask::ERR | EventMask::OUT | EventMask::WRNORM);
        }
    }
}

/// A queue of bytes in one piece of memory, which grows by doubling and goes back to little once it is empty.
#[derive(Default)]
struct Ring {
    memory: Vec<u8>,
    head: usize,
    len: usize,
}

impl Ring {
    const LEAST: usize = 1024;

    fn len(&self) -> usize {
        self.len
    }

    fn push(&mut self, from: &[u8]) {
        let want = self.len + from.len();
        if want > self.memory.len() {
            let mut memory = vec![0; want.next_power_of_two().max(Ring::LEAST)];
            let len = self.len;
            self.pop(&mut memory[..len]);
            self.memory = memory;
            self.head = 0;
            self.len = len;
        }
        let size = self.memory.len();
        let at = (self.head + self.len) % size;
        let first = from.len().min(size - at);
        self.memory[at..at + first].copy_from_slice(&from[..first]);
        self.memory[..from.len() - first].copy_from_slice(&from[first..]);
        self.len += from.len();
    }

    /// Takes `to.len()` bytes, which are there.
    fn pop(&mut self, to: &mut [u8]) {
        self.peek(to);
        self.skip(to.len());
    }

    /// Copies the first `to.len()` bytes, which are there.
    fn peek(&self, to: &mut [u8]) {
        let size = self.memory.len();
        let first = to.len().min(size - self.head);
        to[..first].copy_from_slice(&self.memory[self.head..self.head + first]);
        let rest = to.len() - first;
        to[first..].copy_from_slice(&self.memory[..rest]);
    }

    fn skip(&mut self, count: usize) {
        self.len -= count;
        if self.len == 0 {
            self.head = 0;
        } else {
            self.head = (self.head + count) % self.memory.len();
        }
    }
}

#[cfg(test)]
mod tests;
