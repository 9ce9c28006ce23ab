//! Fuzzing from inside a sandbox.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};

use crate::{cargo, root};

/// Seeds that once found something: each is run again, every time.
const SEEDS: &str = include_str!("../../fuzz/seeds.txt");

/// Throws random calls at the kernel, first from the seeds that are kept, then for this long from a new one, which is printed.
pub(crate) fn calls(seconds: u32, seed: Option<u64>) -> anyhow::Result<()> {
    cargo(&["build", "--package", "coffer"])?;
    let program = root().join("target/fuzz-calls");
    let source = root().join("fuzz/calls.c");
    let compiled = Command::new("cc")
        .arg("-O1")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .arg("-lpthread")
        .status();
    ensure!(
        compiled.context("cc")?.success(),
        "{} does not compile",
        source.display()
    );
    let kept = SEEDS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.trim().parse().ok());
    for seed in kept {
        run(&program, seed, 0)?;
    }
    let clock = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |time| time.as_secs())
    };
    run(&program, seed.unwrap_or_else(clock), seconds)
}

/// One sandbox, from one seed. A development build, since it checks the order of locks and arithmetic.
fn run(program: &std::path::Path, seed: u64, seconds: u32) -> anyhow::Result<()> {
    let coffer = root().join("target/x86_64-unknown-linux-gnu/debug/coffer");
    let bound = (seconds + 60).to_string();
    let output = Command::new("timeout")
        .args(["--signal=KILL", &bound])
        .arg(coffer)
        .args(["do", "--pids", "200", "--"])
        .arg(program)
        .args([seed.to_string(), seconds.to_string()])
        .output()
        .context("timeout")?;
    // Random calls write to standard output too: only its end is looked at.
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().rfind(|line| line.starts_with("survived"));
    match last {
        Some(line) if output.status.success() => {
            println!("seed {seed}: {line}");
            Ok(())
        }
        _ => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said: Vec<&str> = said
                .lines()
                .filter(|line| !line.contains("is not implemented"))
                .take(8)
                .collect();
            let child = text
                .lines()
                .rfind(|line| line.starts_with("seed "))
                .unwrap_or("none")
                .to_owned();
            bail!(
                "seed {seed}: {}, at child {child}: {}",
                output.status,
                said.join("\n")
            )
        }
    }
}
