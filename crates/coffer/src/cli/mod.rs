//! The commands, one file each.

mod boot;
mod do_cmd;

use std::process::ExitCode;

use clap::Parser;

use crate::Boot;

/// The exit code for failures of Coffer's own.
const FAILED: u8 = 125;

/// Runs programs in sandboxes, each on a kernel of its own.
#[derive(Debug, Parser)]
#[command(name = "coffer", version)]
enum Command {
    Do(Box<do_cmd::Do>),
}

/// Runs the command that the process's arguments name.
pub(crate) fn run(boot: Boot) -> ExitCode {
    // Not a command for users, and executed where every page counts: the general parser stays away.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|name| name == "boot")
    {
        return boot::run(boot);
    }
    let result = match Command::parse() {
        Command::Do(command) => do_cmd::run(*command),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::from(FAILED)
        }
    }
}

/// Prints one line of Coffer's own on standard error; whatever would make it more than a line is escaped.
fn complain(message: &str) {
    let line: String = message
        .chars()
        .flat_map(|c| {
            let plain = (!c.is_control()).then_some(c);
            let escaped = c.is_control().then(|| c.escape_default());
            plain.into_iter().chain(escaped.into_iter().flatten())
        })
        .collect();
    // Nobody is left to be told where standard error is closed.
    let _ = std::io::Write::write_all(
        &mut std::io::stderr(),
        format!("coffer: {line}\n").as_bytes(),
    );
}
