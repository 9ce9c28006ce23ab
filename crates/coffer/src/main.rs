//! The `coffer` program.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    coffer::main(sentry::boot)
}
