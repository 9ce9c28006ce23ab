//! Readiness of host descriptors, one timer, and a wake-up: an epoll instance (epoll(7)).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use abi::Errno;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::error::errno;

/// Names a descriptor among those that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub u64);

/// The poller's own descriptors.
const TIMER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;

/// Waits for many things at once.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    wake: OwnedFd,
}

impl Poller {
    /// A poller that watches nothing yet.
    pub fn new() -> Result<Poller, Errno> {
        let poller = Poller {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(errno)?,
            timer: timerfd_create(
                TimerfdClockId::Monotonic,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )
            .map_err(errno)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(errno)?,
        };
        poller.add(poller.timer.as_fd(), Token(TIMER), false)?;
        poller.add(poller.wake.as_fd(), Token(WAKE), false)?;
        Ok(poller)
    }

    /// Watches a descriptor for everything; by `edge`, each change is told once.
    pub fn add(&self, fd: BorrowedFd<'_>, token: Token, edge: bool) -> Result<(), Errno> {
        let mut flags = epoll::EventFlags::IN;
        if edge {
            flags |= epoll::EventFlags::OUT
                | epoll::EventFlags::RDHUP
                | epoll::EventFlags::PRI
                | epoll::EventFlags::ET;
        }
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token.0), flags).map_err(errno)
    }

    /// Watches a descriptor no longer.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // Fails only where it was not watched.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Lets the next [`Poller::wait`] return in this many nanoseconds, at the latest.
    pub fn set_timer(&self, nanos: i64) {
        let nanos = nanos.max(1);
        let value = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: nanos / 1_000_000_000,
                tv_nsec: nanos % 1_000_000_000,
            },
        };
        // Fails only for bad arguments, which these are not.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value);
    }

    /// Lets the next [`Poller::wait`] return at once.
    pub fn wake(&self) {
        // A full counter wakes as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// What is ready: token and `EPOLL*` bits each; nothing where the timer or a wake-up ended the wait.
    pub fn wait(&self) -> Result<Vec<(Token, u32)>, Errno> {
        let mut events = Vec::with_capacity(32);
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            None,
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(errno(error)),
        }
        let mut ready = Vec::with_capacity(events.len());
        for event in events {
            let (data, flags) = (event.data, event.flags);
            let (token, flags) = (data.u64(), flags.bits());
            let mut counter = [0; 8];
            match token {
                // What they say is only that they say something.
                TIMER => drop(rustix::io::read(&self.timer, &mut counter)),
                WAKE => drop(rustix::io::read(&self.wake, &mut counter)),
                token => ready.push((Token(token), flags)),
            }
        }
        Ok(ready)
    }
}
