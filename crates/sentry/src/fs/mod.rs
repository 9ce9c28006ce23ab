//! File systems, a folder each, over the traits of [`crate::vfs`]; and open files that are no file system's: pipes, eventfds, epoll instances.

pub mod dev;
pub mod epoll;
pub mod eventfd;
pub mod host;
pub mod nsfs;
pub mod overlay;
pub mod pipe;
pub mod proc;
pub mod pseudo;
pub mod root;
pub mod signalfd;
pub mod stdio;
pub mod sys;
pub mod timerfd;
pub mod tmpfs;

use abi::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::io::GuestMemory;

/// Writes a value to guest memory, whole; EFAULT.
pub(crate) fn put<T: IntoBytes + Immutable>(
    memory: &dyn GuestMemory,
    addr: u64,
    value: &T,
) -> Result<(), Errno> {
    let bytes = value.as_bytes();
    if memory.copy_out(addr, bytes)? < bytes.len() {
        return Err(Errno::EFAULT);
    }
    Ok(())
}

/// Reads a value from guest memory; EFAULT.
pub(crate) fn get<T: FromBytes + IntoBytes>(
    memory: &dyn GuestMemory,
    addr: u64,
) -> Result<T, Errno> {
    let mut value = T::new_zeroed();
    let bytes = value.as_mut_bytes();
    let len = bytes.len();
    if memory.copy_in(addr, bytes)? < len {
        return Err(Errno::EFAULT);
    }
    Ok(value)
}
