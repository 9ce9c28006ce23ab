//! The Linux ABI as types: error numbers, call numbers, structs, flags, and pointers into guest memory.
//!
//! Nothing here does anything: it names what crosses the boundary between a guest and its kernel.
#![forbid(unsafe_code)]

pub mod cap;
pub mod epoll;
mod errno;
pub mod fs;
pub mod net;
pub mod nr;
pub mod signal;
pub mod time;
mod user;

pub use errno::Errno;
pub use user::{UserCStr, UserPtr, UserSlice};
