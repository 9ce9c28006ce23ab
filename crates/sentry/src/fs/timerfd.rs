//! timerfd_create(2): timers to be read.
//!
//! How often a timer has expired is worked out when somebody asks; the heap of deadlines is only there to wake those who wait, so that a timer that nobody
//! reads costs one wake-up. Lock class: `PipeState`.

use std::sync::{Arc, Weak};

use abi::Errno;
use abi::fs::OpenFlags;
use abi::time::{Itimerspec, Timespec};

use crate::io::Sink;
use crate::kernel::Kernel;
use crate::sync::order::PipeState;
use crate::sync::{EventMask, Mutex, WaitQueue};
use crate::time::{Clock, Deadline, OnTime, TimerId};
use crate::vfs::anon::AnonInode;
use crate::vfs::{FileOps, OpenFile};

/// A timer.
pub struct TimerFd {
    this: Weak<TimerFd>,
    kernel: Weak<Kernel>,
    /// The clock's number, as it was given.
    id: i32,
    clock: Clock,
    state: Mutex<State, PipeState>,
    queue: Arc<WaitQueue>,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// When it expires next, and on which clock.
    next: Option<Deadline>,
    /// How often from then: nanoseconds, 0 for once.
    interval: i64,
    /// Expirations that nobody has read.
    ticks: u64,
    armed: Option<TimerId>,
    absolute: bool,
}

impl State {
    /// Counts the expirations until now.
    fn count(&mut self, kernel: &Kernel) {
        let Some(next) = self.next else { return };
        let now = kernel.clocks().now(next.clock);
        if now < next.nanos {
            return;
        }
        if self.interval == 0 {
            self.ticks += 1;
            self.next = None;
            return;
        }
        let times = (now - next.nanos) / self.interval + 1;
        self.ticks = self.ticks.saturating_add(times.unsigned_abs());
        let nanos = next
            .nanos
            .saturating_add(times.saturating_mul(self.interval));
        self.next = Some(Deadline { nanos, ..next });
    }

    /// What is left, and the interval: nanoseconds.
    fn left(&self, kernel: &Kernel) -> (i64, i64) {
        (
            self.next
                .map_or(0, |next| kernel.clocks().until(next).max(1)),
            self.interval,
        )
    }
}

/// timerfd_create(2) on this clock, which the caller has the number `id` for. `flags` may have `O_NONBLOCK`.
pub fn timerfd(kernel: &Arc<Kernel>, id: i32, clock: Clock, flags: OpenFlags) -> Arc<OpenFile> {
    let ops = Arc::new_cyclic(|this| TimerFd {
        this: Weak::clone(this),
        kernel: Arc::downgrade(kernel),
        id,
        clock,
        state: Mutex::new(State::default()),
        queue: Arc::new(WaitQueue::new()),
    });
    OpenFile::anonymous(
        AnonInode::new("[timerfd]"),
        ops,
        flags & OpenFlags::NONBLOCK | OpenFlags::RDWR,
    )
}

/// The timer behind an open file; EINVAL where it is none.
pub fn of(file: &OpenFile) -> Result<&TimerFd, Errno> {
    file.ops_as().ok_or(Errno::EINVAL)
}

fn spec((value, interval): (i64, i64)) -> Itimerspec {
    Itimerspec {
        interval: Timespec::from_nanos(interval),
        value: Timespec::from_nanos(value),
    }
}

impl TimerFd {
    /// timerfd_settime(2): value 0 disarms. What was left before.
    pub fn set(&self, value: i64, interval: i64, absolute: bool) -> Itimerspec {
        let Some(kernel) = self.kernel.upgrade() else {
            return Itimerspec::default();
        };
        let next = match value {
            0 => None,
            nanos if absolute => Some(Deadline {
                clock: self.clock,
                nanos,
            }),
            // Steps of the time of day do not change how long a relative time is.
            nanos => {
                let clock = if self.clock == Clock::Realtime {
                    Clock::Monotonic
                } else {
                    self.clock
                };
                Some(kernel.clocks().after(clock, nanos))
            }
        };
        let mut state = self.state.lock();
        state.count(&kernel);
        let old = state.left(&kernel);
        if let Some(armed) = state.armed {
            kernel.disarm(armed);
        }
        *state = State {
            next,
            interval,
            ticks: 0,
            armed: None,
            absolute,
        };
        self.arm(&kernel, &mut state);
        drop(state);
        spec(old)
    }

    /// timerfd_gettime(2).
    pub fn get(&self) -> Itimerspec {
        let Some(kernel) = self.kernel.upgrade() else {
            return Itimerspec::default();
        };
        let mut state = self.state.lock();
        state.count(&kernel);
        spec(state.left(&kernel))
    }

    fn arm(&self, kernel: &Kernel, state: &mut State) {
        if let (Some(next), None) = (state.next, state.armed) {
            let me: Weak<dyn OnTime> = Weak::clone(&self.this) as _;
            state.armed = Some(kernel.arm(next, me));
        }
    }
}

impl OnTime for TimerFd {
    fn on_time(self: Arc<Self>, timer: TimerId) {
        let Some(kernel) = self.kernel.upgrade() else {
            return;
        };
        let mut state = self.state.lock();
        if state.armed != Some(timer) {
            return;
        }
        state.armed = None;
        state.count(&kernel);
        let expired = state.ticks > 0;
        if !expired {
            self.arm(&kernel, &mut state);
        }
        drop(state);
        if expired {
            self.queue.notify(EventMask::IN | EventMask::RDNORM);
        }
    }
}

impl FileOps for TimerFd {
    fn read(&self, _file: &OpenFile, to: &mut Sink<'_>, _at: u64) -> Result<usize, Errno> {
        if to.remaining() < 8 {
            return Err(Errno::EINVAL);
        }
        let kernel = self.kernel.upgrade().ok_or(Errno::EAGAIN)?;
        let mut state = self.state.lock();
        state.count(&kernel);
        let ticks = core::mem::take(&mut state.ticks);
        self.arm(&kernel, &mut state);
        drop(state);
        if ticks == 0 {
            return Err(Errno::EAGAIN);
        }
        to.write(&ticks.to_ne_bytes())
    }

    fn poll(&self, _file: &OpenFile) -> EventMask {
        let Some(kernel) = self.kernel.upgrade() else {
            return EventMask::empty();
        };
        let mut state = self.state.lock();
        state.count(&kernel);
        if state.ticks > 0 {
            EventMask::IN | EventMask::RDNORM
        } else {
            EventMask::empty()
        }
    }

    fn queue(&self) -> Option<&Arc<WaitQueue>> {
        Some(&self.queue)
    }

    fn fdinfo(&self, _file: &OpenFile) -> String {
        let Some(kernel) = self.kernel.upgrade() else {
            return String::new();
        };
        let mut state = self.state.lock();
        state.count(&kernel);
        let Itimerspec { value, interval } = spec(state.left(&kernel));
        format!(
            "clockid: {}\nticks: {}\nsettime flags: 0{}\nit_value: ({}, {})\nit_interval: ({}, {})\n",
            self.id,
            state.ticks,
            u8::from(state.absolute),
            value.sec,
            value.nsec,
            interval.sec,
            interval.nsec
        )
    }
}

impl Drop for TimerFd {
    fn drop(&mut self) {
        if let (Some(kernel), Some(armed)) = (self.kernel.upgrade(), self.state.get_mut().armed) {
            kernel.disarm(armed);
        }
    }
}
