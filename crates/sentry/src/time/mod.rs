//! Clocks and timers of the sandbox.
//!
//! [`Clocks`] gives the sandbox's time: the host's, plus offsets that a restore sets. [`Timers`] is the one heap of deadlines, in the order of the host's
//! clocks; the kernel's main loop sleeps until the first of them. Lock classes: `Timers`.

mod timers;

pub use timers::{OnTime, TimerId, Timers};

use abi::time::Timespec;

/// A clock that can be waited on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Clock {
    /// `CLOCK_REALTIME`: the time of day.
    Realtime,
    /// `CLOCK_MONOTONIC`: time that runs while the sandbox does.
    Monotonic,
    /// `CLOCK_BOOTTIME`: as `Monotonic`, with the time that the sandbox was checkpointed.
    Boottime,
}

/// A point in time of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Of which clock.
    pub clock: Clock,
    /// Nanoseconds.
    pub nanos: i64,
}

/// The sandbox's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clocks {
    /// What is added to the host's `CLOCK_MONOTONIC`: nanoseconds.
    pub monotonic: i64,
    /// What is added to the host's `CLOCK_BOOTTIME`: nanoseconds.
    pub boottime: i64,
}

impl Clocks {
    /// What time it is: nanoseconds.
    pub fn now(&self, clock: Clock) -> i64 {
        match clock {
            Clock::Realtime => host::time::realtime(),
            Clock::Monotonic => host::time::monotonic() + self.monotonic,
            Clock::Boottime => host::time::boottime() + self.boottime,
        }
    }

    /// What time it is, as the ABI writes it.
    pub fn timespec(&self, clock: Clock) -> Timespec {
        Timespec::from_nanos(self.now(clock))
    }

    /// The deadline this many nanoseconds from now.
    pub fn after(&self, clock: Clock, nanos: i64) -> Deadline {
        Deadline {
            clock,
            nanos: self.now(clock).saturating_add(nanos.max(0)),
        }
    }

    /// Whether a deadline has passed.
    pub fn passed(&self, deadline: Deadline) -> bool {
        self.now(deadline.clock) >= deadline.nanos
    }

    /// How long until a deadline: nanoseconds, 0 where it has passed.
    pub fn until(&self, deadline: Deadline) -> i64 {
        deadline
            .nanos
            .saturating_sub(self.now(deadline.clock))
            .max(0)
    }
}
