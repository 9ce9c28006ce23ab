//! Tasks: threads and processes, their identity, signals, birth, death and running.
//!
//! A [`Task`] is a guest thread, a [`Process`] a thread group. What a task *does* is in `run`: the worker that takes its report calls the handler, parks it or
//! answers. Relations between processes are in one place, [`tree::Tree`], under one lock.
//!
//! Lock classes: `ProcessTree`, `FdTable` and `FsContext` by way of their objects, `SigHandlers`, `SigPending`, `TaskState`,
//! `Credentials`.

pub mod call;
mod clone;
pub mod credentials;
mod exec;
mod exit;
pub mod limits;
mod overdue;
pub mod posix_timers;
pub(crate) mod run;
pub mod signal;
mod signal_frame;
pub mod tree;

pub use call::{CallResult, CallState, OnSignal, Step, Wait};
pub(crate) use clone::Parts as TaskParts;
pub use clone::{CloneArgs, CloneFlags};
pub use exec::ExecRequest;
pub use exit::{WaitFor, WaitOptions};
pub use limits::{Limits, Resource};
pub(crate) use overdue::Overdue;
pub use tree::{ExitStatus, Tree};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};

use abi::signal::SigSet;
use abi::{Errno, UserPtr};
use platform::Thread;

use crate::container::Container;
use crate::kernel::Kernel;
use crate::mm::Mm;
use crate::namespace::Namespaces;
use crate::sync::order::{
    Credentials as CredentialsClass, Leaf, ProcessTree, SigHandlers, SigPending, TaskState,
};
use crate::sync::{Mutex, RwLock, WaitQueue};
use crate::vfs::{FdTable, FsContext, Vfs};
use credentials::Credentials;
use run::Run;
use signal::{Handlers, Pending};

/// A process: a group of threads that share an identity.
pub struct Process {
    /// Its number: that of its first thread.
    pub pid: u32,
    /// Its container.
    pub container: Arc<Container>,
    /// Signal handlers; shared by CLONE_SIGHAND.
    handlers: RwLock<Arc<Mutex<Handlers, SigHandlers>>, Leaf>,
    /// Signals for any of its threads.
    pending: Mutex<Pending, SigPending>,
    /// Resource limits.
    pub limits: Mutex<Limits, CredentialsClass>,
    /// Its threads that have not ended.
    threads: Mutex<Vec<Arc<Task>>, TaskState>,
    /// Set once all of it is to end.
    ending: Mutex<Option<ExitStatus>, Leaf>,
    /// Whether it is stopped (SIGSTOP and kin).
    stopped: AtomicBool,
    /// Told when a child changes its state.
    pub child_changed: Arc<WaitQueue>,
    /// Told when it has ended or execed: a vfork parent waits here.
    pub released: Arc<WaitQueue>,
    /// Whether it no longer uses its vfork parent's memory.
    vfork_done: AtomicBool,
    /// Told when one of its signals becomes pending (signalfd).
    pub signalled: Arc<WaitQueue>,
    /// Processor time that it used outside its present address space, or in all once it has ended: nanoseconds.
    past_cpu: AtomicU64,
    /// Whether its memory is another process's too, which the time of the whole is counted to (vfork(2), `CLONE_VM`): its own is its threads'.
    guest_of_space: AtomicBool,
    /// Processor time of children that have ended and were waited for, in nanoseconds.
    pub children_cpu: AtomicU64,
    /// When it started: boot-time nanoseconds.
    pub started: i64,
    /// ITIMER_REAL and alarm(2).
    pub real_timer: Arc<signal::RealTimer>,
    /// timer_create(2).
    timers: posix_timers::PosixTimers,
    /// Whether it has run another program since it was made (setpgid(2)).
    pub execed: AtomicBool,
    /// `PR_SET_DUMPABLE`.
    pub dumpable: AtomicU8,
    /// `/proc/PID/oom_score_adj`.
    pub oom_score_adj: AtomicI32,
    /// `PR_SET_CHILD_SUBREAPER`.
    pub subreaper: AtomicBool,
    /// The program's arguments as exec saw them are in guest memory; this is its file, for `/proc/PID/exe`.
    pub exit_signal: AtomicU8,
}

/// A thread.
pub struct Task {
    tid: AtomicU32,
    /// Its process.
    pub process: Arc<Process>,
    /// The kernel.
    pub kernel: Arc<Kernel>,
    thread: RwLock<Option<Arc<dyn Thread>>, Leaf>,
    mm: RwLock<Arc<Mm>, Leaf>,
    files: RwLock<Arc<FdTable>, Leaf>,
    fs: RwLock<Arc<FsContext>, Leaf>,
    creds: RwLock<Arc<Credentials>, Leaf>,
    namespaces: RwLock<Arc<Namespaces>, Leaf>,
    /// Signals for this thread alone.
    pending: Mutex<Pending, SigPending>,
    /// What is blocked, and what else belongs to signals.
    blocked: Mutex<SignalState, TaskState>,
    /// Whether something is to be looked at before guest code runs: signals, an end, a stop.
    attention: AtomicBool,
    end_asked: AtomicBool,
    run: Run,
    /// `comm`: what `/proc/PID/comm` says.
    pub name: Mutex<[u8; 16], Leaf>,
    /// `set_tid_address`(2): cleared and woken when the thread ends.
    pub clear_tid: Mutex<UserPtr<u32>, Leaf>,
    /// `set_robust_list`(2).
    pub robust_list: AtomicU64,
    /// `PR_SET_PDEATHSIG`.
    pub death_signal: AtomicU8,
    /// `PR_SET_NO_NEW_PRIVS`.
    pub no_new_privs: AtomicBool,
    /// `PR_SET_TIMERSLACK`, nanoseconds.
    pub timer_slack: AtomicU64,
}

/// The part of a task that signal delivery needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct SignalState {
    /// The mask.
    pub mask: SigSet,
    /// The mask to put back when the call that replaced it ends.
    pub saved: Option<SigSet>,
    /// sigaltstack(2): address, flags, size.
    pub stack: (u64, u32, u64),
}

impl Task {
    /// Its number.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    fn set_tid(&self, tid: u32) {
        self.tid.store(tid, Ordering::Relaxed);
    }

    /// Asks this one thread to end (exec by another thread of its process).
    fn ask_to_end(&self) {
        self.end_asked.store(true, Ordering::SeqCst);
        self.notify();
        self.poke();
    }

    fn asked_to_end(&self) -> bool {
        self.end_asked.load(Ordering::SeqCst)
    }

    /// The address space.
    pub fn mm(&self) -> Arc<Mm> {
        Arc::clone(&self.mm.read())
    }

    /// The descriptors.
    pub fn files(&self) -> Arc<FdTable> {
        Arc::clone(&self.files.read())
    }

    /// Gives it descriptors of its own (unshare(2), exec).
    pub fn set_files(&self, files: Arc<FdTable>) {
        let old = core::mem::replace(&mut *self.files.write(), files);
        drop(old);
    }

    /// Working directory, root, umask.
    pub fn fs(&self) -> Arc<FsContext> {
        Arc::clone(&self.fs.read())
    }

    /// Gives it a working directory of its own.
    pub fn set_fs(&self, fs: Arc<FsContext>) {
        let old = core::mem::replace(&mut *self.fs.write(), fs);
        drop(old);
    }

    /// Who it acts as.
    pub fn creds(&self) -> Arc<Credentials> {
        Arc::clone(&self.creds.read())
    }

    /// Makes it act as somebody else.
    pub fn set_creds(&self, creds: Credentials) {
        let old = core::mem::replace(&mut *self.creds.write(), Arc::new(creds));
        drop(old);
    }

    /// Its container.
    pub fn container(&self) -> &Arc<Container> {
        &self.process.container
    }

    /// Its namespaces.
    pub fn namespaces(&self) -> Arc<Namespaces> {
        Arc::clone(&self.namespaces.read())
    }

    /// Puts it into other namespaces (unshare(2), setns(2)).
    pub fn set_namespaces(&self, namespaces: Arc<Namespaces>) {
        let old = core::mem::replace(&mut *self.namespaces.write(), namespaces);
        drop(old);
    }

    /// The tree of files of its mount namespace.
    pub fn vfs(&self) -> Arc<Vfs> {
        Arc::clone(self.namespaces.read().mount.vfs())
    }

    /// The processes of its PID namespace.
    pub fn tree(&self) -> &Mutex<Tree, ProcessTree> {
        self.process.tree()
    }

    /// The host's side of the thread. ESRCH where it has none yet or any more.
    pub fn thread(&self) -> Result<Arc<dyn Thread>, Errno> {
        self.thread.read().clone().ok_or(Errno::ESRCH)
    }

    /// A resource's soft limit.
    pub fn limit(&self, resource: Resource) -> u64 {
        self.process.limits.lock().get(resource).0
    }

    /// Whether it is its process's first thread.
    pub fn is_leader(&self) -> bool {
        self.tid() == self.process.pid
    }

    /// Asks for a look before guest code runs.
    fn notify(&self) {
        self.attention.store(true, Ordering::SeqCst);
    }

    /// Sets `comm`, cut to 15 bytes.
    pub fn set_name(&self, name: &[u8]) {
        let mut comm = [0; 16];
        let len = name.len().min(15);
        comm[..len].copy_from_slice(&name[..len]);
        *self.name.lock() = comm;
    }

    /// `comm`, without the padding.
    pub fn comm(&self) -> Vec<u8> {
        let name = *self.name.lock();
        name.iter().copied().take_while(|byte| *byte != 0).collect()
    }
}

impl Process {
    /// The processes of its PID namespace, which is its container's.
    pub fn tree(&self) -> &Mutex<Tree, ProcessTree> {
        self.container.namespaces().pid.tree()
    }

    /// Its threads that have not ended, the first of them first.
    pub fn threads(&self) -> Vec<Arc<Task>> {
        self.threads.lock().clone()
    }

    /// Any thread of it, its first where that lives.
    pub fn any_thread(&self) -> Option<Arc<Task>> {
        let threads = self.threads.lock();
        threads
            .iter()
            .find(|task| task.is_leader())
            .or_else(|| threads.first())
            .cloned()
    }

    /// Processor time that it used so far: nanoseconds.
    pub fn cpu_time(&self) -> u64 {
        let threads = self.threads();
        let past = self.past_cpu.load(Ordering::Relaxed);
        let now = if self.guest_of_space.load(Ordering::Relaxed) {
            threads
                .iter()
                .filter_map(|task| task.thread().ok())
                .map(|thread| thread.cpu_time())
                .sum()
        } else {
            threads
                .first()
                .map_or(0, |task| task.mm().space().cpu_time())
        };
        past.saturating_add(now)
    }

    /// The signal handlers.
    pub fn handlers(&self) -> Arc<Mutex<Handlers, SigHandlers>> {
        Arc::clone(&self.handlers.read())
    }

    /// Whether it is stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }
}

impl core::fmt::Debug for Task {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Task({}/{})", self.process.pid, self.tid())
    }
}
