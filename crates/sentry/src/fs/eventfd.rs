//! eventfd(2). Lock class: `PipeState`.

use std::sync::Arc;

use abi::Errno;
use abi::fs::OpenFlags;

use crate::io::{Sink, Source};
use crate::sync::order::PipeState;
use crate::sync::{EventMask, Mutex, WaitQueue};
use crate::vfs::anon::AnonInode;
use crate::vfs::{FileOps, OpenFile};

/// The largest count.
const MAX: u64 = u64::MAX - 1;

/// A counter to wait for.
pub struct EventFd {
    count: Mutex<u64, PipeState>,
    semaphore: bool,
    queue: Arc<WaitQueue>,
}

/// eventfd2(2): with `semaphore` each read takes one. `flags` may have `O_NONBLOCK`.
pub fn eventfd(count: u32, semaphore: bool, flags: OpenFlags) -> Arc<OpenFile> {
    let ops = Arc::new(EventFd {
        count: Mutex::new(u64::from(count)),
        semaphore,
        queue: Arc::new(WaitQueue::new()),
    });
    let flags = flags & OpenFlags::NONBLOCK | OpenFlags::RDWR;
    OpenFile::anonymous(AnonInode::new("[eventfd]"), ops, flags)
}

impl EventFd {
    /// Adds to the count as the kernel does it (asynchronous I/O): it stops at the largest count.
    pub fn signal(&self, add: u64) {
        let mut count = self.count.lock();
        *count = count.saturating_add(add).min(MAX);
        drop(count);
        self.queue.notify(EventMask::IN | EventMask::RDNORM);
    }
}

impl FileOps for EventFd {
    fn read(&self, _file: &OpenFile, to: &mut Sink<'_>, _at: u64) -> Result<usize, Errno> {
        if to.remaining() < 8 {
            return Err(Errno::EINVAL);
        }
        let mut count = self.count.lock();
        if *count == 0 {
            return Err(Errno::EAGAIN);
        }
        let taken = if self.semaphore { 1 } else { *count };
        *count -= taken;
        drop(count);
        self.queue.notify(EventMask::OUT | EventMask::WRNORM);
        to.write(&taken.to_ne_bytes())
    }

    fn write(
        &self,
        _file: &OpenFile,
        from: &mut Source<'_>,
        _at: &mut u64,
        _append: bool,
    ) -> Result<usize, Errno> {
        if from.remaining() < 8 {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0; 8];
        if from.read(&mut bytes)? < 8 {
            return Err(Errno::EFAULT);
        }
        let add = u64::from_ne_bytes(bytes);
        if add == u64::MAX {
            return Err(Errno::EINVAL);
        }
        let mut count = self.count.lock();
        *count = count
            .checked_add(add)
            .filter(|sum| *sum <= MAX)
            .ok_or(Errno::EAGAIN)?;
        drop(count);
        self.queue.notify(EventMask::IN | EventMask::RDNORM);
        Ok(8)
    }

    fn poll(&self, _file: &OpenFile) -> EventMask {
        let count = *self.count.lock();
        let mut events = EventMask::empty();
        if count > 0 {
            events |= EventMask::IN | EventMask::RDNORM;
        }
        if count < MAX {
            events |= EventMask::OUT | EventMask::WRNORM;
        }
        events
    }

    fn queue(&self) -> Option<&Arc<WaitQueue>> {
        Some(&self.queue)
    }

    fn fdinfo(&self, _file: &OpenFile) -> String {
        format!("eventfd-count: {:16x}\n", *self.count.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::{Errno, EventMask, OpenFlags, Sink, Source, eventfd};

    #[test]
    fn counts_and_takes() {
        let file = eventfd(3, false, OpenFlags::empty());
        let mut to = [0; 8];
        assert_eq!(
            file.read(&mut Sink::slice(&mut to[..7])),
            Err(Errno::EINVAL)
        );
        assert_eq!(file.read(&mut Sink::slice(&mut to)), Ok(8));
        assert_eq!(u64::from_ne_bytes(to), 3);
        assert_eq!(file.read(&mut Sink::slice(&mut to)), Err(Errno::EAGAIN));
        assert_eq!(
            file.write(&mut Source::slice(&[0xff; 8])),
            Err(Errno::EINVAL)
        );
        let most = (u64::MAX - 1).to_ne_bytes();
        assert_eq!(file.write(&mut Source::slice(&most)), Ok(8));
        assert_eq!(
            file.write(&mut Source::slice(&1u64.to_ne_bytes())),
            Err(Errno::EAGAIN)
        );
        assert!(!file.poll().contains(EventMask::OUT));
        let file = eventfd(3, true, OpenFlags::empty());
        assert_eq!(file.read(&mut Sink::slice(&mut to)), Ok(8));
        assert_eq!(u64::from_ne_bytes(to), 1);
    }
}
