//! The only door to the host kernel.

pub mod fs;
