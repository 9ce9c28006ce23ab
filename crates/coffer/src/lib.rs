//! Coffer's command line and launcher: what parses the user's wishes, isolates a process, and executes the sentry in
//! it.
//!
//! `cli` has a file for each command; `sandbox` makes the isolated process and stays with it until its end. The
//! kernel itself is the `sentry` crate's; here it is a function that [`main`] is handed, so that tests can put
//! hostile code in its place.
#![forbid(unsafe_code)]

mod cli;
mod sandbox;

use std::process::ExitCode;

/// The sentry's entry: serves the sandbox until its end, and returns the process's exit code.
pub type Boot = fn(sentry::BootSpec, host::fd::Inherited) -> ExitCode;

/// Runs the command that the process's arguments name.
pub fn main(boot: Boot) -> ExitCode {
    cli::run(boot)
}
