//! Host files.

mod handle;

pub use handle::HostFile;
