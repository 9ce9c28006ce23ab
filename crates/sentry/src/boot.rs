//! The sentry's first stage: from a fresh process, isolated by the launcher, to a locked kernel.
//!
//! The order matters: the zygote is executed before memory is refused execute permission (which survives fork and
//! exec, and would break guests' own compilers) and before the filter; and all of that comes before the first byte of
//! the guest's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;

use abi::Errno;
use host::caps::CapabilitySet;
use host::fd::Inherited;
use host::lockdown::{Filter, Profile};

use crate::spec::{BootSpec, Control};

/// What the sentry may do, over the ids of its own user namespace: the first three for the files of the mount trees
/// that it was handed, the last to reach its own stubs, which are not dumpable.
///
/// Nothing more is needed before the lock, so nothing more is given: descriptors were opened by the launcher.
pub const CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::SYS_PTRACE);

/// The exit code where the launcher could not even be told.
const FAILED: u8 = 125;

/// Serves the sandbox that the specification describes until its end.
///
/// The last word goes to the launcher over the control socket; the exit code is for nobody.
pub fn boot(spec: BootSpec, mut inherited: Inherited) -> ExitCode {
    let Ok(control) = inherited.take(spec.control) else {
        return ExitCode::from(FAILED);
    };
    let last_word = match run(&spec, inherited, &control) {
        Ok(last_word) => last_word,
        Err(error) => Control::Failed(error.to_string()),
    };
    match tell(control.as_fd(), &last_word) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(FAILED),
    }
}

/// Why a sandbox could not be booted.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The specification contradicts itself.
    #[error("the boot specification: {0}")]
    Spec(&'static str),
    /// The launcher died.
    #[error("the launcher is gone")]
    Orphaned,
    /// The host refused a step.
    #[error("{0}: {1}")]
    Host(&'static str, #[source] Errno),
    /// There is no kernel to run yet.
    #[error("the kernel is not built in yet")]
    NoKernel,
}

fn run(spec: &BootSpec, inherited: Inherited, control: &OwnedFd) -> Result<Control, BootError> {
    prepare(spec, control.as_fd())?;
    // The platform starts here: the zygote is executed, and joins the guest's cgroups. Then, and not before:
    tell(control.as_fd(), &Control::ZygoteStarted)
        .map_err(|e| BootError::Host("the control socket", e))?;
    lock()?;
    // The kernel runs here.
    drop(inherited);
    Err(BootError::NoKernel)
}

/// What comes before the zygote: checks the specification, makes this process nobody's prey, and raises the
/// fence, within which the zygote must stand to be reached.
pub fn prepare(spec: &BootSpec, control: BorrowedFd<'_>) -> Result<(), BootError> {
    check(spec).map_err(BootError::Spec)?;
    host::process::set_not_dumpable().map_err(|e| BootError::Host("PR_SET_DUMPABLE", e))?;
    host::process::die_with_parent().map_err(|e| BootError::Host("PR_SET_PDEATHSIG", e))?;
    if host::socket::peer_is_gone(control) {
        return Err(BootError::Orphaned);
    }
    host::lockdown::fence().map_err(|e| BootError::Host("the landlock fence", e))
}

/// What comes between the zygote's start and the kernel: the last capabilities that could pass to a program are
/// dropped, executable memory is refused, and the filter is locked, for good and for all threads.
pub fn lock() -> Result<(), BootError> {
    host::caps::limit(CAPABILITIES).map_err(|e| BootError::Host("dropping capabilities", e))?;
    host::lockdown::refuse_executable_memory().map_err(|e| BootError::Host("PR_SET_MDWE", e))?;
    let filter = Filter::new(Profile::Directfs);
    filter
        .lock()
        .map_err(|e| BootError::Host("the seccomp filter", e))
}

/// Sends the launcher a message.
pub fn tell(control: BorrowedFd<'_>, message: &Control) -> Result<(), Errno> {
    let packet = serde_json::to_vec(message).map_err(|_| Errno::EINVAL)?;
    host::socket::send(control, &packet, &[], true)
}

fn check(spec: &BootSpec) -> Result<(), &'static str> {
    if spec.args.is_empty() {
        return Err("no arguments");
    }
    if !spec.cwd.as_bytes().starts_with(b"/") {
        return Err("the working directory is not absolute");
    }
    match spec.lower.first() {
        Some((path, _)) if path.as_bytes() == b"/" => (),
        _ => return Err("the first lower tree is not the root"),
    }
    let mut places = spec.lower.iter().map(|(path, _)| path);
    if !places.all(|path| path.as_bytes().starts_with(b"/")) {
        return Err("a lower tree's place is not absolute");
    }
    let mut targets = spec.volumes.iter().map(|volume| &volume.target);
    if !targets.all(|target| target.as_bytes().starts_with(b"/")) {
        return Err("a volume's target is not absolute");
    }
    if spec.limits.memory == 0 || spec.limits.pids == 0 || spec.limits.cpus == 0 {
        return Err("a limit of nothing");
    }
    Ok(())
}
