//! The lock on the sentry's process: which calls of the host it may make from now on (seccomp(2)), and no executable
//! memory any more.
//!
//! The list is data: one row a call, with the reason for it and the arguments that it may have. Whatever has no row,
//! or other arguments, kills the process. What cannot be told from arguments in registers (paths, structs) is held by
//! the mounts instead: the process sees an empty root, and trees without setuid programs, devices and links.
//!
//! Invariant of the unsafe code: prctl with constants, seccomp with a program of this process; the handler of debug
//! builds is set up from one stack frame, reads the siginfo that the kernel hands it, and calls write and _exit.

mod calls;
mod landlock;
mod program;

use abi::Errno;
use abi::nr::nr;

use crate::error::{check, errno, last};
use calls::{CALLS, Call, Group};
use program::Verdict;

pub use landlock::fence;

/// What kind of process is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// A sentry that reaches its files itself, through the directories that it was handed.
    Directfs,
    /// A sentry whose files a gofer serves.
    Gofer,
}

/// The list of calls for a profile.
#[derive(Clone, Copy, Debug)]
pub struct Filter {
    profile: Profile,
}

impl Filter {
    /// The profile's filter.
    pub fn new(profile: Profile) -> Filter {
        Filter { profile }
    }

    /// Locks all threads of this process, for good. Needs nothing but no_new_privs, which it sets.
    ///
    /// A forbidden call then kills the process with SIGSYS. In builds with debug assertions, which are for developers
    /// alone, the call is named on standard error first.
    pub fn lock(self) -> Result<(), Errno> {
        let program = program::compile(self.calls(), &MISSING, REFUSAL);
        warm_up();
        #[cfg(debug_assertions)]
        trap::install();
        rustix::thread::set_no_new_privs(true).map_err(errno)?;
        install(&program)
    }

    fn calls(self) -> impl Iterator<Item = &'static Call> {
        CALLS.iter().filter(move |call| match call.group {
            Group::Always => true,
            Group::Directfs => self.profile == Profile::Directfs,
        })
    }
}

/// The list, as the document docs/host-calls.md shows it to those who review it.
pub fn document() -> String {
    let mut text = String::from(
        "# What a locked sentry may ask of the host\n\n\
         Made by `cargo xtask host-calls` from `crates/host/src/lockdown/calls.rs`. Any other call, or other arguments, \
         kills the sentry; clone3 fails with ENOSYS. Calls marked with * are there only while the sentry reaches host \
         files itself.\n\n| call | reason and bounds |\n|---|---|\n",
    );
    for call in CALLS {
        let name = abi::nr::name(call.number).unwrap_or("?");
        let mark = match call.group {
            Group::Always => "",
            Group::Directfs => " *",
        };
        text.push_str(&format!("| `{name}`{mark} | {} |\n", call.why));
    }
    text
}

/// The calls that are answered as an older kernel would, so that the C library falls back: clone3, whose flags are in
/// memory, where no filter sees them.
const MISSING: [u32; 1] = [nr::clone3];

/// What befalls a process that makes a forbidden call.
#[cfg(not(debug_assertions))]
const REFUSAL: Verdict = Verdict::Kill;
/// What befalls a process that makes a forbidden call: a handler that names the call and exits.
#[cfg(debug_assertions)]
const REFUSAL: Verdict = Verdict::Trap;

/// Refuses executable memory to this process and its descendants (PR_SET_MDWE). Hosts before Linux 6.3 cannot; there
/// the filter's refusal of PROT_EXEC stands alone.
pub fn refuse_executable_memory() -> Result<(), Errno> {
    const PR_MDWE_REFUSE_EXEC_GAIN: libc::c_ulong = 1;
    // SAFETY: takes numbers alone.
    let result = unsafe { libc::prctl(libc::PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) };
    if result == -1 && last() == Errno::EINVAL {
        return Ok(());
    }
    check(result.into()).map(|_| ())
}

/// Has rustix find the vDSO, for which it asks prctl or procfs the first time that it needs a clock or a page's size.
fn warm_up() {
    rustix::param::page_size();
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
}

/// Installs the program for all threads.
fn install(program: &[libc::sock_filter]) -> Result<(), Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::EINVAL)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads as many instructions as it is told, and writes none.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        )
    };
    match check(result)? {
        0 => Ok(()),
        // The id of a thread that has a filter of its own.
        _ => Err(Errno::EBUSY),
    }
}

/// Names the forbidden call before the process ends, for those who build Coffer.
#[cfg(debug_assertions)]
mod trap {
    /// Installs the handler of SIGSYS.
    pub(super) fn install() {
        let handler: extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void) =
            on_sigsys;
        // SAFETY: all-zero is a valid sigaction: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for and calls nothing but write and _exit.
        unsafe { libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) };
        // SAFETY: all-zero is an empty signal set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a live set.
        unsafe { libc::sigaddset(&mut set, libc::SIGSYS) };
        // Where the signal is blocked, the kernel kills without asking the handler.
        // SAFETY: `set` is a live set, and no old mask is asked for.
        unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) };
    }

    extern "C" fn on_sigsys(
        _signal: libc::c_int,
        info: *const libc::siginfo_t,
        _context: *const libc::c_void,
    ) {
        const SYSCALL_OFFSET: usize = 24;
        // SAFETY: the kernel hands a whole siginfo_t (128 bytes), whose call number is at this offset for SIGSYS.
        let mut number = unsafe { info.wrapping_byte_add(SYSCALL_OFFSET).cast::<u32>().read() };
        let mut text = *b"coffer: forbidden host call           \n";
        let mut at = text.len() - 2;
        loop {
            text[at] = b'0' + u8::try_from(number % 10).unwrap_or(0);
            number /= 10;
            at -= 1;
            if number == 0 {
                break;
            }
        }
        // SAFETY: the buffer is on this stack, with this length.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        // SAFETY: ends the process.
        unsafe { libc::_exit(128 + libc::SIGSYS) };
    }
}

#[cfg(test)]
mod tests;
