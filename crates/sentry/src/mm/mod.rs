//! Memory: what guests map, and what backs it.

pub mod memory_file;
