//! The sentry: a Linux-compatible kernel in user space that serves one sandbox.
//!
//! Callers stand above callees: `syscalls` decodes and calls `task`, `mm`, `vfs`, `ipc`, `net` and `time`, which
//! call `sync`; guest code is run by the `platform` crate, and the host's kernel is reached through `host` alone.
#![forbid(unsafe_code)]

pub mod boot;
pub mod container;
pub mod fs;
pub mod io;
pub mod ipc;
pub mod kernel;
pub mod mm;
pub mod namespace;
pub mod net;
pub mod spec;
pub mod sync;
pub mod syscalls;
pub mod task;
pub mod time;
pub mod vfs;

pub use boot::{CAPABILITIES, boot};
pub use spec::BootSpec;
