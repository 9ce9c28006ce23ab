//! `coffer do`: runs one program in a sandbox of its own, over the host's files.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::builder::{OsStringValueParser, TypedValueParser};
use sentry::spec::{ExitStatus, HostMm};

use super::complain;
use crate::sandbox::{self, Config, Outcome, Volume};

/// Guest tasks, where nothing else is asked for.
const DEFAULT_PIDS: u32 = 4096;
/// The least memory that a sandbox starts in.
const LEAST_MEMORY: u64 = 16 << 20;

/// Run a program in a sandbox of its own
///
/// The sandbox sees the host's files under the root directory, and keeps what it writes to itself. Exits with the
/// program's exit code, with 128 and the signal's number where a signal killed it, with 127 where the program is not
/// found, 126 where it cannot be run, and 125 where Coffer itself fails.
#[derive(Debug, clap::Args)]
#[command(name = "do")]
pub(super) struct Do {
    /// The directory that the sandbox sees as its root
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// The working directory inside [default: this one, or / with --root]
    #[arg(long, value_name = "DIR", value_parser = OsStringValueParser::new().try_map(parse_cwd))]
    cwd: Option<OsString>,
    /// Add an environment variable to the caller's
    #[arg(long, value_name = "KEY=VALUE", value_parser = OsStringValueParser::new().try_map(parse_env))]
    env: Vec<(OsString, OsString)>,
    /// Show a host directory or file at DST, for writing too unless :ro is added
    #[arg(long, value_name = "SRC:DST[:ro]", value_parser = OsStringValueParser::new().try_map(parse_volume))]
    volume: Vec<Volume>,
    /// The memory that the sandbox may use, such as 512M [default: half of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// How many processes and threads the sandbox may have
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PIDS, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pids: u32,
    /// Do without features of the host's memory management, by copying instead, should one of them have a hole: a comma between them; each costs
    /// time and memory
    #[arg(long, value_name = "FEATURE", value_delimiter = ',')]
    host_mm: Vec<Without>,
    /// Print each of the program's system calls on standard error
    #[arg(long)]
    strace: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// A feature of the host's memory management that is not to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Without {
    /// Mappings are moved by copying them
    #[value(name = "no-mremap")]
    Mremap,
    /// No transparent huge pages
    #[value(name = "no-thp")]
    Thp,
    /// Private mappings of files, programs among them, are read into memory
    #[value(name = "no-private-files")]
    PrivateFiles,
    /// Forks copy the memory of a process at once
    #[value(name = "no-cow")]
    Cow,
}

/// Runs the program; the exit code to end with.
pub(super) fn run(command: Do) -> anyhow::Result<u8> {
    match sandbox::run(config(command)?)? {
        Outcome::Exited(ExitStatus::Code(code)) => Ok(code),
        Outcome::Exited(ExitStatus::Signal(signal)) => Ok(128_u8.saturating_add(signal)),
        Outcome::NotStarted(code, why) => {
            complain(&why);
            Ok(code)
        }
    }
}

fn config(command: Do) -> anyhow::Result<Config> {
    let root = command
        .root
        .canonicalize()
        .with_context(|| format!("--root {}", command.root.display()))?;
    ensure!(root.is_dir(), "--root {}: not a directory", root.display());
    let whole_host = root.as_os_str() == "/";
    let cwd = match command.cwd {
        Some(cwd) => cwd,
        None if whole_host => std::env::current_dir()
            .context("the working directory (--cwd names another)")?
            .into_os_string(),
        None => OsString::from("/"),
    };
    Ok(Config {
        args: command
            .command
            .into_iter()
            .map(OsString::into_vec)
            .collect(),
        env: environment(command.env),
        cwd: cwd.into_vec(),
        root,
        volumes: command.volume,
        memory: command.memory,
        pids: command.pids,
        strace: command.strace,
        host_mm: HostMm {
            mremap: !command.host_mm.contains(&Without::Mremap),
            huge_pages: !command.host_mm.contains(&Without::Thp),
            private_files: !command.host_mm.contains(&Without::PrivateFiles),
            cow: !command.host_mm.contains(&Without::Cow),
        },
    })
}

/// The caller's environment with these variables set, the last of a name counting.
fn environment(added: Vec<(OsString, OsString)>) -> Vec<Vec<u8>> {
    let mut variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    for (key, value) in added {
        match variables.iter_mut().find(|(present, _)| *present == key) {
            Some((_, present)) => *present = value,
            None => variables.push((key, value)),
        }
    }
    variables
        .into_iter()
        .map(|(mut key, value)| {
            key.push("=");
            key.push(value);
            key.into_vec()
        })
        .collect()
}

fn parse_cwd(text: OsString) -> Result<OsString, &'static str> {
    if text.as_bytes().starts_with(b"/") {
        Ok(text)
    } else {
        Err("not an absolute path")
    }
}

fn parse_env(text: OsString) -> Result<(OsString, OsString), &'static str> {
    match split_at_first(&text, b'=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("not of the form KEY=VALUE"),
    }
}

fn parse_volume(text: OsString) -> Result<Volume, &'static str> {
    let malformed = "not of the form SRC:DST[:ro]";
    let (source, rest) = split_at_first(&text, b':').ok_or(malformed)?;
    let (target, read_only) = match split_at_first(rest, b':') {
        None => (rest, false),
        Some((target, option)) if option == "ro" => (target, true),
        Some((target, option)) if option == "rw" => (target, false),
        Some(_) => return Err("the option after DST is neither ro nor rw"),
    };
    if source.is_empty() {
        return Err(malformed);
    }
    if !target.as_bytes().starts_with(b"/") {
        return Err("DST is not an absolute path");
    }
    Ok(Volume {
        source: PathBuf::from(source),
        target: target.as_bytes().to_vec(),
        read_only,
    })
}

fn split_at_first(text: &OsStr, separator: u8) -> Option<(&OsStr, &OsStr)> {
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|&byte| byte == separator)?;
    Some((
        OsStr::from_bytes(&bytes[..at]),
        OsStr::from_bytes(&bytes[at + 1..]),
    ))
}

/// Bytes of a size such as `1048576`, `512M`, `2g` or `1GiB`; the units are powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("{unit:?} is no unit; use K, M, G or T")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "not a number with a unit, such as 512M".to_owned())?;
    let bytes = number
        .checked_mul(1 << shift)
        .ok_or_else(|| "too large".to_owned())?;
    if bytes < LEAST_MEMORY {
        return Err(format!("less than the least, {}M", LEAST_MEMORY >> 20));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::{parse_env, parse_size, parse_volume};

    #[test]
    fn sizes() {
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("33554432"), Ok(32 << 20));
        for bad in ["", "M", "-1", "1X", "1k", "99999999999T", "1.5G"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn volumes() {
        let volume = parse_volume("a:/b:ro".into()).expect("a volume");
        assert!(volume.read_only);
        assert_eq!(volume.target, b"/b");
        assert!(!parse_volume("a:/b".into()).expect("a volume").read_only);
        for bad in ["", "a", ":/b", "a:b", "a:/b:rx", "a:/b:ro:ro"] {
            assert!(parse_volume(bad.into()).is_err(), "{bad}");
        }
    }

    #[test]
    fn variables() {
        let parsed = parse_env("A=b=c".into()).expect("a variable");
        assert_eq!(parsed, ("A".into(), "b=c".into()));
        assert!(parse_env("A".into()).is_err());
        assert!(parse_env("=a".into()).is_err());
    }
}
