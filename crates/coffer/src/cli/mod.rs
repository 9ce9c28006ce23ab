//! The commands, one file each.

mod boot;
mod do_cmd;

use std::process::ExitCode;

use clap::Parser;

use crate::Boot;

/// The exit code for failures of Coffer's own.
const FAILED: u8 = 125;
/// The exit code for arguments that make no sense.
const USAGE: u8 = 2;

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
    let command = match Command::try_parse() {
        Ok(command) => command,
        Err(error) => return refuse(&error),
    };
    let result = match command {
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

/// Prints the help that was asked for, or in one line what is wrong with the arguments; the exit code for that.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Nobody is left to be helped where standard output is closed.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let what: Vec<&str> = text
        .lines()
        .take_while(|line| !line.is_empty())
        .map(str::trim)
        .collect();
    let what = what.join(" ");
    complain(what.strip_prefix("error: ").unwrap_or(&what));
    ExitCode::from(USAGE)
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
