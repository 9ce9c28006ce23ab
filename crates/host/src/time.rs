//! The host's clocks.

use rustix::time::{ClockId, clock_gettime};

fn nanos(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// `CLOCK_REALTIME`: nanoseconds since 1970.
pub fn realtime() -> i64 {
    nanos(ClockId::Realtime)
}

/// `CLOCK_MONOTONIC`: nanoseconds.
pub fn monotonic() -> i64 {
    nanos(ClockId::Monotonic)
}

/// `CLOCK_BOOTTIME`: nanoseconds.
pub fn boottime() -> i64 {
    nanos(ClockId::Boottime)
}
