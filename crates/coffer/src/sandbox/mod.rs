//! A sandbox as its launcher sees it: made, watched, and cleaned up after.
//!
//! `mounts`, `stdio` and `cgroup` make what the sentry is handed; `spawn` isolates the process that becomes the
//! sentry, with `oom`; `watch` stays with it. Nothing that the sentry says is trusted: it is believed about how the guest ended,
//! and about nothing else.

mod cgroup;
mod mounts;
mod oom;
mod spawn;
mod stdio;
mod watch;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use anyhow::{Context, ensure};
use host::caps::CapabilitySet;
use sentry::BootSpec;
use sentry::spec::{self, ExitStatus, HostMm};

/// The host name that guests see.
const HOSTNAME: &str = "coffer";

/// How many descriptors a sentry may have, where the host allows it.
const FILES: u64 = 1 << 20;

/// What to run, and in what.
#[derive(Debug)]
pub(crate) struct Config {
    /// The program and its arguments.
    pub(crate) args: Vec<Vec<u8>>,
    /// Its environment, `KEY=value` each.
    pub(crate) env: Vec<Vec<u8>>,
    /// Its working directory inside.
    pub(crate) cwd: Vec<u8>,
    /// The host's directory that is its root.
    pub(crate) root: PathBuf,
    /// The host's files that it sees besides.
    pub(crate) volumes: Vec<Volume>,
    /// Bytes of memory, where the user chose.
    pub(crate) memory: Option<u64>,
    /// Guest tasks.
    pub(crate) pids: u32,
    /// Whether its system calls are printed.
    pub(crate) strace: bool,
    /// What of the host's memory management serves it.
    pub(crate) host_mm: HostMm,
}

/// A host directory or file to show in the sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    /// The host's path.
    pub(crate) source: PathBuf,
    /// The path inside, absolute.
    pub(crate) target: Vec<u8>,
    /// Whether writing is refused.
    pub(crate) read_only: bool,
}

/// How a sandbox ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Its first process ran and ended.
    Exited(ExitStatus),
    /// Its first process could not be started: the exit code for that, and why.
    NotStarted(u8, String),
}

/// Runs a sandbox to its end.
pub(crate) fn run(config: Config) -> anyhow::Result<Outcome> {
    ensure!(
        host::caps::has(CapabilitySet::SYS_ADMIN),
        "sandboxes are made from detached mounts, which takes root (CAP_SYS_ADMIN)"
    );
    // Copies are made of what is resident.
    ensure!(
        (config.host_mm.cow && config.host_mm.mremap) || !host::machine::swaps(),
        "--host-mm=no-cow and --host-mm=no-mremap copy what is in memory, and this host swaps: turn its swap off (swapoff -a)"
    );
    host::process::raise_file_limit(FILES);
    let watcher = watch::Watcher::new()?;
    let memory = config.memory.unwrap_or(host::machine::memory() / 2);
    let groups = cgroup::Groups::create(&cgroup::Limits {
        memory,
        memory_is_explicit: config.memory.is_some(),
        pids: config.pids,
    })?;
    let result = Handover::prepare(config, memory, &groups)
        .and_then(|handover| spawn::sentry(handover, &groups))
        .and_then(|sentry| {
            // From here on the launcher mostly sleeps.
            host::process::trim_heap();
            host::process::shed_code();
            watcher.watch(sentry)
        });
    groups.remove();
    result
}

/// All that is needed to start a sentry.
#[derive(Debug)]
struct Handover {
    /// The launcher's end of the control socket.
    launcher: OwnedFd,
    /// What the sentry gets.
    given: Given,
}

/// The descriptors that a sentry gets.
#[derive(Debug)]
struct Given {
    /// What it reads first, with the numbers of the rest.
    spec: OwnedFd,
    /// Its end of the control socket.
    control: OwnedFd,
    /// What becomes its 0, 1 and 2.
    stdio: [OwnedFd; 3],
    /// The mount trees and group files that the specification names.
    others: Vec<OwnedFd>,
}

impl Handover {
    fn prepare(config: Config, memory: u64, groups: &cgroup::Groups) -> anyhow::Result<Handover> {
        let (launcher, control) = host::socket::pair().context("the control socket")?;
        let stdio = stdio::for_sentry()?;
        let mut others = Vec::new();
        let mut keep = |fd: OwnedFd| {
            let number = fd.as_raw_fd();
            others.push(fd);
            number
        };
        let lower = mounts::lower(&config.root)?
            .into_iter()
            .map(|(path, tree)| (path.into(), keep(tree)))
            .collect();
        let mut volumes = Vec::with_capacity(config.volumes.len());
        for volume in &config.volumes {
            volumes.push(spec::Volume {
                target: volume.target.clone().into(),
                fd: keep(mounts::volume(volume)?),
                read_only: volume.read_only,
            });
        }
        let guest_cgroups = groups.guest_doors()?.into_iter().map(keep).collect();
        let spec = BootSpec {
            args: config.args.into_iter().map(Into::into).collect(),
            env: config.env.into_iter().map(Into::into).collect(),
            cwd: config.cwd.into(),
            hostname: HOSTNAME.to_owned(),
            lower,
            volumes,
            stdio: [0, 1, 2],
            control: control.as_raw_fd(),
            guest_cgroups,
            limits: spec::Limits {
                memory,
                pids: config.pids,
                cpus: host::machine::cpus(),
            },
            cpu: cpu_text(),
            strace: config.strace,
            host_mm: config.host_mm,
        };
        let text = serde_json::to_vec(&spec).context("the boot specification")?;
        let spec = host::memfd::sealed("coffer-spec", &text).context("the boot specification")?;
        Ok(Handover {
            launcher,
            given: Given {
                spec,
                control,
                stdio,
                others,
            },
        })
    }
}

/// What the guest's `/proc/cpuinfo` says of each CPU: what the host's says of its first, less what tells CPUs apart.
fn cpu_text() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let own = [
        "processor",
        "core id",
        "apicid",
        "initial apicid",
        "physical id",
        "siblings",
        "cpu cores",
    ];
    let first = text.lines().take_while(|line| !line.is_empty());
    let shared = first.filter(|line| !own.contains(&line.split('\t').next().unwrap_or_default()));
    shared.map(|line| format!("{line}\n")).collect()
}

impl Given {
    /// What stays open over the sentry's execution, apart from 0, 1 and 2.
    fn kept(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![self.spec.as_fd(), self.control.as_fd()];
        fds.extend(self.others.iter().map(AsFd::as_fd));
        fds
    }
}
