//! The host's errors, converted once.

use abi::Errno;

/// The ABI's error for rustix's.
pub(crate) fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error()).unwrap_or(Errno::EIO)
}

/// The result of a raw call: what it returned, or errno where that is -1.
pub(crate) fn check(returned: libc::c_long) -> Result<libc::c_long, Errno> {
    if returned == -1 {
        Err(last())
    } else {
        Ok(returned)
    }
}

/// The C library's errno.
pub(crate) fn last() -> Errno {
    std::io::Error::last_os_error()
        .raw_os_error()
        .and_then(Errno::from_raw)
        .unwrap_or(Errno::EIO)
}
