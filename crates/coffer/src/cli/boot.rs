//! `coffer boot --spec-fd N`: the sentry's process, executed by the launcher alone.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use sentry::BootSpec;

use super::{FAILED, complain};
use crate::Boot;

/// Reads the sandbox's configuration from the descriptor that the arguments name, and becomes its kernel.
pub(super) fn run(boot: Boot) -> ExitCode {
    match read_spec() {
        Ok((spec, inherited)) => boot(spec, inherited),
        Err(error) => {
            complain(&format!("boot: {error:#}"));
            ExitCode::from(FAILED)
        }
    }
}

fn read_spec() -> anyhow::Result<(BootSpec, host::fd::Inherited)> {
    let arguments: Vec<OsString> = std::env::args_os().skip(2).collect();
    let number = match arguments.as_slice() {
        [flag, number] if flag == "--spec-fd" => number.to_str().and_then(|text| text.parse().ok()),
        _ => None,
    }
    .ok_or_else(|| anyhow!("usage: coffer boot --spec-fd N; it is run by coffer itself"))?;
    let mut inherited = host::fd::Inherited::claim().context("the descriptors are taken")?;
    let fd = inherited
        .take(number)
        .with_context(|| format!("--spec-fd {number}"))?;
    let mut text = String::new();
    File::from(fd)
        .read_to_string(&mut text)
        .with_context(|| format!("--spec-fd {number}"))?;
    let spec = serde_json::from_str(&text).context("the boot specification")?;
    Ok((spec, inherited))
}
