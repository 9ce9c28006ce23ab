//! A second fence behind the filter (landlock(7)): no signal to a process outside, no connection to an abstract UNIX
//! socket outside, no TCP.
//!
//! File accesses are not fenced here: any rule on them would refuse renames between directories, which volumes need.
//!
//! Invariant of the unsafe code: landlock_create_ruleset reads one struct of this stack frame.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use abi::Errno;

use crate::error::{check, errno};

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct Ruleset {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// LANDLOCK_CREATE_RULESET_VERSION.
const ASK_VERSION: u32 = 1;
/// LANDLOCK_ACCESS_NET_BIND_TCP and LANDLOCK_ACCESS_NET_CONNECT_TCP.
const TCP: u64 = 1 | 1 << 1;
/// The version that knows TCP.
const KNOWS_TCP: i64 = 4;
/// LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET and LANDLOCK_SCOPE_SIGNAL.
const SCOPES: u64 = 1 | 1 << 1;
/// The version that knows scopes.
const KNOWS_SCOPES: i64 = 6;

/// Fences this process, which must have one thread, and those that it will make, as far as the host can. Sets
/// no_new_privs.
///
/// Processes made before stand outside the fence: a sentry fences itself before it starts its zygote.
pub fn fence() -> Result<(), Errno> {
    let version = version();
    if version < KNOWS_TCP {
        return Ok(());
    }
    let rules = Ruleset {
        handled_access_fs: 0,
        handled_access_net: TCP,
        scoped: if scopes_signals() { SCOPES } else { 0 },
    };
    // Older versions know a shorter struct, and refuse a longer one unless its end is zero.
    let number = create(&raw const rules, size_of::<Ruleset>(), 0)?;
    let number = RawFd::try_from(number).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    let ruleset = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::thread::set_no_new_privs(true).map_err(errno)?;
    // SAFETY: takes numbers alone.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) };
    check(result).map(|_| ())
}

/// Whether the host can keep signals in.
pub(super) fn scopes_signals() -> bool {
    version() >= KNOWS_SCOPES
}

/// Which landlock the host has; 0 for none.
fn version() -> i64 {
    create(std::ptr::null(), 0, ASK_VERSION).unwrap_or(0)
}

fn create(rules: *const Ruleset, size: usize, flags: u32) -> Result<i64, Errno> {
    // SAFETY: the kernel reads `size` bytes of a live struct, or none where it is asked for its version.
    check(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, rules, size, flags) })
}
