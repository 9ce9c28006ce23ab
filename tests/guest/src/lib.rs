//! Runs a program on the host's Linux, then in a sandbox: what both print and how both end must be the same. Linux is the oracle.
#![forbid(unsafe_code)]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::{Finished, Running};

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The directory of the C programs.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

/// Compiles a C program of [`programs`] into `directory`.
pub fn compile(name: &str, directory: &Path, more: &[&str]) -> PathBuf {
    let program = directory.join(name);
    let source = programs().join(format!("{name}.c"));
    let mut compiler = Command::new("gcc");
    compiler.args([
        "-O1",
        "-g",
        "-pthread",
        "-std=gnu11",
        "-Wall",
        "-Werror",
        "-Wno-unused-result",
        "-o",
    ]);
    let compiled = e2e::run(compiler.arg(&program).arg(source).args(more));
    assert!(compiled.status.success(), "gcc: {}", compiled.stderr);
    program
}

/// Every feature of the host's memory management that can be switched off.
pub const NO_HOST_MM: &str = "--host-mm=no-mremap,no-thp,no-private-files,no-cow";

/// Starts a program in a sandbox.
pub fn start_inside(program: &str, arguments: &[&str]) -> Running {
    start_inside_with(&[], program, arguments)
}

fn start_inside_with(options: &[&str], program: &str, arguments: &[&str]) -> Running {
    let mut command = Command::new(e2e::coffer());
    command.arg("do").args(options);
    // More options, for the whole suite.
    if let Ok(more) = std::env::var("COFFER_DO_OPTIONS") {
        command.args(more.split_whitespace());
    }
    command.args(["--", program]).args(arguments);
    Running::start(command.env("LC_ALL", "C"))
}

/// Runs a program in a sandbox alone.
pub fn inside(program: &str, arguments: &[&str]) -> Finished {
    start_inside(program, arguments).finish_within(LIMIT)
}

/// Runs a program both ways and compares.
pub fn compare(program: &str, arguments: &[&str]) {
    compare_with(&[], program, arguments);
}

/// Runs a program both ways, inside with more options, and compares.
pub fn compare_with(options: &[&str], program: &str, arguments: &[&str]) {
    let native = finish(Command::new(program).args(arguments));
    let inside = start_inside_with(options, program, arguments).finish_within(LIMIT);
    let (want, got) = (outcome(&native), outcome(&inside));
    assert!(
        want == got,
        "{program} {arguments:?} differs (- native, + inside):\n{}\ninside, stderr: {}",
        diff(&want, &got),
        inside.stderr
    );
}

fn finish(command: &mut Command) -> Finished {
    command.env("LC_ALL", "C");
    Running::start(command).finish_within(LIMIT)
}

/// What it printed, and the status that a shell would tell of.
fn outcome(finished: &Finished) -> String {
    let status = finished
        .status
        .code()
        .or(finished.status.signal().map(|signal| 128 + signal));
    format!("{}status {}\n", finished.stdout, status.unwrap_or(-1))
}

/// The lines that differ, by position after the common beginning and before the common end.
fn diff(want: &str, got: &str) -> String {
    let (want, got): (Vec<&str>, Vec<&str>) = (want.lines().collect(), got.lines().collect());
    let shorter = want.len().min(got.len());
    let head = (0..shorter)
        .find(|at| want[*at] != got[*at])
        .unwrap_or(shorter);
    let tail = (0..shorter - head)
        .find(|at| want[want.len() - 1 - at] != got[got.len() - 1 - at])
        .unwrap_or(shorter - head);
    let mut lines: Vec<String> = want[head.saturating_sub(3)..head]
        .iter()
        .map(|line| format!("  {line}"))
        .collect();
    lines.extend(
        want[head..want.len() - tail]
            .iter()
            .take(40)
            .map(|line| format!("- {line}")),
    );
    lines.extend(
        got[head..got.len() - tail]
            .iter()
            .take(40)
            .map(|line| format!("+ {line}")),
    );
    lines.join("\n")
}
