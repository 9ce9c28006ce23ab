//! The sentry's first stage: from a fresh process, isolated by the launcher, to a locked kernel.
//!
//! The order matters: the zygote is executed before memory is refused execute permission (which survives fork and
//! exec, and would break guests' own compilers) and before the filter; and all of that comes before the first byte of
//! the guest's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use abi::Errno;
use abi::cap::CapSet;
use abi::fs::AtFlags;
use abi::signal::{SigInfo, SigSet, Signal};
use host::caps::CapabilitySet;
use host::fd::Inherited;
use host::lockdown::{Filter, Profile};
use host::poll::Poller;
use host::signal::Signals;
use platform::Platform;
use platform::systrap::{Setup, Systrap};

use crate::container::{self, Container};
use crate::fs::stdio;
use crate::kernel::{Kernel, TOKEN_CONTROL, TOKEN_SIGNALS};
use crate::mm::memory_file::MemoryFile;
use crate::mm::{Mm, MmHost, SharedFiles, Vdso};
use crate::spec::{BootSpec, Control, ExitStatus};
use crate::task::credentials::Credentials;
use crate::task::{ExecRequest, Task, TaskParts};
use crate::time::Clocks;
use crate::vfs::{FdTable, FsContext, OpenFile, PathCx, Vfs};

/// What the sentry may do, over the ids of its own user namespace: the first three for the files of the mount trees
/// that it was handed, the last to reach its own stubs, which are not dumpable.
///
/// Nothing more is needed before the lock, so nothing more is given: descriptors were opened by the launcher.
pub const CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::SYS_PTRACE);

/// How many workers serve calls.
const WORKERS: usize = 2;
/// The stack of a worker: bytes. Handlers do not recurse.
const WORKER_STACK: usize = 256 << 10;

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
    /// The tree of files could not be built.
    #[error(transparent)]
    Root(#[from] crate::fs::root::BuildError),
}

fn run(spec: &BootSpec, mut inherited: Inherited, control: &OwnedFd) -> Result<Control, BootError> {
    let failed = |what: &'static str| move |errno: Errno| BootError::Host(what, errno);
    prepare(spec, control.as_fd())?;
    host::process::share_heap();
    let signals =
        Signals::block_all(SigSet::of(Signal::SIGCHLD)).map_err(failed("blocking signals"))?;
    let memory = host::shared::memory_file("memory").map_err(failed("the memory file"))?;
    let cgroups = spec
        .guest_cgroups
        .iter()
        .map(|fd| inherited.take(*fd))
        .collect::<Result<Vec<_>, _>>();
    let cgroups = cgroups.map_err(failed("the guest's cgroups"))?;
    let joined: Vec<BorrowedFd<'_>> = cgroups.iter().map(AsFd::as_fd).collect();
    let setup = Setup {
        memory: memory.as_fd(),
        cgroups: &joined,
        spin: spec.limits.cpus > 1,
        host_mm: platform::HostMm {
            mremap: spec.host_mm.mremap,
            huge_pages: spec.host_mm.huge_pages,
            private_files: spec.host_mm.private_files,
            fork: spec.host_mm.cow,
        },
    };
    let systrap = Systrap::start(&setup).map_err(failed("the zygote"))?;
    drop(joined);
    drop(cgroups);
    tell(control.as_fd(), &Control::ZygoteStarted).map_err(failed("the control socket"))?;
    lock()?;

    let platform: Arc<dyn Platform> = Arc::new(systrap);
    let memory = MemoryFile::new(memory, spec.limits.memory);
    let root = crate::fs::root::build_root(spec, &memory, &mut inherited)?;
    let vdso = Vdso::new(&memory).map_err(failed("the vDSO"))?;
    let mm = Arc::new(MmHost {
        platform: Arc::clone(&platform),
        files: SharedFiles::default(),
        vdso,
        memory,
    });
    let poller = Poller::new().map_err(failed("the poller"))?;
    poller
        .add(signals.as_fd(), TOKEN_SIGNALS, false)
        .map_err(failed("the poller"))?;
    poller
        .add(control.as_fd(), TOKEN_CONTROL, false)
        .map_err(failed("the poller"))?;
    let kernel = Kernel::new(poller, Clocks::new(platform.clocks()), spec.strace);
    let container = kernel.add_container(container::Parts {
        platform,
        mm,
        vfs: root.vfs,
        limits: spec.limits,
        hostname: spec.hostname.clone(),
        unseen: (root.unseen, root.unseen_mount),
    });
    crate::fs::proc::mount(&kernel, &container, &spec.cpu)
        .map_err(failed("mounting /proc and /sys"))?;
    if let Err(refused) = start_first(&kernel, &container, spec, &mut inherited) {
        return Ok(refused);
    }
    for worker in 0..WORKERS {
        let (kernel, home) = (Arc::clone(&kernel), Arc::clone(&container));
        let name = format!("worker-{worker}");
        std::thread::Builder::new()
            .name(name)
            .stack_size(WORKER_STACK)
            .spawn(move || kernel.work(&home))
            .map_err(|_| BootError::Host("a worker's thread", Errno::EAGAIN))?;
    }
    let heard = kernel.listen(&mut |kernel, token| match token {
        TOKEN_SIGNALS => {
            // What it says is only that children changed.
            while let Ok(Some(_)) = signals.next() {}
            kernel.reap_stubs();
        }
        _ => listen_to_launcher(kernel, &container, control.as_fd()),
    });
    heard.map_err(failed("the poller"))?;
    kernel.log_counters(&container);
    let status = match container.end() {
        Some(crate::task::ExitStatus::Code(code)) => ExitStatus::Code(code),
        Some(crate::task::ExitStatus::Signal(signal, _)) => ExitStatus::Signal(signal.raw()),
        None => return Err(BootError::Orphaned),
    };
    Ok(Control::Exited(status))
}

/// Makes the first process and starts its program. The error is what the launcher is to be told.
fn start_first(
    kernel: &Arc<Kernel>,
    container: &Arc<Container>,
    spec: &BootSpec,
    inherited: &mut Inherited,
) -> Result<(), Control> {
    let failed = |what: &str, errno: Errno| Control::Failed(format!("{what}: {errno}"));
    let vfs = container.namespaces().mount.vfs();
    let fs = FsContext::new(vfs.root());
    let creds = Arc::new(Credentials::root(CapSet::FULL));
    let cwd = spec.cwd.as_bytes();
    let context = PathCx {
        fs: &fs,
        creds: &creds,
        dirfd: None,
    };
    if let Err(errno) = vfs.chdir(&context, cwd) {
        return Err(failed(
            &format!("the working directory {}", String::from_utf8_lossy(cwd)),
            errno,
        ));
    }
    let files = FdTable::new();
    let terminal = Arc::new(stdio::Terminal::default());
    let poller: Arc<dyn stdio::HostPoller> = Arc::clone(kernel) as _;
    let mut streams: Vec<Arc<OpenFile>> = Vec::new();
    for fd in spec.stdio {
        let opened = inherited
            .take(fd)
            .and_then(|fd| stdio::open(fd, &terminal, &poller));
        let mut file = opened.map_err(|errno| failed("standard input, output and error", errno))?;
        if let Some(known) = streams.iter().find(|known| stdio::same(known, &file)) {
            file = Arc::clone(known);
        }
        let inserted = files.insert(Arc::clone(&file), false, 0, 1024);
        inserted.map_err(|errno| failed("standard input, output and error", errno))?;
        streams.push(file);
    }
    let args: Vec<Vec<u8>> = spec
        .args
        .iter()
        .map(|arg| arg.as_bytes().to_vec())
        .collect();
    let env: Vec<Vec<u8>> = spec.env.iter().map(|var| var.as_bytes().to_vec()).collect();
    let command = args.first().cloned().unwrap_or_default();
    let shown = String::from_utf8_lossy(&command).into_owned();
    let path =
        find_command(vfs, &context, &command, &env).map_err(|errno| not_started(&shown, errno))?;
    let started = Mm::new(container.mm()).and_then(|mm| {
        let processes = container.namespaces().pid.tree();
        let pid = processes.lock().reserve(spec.limits.pids)?;
        let limits = crate::task::Limits::initial(u64::from(spec.limits.pids));
        container
            .start(
                kernel,
                pid,
                limits,
                TaskParts {
                    mm,
                    files,
                    fs: Arc::clone(&fs),
                    creds: Arc::clone(&creds),
                    namespaces: Arc::clone(container.namespaces()),
                    signals: Task::initial_signals(),
                },
            )
            .start_first(ExecRequest {
                path,
                file: None,
                args,
                env,
            })
    });
    started.map_err(|errno| not_started(&shown, errno))
}

/// What the launcher is told of a command that can't be run: 127 where there is none, else 126.
fn not_started(command: &str, errno: Errno) -> Control {
    let code = if matches!(errno, Errno::ENOENT | Errno::ENOTDIR) {
        127
    } else {
        126
    };
    Control::StartFailed(code, format!("{command}: {errno}"))
}

/// Where a command is: as it says where it has a slash, else in the directories of `PATH` (execvp(3)).
fn find_command(
    vfs: &Vfs,
    context: &PathCx<'_>,
    command: &[u8],
    env: &[Vec<u8>],
) -> Result<Vec<u8>, Errno> {
    if command.contains(&b'/') {
        return Ok(command.to_vec());
    }
    if command.is_empty() {
        return Err(Errno::ENOENT);
    }
    let path = env
        .iter()
        .find_map(|var| var.strip_prefix(b"PATH="))
        .unwrap_or(b"/usr/local/bin:/usr/bin:/bin");
    let mut refused = Errno::ENOENT;
    for dir in path.split(|byte| *byte == b':') {
        let place = if dir.is_empty() {
            command.to_vec()
        } else {
            [dir, b"/", command].concat()
        };
        match vfs.open_exec(context, &place, AtFlags::empty()) {
            Ok(_) => return Ok(place),
            Err(Errno::EACCES) => refused = Errno::EACCES,
            Err(_) => {}
        }
    }
    Err(refused)
}

/// The launcher said something, or is gone: then the sandbox ends.
fn listen_to_launcher(kernel: &Kernel, container: &Container, control: BorrowedFd<'_>) {
    let mut packet = [0; 256];
    let message = match host::socket::recv(control, &mut packet, false) {
        Ok(Some(received)) => serde_json::from_slice::<Control>(&packet[..received.len]).ok(),
        Err(Errno::EAGAIN) => return,
        Ok(None) | Err(_) => {
            let killed = crate::task::ExitStatus::Signal(Signal::SIGKILL, false);
            return kernel.end_container(container, killed);
        }
    };
    if let Some(Control::Signal(number) | Control::TerminalSignal(number)) = message
        && let Some(signal) = Signal::from_raw(u32::from(number))
        && let Some(init) = container.init()
    {
        // A first process that has just ended needs no signal.
        let _ = init.send(SigInfo::new(signal, abi::signal::SI_KERNEL));
    }
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
