//! What the machine has.

use abi::Errno;

use crate::error::errno;

/// Bytes of RAM.
pub fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// Whether there is anywhere to swap memory out to.
pub fn swaps() -> bool {
    rustix::system::sysinfo().totalswap > 0
}

/// How many CPUs this process may use.
pub fn cpus() -> u32 {
    rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count().max(1))
}

/// Sixty-four bits that nobody can guess.
pub fn random() -> Result<u64, Errno> {
    let mut bytes = [0_u8; 8];
    // So few bytes come whole or not at all.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(errno)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// An entry of this process's auxiliary vector (getauxval(3)); 0 where there is none.
pub fn auxv(kind: u64) -> u64 {
    // SAFETY: reads the process's own vector, which the C library keeps.
    unsafe { libc::getauxval(kind) }
}

/// Fills a buffer with bits that nobody can guess.
pub fn fill_random(mut to: &mut [u8]) -> Result<(), Errno> {
    while !to.is_empty() {
        let got = rustix::rand::getrandom(&mut *to, rustix::rand::GetRandomFlags::empty())
            .map_err(errno)?;
        to = &mut to[got..];
    }
    Ok(())
}
