//! The birth of tasks: fork(2), vfork(2), clone(2), clone3(2).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};

use abi::cap::Cap;
use abi::signal::{SigSet, Signal};
use abi::{Errno, UserPtr};
use bitflags::bitflags;
use platform::Start;

use super::call::{CallState, OnSignal, Step, Wait};
use super::run::Run;
use super::signal::{Handlers, Pending, RealTimer};
use super::{Limits, Process, SignalState, Task};
use crate::container::Container;
use crate::kernel::Kernel;
use crate::mm::Mm;
use crate::namespace::Namespaces;
use crate::sync::{EventMask, Mutex, RwLock, WaitQueue};
use crate::task::credentials::Credentials;
use crate::vfs::{FdTable, FsContext};

bitflags! {
    /// `CLONE_*` (clone(2)).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CloneFlags: u64 {
        /// `CLONE_VM`
        const VM = 0x100;
        /// `CLONE_FS`
        const FS = 0x200;
        /// `CLONE_FILES`
        const FILES = 0x400;
        /// `CLONE_SIGHAND`
        const SIGHAND = 0x800;
        /// `CLONE_PIDFD`
        const PIDFD = 0x1000;
        /// `CLONE_PTRACE`
        const PTRACE = 0x2000;
        /// `CLONE_VFORK`
        const VFORK = 0x4000;
        /// `CLONE_PARENT`
        const PARENT = 0x8000;
        /// `CLONE_THREAD`
        const THREAD = 0x1_0000;
        /// `CLONE_NEWNS`
        const NEWNS = 0x2_0000;
        /// `CLONE_SYSVSEM`
        const SYSVSEM = 0x4_0000;
        /// `CLONE_SETTLS`
        const SETTLS = 0x8_0000;
        /// `CLONE_PARENT_SETTID`
        const PARENT_SETTID = 0x10_0000;
        /// `CLONE_CHILD_CLEARTID`
        const CHILD_CLEARTID = 0x20_0000;
        /// `CLONE_DETACHED`, ignored.
        const DETACHED = 0x40_0000;
        /// `CLONE_UNTRACED`
        const UNTRACED = 0x80_0000;
        /// `CLONE_CHILD_SETTID`
        const CHILD_SETTID = 0x100_0000;
        /// `CLONE_NEWCGROUP`
        const NEWCGROUP = 0x200_0000;
        /// `CLONE_NEWUTS`
        const NEWUTS = 0x400_0000;
        /// `CLONE_NEWIPC`
        const NEWIPC = 0x800_0000;
        /// `CLONE_NEWUSER`
        const NEWUSER = 0x1000_0000;
        /// `CLONE_NEWPID`
        const NEWPID = 0x2000_0000;
        /// `CLONE_NEWNET`
        const NEWNET = 0x4000_0000;
        /// `CLONE_IO`, ignored.
        const IO = 0x8000_0000;
        /// `CLONE_CLEAR_SIGHAND` (clone3(2))
        const CLEAR_SIGHAND = 0x1_0000_0000;

        /// Kinds of namespaces of which a container has one for good.
        const NOT_OFFERED = Self::NEWNS.bits() | Self::NEWCGROUP.bits() | Self::NEWIPC.bits() | Self::NEWUSER.bits()
            | Self::NEWPID.bits() | Self::NEWNET.bits();
    }
}

/// What is to be cloned, and how.
#[derive(Clone, Copy, Debug)]
pub struct CloneArgs {
    /// The flags.
    pub flags: CloneFlags,
    /// The signal that tells the parent of the end; 0 for none.
    pub exit_signal: u8,
    /// The child's stack pointer; 0 for the parent's.
    pub stack: u64,
    /// Its thread-local storage, with `SETTLS`.
    pub tls: u64,
    /// Where the parent finds its number, with `PARENT_SETTID`.
    pub parent_tid: UserPtr<u32>,
    /// Where it finds its number, with `CHILD_SETTID`, and which word its end clears, with `CHILD_CLEARTID`.
    pub child_tid: UserPtr<u32>,
}

/// The parts of a task that are made before it.
pub(crate) struct Parts {
    pub(crate) mm: Arc<Mm>,
    pub(crate) files: Arc<FdTable>,
    pub(crate) fs: Arc<FsContext>,
    pub(crate) creds: Arc<Credentials>,
    pub(crate) namespaces: Arc<Namespaces>,
    pub(crate) signals: SignalState,
}

impl Process {
    pub(crate) fn new(
        kernel: &Arc<Kernel>,
        container: &Arc<Container>,
        pid: u32,
        limits: Limits,
        handlers: Arc<Mutex<Handlers, crate::sync::order::SigHandlers>>,
    ) -> Arc<Process> {
        Arc::new_cyclic(|process| Process {
            pid,
            container: Arc::clone(container),
            handlers: RwLock::new(handlers),
            pending: Mutex::new(Pending::default()),
            limits: Mutex::new(limits),
            threads: Mutex::new(Vec::new()),
            ending: Mutex::new(None),
            stopped: AtomicBool::new(false),
            child_changed: Arc::new(WaitQueue::new()),
            released: Arc::new(WaitQueue::new()),
            vfork_done: AtomicBool::new(false),
            signalled: Arc::new(WaitQueue::new()),
            past_cpu: AtomicU64::new(0),
            guest_of_space: AtomicBool::new(false),
            children_cpu: AtomicU64::new(0),
            started: kernel.clocks().now(crate::time::Clock::Boottime),
            real_timer: RealTimer::new(kernel, process),
            timers: super::posix_timers::PosixTimers::default(),
            execed: AtomicBool::new(false),
            dumpable: AtomicU8::new(1),
            oom_score_adj: AtomicI32::new(0),
            subreaper: AtomicBool::new(false),
            exit_signal: AtomicU8::new(Signal::SIGCHLD.raw()),
        })
    }

    /// Whether a vfork parent may go on.
    pub(super) fn release_vfork(&self) {
        self.vfork_done.store(true, Ordering::SeqCst);
        self.released.notify(EventMask::IN);
    }
}

impl Task {
    pub(crate) fn new(
        kernel: &Arc<Kernel>,
        tid: u32,
        process: &Arc<Process>,
        parts: Parts,
    ) -> Arc<Task> {
        Arc::new_cyclic(|weak| Task {
            tid: AtomicU32::new(tid),
            process: Arc::clone(process),
            kernel: Arc::clone(kernel),
            thread: RwLock::new(None),
            mm: RwLock::new(parts.mm),
            files: RwLock::new(parts.files),
            fs: RwLock::new(parts.fs),
            creds: RwLock::new(parts.creds),
            namespaces: RwLock::new(parts.namespaces),
            pending: Mutex::new(Pending::default()),
            blocked: Mutex::new(parts.signals),
            attention: AtomicBool::new(false),
            end_asked: AtomicBool::new(false),
            run: Run::new(weak.clone()),
            name: Mutex::new([0; 16]),
            clear_tid: Mutex::new(UserPtr::new(0)),
            robust_list: AtomicU64::new(0),
            death_signal: AtomicU8::new(0),
            no_new_privs: AtomicBool::new(false),
            timer_slack: AtomicU64::new(50_000),
        })
    }

    /// clone(2). The caller's whole state is at hand.
    pub fn clone_task(self: &Arc<Self>, args: &CloneArgs, state: &mut CallState) -> Step {
        if let CallState::Vfork(child) = *state {
            return self.wait_for_vfork(child);
        }
        match self.make_child(args) {
            Err(error) => Step::Done(Err(error)),
            Ok(child) if args.flags.contains(CloneFlags::VFORK) => {
                *state = CallState::Vfork(child);
                self.wait_for_vfork(child)
            }
            Ok(child) => Step::Done(Ok(child as usize)),
        }
    }

    fn wait_for_vfork(&self, child: u32) -> Step {
        let process = self
            .tree()
            .lock()
            .process(child)
            .map(|node| Arc::clone(&node.process));
        match process {
            Ok(process) if !process.vfork_done.load(Ordering::SeqCst) => {
                Step::Wait(Wait::on(&process.released, EventMask::IN).on_signal(OnSignal::Killable))
            }
            _ => Step::Done(Ok(child as usize)),
        }
    }

    fn make_child(self: &Arc<Self>, args: &CloneArgs) -> Result<u32, Errno> {
        let flags = args.flags;
        if flags.intersects(CloneFlags::NOT_OFFERED) {
            return Err(Errno::EPERM);
        }
        let namespaces = self.namespaces_for(flags)?;
        let thread = flags.contains(CloneFlags::THREAD);
        if (thread && !flags.contains(CloneFlags::SIGHAND))
            || (flags.contains(CloneFlags::SIGHAND) && !flags.contains(CloneFlags::VM))
        {
            return Err(Errno::EINVAL);
        }
        if flags.contains(CloneFlags::CLEAR_SIGHAND | CloneFlags::SIGHAND)
            || flags.contains(CloneFlags::PIDFD)
        {
            return Err(Errno::EINVAL);
        }
        let host_thread = self.thread()?;
        if !host_thread.is_full() {
            return Err(Errno::EAGAIN);
        }
        let limit = self
            .container()
            .limits()
            .pids
            .min(u32::try_from(self.limit(super::Resource::Nproc)).unwrap_or(u32::MAX));
        let tid = self.tree().lock().reserve(limit)?;
        let made = self.start_child(args, tid, namespaces, host_thread.as_ref());
        if made.is_err() {
            self.tree().lock().give_back();
        }
        made.map(|()| tid)
    }

    /// The namespaces that `CLONE_NEW*` ask for, beside those it is in: EPERM without CAP_SYS_ADMIN.
    pub fn namespaces_for(&self, flags: CloneFlags) -> Result<Arc<Namespaces>, Errno> {
        let own = self.namespaces();
        if !flags.contains(CloneFlags::NEWUTS) {
            return Ok(own);
        }
        if !self.creds().has(Cap::SYS_ADMIN) {
            return Err(Errno::EPERM);
        }
        Ok(own.with_new_uts(self.kernel.namespace_ids()))
    }

    fn start_child(
        self: &Arc<Self>,
        args: &CloneArgs,
        tid: u32,
        namespaces: Arc<Namespaces>,
        host_thread: &dyn platform::Thread,
    ) -> Result<(), Errno> {
        let flags = args.flags;
        let kernel = &self.kernel;
        let thread = flags.contains(CloneFlags::THREAD);
        let process = if thread {
            Arc::clone(&self.process)
        } else {
            let handlers = self.process.handlers();
            let handlers = if flags.contains(CloneFlags::SIGHAND) {
                handlers
            } else {
                let mut copy = handlers.lock().clone();
                if flags.contains(CloneFlags::CLEAR_SIGHAND) {
                    copy.reset();
                }
                Arc::new(Mutex::new(copy))
            };
            let limits = *self.process.limits.lock();
            let process = Process::new(kernel, self.container(), tid, limits, handlers);
            process
                .exit_signal
                .store(args.exit_signal, Ordering::Relaxed);
            process
                .guest_of_space
                .store(flags.contains(CloneFlags::VM), Ordering::Relaxed);
            process.dumpable.store(
                self.process.dumpable.load(Ordering::Relaxed),
                Ordering::Relaxed,
            );
            process.oom_score_adj.store(
                self.process.oom_score_adj.load(Ordering::Relaxed),
                Ordering::Relaxed,
            );
            process
        };
        let mut regs = host_thread.regs();
        regs.rax = 0;
        if args.stack != 0 {
            regs.rsp = args.stack;
        }
        if flags.contains(CloneFlags::SETTLS) {
            regs.fs_base = args.tls;
        }
        let local = kernel.local_numbers(process.pid, tid);
        let start = Start {
            regs,
            fpu: Some(host_thread.fpu()),
            local,
        };
        if flags.contains(CloneFlags::PARENT_SETTID) {
            // clone(2) makes the child whether the number can be stored or not.
            let _ = self.mm().put_now(args.parent_tid, &tid);
        }
        let parent_mm = self.mm();
        let signals = *self.blocked.lock();
        let stack = if flags.contains(CloneFlags::VM) && !flags.contains(CloneFlags::VFORK) {
            (0, 2, 0)
        } else {
            signals.stack
        };
        let parts = |mm: Arc<Mm>| Parts {
            mm,
            files: if flags.contains(CloneFlags::FILES) {
                self.files()
            } else {
                self.files().fork()
            },
            fs: if flags.contains(CloneFlags::FS) {
                self.fs()
            } else {
                self.fs().fork()
            },
            creds: self.creds(),
            namespaces,
            signals: SignalState {
                mask: signals.mask,
                saved: None,
                stack,
            },
        };
        let publish = |task: &Arc<Task>, host: Arc<dyn platform::Thread>| {
            let name = *self.name.lock();
            *task.name.lock() = name;
            task.no_new_privs
                .store(self.no_new_privs.load(Ordering::Relaxed), Ordering::Relaxed);
            task.timer_slack
                .store(self.timer_slack.load(Ordering::Relaxed), Ordering::Relaxed);
            if flags.contains(CloneFlags::CHILD_CLEARTID) {
                *task.clear_tid.lock() = args.child_tid;
            }
            *task.thread.write() = Some(Arc::clone(&host));
            process.threads.lock().push(Arc::clone(task));
            let parent = if flags.contains(CloneFlags::PARENT) {
                let tree = self.tree().lock();
                tree.process(self.process.pid)
                    .map_or((0, 0), |node| (node.parent, node.parent_tid))
            } else {
                (self.process.pid, self.tid())
            };
            self.tree().lock().enter(task, Some(parent));
            task.run.set_guest();
            self.container().register(host.context(), task);
        };
        if flags.contains(CloneFlags::VM) {
            if flags.contains(CloneFlags::CHILD_SETTID) {
                let _ = parent_mm.put_now(args.child_tid, &tid);
            }
            // The new thread may look at its number before this call is answered.
            parent_mm.settle();
            let host = parent_mm.space().thread(&start)?;
            if !thread {
                parent_mm.enter();
            }
            let task = Task::new(kernel, tid, &process, parts(Arc::clone(&parent_mm)));
            publish(&task, host);
            if thread && self.is_ending() {
                // The group began to end while this thread was made.
                task.notify();
                task.poke();
            }
        } else {
            let (mm, host) = parent_mm.fork(&start)?;
            if flags.contains(CloneFlags::CHILD_SETTID) {
                // The child may have begun to run, but it finds its number no earlier by itself than by asking for it.
                let _ = mm.put_now(args.child_tid, &tid);
            }
            let task = Task::new(kernel, tid, &process, parts(mm));
            publish(&task, host);
        }
        Ok(())
    }

    /// Whether all of its process is to end.
    pub fn is_ending(&self) -> bool {
        self.process.ending.lock().is_some()
    }

    /// An empty mask, for the first task.
    pub(crate) fn initial_signals() -> SignalState {
        SignalState {
            mask: SigSet::EMPTY,
            saved: None,
            stack: (0, 2, 0),
        }
    }

    /// Gives the task its host thread, and lets reports find it (the first task).
    pub(crate) fn attach(self: &Arc<Self>, host: Arc<dyn platform::Thread>) {
        let context = host.context();
        *self.thread.write() = Some(host);
        self.run.set_guest();
        self.container().register(context, self);
    }

    /// Enters the first task of a process in its list of threads.
    pub(crate) fn join_process(self: &Arc<Self>) {
        self.process.threads.lock().push(Arc::clone(self));
    }
}
