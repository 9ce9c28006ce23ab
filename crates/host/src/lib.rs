//! The only door to the host kernel.

pub mod fs;
pub mod shared;
pub mod tty;
