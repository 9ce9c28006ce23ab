//! File systems, a folder each, over the traits of [`crate::vfs`].

pub mod host;
