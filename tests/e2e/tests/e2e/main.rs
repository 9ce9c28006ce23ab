//! The program as a user runs it, and its sandbox under hostile code. Needs root.

mod cli;
mod deaths;
mod lifecycle;
mod mounts;
mod posture;

use std::process::Command;

/// Coffer with hostile code in the sentry's place, about to do this.
fn evil(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evil"));
    command.arg("do").arg("--").args(words);
    command
}

/// As [`evil`], with options of `coffer do`.
fn evil_with(options: &[&str], words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evil"));
    command.arg("do").args(options).arg("--").args(words);
    command
}
