//! The kernel: what a sandbox has one of, the workers that serve its tasks, and the main loop that hears of everything else.
//!
//! Workers take what is ready: tasks that were woken, and reports of guest threads. The main loop (one thread) sleeps on
//! the host's readiness, its signals and the first deadline.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use abi::Errno;
use abi::signal::{SigInfo, Signal};
use host::poll::{Poller, Token};
use platform::{ContextId, Platform};

use crate::fs::tmpfs::TmpFs;
use crate::ipc::futex::Futexes;
use crate::mm::MmHost;
use crate::spec::Limits;
use crate::sync::order::{Leaf, ProcessTree, RunQueue};
use crate::sync::{EventMask, Mutex, WaitQueue};
use crate::task::{ExitStatus, Task, Tree};
use crate::time::{Clocks, Deadline, OnTime, TimerId, Timers};
use crate::vfs::{Mount, Vfs};

/// Something for a worker to do.
pub enum Item {
    /// A task was woken.
    Resume(Arc<Task>),
    /// A thread's first report came before the thread was known.
    Report(Arc<Task>),
}

/// The kernel of a sandbox.
pub struct Kernel {
    platform: Arc<dyn Platform>,
    mm: Arc<MmHost>,
    vfs: Arc<Vfs>,
    limits: Limits,
    clocks: Clocks,
    timers: Timers,
    tree: Mutex<Tree, ProcessTree>,
    contexts: Vec<Mutex<Slot, Leaf>>,
    ready: Mutex<VecDeque<Item>, RunQueue>,
    ready_len: AtomicUsize,
    poller: Poller,
    watched: Mutex<Vec<Option<Weak<WaitQueue>>>, Leaf>,
    end: OnceLock<ExitStatus>,
    over: AtomicBool,
    /// Threads that owe an answer.
    pub(crate) overdue: crate::task::Overdue,
    /// Futexes.
    pub futexes: Futexes,
    /// UNIX sockets.
    pub unix: Arc<crate::net::unix::Space>,
    /// Whether calls are printed.
    pub strace: bool,
    /// The host name that the guest sees.
    pub hostname: Mutex<String, Leaf>,
    /// The NIS domain name.
    pub domainname: Mutex<String, Leaf>,
    unimplemented: Mutex<HashSet<u32>, Leaf>,
    unseen: (Arc<TmpFs>, Arc<Mount>),
}

thread_local! {
    /// Whether this thread is a worker.
    static WORKS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whose reports a context's are.
#[derive(Default)]
struct Slot {
    task: Option<Arc<Task>>,
    /// A report came while there was no task.
    early: bool,
}

/// What a kernel is made of.
pub struct Parts {
    /// The platform.
    pub platform: Arc<dyn Platform>,
    /// What address spaces share.
    pub mm: Arc<MmHost>,
    /// The tree of files.
    pub vfs: Arc<Vfs>,
    /// What the sandbox may use.
    pub limits: Limits,
    /// Where the host's readiness is heard.
    pub poller: Poller,
    /// Whether calls are printed.
    pub strace: bool,
    /// The host name.
    pub hostname: String,
    /// A tmpfs that is mounted nowhere, for files in memory without a name, and its mount.
    pub unseen: (Arc<TmpFs>, Arc<Mount>),
}

/// How many contexts a platform has at the most.
const CONTEXTS: usize = 4096;

/// The poller's token for the timer; host descriptors have theirs from 16 up.
pub(crate) const TOKEN_SIGNALS: Token = Token(1);
pub(crate) const TOKEN_CONTROL: Token = Token(2);
const FIRST_WATCH: u64 = 16;

impl Kernel {
    /// A kernel with no task yet.
    pub fn new(parts: Parts) -> Arc<Kernel> {
        Arc::new(Kernel {
            clocks: Clocks::new(parts.platform.clocks()),
            platform: parts.platform,
            mm: parts.mm,
            vfs: parts.vfs,
            limits: parts.limits,
            timers: Timers::new(),
            tree: Mutex::new(Tree::default()),
            contexts: (0..CONTEXTS).map(|_| Mutex::new(Slot::default())).collect(),
            ready: Mutex::new(VecDeque::new()),
            ready_len: AtomicUsize::new(0),
            poller: parts.poller,
            watched: Mutex::new(Vec::new()),
            end: OnceLock::new(),
            over: AtomicBool::new(false),
            overdue: crate::task::Overdue::default(),
            futexes: Futexes::default(),
            unix: Arc::default(),
            strace: parts.strace,
            hostname: Mutex::new(parts.hostname),
            domainname: Mutex::new("(none)".to_owned()),
            unimplemented: Mutex::new(HashSet::new()),
            unseen: parts.unseen,
        })
    }

    /// The platform.
    pub fn platform(&self) -> &Arc<dyn Platform> {
        &self.platform
    }

    /// What address spaces share.
    pub fn mm(&self) -> &Arc<MmHost> {
        &self.mm
    }

    /// The tree of files.
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.vfs
    }

    /// What the sandbox may use.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The clocks.
    pub fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// Processes and threads.
    pub fn tree(&self) -> &Mutex<Tree, ProcessTree> {
        &self.tree
    }

    /// A tmpfs that is mounted nowhere, for files in memory without a name, and its mount.
    pub fn unseen(&self) -> (&Arc<TmpFs>, &Arc<Mount>) {
        (&self.unseen.0, &self.unseen.1)
    }

    /// What getpid and gettid may be answered with inside the guest: nothing while calls are printed.
    pub fn local_numbers(&self, pid: u32, tid: u32) -> (u32, u32) {
        if self.strace { (0, 0) } else { (pid, tid) }
    }

    /// Makes the first task, whose number was reserved.
    pub(crate) fn start(
        self: &Arc<Self>,
        pid: u32,
        limits: crate::task::Limits,
        parts: crate::task::TaskParts,
    ) -> Arc<Task> {
        let process = crate::task::Process::new(self, pid, limits, Arc::default());
        let task = Task::new(self, pid, &process, parts);
        task.join_process();
        self.tree.lock().enter(&task, None);
        task
    }

    /// Lets reports of a context find its task.
    pub fn register(&self, context: ContextId, task: &Arc<Task>) {
        let Some(slot) = self.contexts.get(context.0 as usize) else {
            return;
        };
        let mut slot = slot.lock();
        slot.task = Some(Arc::clone(task));
        let early = core::mem::replace(&mut slot.early, false);
        drop(slot);
        if early {
            self.enqueue(Item::Report(Arc::clone(task)));
        }
    }

    /// Reports of a context find no task from now on.
    pub fn unregister(&self, context: ContextId) {
        let Some(slot) = self.contexts.get(context.0 as usize) else {
            return;
        };
        let old = core::mem::take(&mut *slot.lock());
        drop(old);
    }

    /// Gives a worker something to do.
    pub fn enqueue(&self, item: Item) {
        let mut ready = self.ready.lock();
        ready.push_back(item);
        let waiting = ready.len();
        self.ready_len.store(waiting, Ordering::SeqCst);
        drop(ready);
        // A worker takes what it has readied itself; more than that is worth waking another for.
        self.platform.kick(waiting <= 1 && WORKS.get());
    }

    fn dequeue(&self) -> Option<Item> {
        if self.ready_len.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut ready = self.ready.lock();
        let item = ready.pop_front();
        self.ready_len.store(ready.len(), Ordering::SeqCst);
        item
    }

    /// Serves tasks until the sandbox is over: the life of a worker.
    pub fn work(&self) {
        WORKS.set(true);
        self.platform.join();
        while !self.over.load(Ordering::SeqCst) {
            if let Some(item) = self.dequeue() {
                match item {
                    Item::Resume(task) => task.on_resume(),
                    Item::Report(task) => task.on_report(),
                }
                continue;
            }
            if let Some(context) = self.platform.poll() {
                let Some(slot) = self.contexts.get(context.0 as usize) else {
                    continue;
                };
                let mut slot = slot.lock();
                let task = slot.task.clone();
                slot.early = task.is_none();
                drop(slot);
                if let Some(task) = task {
                    task.on_report();
                }
                continue;
            }
            self.platform.wait(&|| {
                self.ready_len.load(Ordering::SeqCst) != 0 || self.over.load(Ordering::SeqCst)
            });
        }
    }

    /// Arms a deadline.
    pub fn arm(&self, deadline: Deadline, whom: Weak<dyn OnTime>) -> TimerId {
        self.timers.arm(&self.clocks, deadline, whom, &|wait| {
            self.poller.set_timer(wait)
        })
    }

    /// Takes a deadline back.
    pub fn disarm(&self, timer: TimerId) {
        self.timers.disarm(timer);
    }

    /// The first process has ended: the sandbox is over.
    pub fn shut_down(&self, status: ExitStatus) {
        if self.end.set(status).is_ok() {
            self.over.store(true, Ordering::SeqCst);
            self.poller.wake();
            self.platform.kick(false);
        }
    }

    /// How the first process ended, once it has.
    pub fn end(&self) -> Option<ExitStatus> {
        self.end.get().copied()
    }

    /// Stubs may have ended: processes whose stub did, unasked, end as by SIGKILL.
    pub fn reap_stubs(&self) {
        let dead = self.platform.reap();
        if dead.is_empty() {
            return;
        }
        let tasks: Vec<Arc<Task>> = self.tree.lock().tasks.values().cloned().collect();
        for task in tasks {
            if dead.contains(&task.mm().space().id()) {
                task.process.end(ExitStatus::Signal(Signal::SIGKILL, false));
                task.host_died();
            }
        }
    }

    /// Hears of everything that is not a guest's report, until the sandbox is over. `other` is called for tokens that are not the kernel's.
    pub fn listen(
        self: &Arc<Self>,
        other: &mut dyn FnMut(&Arc<Kernel>, Token),
    ) -> Result<(), Errno> {
        while !self.over.load(Ordering::SeqCst) {
            for (id, whom) in self
                .timers
                .expire(&self.clocks, &|wait| self.poller.set_timer(wait))
            {
                whom.on_time(id);
            }
            for (token, ready) in self.poller.wait()? {
                if token.0 >= FIRST_WATCH {
                    let at = usize::try_from(token.0 - FIRST_WATCH).unwrap_or(usize::MAX);
                    let queue = self
                        .watched
                        .lock()
                        .get(at)
                        .and_then(|slot| slot.as_ref().and_then(Weak::upgrade));
                    if let Some(queue) = queue {
                        queue.notify(EventMask::from_bits_truncate(ready));
                    }
                } else {
                    other(self, token);
                }
            }
        }
        Ok(())
    }

    /// Prints a line about a process that ends by a signal.
    pub fn log_fatal(&self, task: &Task, info: &SigInfo) {
        if self.strace {
            let regs = task
                .thread()
                .map(|thread| thread.regs())
                .unwrap_or_default();
            host::log::line(&format!(
                "[{:5}] --- killed by {info:?}: {regs:x?} ---",
                task.tid()
            ));
            for (start, area) in task.mm().snapshot() {
                host::log::line(&format!("{start:x}-{:x} {:?}", area.end, area.prot));
            }
        }
    }

    /// Says once that sockets of a family are not served.
    pub fn log_family(&self, family: i32) {
        // Numbers that no call has.
        let key = u32::MAX - family.unsigned_abs();
        if self.unimplemented.lock().insert(key) {
            host::log::line(&format!(
                "coffer: sockets of address family {family} are not implemented"
            ));
        }
    }

    /// Says once, by name, that a call is not served.
    pub fn log_unimplemented(&self, number: u32) {
        if self.unimplemented.lock().insert(number) {
            let name = abi::nr::name(number).unwrap_or("no such call");
            host::log::line(&format!(
                "coffer: system call {number} ({name}) is not implemented"
            ));
        }
    }
}

impl crate::fs::stdio::HostPoller for Kernel {
    fn watch(&self, fd: std::os::fd::BorrowedFd<'_>, queue: &Arc<WaitQueue>) -> Result<(), Errno> {
        let mut watched = self.watched.lock();
        let at = watched.len();
        watched.push(Some(Arc::downgrade(queue)));
        drop(watched);
        self.poller.add(fd, Token(FIRST_WATCH + at as u64), true)
    }

    fn unwatch(&self, fd: std::os::fd::BorrowedFd<'_>) {
        self.poller.remove(fd);
    }
}
