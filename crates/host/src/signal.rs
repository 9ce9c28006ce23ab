//! Signals that are read from a descriptor (signalfd(2)), and the dispositions a process starts with.
//!
//! Invariant of the unsafe code: the kernel is handed structs of this stack frame alone, and no handler is installed.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use abi::Errno;
use abi::signal::{SigSet, Signal};

use crate::error::{check, errno, last};

/// Signals that are blocked in this thread and read here instead.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

/// A signal that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Which.
    pub signal: Signal,
    /// Whether the kernel sent it of itself, as it does for a terminal's keys, rather than for a process.
    pub by_kernel: bool,
}

/// `si_code` of the kernel's own signals.
const SI_KERNEL: i32 = 0x80;

impl Signals {
    /// Blocks exactly these signals in the calling thread, and queues them for [`Signals::next`].
    ///
    /// SIGKILL, SIGSTOP and the two that the C library keeps are left out.
    pub fn block(set: SigSet) -> Result<Signals, Errno> {
        let set = to_native(set);
        // SAFETY: `set` is initialized and outlives the call; no old mask is asked for.
        let result = unsafe { libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) };
        check(result.into())?;
        // SAFETY: `set` is initialized and outlives the call.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(last());
        }
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { fd })
    }

    /// Blocks every signal in the calling thread, and those that it starts, and queues these for [`Signals::next`].
    pub fn block_all(queued: SigSet) -> Result<Signals, Errno> {
        // All but SIGSYS, which the filter's own trap raises in debug builds.
        let everything = !SigSet::of(Signal::SIGSYS).0;
        // SAFETY: the raw call, since the C library keeps two signals for itself; the mask is 8 bytes and outlives it.
        let result = unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_SETMASK,
                &raw const everything,
                std::ptr::null_mut::<u64>(),
                size_of::<u64>(),
            )
        };
        check(result)?;
        let queued = to_native(queued);
        // SAFETY: the set is initialized and outlives the call.
        let fd = unsafe { libc::signalfd(-1, &queued, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(last());
        }
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { fd })
    }

    /// The next queued signal, if there is one. Never blocks.
    pub fn next(&self) -> Result<Option<Arrived>, Errno> {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.fd, &mut info) {
            Ok(_) => {
                let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
                let code = i32::from_ne_bytes([info[8], info[9], info[10], info[11]]);
                Ok(Signal::from_raw(number).map(|signal| Arrived {
                    signal,
                    by_kernel: code == SI_KERNEL,
                }))
            }
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(errno(error)),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The signals that this process ignores.
pub fn ignored() -> SigSet {
    let mut ignored = SigSet::EMPTY;
    for signal in all() {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: a null new action only asks; `action` has room for the old one.
        let result = unsafe {
            libc::sigaction(
                i32::from(signal.raw()),
                std::ptr::null(),
                action.as_mut_ptr(),
            )
        };
        if result == 0 {
            // SAFETY: the call succeeded, so it filled `action`.
            let action = unsafe { action.assume_init() };
            if action.sa_sigaction == libc::SIG_IGN {
                ignored.0 |= SigSet::of(signal).0;
            }
        }
    }
    ignored
}

/// Gives every signal its default action and blocks none: how a program that is about to be executed should start.
pub fn reset() -> Result<(), Errno> {
    for signal in all() {
        set_default(signal);
    }
    let none = to_native(SigSet::EMPTY);
    // SAFETY: `none` is initialized and outlives the call; no old mask is asked for.
    let result = unsafe { libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()) };
    check(result.into()).map(|_| ())
}

/// Gives the signal its default action, where it can have another.
pub fn set_default(signal: Signal) {
    // SAFETY: SIG_DFL installs no handler. The signals that refuse (SIGKILL, SIGSTOP, the C library's) have no other
    // action anyway.
    unsafe { libc::signal(i32::from(signal.raw()), libc::SIG_DFL) };
}

/// Every signal.
fn all() -> impl Iterator<Item = Signal> {
    (1..=u32::from(Signal::MAX)).filter_map(Signal::from_raw)
}

/// The C library's form of the set.
fn to_native(set: SigSet) -> libc::sigset_t {
    let mut native = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset writes a whole sigset_t, for which there is room.
    unsafe { libc::sigemptyset(native.as_mut_ptr()) };
    // SAFETY: sigemptyset has initialized it.
    let mut native = unsafe { native.assume_init() };
    for signal in all().filter(|&signal| set.contains(signal)) {
        // SAFETY: `native` is an initialized set; a number that the C library keeps is refused and left out.
        unsafe { libc::sigaddset(&mut native, i32::from(signal.raw())) };
    }
    native
}
