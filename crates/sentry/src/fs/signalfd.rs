//! signalfd(2): signals to be read.
//!
//! Reading takes what is pending for whoever reads, so the system call asks [`SignalFd::read`] with its task. Watchers (epoll) are told of the process that made
//! the file. Lock class: `Leaf`.

use std::sync::{Arc, Weak};

use abi::Errno;
use abi::fs::OpenFlags;
use abi::signal::{SI_TIMER, SigInfo, SigSet, Signal};

use crate::io::Sink;
use crate::sync::order::Leaf;
use crate::sync::{EventMask, Mutex, WaitQueue};
use crate::task::Task;
use crate::vfs::anon::AnonInode;
use crate::vfs::{FileOps, OpenFile};

/// The size of `struct signalfd_siginfo`.
const RECORD: usize = 128;

/// A set of signals to be read.
pub struct SignalFd {
    mask: Mutex<SigSet, Leaf>,
    maker: Weak<Task>,
    queue: Arc<WaitQueue>,
}

/// signalfd4(2): a new file. `flags` may have `O_NONBLOCK`.
pub fn signalfd(task: &Arc<Task>, mask: SigSet, flags: OpenFlags) -> Arc<OpenFile> {
    let ops = Arc::new(SignalFd {
        mask: Mutex::new(mask.difference(SigSet::UNBLOCKABLE)),
        maker: Arc::downgrade(task),
        queue: Arc::clone(&task.process.signalled),
    });
    OpenFile::anonymous(
        AnonInode::new("[signalfd]"),
        ops,
        flags & OpenFlags::NONBLOCK | OpenFlags::RDWR,
    )
}

/// The set behind an open file, where it is one.
pub fn of(file: &OpenFile) -> Option<&SignalFd> {
    file.ops_as()
}

impl SignalFd {
    /// signalfd(2) of a file that is there: another set.
    pub fn set_mask(&self, mask: SigSet) {
        *self.mask.lock() = mask.difference(SigSet::UNBLOCKABLE);
        self.queue.notify(EventMask::IN);
    }

    fn mask(&self) -> SigSet {
        *self.mask.lock()
    }

    /// Takes as many pending signals of this task as fit: EINVAL where not even one does, EAGAIN where none is pending.
    pub fn read(&self, task: &Task, to: &mut Sink<'_>) -> Result<usize, Errno> {
        if to.remaining() < RECORD {
            return Err(Errno::EINVAL);
        }
        let mask = self.mask();
        let mut done = 0;
        while to.remaining() >= RECORD
            && let Some(info) = task.take_signal(mask)
        {
            match to.write(&record(&info)) {
                Ok(put) => done += put,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if done == 0 {
            Err(Errno::EAGAIN)
        } else {
            Ok(done)
        }
    }

    /// What the file is ready for, as this task sees it.
    pub fn poll_for(&self, task: &Task) -> EventMask {
        if task.pending_set().intersection(self.mask()).is_empty() {
            EventMask::empty()
        } else {
            EventMask::IN | EventMask::RDNORM
        }
    }
}

/// `struct signalfd_siginfo`.
fn record(info: &SigInfo) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
    let field = |at: usize| info.fields[at].to_ne_bytes();
    let (first, second, third, fourth) = (field(0), field(1), field(2), field(3));
    put(0, &info.signo.to_ne_bytes());
    put(4, &info.errno.to_ne_bytes());
    put(8, &info.code.to_ne_bytes());
    let signal = u32::try_from(info.signo).ok().and_then(Signal::from_raw);
    match signal {
        Some(
            Signal::SIGILL | Signal::SIGFPE | Signal::SIGSEGV | Signal::SIGBUS | Signal::SIGTRAP,
        ) if info.code > 0 => put(72, &first),
        Some(Signal::SIGCHLD) if info.code > 0 => {
            // PID, UID, status, times.
            put(12, &first);
            put(40, &second[..4]);
            put(56, &third);
            put(64, &fourth);
        }
        _ if info.code == SI_TIMER => {
            put(24, &first[..4]);
            put(32, &first[4..]);
            put(44, &second[..4]);
            put(48, &second);
        }
        _ => {
            put(12, &first);
            put(44, &second[..4]);
            put(48, &second);
        }
    }
    record
}

impl FileOps for SignalFd {
    fn poll(&self, _file: &OpenFile) -> EventMask {
        match self.maker.upgrade() {
            Some(maker) => self.poll_for(&maker),
            None => EventMask::empty(),
        }
    }

    fn queue(&self) -> Option<&Arc<WaitQueue>> {
        Some(&self.queue)
    }

    fn fdinfo(&self, _file: &OpenFile) -> String {
        format!("sigmask:\t{:016x}\n", self.mask().0)
    }
}

#[cfg(test)]
mod tests {
    use super::{SigInfo, Signal, record};

    #[test]
    fn fields_are_where_the_signal_has_them() {
        let record_of = |info: &SigInfo, at: usize| {
            u32::from_ne_bytes(record(info)[at..at + 4].try_into().expect("four bytes"))
        };
        let info = SigInfo::child(abi::signal::CLD_EXITED, 7, 1000, 3);
        assert_eq!(
            [0, 8, 12, 16, 40].map(|at| record_of(&info, at)),
            [17, 1, 7, 1000, 3]
        );
        let mut info = SigInfo::sent_by(Signal::SIGUSR1, abi::signal::SI_QUEUE, 9, 5);
        info.fields[1] = 0x1_0000_0002;
        assert_eq!(
            [12, 16, 44, 48, 52].map(|at| record_of(&info, at)),
            [9, 5, 2, 2, 1]
        );
    }
}
