//! Containers: a first process, what runs its tasks, and the namespaces and limits that they have.
//!
//! A [`Container`] owns what one container of a sandbox has for itself: its platform (zygote, doorbell, contexts), its share of memory, its first namespaces,
//! and how it ended. What several share (workers, timers, clocks, readiness, futexes) is the [`Kernel`]'s, which keeps the table of them.
//!
//! Lock classes: `Leaf`.

use std::sync::{Arc, OnceLock};

use abi::signal::Signal;
use platform::{ContextId, Platform};

use crate::fs::tmpfs::TmpFs;
use crate::kernel::{Item, Kernel};
use crate::mm::MmHost;
use crate::namespace::{NamespaceIds, Namespaces};
use crate::spec::Limits;
use crate::sync::Mutex;
use crate::sync::order::Leaf;
use crate::task::{ExitStatus, Process, Task};
use crate::vfs::{Mount, Vfs};

/// A container's identity, which no other container of the kernel has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(pub u32);

/// The number of a container's first process.
pub const INIT: u32 = 1;

/// How many contexts a platform has at the most.
const CONTEXTS: usize = 4096;

/// Whose reports a context's are.
#[derive(Default)]
struct Slot {
    /// With the serial number that its context has.
    task: Option<(u32, Arc<Task>)>,
    /// A report of the context with this serial number came while there was no task.
    early: Option<u32>,
}

/// What a container is made of.
pub struct Parts {
    /// Its platform.
    pub platform: Arc<dyn Platform>,
    /// What its address spaces share.
    pub mm: Arc<MmHost>,
    /// Its tree of files.
    pub vfs: Arc<Vfs>,
    /// What it may use.
    pub limits: Limits,
    /// The host name that it sees first.
    pub hostname: String,
    /// A tmpfs that is mounted nowhere, for files in memory without a name, and its mount.
    pub unseen: (Arc<TmpFs>, Arc<Mount>),
}

/// A container.
pub struct Container {
    id: ContainerId,
    platform: Arc<dyn Platform>,
    mm: Arc<MmHost>,
    limits: Limits,
    namespaces: Arc<Namespaces>,
    unseen: (Arc<TmpFs>, Arc<Mount>),
    contexts: Vec<Mutex<Slot, Leaf>>,
    end: OnceLock<ExitStatus>,
}

impl Container {
    /// One with no task yet. The kernel makes them ([`Kernel::add_container`]).
    pub(crate) fn new(id: ContainerId, parts: Parts, ids: &NamespaceIds) -> Arc<Container> {
        Arc::new(Container {
            id,
            platform: parts.platform,
            mm: parts.mm,
            limits: parts.limits,
            namespaces: Namespaces::new(ids, parts.vfs, parts.hostname),
            unseen: parts.unseen,
            contexts: (0..CONTEXTS).map(|_| Mutex::new(Slot::default())).collect(),
            end: OnceLock::new(),
        })
    }

    /// Its identity.
    pub fn id(&self) -> ContainerId {
        self.id
    }

    /// Its platform.
    pub fn platform(&self) -> &Arc<dyn Platform> {
        &self.platform
    }

    /// What its address spaces share.
    pub fn mm(&self) -> &Arc<MmHost> {
        &self.mm
    }

    /// What it may use.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The namespaces that its first process began in.
    pub fn namespaces(&self) -> &Arc<Namespaces> {
        &self.namespaces
    }

    /// A tmpfs that is mounted nowhere, for files in memory without a name, and its mount.
    pub fn unseen(&self) -> (&Arc<TmpFs>, &Arc<Mount>) {
        (&self.unseen.0, &self.unseen.1)
    }

    /// Its first process, once it was started, a zombie too.
    pub fn init(&self) -> Option<Arc<Process>> {
        let tree = self.namespaces.pid.tree().lock();
        let node = tree.process(INIT).ok()?;
        Some(Arc::clone(&node.process))
    }

    /// How its first process ended, once it has.
    pub fn end(&self) -> Option<ExitStatus> {
        self.end.get().copied()
    }

    /// Takes note of how its first process ended; false where that was known.
    pub(crate) fn set_end(&self, status: ExitStatus) -> bool {
        self.end.set(status).is_ok()
    }

    /// Ends every process that is left in it by SIGKILL (pid_namespaces(7): when the first has ended).
    pub(crate) fn kill_all(&self) {
        let tree = self.namespaces.pid.tree().lock();
        let left: Vec<Arc<Process>> = tree
            .nodes
            .values()
            .filter(|node| node.exit.is_none())
            .map(|node| Arc::clone(&node.process))
            .collect();
        drop(tree);
        for process in left {
            process.end(ExitStatus::Signal(Signal::SIGKILL, false));
        }
    }

    /// Makes its first task, whose number was reserved.
    pub(crate) fn start(
        self: &Arc<Self>,
        kernel: &Arc<Kernel>,
        pid: u32,
        limits: crate::task::Limits,
        parts: crate::task::TaskParts,
    ) -> Arc<Task> {
        let process = Process::new(kernel, self, pid, limits, Arc::default());
        let task = Task::new(kernel, pid, &process, parts);
        task.join_process();
        self.namespaces.pid.tree().lock().enter(&task, None);
        task
    }

    /// Lets reports of a context find its task.
    pub fn register(&self, context: ContextId, task: &Arc<Task>) {
        let Some(slot) = self.contexts.get(context.slot as usize) else {
            return;
        };
        let mut slot = slot.lock();
        slot.task = Some((context.serial, Arc::clone(task)));
        let early = slot.early.take();
        drop(slot);
        if early == Some(context.serial) {
            task.kernel.enqueue(Item::Report(Arc::clone(task)));
        }
    }

    /// Reports of a context find no task from now on.
    pub fn unregister(&self, context: ContextId) {
        let Some(slot) = self.contexts.get(context.slot as usize) else {
            return;
        };
        let old = core::mem::take(&mut *slot.lock());
        drop(old);
    }

    /// Serves a report of one of its threads, where there is one: whether there was.
    pub(crate) fn serve_report(&self) -> bool {
        let Some(context) = self.platform.poll() else {
            return false;
        };
        let Some(slot) = self.contexts.get(context.slot as usize) else {
            return true;
        };
        let mut slot = slot.lock();
        let task = slot.task.clone();
        if task.is_none() {
            slot.early = Some(context.serial);
        }
        drop(slot);
        // What was taken before the context became another's is nobody's.
        if let Some((serial, task)) = task
            && serial == context.serial
        {
            task.on_report();
        }
        true
    }

    /// Stubs may have ended: processes whose stub did, unasked, end as by SIGKILL.
    pub(crate) fn reap_stubs(&self) {
        let dead = self.platform.reap();
        if dead.is_empty() {
            return;
        }
        let tree = self.namespaces.pid.tree().lock();
        let tasks: Vec<Arc<Task>> = tree.tasks.values().cloned().collect();
        drop(tree);
        for task in tasks {
            if dead.contains(&task.mm().space().id()) {
                task.process.end(ExitStatus::Signal(Signal::SIGKILL, false));
                task.host_died();
            }
        }
    }
}

impl core::fmt::Debug for Container {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Container({})", self.id.0)
    }
}

#[cfg(test)]
mod tests;
