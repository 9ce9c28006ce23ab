//! What setsockopt(2) sets on a UNIX socket.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use abi::net::so;

/// The least that a buffer can be set to (socket(7)).
const SEND_LEAST: usize = 4608;
const RECEIVE_LEAST: usize = 2304;
/// The most that a buffer can be set to without CAP_NET_ADMIN (`net.core.wmem_max`).
const BUFFER_MAX: usize = 212_992;

/// A socket's options.
pub struct Options {
    send_buffer: AtomicUsize,
    receive_buffer: AtomicUsize,
    pass_credentials: AtomicBool,
    /// Nanoseconds, 0 for none.
    receive_timeout: AtomicI64,
    send_timeout: AtomicI64,
    /// A bit for each option that is on and has no effect.
    accepted: AtomicU64,
    /// `SO_LINGER`: on, and seconds.
    linger: [AtomicI32; 2],
    low_water: AtomicI32,
    priority: AtomicI32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            send_buffer: AtomicUsize::new(super::BUFFER),
            receive_buffer: AtomicUsize::new(super::BUFFER),
            pass_credentials: AtomicBool::new(false),
            receive_timeout: AtomicI64::new(0),
            send_timeout: AtomicI64::new(0),
            accepted: AtomicU64::new(0),
            linger: [const { AtomicI32::new(0) }; 2],
            low_water: AtomicI32::new(1),
            priority: AtomicI32::new(0),
        }
    }
}

impl Options {
    /// What a connection gets from the socket that it is accepted from.
    pub(super) fn inherit(&self, from: &Options) {
        self.pass_credentials
            .store(from.passes_credentials(), Ordering::Relaxed);
    }

    /// How much this socket may have on the way (`SO_SNDBUF`).
    pub fn send_buffer(&self) -> usize {
        self.send_buffer.load(Ordering::Relaxed)
    }

    /// `SO_RCVBUF`, which UNIX sockets have and ignore.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer.load(Ordering::Relaxed)
    }

    /// Sets `SO_SNDBUF`: twice what was asked for, within bounds (socket(7)).
    pub fn set_send_buffer(&self, asked: i32) {
        self.send_buffer
            .store(doubled(asked, SEND_LEAST), Ordering::Relaxed);
    }

    /// Sets `SO_RCVBUF` in the same way.
    pub fn set_receive_buffer(&self, asked: i32) {
        self.receive_buffer
            .store(doubled(asked, RECEIVE_LEAST), Ordering::Relaxed);
    }

    /// `SO_PASSCRED`
    pub fn passes_credentials(&self) -> bool {
        self.pass_credentials.load(Ordering::Relaxed)
    }

    /// Sets `SO_PASSCRED`.
    pub fn pass_credentials(&self, on: bool) {
        self.pass_credentials.store(on, Ordering::Relaxed);
    }

    /// How long a receiving call waits: nanoseconds (`SO_RCVTIMEO`).
    pub fn receive_timeout(&self) -> Option<i64> {
        Some(self.receive_timeout.load(Ordering::Relaxed)).filter(|nanos| *nanos != 0)
    }

    /// How long a sending call waits: nanoseconds (`SO_SNDTIMEO`).
    pub fn send_timeout(&self) -> Option<i64> {
        Some(self.send_timeout.load(Ordering::Relaxed)).filter(|nanos| *nanos != 0)
    }

    /// Sets how long calls wait; 0 is for ever.
    pub fn set_timeout(&self, send: bool, nanos: i64) {
        let timeout = if send {
            &self.send_timeout
        } else {
            &self.receive_timeout
        };
        timeout.store(nanos, Ordering::Relaxed);
    }

    /// `SO_LINGER`, which has no effect here: whether it is on, and seconds.
    pub fn linger(&self) -> [i32; 2] {
        [
            self.linger[0].load(Ordering::Relaxed),
            self.linger[1].load(Ordering::Relaxed),
        ]
    }

    /// Sets `SO_LINGER`.
    pub fn set_linger(&self, linger: [i32; 2]) {
        self.linger[0].store(i32::from(linger[0] != 0), Ordering::Relaxed);
        self.linger[1].store(linger[1], Ordering::Relaxed);
    }

    /// An option that is a number; `None` for others.
    pub fn number(&self, option: i32) -> Option<i32> {
        match option {
            so::RCVLOWAT => Some(self.low_water.load(Ordering::Relaxed)),
            so::SNDLOWAT => Some(1),
            so::PRIORITY => Some(self.priority.load(Ordering::Relaxed)),
            _ => switch(option)
                .map(|bit| i32::from(self.accepted.load(Ordering::Relaxed) & bit != 0)),
        }
    }

    /// Sets an option that is a number and has no effect here; false for others.
    pub fn set_number(&self, option: i32, value: i32) -> bool {
        match option {
            so::RCVLOWAT => self.low_water.store(
                if value < 0 { i32::MAX } else { value.max(1) },
                Ordering::Relaxed,
            ),
            so::PRIORITY => self.priority.store(value, Ordering::Relaxed),
            _ => {
                let Some(bit) = switch(option) else {
                    return false;
                };
                if value != 0 {
                    self.accepted.fetch_or(bit, Ordering::Relaxed)
                } else {
                    self.accepted.fetch_and(!bit, Ordering::Relaxed)
                };
            }
        }
        true
    }
}

/// The bit of an option that is on or off and has no effect here.
fn switch(option: i32) -> Option<u64> {
    match option {
        so::DEBUG
        | so::REUSEADDR
        | so::DONTROUTE
        | so::BROADCAST
        | so::KEEPALIVE
        | so::OOBINLINE
        | so::REUSEPORT
        | so::PASSSEC
        | so::TIMESTAMP
        | so::TIMESTAMPNS => Some(1 << option),
        _ => None,
    }
}

fn doubled(asked: i32, least: usize) -> usize {
    let asked = usize::try_from(asked).unwrap_or(BUFFER_MAX).min(BUFFER_MAX);
    (asked * 2).max(least)
}
