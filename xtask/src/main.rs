//! The project's own commands: `cargo xtask ci STEP` runs one step of the checks, `cargo xtask test` all of
//! them, and the rest write what is generated.
#![forbid(unsafe_code)]

mod bench;
mod fuzz;
mod packages;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, ensure};
use clap::Parser;

/// Checks and tests of the project.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
enum Task {
    /// Run one step.
    Ci {
        /// Which.
        step: Step,
    },
    /// Run every step, and fail if any failed.
    Test,
    /// Measure, side by side with native and with a peer.
    Bench(bench::Options),
    /// Write docs/host-calls.md, the list of host calls that a locked sentry may make.
    HostCalls,
    /// Write docs/syscalls.md, the table of system calls.
    Syscalls,
    /// Throw random calls at the kernel from inside a sandbox.
    FuzzCalls {
        /// For how long.
        #[arg(long, default_value_t = 600)]
        seconds: u32,
        /// Where to begin; a number of the clock's where none is given.
        #[arg(long)]
        seed: Option<u64>,
    },
}

/// A step of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Step {
    /// Formatting and lints.
    Tidy,
    /// Tests of single crates.
    Unit,
    /// Guest programs, on the host's Linux and in a sandbox, which must agree.
    Guest,
    /// The program as a user runs it; needs root.
    E2e,
}

impl Step {
    const ALL: [Step; 4] = [Step::Tidy, Step::Unit, Step::Guest, Step::E2e];
}

fn main() -> ExitCode {
    let steps: &[Step] = match Task::parse() {
        Task::Ci { step } => &[step],
        Task::Test => &Step::ALL,
        Task::Bench(options) => {
            return match bench::run(&options) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("bench: {error:#}");
                    ExitCode::FAILURE
                }
            };
        }
        Task::HostCalls => return write("docs/host-calls.md", &host::lockdown::document()),
        Task::Syscalls => return write("docs/syscalls.md", &sentry::syscalls::table::document()),
        Task::FuzzCalls { seconds, seed } => {
            return match fuzz::calls(seconds, seed) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("fuzz-calls: {error:#}");
                    ExitCode::FAILURE
                }
            };
        }
    };
    let mut failed = Vec::new();
    for &step in steps {
        println!("== {step:?}");
        if let Err(error) = run(step) {
            eprintln!("{step:?} failed: {error:#}");
            failed.push(step);
        }
    }
    if failed.is_empty() {
        println!("== passed: {steps:?}");
        ExitCode::SUCCESS
    } else {
        println!("== failed: {failed:?}");
        ExitCode::FAILURE
    }
}

fn write(path: &str, text: &str) -> ExitCode {
    let path = root().join(path);
    match std::fs::write(&path, text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

fn run(step: Step) -> anyhow::Result<()> {
    match step {
        Step::Tidy => {
            let lints = &["--workspace", "--all-targets", "--", "-D", "warnings"];
            checker("fmt", &["--all", "--check"])?;
            checker("clippy", lints)
        }
        Step::Unit => tests(&["--workspace", "--exclude", "e2e", "--exclude", GUEST]),
        Step::E2e => whole("e2e"),
        Step::Guest => {
            packages::fetch_source()?;
            whole(GUEST)?;
            fuzz::calls(30, None)
        }
    }
}

/// The package of the guest tests.
const GUEST: &str = "guest";

/// Runs a package's tests against the program as it is shipped: its filter kills, where a development build reports.
fn whole(package: &str) -> anyhow::Result<()> {
    packages::install()?;
    cargo(&["build", "--release", "--package", "coffer"])?;
    tests(&["--release", "--package", package])
}

/// Runs one of the toolchain's optional checkers, where it is installed.
fn checker(name: &str, arguments: &[&str]) -> anyhow::Result<()> {
    if is_installed(name) {
        cargo(&[&[name], arguments].concat())
    } else {
        println!("cargo {name} is not installed: skipped");
        Ok(())
    }
}

fn is_installed(subcommand: &str) -> bool {
    Command::new("cargo")
        .args([subcommand, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs tests with nextest where it is installed, else with cargo's own runner.
fn tests(arguments: &[&str]) -> anyhow::Result<()> {
    if is_installed("nextest") {
        let runner = ["nextest", "run", "--no-fail-fast", "--no-tests", "pass"];
        return cargo(&[&runner, arguments].concat());
    }
    // Some tests fork, which takes a process of one thread; nextest gives each test a process.
    let one_by_one = ["--", "--test-threads", "1"];
    cargo(&[&["test", "--no-fail-fast"], arguments, &one_by_one].concat())
}

fn cargo(arguments: &[&str]) -> anyhow::Result<()> {
    println!("$ cargo {}", arguments.join(" "));
    let status = Command::new("cargo")
        .args(arguments)
        .current_dir(root())
        .status()
        .context("cargo")?;
    ensure!(status.success(), "cargo {}: {status}", arguments.join(" "));
    Ok(())
}

/// The repository's directory.
fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}
