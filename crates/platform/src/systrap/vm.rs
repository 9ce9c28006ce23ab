//! Another process's memory (process_vm_readv(2)).
//!
//! Invariant: the process is named by a [`super::stub::Stub`], whose PID can't be another's while it lives; addresses end below the stub's own
//! pages, so nothing but guest memory is reached ([`read_above`] alone reads the host's vDSO); the kernel respects the guest's protection.

use abi::Errno;

use super::layout::{AREAS, USER_TOP};

/// How many bytes of the range are below the end of guest addresses.
fn bounded(addr: u64, len: usize) -> Result<usize, Errno> {
    if len == 0 {
        return Ok(0);
    }
    let room = USER_TOP
        .checked_sub(addr)
        .filter(|room| *room > 0)
        .ok_or(Errno::EFAULT)?;
    Ok(len.min(usize::try_from(room).unwrap_or(usize::MAX)))
}

/// What a call of this module returned.
fn result(returned: isize) -> Result<usize, Errno> {
    match usize::try_from(returned) {
        Ok(done) => Ok(done),
        Err(_) => {
            let error = std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EFAULT);
            Err(Errno::from_raw(error).unwrap_or(Errno::EFAULT))
        }
    }
}

/// Reads from the process; how many bytes from the start could be read.
pub(crate) fn read(pid: i32, addr: u64, to: &mut [u8]) -> Result<usize, Errno> {
    let len = bounded(addr, to.len())?;
    if len == 0 {
        return Ok(0);
    }
    copy_from(pid, addr, &mut to[..len])
}

/// Reads all of a range above the stub, where nothing is the guest's: the host's vDSO.
pub(crate) fn read_above(pid: i32, addr: u64, to: &mut [u8]) -> Result<(), Errno> {
    if addr < AREAS || copy_from(pid, addr, to)? != to.len() {
        return Err(Errno::EFAULT);
    }
    Ok(())
}

fn copy_from(pid: i32, addr: u64, to: &mut [u8]) -> Result<usize, Errno> {
    let local = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(usize::try_from(addr).expect("64 bits")),
        iov_len: to.len(),
    };
    // SAFETY: the local vector is the caller's buffer, no longer than it; the remote one is another process's.
    result(unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) })
}

/// Writes to the process; how many bytes from the start could be written.
pub(crate) fn write(pid: i32, addr: u64, from: &[u8]) -> Result<usize, Errno> {
    let len = bounded(addr, from.len())?;
    if len == 0 {
        return Ok(0);
    }
    let local = libc::iovec {
        iov_base: from.as_ptr().cast_mut().cast(),
        iov_len: len,
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(usize::try_from(addr).expect("64 bits")),
        iov_len: len,
    };
    // SAFETY: the local vector is only read; the remote one is another process's.
    result(unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) })
}
