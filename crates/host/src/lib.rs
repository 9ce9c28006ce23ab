//! The only door to the host kernel: safe wrappers over its system calls, whose errors become [`abi::Errno`] here,
//! once.
//!
//! Nothing here knows guests, tasks or containers. Each unsafe block makes one call or reads one value.

pub mod caps;
mod error;
pub mod fd;
pub mod fs;
pub mod lockdown;
pub mod log;
pub mod machine;
pub mod memfd;
pub mod mount;
pub mod poll;
pub mod process;
pub mod shared;
pub mod signal;
pub mod socket;
pub mod time;
pub mod tty;
