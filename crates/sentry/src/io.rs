//! Cursors over the memory that I/O moves bytes from and to: a guest's buffers, or the sentry's own.
//!
//! A file's `read` fills a [`Sink`], its `write` drains a [`Source`]. Both may stop early at a bad guest address: what was moved before counts, and
//! only where nothing was moved is the error EFAULT.

use abi::Errno;

/// Guest memory, as cursors see it: the address space of the task that makes the call.
pub trait GuestMemory {
    /// Copies from guest memory; says how many bytes could be read from the start, EFAULT where none.
    fn copy_in(&self, addr: u64, to: &mut [u8]) -> Result<usize, Errno>;
    /// Copies to guest memory; says how many bytes could be written from the start, EFAULT where none.
    fn copy_out(&self, addr: u64, from: &[u8]) -> Result<usize, Errno>;
}

/// How many bytes a cursor moves at a time where it goes through the sentry's own memory.
pub const CHUNK: usize = 64 << 10;

/// Where a read puts its bytes.
pub struct Sink<'a> {
    to: Place<'a, SinkMemory<'a>>,
}

/// Where a write takes its bytes from.
pub struct Source<'a> {
    from: Place<'a, &'a [u8]>,
}

enum SinkMemory<'a> {
    Slice(&'a mut [u8], usize),
    Vec(&'a mut Vec<u8>, usize),
}

enum Place<'a, K> {
    Guest {
        memory: &'a dyn GuestMemory,
        segments: &'a [abi::fs::Iovec],
        at: u64,
        left: usize,
    },
    Kernel(K),
}

impl<'a> Sink<'a> {
    /// A guest's buffers, one after another.
    pub fn guest(memory: &'a dyn GuestMemory, segments: &'a [abi::fs::Iovec]) -> Self {
        Sink {
            to: Place::Guest {
                memory,
                segments,
                at: 0,
                left: total(segments),
            },
        }
    }

    /// A buffer of the sentry's own.
    pub fn slice(to: &'a mut [u8]) -> Self {
        Sink {
            to: Place::Kernel(SinkMemory::Slice(to, 0)),
        }
    }

    /// The end of a vector, at most `most` bytes more.
    pub fn vec(to: &'a mut Vec<u8>, most: usize) -> Self {
        Sink {
            to: Place::Kernel(SinkMemory::Vec(to, most)),
        }
    }

    /// How many bytes still fit.
    pub fn remaining(&self) -> usize {
        match &self.to {
            Place::Guest { left, .. } => *left,
            Place::Kernel(SinkMemory::Slice(slice, at)) => slice.len() - at,
            Place::Kernel(SinkMemory::Vec(_, left)) => *left,
        }
    }

    /// Puts as many of these bytes as fit and can be written; EFAULT only where none of them could be.
    pub fn write(&mut self, mut data: &[u8]) -> Result<usize, Errno> {
        data = &data[..data.len().min(self.remaining())];
        match &mut self.to {
            Place::Kernel(SinkMemory::Slice(slice, at)) => {
                slice[*at..*at + data.len()].copy_from_slice(data);
                *at += data.len();
                Ok(data.len())
            }
            Place::Kernel(SinkMemory::Vec(vec, left)) => {
                vec.extend_from_slice(data);
                *left -= data.len();
                Ok(data.len())
            }
            Place::Guest {
                memory,
                segments,
                at,
                left,
            } => {
                let mut done = 0;
                while done < data.len() {
                    let (addr, room) = segment(segments, at);
                    let want = room.min(data.len() - done);
                    match memory.copy_out(addr, &data[done..done + want]) {
                        Ok(moved) => {
                            done += moved;
                            *at += moved as u64;
                            *left -= moved;
                            if moved < want {
                                break;
                            }
                        }
                        Err(error) if done == 0 => return Err(error),
                        Err(_) => break,
                    }
                }
                Ok(done)
            }
        }
    }

    /// Lets `fill` produce up to `most` bytes into a buffer, a chunk at a time, until it gives fewer than asked, and puts them.
    /// Says how many were put. An error counts only where nothing was put before.
    ///
    /// Bytes that `fill` produced and that could not be put are lost: for a source that must not lose them, use [`Sink::write`].
    pub fn fill(
        &mut self,
        most: usize,
        fill: &mut dyn FnMut(&mut [u8], usize) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let most = most.min(self.remaining());
        if let Place::Kernel(SinkMemory::Slice(slice, at)) = &mut self.to {
            let mut done = 0;
            while done < most {
                match fill(&mut slice[*at..*at + most - done], done) {
                    Ok(0) => break,
                    Ok(got) => {
                        *at += got;
                        done += got;
                    }
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => break,
                }
            }
            return Ok(done);
        }
        with_buffer(most.min(CHUNK), |buffer| {
            let mut done = 0;
            while done < most {
                let want = buffer.len().min(most - done);
                let got = match fill(&mut buffer[..want], done) {
                    Ok(got) => got,
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => break,
                };
                let put = match self.write(&buffer[..got]) {
                    Ok(put) => put,
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => break,
                };
                done += put;
                if put < want {
                    break;
                }
            }
            Ok(done)
        })
    }
}

impl<'a> Source<'a> {
    /// A guest's buffers, one after another.
    pub fn guest(memory: &'a dyn GuestMemory, segments: &'a [abi::fs::Iovec]) -> Self {
        Source {
            from: Place::Guest {
                memory,
                segments,
                at: 0,
                left: total(segments),
            },
        }
    }

    /// Bytes of the sentry's own.
    pub fn slice(from: &'a [u8]) -> Self {
        Source {
            from: Place::Kernel(from),
        }
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        match &self.from {
            Place::Guest { left, .. } => *left,
            Place::Kernel(slice) => slice.len(),
        }
    }

    /// Lets go of all bytes without looking at them; says how many there were.
    pub fn discard(&mut self) -> usize {
        let count = self.remaining();
        match &mut self.from {
            Place::Guest { left, .. } => *left = 0,
            Place::Kernel(slice) => *slice = &[],
        }
        count
    }

    /// Takes as many bytes as there are and fit; EFAULT only where none could be read.
    pub fn read(&mut self, to: &mut [u8]) -> Result<usize, Errno> {
        let most = to.len().min(self.remaining());
        match &mut self.from {
            Place::Kernel(slice) => {
                let (head, rest) = slice.split_at(most);
                to[..most].copy_from_slice(head);
                *slice = rest;
                Ok(most)
            }
            Place::Guest {
                memory,
                segments,
                at,
                left,
            } => {
                let mut done = 0;
                while done < most {
                    let (addr, room) = segment(segments, at);
                    let want = room.min(most - done);
                    match memory.copy_in(addr, &mut to[done..done + want]) {
                        Ok(moved) => {
                            done += moved;
                            *at += moved as u64;
                            *left -= moved;
                            if moved < want {
                                break;
                            }
                        }
                        Err(error) if done == 0 => return Err(error),
                        Err(_) => break,
                    }
                }
                Ok(done)
            }
        }
    }

    /// Hands up to `most` bytes to `drain`, a chunk at a time, until it takes fewer than it was given. Says how many it
    /// took. An error counts only where nothing was taken before.
    pub fn drain(
        &mut self,
        most: usize,
        drain: &mut dyn FnMut(&[u8], usize) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let most = most.min(self.remaining());
        if let Place::Kernel(slice) = &mut self.from {
            let mut done = 0;
            while done < most {
                match drain(&slice[..most - done], done) {
                    Ok(0) => break,
                    Ok(took) => {
                        *slice = &slice[took..];
                        done += took;
                    }
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => break,
                }
            }
            return Ok(done);
        }
        with_buffer(most.min(CHUNK), |buffer| {
            let mut done = 0;
            while done < most {
                let want = buffer.len().min(most - done);
                let got = match self.read(&mut buffer[..want]) {
                    Ok(got) => got,
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => break,
                };
                let took = match drain(&buffer[..got], done) {
                    Ok(took) => took,
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => break,
                };
                done += took;
                if took < want {
                    break;
                }
            }
            Ok(done)
        })
    }
}

/// The bytes that the segments name together.
fn total(segments: &[abi::fs::Iovec]) -> usize {
    segments.iter().fold(0usize, |sum, segment| {
        sum.saturating_add(usize::try_from(segment.len).unwrap_or(usize::MAX))
    })
}

/// The address at offset `at` of the segments, first advancing past segments that are used up, and the room there.
fn segment(segments: &mut &[abi::fs::Iovec], at: &mut u64) -> (u64, usize) {
    while let Some(first) = segments.first() {
        if *at < first.len {
            return (
                first.base.wrapping_add(*at),
                usize::try_from(first.len - *at).unwrap_or(usize::MAX),
            );
        }
        *at -= first.len;
        *segments = &segments[1..];
    }
    (0, 0)
}

thread_local! {
    static BUFFER: core::cell::RefCell<Vec<u8>> = const { core::cell::RefCell::new(Vec::new()) };
}

/// Where in its page a worker's buffer begins. Processors copy by strings at a fraction of their speed where the target lies less than 64 bytes behind
/// the source, by the offsets in their pages (4 KiB aliasing). What a buffer is copied from and to begins near a page's start (pages of files, the window, the
/// page or 16 bytes behind that malloc(3) gives); half a page away it is far from all of these.
const SKEW: usize = 2048;

/// A worker's own buffer of `len` bytes, its contents whatever was there before.
fn with_buffer<R>(len: usize, use_it: impl FnOnce(&mut [u8]) -> R) -> R {
    BUFFER.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => {
            if buffer.len() < len + 4096 {
                buffer.resize(len + 4096, 0);
            }
            let start = SKEW.wrapping_sub(buffer.as_ptr().addr()) % 4096;
            use_it(&mut buffer[start..start + len])
        }
        // A file that is read through another's cursor (splice, a stacked file system) nests.
        Err(_) => use_it(&mut vec![0; len]),
    })
}

#[cfg(test)]
mod tests {
    use super::{Errno, GuestMemory, Sink, Source};
    use abi::fs::Iovec;
    use std::cell::RefCell;

    /// Memory at 0x1000 to 0x1010.
    struct Small(RefCell<[u8; 16]>);
    impl GuestMemory for Small {
        fn copy_in(&self, addr: u64, to: &mut [u8]) -> Result<usize, Errno> {
            let at = usize::try_from(addr - 0x1000).expect("a test's address");
            let most = to.len().min(16usize.saturating_sub(at));
            if most == 0 {
                return Err(Errno::EFAULT);
            }
            to[..most].copy_from_slice(&self.0.borrow()[at..at + most]);
            Ok(most)
        }
        fn copy_out(&self, addr: u64, from: &[u8]) -> Result<usize, Errno> {
            let at = usize::try_from(addr - 0x1000).expect("a test's address");
            let most = from.len().min(16usize.saturating_sub(at));
            if most == 0 {
                return Err(Errno::EFAULT);
            }
            self.0.borrow_mut()[at..at + most].copy_from_slice(&from[..most]);
            Ok(most)
        }
    }

    #[test]
    fn segments_are_walked_and_a_fault_ends_with_what_was_moved() {
        let memory = Small(RefCell::new([0; 16]));
        let segments = [
            Iovec {
                base: 0x1002,
                len: 3,
            },
            Iovec {
                base: 0x1000,
                len: 0,
            },
            Iovec {
                base: 0x100e,
                len: 8,
            },
        ];
        let mut sink = Sink::guest(&memory, &segments);
        assert_eq!(sink.remaining(), 11);
        assert_eq!(sink.write(b"abcdefgh"), Ok(5));
        assert_eq!(sink.write(b"x"), Err(Errno::EFAULT));
        assert_eq!(&*memory.0.borrow(), b"\0\0abc\0\0\0\0\0\0\0\0\0de");
        let mut source = Source::guest(&memory, &segments);
        let mut out = [0; 8];
        assert_eq!(source.read(&mut out), Ok(5));
        assert_eq!(&out[..5], b"abcde");
    }

    #[test]
    fn fill_stops_where_the_source_ends() {
        let mut to = Vec::new();
        let mut left = 100_000;
        let got = Sink::vec(&mut to, 200_000).fill(usize::MAX, &mut |buffer, _| {
            let n = buffer.len().min(left);
            left -= n;
            Ok(n)
        });
        assert_eq!(got, Ok(100_000));
        assert_eq!(to.len(), 100_000);
    }
}
