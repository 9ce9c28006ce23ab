//! The kernel: the containers of a sandbox and what they share, the workers that serve tasks, and the main loop that hears of everything else.
//!
//! Workers take what is ready: tasks that were woken, of whichever container, and reports of guest threads. A worker sleeps at one container's doorbell, so each
//! container brings workers of its own. The main loop (one thread) sleeps on the host's readiness, its signals and the first deadline.
//!
//! Lock classes: `KernelState`, `RunQueue`, `Leaf`.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use abi::Errno;
use abi::signal::SigInfo;
use host::poll::{Poller, Token};

use crate::container::{self, Container, ContainerId};
use crate::ipc::futex::Futexes;
use crate::namespace::NamespaceIds;
use crate::sync::order::{KernelState, Leaf, RunQueue};
use crate::sync::{EventMask, Mutex, RwLock, WaitQueue};
use crate::task::{ExitStatus, Task};
use crate::time::{Clocks, Deadline, OnTime, TimerId, Timers};

/// Something for a worker to do.
pub enum Item {
    /// A task was woken.
    Resume(Arc<Task>),
    /// A thread's first report came before the thread was known.
    Report(Arc<Task>),
}

/// The kernel of a sandbox.
pub struct Kernel {
    /// Containers, ended ones too. The identities of those to come are above them.
    containers: RwLock<BTreeMap<ContainerId, Arc<Container>>, KernelState>,
    namespace_ids: NamespaceIds,
    clocks: Clocks,
    timers: Timers,
    ready: Mutex<VecDeque<Item>, RunQueue>,
    ready_len: AtomicUsize,
    poller: Poller,
    watched: Mutex<Vec<Option<Weak<WaitQueue>>>, Leaf>,
    over: AtomicBool,
    /// Threads that owe an answer.
    pub(crate) overdue: crate::task::Overdue,
    /// Futexes.
    pub futexes: Futexes,
    /// Whether calls are printed.
    pub strace: bool,
    unimplemented: Mutex<HashSet<u32>, Leaf>,
}

thread_local! {
    /// Whether this thread is a worker.
    static WORKS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// The poller's token for the timer; host descriptors have theirs from 16 up.
pub(crate) const TOKEN_SIGNALS: Token = Token(1);
pub(crate) const TOKEN_CONTROL: Token = Token(2);
const FIRST_WATCH: u64 = 16;

impl Kernel {
    /// A kernel without a container. `poller` is where the host's readiness is heard; `clocks` are those that its first container's guests read; `strace` says whether
    /// calls are printed.
    pub fn new(poller: Poller, clocks: Clocks, strace: bool) -> Arc<Kernel> {
        Arc::new(Kernel {
            containers: RwLock::new(BTreeMap::new()),
            namespace_ids: NamespaceIds::default(),
            clocks,
            timers: Timers::new(),
            ready: Mutex::new(VecDeque::new()),
            ready_len: AtomicUsize::new(0),
            poller,
            watched: Mutex::new(Vec::new()),
            over: AtomicBool::new(false),
            overdue: crate::task::Overdue::default(),
            futexes: Futexes::default(),
            strace,
            unimplemented: Mutex::new(HashSet::new()),
        })
    }

    /// Adds a container, in namespaces of its own, with no task yet.
    pub fn add_container(&self, parts: container::Parts) -> Arc<Container> {
        let mut containers = self.containers.write();
        let last = containers.last_key_value();
        let id = ContainerId(last.map_or(0, |(id, _)| id.0 + 1));
        let container = Container::new(id, parts, &self.namespace_ids);
        containers.insert(id, Arc::clone(&container));
        container
    }

    /// The container with this identity; ESRCH.
    pub fn container(&self, id: ContainerId) -> Result<Arc<Container>, Errno> {
        let containers = self.containers.read();
        containers.get(&id).cloned().ok_or(Errno::ESRCH)
    }

    /// All containers, the first first.
    pub fn containers(&self) -> Vec<Arc<Container>> {
        self.containers.read().values().cloned().collect()
    }

    /// Gives namespaces their identities.
    pub fn namespace_ids(&self) -> &NamespaceIds {
        &self.namespace_ids
    }

    /// The clocks.
    pub fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// What getpid and gettid may be answered with inside the guest: nothing while calls are printed.
    pub fn local_numbers(&self, pid: u32, tid: u32) -> (u32, u32) {
        if self.strace { (0, 0) } else { (pid, tid) }
    }

    /// Gives a worker something to do.
    pub fn enqueue(&self, item: Item) {
        let (Item::Resume(task) | Item::Report(task)) = &item;
        let container = Arc::clone(task.container());
        let mut ready = self.ready.lock();
        ready.push_back(item);
        let waiting = ready.len();
        self.ready_len.store(waiting, Ordering::SeqCst);
        drop(ready);
        // A worker takes what it has readied itself; more than that is worth waking another for.
        container.platform().kick(waiting <= 1 && WORKS.get());
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

    /// Serves tasks until the sandbox is over: the life of a worker. Between them it waits for reports of the threads of `home`.
    pub fn work(&self, home: &Container) {
        WORKS.set(true);
        let platform = home.platform().as_ref();
        platform.join();
        while !self.is_over() {
            if let Some(item) = self.dequeue() {
                match item {
                    Item::Resume(task) => task.on_resume(),
                    Item::Report(task) => task.on_report(),
                }
                continue;
            }
            if home.serve_report() {
                continue;
            }
            platform.wait(&|| self.ready_len.load(Ordering::SeqCst) != 0 || self.is_over());
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

    /// A container's first process has ended: so do the others, and with the last container the sandbox.
    pub fn end_container(&self, container: &Container, status: ExitStatus) {
        if !container.set_end(status) {
            return;
        }
        let containers = self.containers();
        if containers.iter().any(|other| other.end().is_none()) {
            container.kill_all();
            return;
        }
        self.over.store(true, Ordering::SeqCst);
        self.poller.wake();
        for container in containers {
            container.platform().kick(false);
        }
    }

    /// Whether all containers have ended.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Stubs may have ended: processes whose stub did, unasked, end as by SIGKILL.
    pub fn reap_stubs(&self) {
        for container in self.containers() {
            container.reap_stubs();
        }
    }

    /// Hears of everything that is not a guest's report, until the sandbox is over. `other` is called for tokens that are not the kernel's.
    pub fn listen(
        self: &Arc<Self>,
        other: &mut dyn FnMut(&Arc<Kernel>, Token),
    ) -> Result<(), Errno> {
        while !self.is_over() {
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

    /// Prints what a container's platform has counted, where calls are printed.
    pub fn log_counters(&self, container: &Container) {
        if !self.strace {
            return;
        }
        let counted = container.platform().counters();
        host::log::line(&format!(
            "--- calls: {} trapped, {} from {} replaced sites, {} answered by stubs; {} faults and signals, {} interrupts; {} batches of memory operations ---",
            counted.trapped_calls,
            counted.patched_calls,
            counted.patched_sites,
            counted.local_calls,
            counted.signals,
            counted.interrupts,
            counted.batches,
        ));
        host::log::line(&format!(
            "--- answers: {} to threads that spun, {} to threads that slept, {} wake-ups; workers slept {} times ---",
            counted.spins, counted.sleeps, counted.wakeups, counted.worker_sleeps,
        ));
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
