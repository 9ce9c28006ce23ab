//! Clocks and timers of the sandbox.
//!
//! [`Clocks`] gives the sandbox's time: the host's, adjusted as the page says that the guest's vDSO reads too; a restore sets it. [`Timers`] is the one
//! heap of deadlines, in the order of the host's clocks; the kernel's main loop sleeps until the first of them. Lock classes: `Timers`.

mod timers;

pub use timers::{OnTime, TimerId, Timers};

use std::sync::Arc;

use abi::time::Timespec;
use platform::ClockPage;

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

/// A clock that can be read, with its number (clock_gettime(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reading {
    /// `CLOCK_REALTIME`
    Realtime = 0,
    /// `CLOCK_MONOTONIC`
    Monotonic = 1,
    /// `CLOCK_MONOTONIC_RAW`
    MonotonicRaw = 4,
    /// `CLOCK_REALTIME_COARSE`
    RealtimeCoarse = 5,
    /// `CLOCK_MONOTONIC_COARSE`
    MonotonicCoarse = 6,
    /// `CLOCK_BOOTTIME`
    Boottime = 7,
    /// `CLOCK_TAI`
    Tai = 11,
}

impl Reading {
    /// What the host's clock of this number shows: nanoseconds.
    pub fn of_host(self) -> i64 {
        match self {
            Reading::Realtime => host::time::realtime(),
            Reading::Monotonic => host::time::monotonic(),
            Reading::MonotonicRaw => host::time::monotonic_raw(),
            Reading::RealtimeCoarse => host::time::realtime_coarse(),
            Reading::MonotonicCoarse => host::time::monotonic_coarse(),
            Reading::Boottime => host::time::boottime(),
            Reading::Tai => host::time::tai(),
        }
    }
}

/// The sandbox's clocks. How they differ from the host's stands in the page that guests read, and nowhere else.
#[derive(Clone)]
pub struct Clocks {
    page: Arc<ClockPage>,
}

impl Clocks {
    /// Clocks that differ from the host's as the page says.
    pub fn new(page: Arc<ClockPage>) -> Clocks {
        Clocks { page }
    }

    /// What a clock shows: nanoseconds.
    pub fn read(&self, clock: Reading) -> i64 {
        self.page.now(clock as u32, || clock.of_host())
    }

    /// What time it is: nanoseconds.
    pub fn now(&self, clock: Clock) -> i64 {
        self.read(match clock {
            Clock::Realtime => Reading::Realtime,
            Clock::Monotonic => Reading::Monotonic,
            Clock::Boottime => Reading::Boottime,
        })
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

#[cfg(test)]
mod tests {
    use super::{Arc, Clock, ClockPage, Clocks, Reading};
    use platform::Adjustment;

    #[test]
    fn every_reading_follows_the_page() {
        let page = Arc::new(ClockPage::detached().expect("a page"));
        let clocks = Clocks::new(Arc::clone(&page));
        const DAY: i64 = 86_400_000_000_000;
        let all = [
            (Reading::Realtime, 0),
            (Reading::RealtimeCoarse, 0),
            (Reading::Tai, 0),
            (Reading::Monotonic, 2 * DAY),
            (Reading::MonotonicCoarse, 2 * DAY),
            (Reading::MonotonicRaw, 3 * DAY),
            (Reading::Boottime, 4 * DAY),
        ];
        let changes = all.iter().filter(|(_, offset)| *offset != 0);
        let changes = changes.map(|(clock, offset)| {
            let adjustment = Adjustment {
                offset: *offset,
                floor: 0,
            };
            (*clock as u32, adjustment)
        });
        page.adjust(|| changes.collect()).expect("changed");
        for (clock, offset) in all {
            let before = clock.of_host();
            let now = clocks.read(clock) - offset;
            let after = clock.of_host();
            assert!((before..=after).contains(&now), "{clock:?}");
        }
        let deadline = clocks.after(Clock::Monotonic, DAY);
        assert!(deadline.nanos > host::time::monotonic() + 2 * DAY);
        assert!(clocks.until(deadline) <= DAY && !clocks.passed(deadline));
    }
}
