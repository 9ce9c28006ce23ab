//! Time as the ABI writes it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct timespec` (timespec(3)).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct Timespec {
    /// Whole seconds.
    pub sec: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nsec: i64,
}

/// `struct timeval` (timeval(3)).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Timeval {
    /// Whole seconds.
    pub sec: i64,
    /// Microseconds, 0 to 999,999.
    pub usec: i64,
}

/// `struct itimerspec` (timer_settime(2)).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Itimerspec {
    /// The period; zero for a timer that expires once.
    pub interval: Timespec,
    /// The first expiry; zero disarms.
    pub value: Timespec,
}

/// `struct itimerval` (setitimer(2)).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Itimerval {
    /// The period; zero for a timer that expires once.
    pub interval: Timeval,
    /// The first expiry; zero disarms.
    pub value: Timeval,
}

impl Timespec {
    /// From nanoseconds, the nanosecond part always positive.
    pub const fn from_nanos(nanos: i64) -> Self {
        Timespec {
            sec: nanos.div_euclid(1_000_000_000),
            nsec: nanos.rem_euclid(1_000_000_000),
        }
    }

    /// Nanoseconds, clamped to what an `i64` holds; `None` where the parts are not those of a valid time
    /// (a negative second or a nanosecond out of range), which calls answer with EINVAL.
    pub fn to_nanos(self) -> Option<i64> {
        if self.sec < 0 || !(0..1_000_000_000).contains(&self.nsec) {
            return None;
        }
        Some(
            self.sec
                .saturating_mul(1_000_000_000)
                .saturating_add(self.nsec),
        )
    }
}

impl Timeval {
    /// From nanoseconds, rounded down to the microsecond.
    pub const fn from_nanos(nanos: i64) -> Self {
        Timeval {
            sec: nanos.div_euclid(1_000_000_000),
            usec: nanos.rem_euclid(1_000_000_000) / 1000,
        }
    }

    /// Nanoseconds, clamped; `None` where a part is out of range (EINVAL).
    pub fn to_nanos(self) -> Option<i64> {
        if self.sec < 0 || !(0..1_000_000).contains(&self.usec) {
            return None;
        }
        Some(
            self.sec
                .saturating_mul(1_000_000_000)
                .saturating_add(self.usec * 1000),
        )
    }
}
