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

/// `CLOCK_TAI`: nanoseconds.
pub fn tai() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the struct lives until the call returns.
    unsafe { libc::clock_gettime(libc::CLOCK_TAI, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// `CLOCK_MONOTONIC_RAW`: nanoseconds.
pub fn monotonic_raw() -> i64 {
    nanos(ClockId::MonotonicRaw)
}

/// `CLOCK_MONOTONIC_COARSE`: nanoseconds.
pub fn monotonic_coarse() -> i64 {
    nanos(ClockId::MonotonicCoarse)
}

/// `CLOCK_REALTIME_COARSE`: nanoseconds since 1970.
pub fn realtime_coarse() -> i64 {
    nanos(ClockId::RealtimeCoarse)
}

/// What the coarse clocks resolve: nanoseconds.
pub fn coarse_resolution() -> i64 {
    let resolution = rustix::time::clock_getres(ClockId::MonotonicCoarse);
    resolution.tv_sec * 1_000_000_000 + resolution.tv_nsec
}
