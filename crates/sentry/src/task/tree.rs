//! How processes are related: parents, groups, sessions, and what is left of those that ended.
//!
//! Lock class: `ProcessTree`, around the one [`Tree`] of a PID namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abi::Errno;
use abi::signal::Signal;

use super::{Process, Task};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// By `exit` with this code.
    Code(u8),
    /// By this signal; whether it left a core.
    Signal(Signal, bool),
}

impl ExitStatus {
    /// What wait4(2) stores.
    pub fn to_wait(self) -> u32 {
        match self {
            ExitStatus::Code(code) => u32::from(code) << 8,
            ExitStatus::Signal(signal, core) => {
                u32::from(signal.raw()) | if core { 0x80 } else { 0 }
            }
        }
    }

    /// `si_code` and `si_status` of SIGCHLD.
    pub fn to_siginfo(self) -> (i32, i32) {
        match self {
            ExitStatus::Code(code) => (abi::signal::CLD_EXITED, i32::from(code)),
            ExitStatus::Signal(signal, false) => (abi::signal::CLD_KILLED, i32::from(signal.raw())),
            ExitStatus::Signal(signal, true) => (abi::signal::CLD_DUMPED, i32::from(signal.raw())),
        }
    }
}

/// A process among its relatives.
pub struct Node {
    /// The process.
    pub process: Arc<Process>,
    /// Its parent's number, 0 for the first process.
    pub parent: u32,
    /// The thread of the parent that made it.
    pub parent_tid: u32,
    /// Its children.
    pub children: BTreeSet<u32>,
    /// Its group.
    pub group: u32,
    /// Its session.
    pub session: u32,
    /// How it ended, once all its threads have.
    pub exit: Option<ExitStatus>,
    /// A stop (by this signal) or a continuation that its parent has not been told of.
    pub report: Option<Report>,
    /// Real user and group, once it ended.
    pub ids: (u32, u32),
    /// The name of its last thread, once it ended.
    pub comm: Vec<u8>,
    /// Processor time it and its children used, once it ended: nanoseconds.
    pub cpu: u64,
}

/// A change of state that a parent can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Stopped by this signal.
    Stopped(Signal),
    /// Continued.
    Continued,
}

/// All processes and threads of a PID namespace.
#[derive(Default)]
pub struct Tree {
    /// Processes, zombies included.
    pub nodes: BTreeMap<u32, Node>,
    /// Threads that have not ended.
    pub tasks: BTreeMap<u32, Arc<Task>>,
    last: u32,
    reserved: u32,
}

/// The largest number of a process (`kernel.pid_max`, exclusive).
pub const PID_MAX: u32 = 32_768;

impl Tree {
    /// A number that nobody has, counted as a task until it is [entered](Tree::enter) or [given back](Tree::give_back). EAGAIN at `limit` tasks.
    pub fn reserve(&mut self, limit: u32) -> Result<u32, Errno> {
        let zombies = self
            .nodes
            .values()
            .filter(|node| node.exit.is_some())
            .count();
        let count = self.tasks.len() + zombies + self.reserved as usize;
        if count >= limit as usize {
            return Err(Errno::EAGAIN);
        }
        for _ in 0..PID_MAX {
            self.last = if self.last + 1 >= PID_MAX {
                300
            } else {
                self.last + 1
            };
            let number = self.last;
            let used = self.nodes.contains_key(&number)
                || self.tasks.contains_key(&number)
                || self
                    .nodes
                    .values()
                    .any(|node| node.group == number || node.session == number);
            if !used {
                self.reserved += 1;
                return Ok(number);
            }
        }
        Err(Errno::EAGAIN)
    }

    /// The number that was given out last.
    pub fn last(&self) -> u32 {
        self.last
    }

    /// Gives a reserved number back.
    pub fn give_back(&mut self) {
        self.reserved -= 1;
    }

    /// Enters a thread whose number was reserved; with its process where it is the first.
    pub fn enter(&mut self, task: &Arc<Task>, parent: Option<(u32, u32)>) {
        self.reserved -= 1;
        if task.is_leader() {
            let (parent, parent_tid) = parent.unwrap_or((0, 0));
            let (group, session) = self
                .nodes
                .get(&parent)
                .map_or((task.tid(), task.tid()), |node| (node.group, node.session));
            let node = Node {
                process: Arc::clone(&task.process),
                parent,
                parent_tid,
                children: BTreeSet::new(),
                group,
                session,
                exit: None,
                report: None,
                ids: (0, 0),
                comm: Vec::new(),
                cpu: 0,
            };
            self.nodes.insert(task.tid(), node);
            if let Some(parent) = self.nodes.get_mut(&parent) {
                parent.children.insert(task.tid());
            }
        }
        self.tasks.insert(task.tid(), Arc::clone(task));
    }

    /// The process with this number; ESRCH. Zombies count.
    pub fn process(&self, pid: u32) -> Result<&Node, Errno> {
        self.nodes.get(&pid).ok_or(Errno::ESRCH)
    }

    /// The processes of a group that have not ended.
    pub fn group(&self, group: u32) -> Vec<Arc<Process>> {
        self.nodes
            .values()
            .filter(|node| node.group == group && node.exit.is_none())
            .map(|node| Arc::clone(&node.process))
            .collect()
    }

    /// Whether a group has a member at all.
    pub fn group_exists(&self, group: u32, session: u32) -> bool {
        self.nodes
            .values()
            .any(|node| node.group == group && node.session == session)
    }

    /// Takes a zombie out.
    pub fn reap(&mut self, pid: u32) -> Option<Node> {
        let node = self.nodes.remove(&pid)?;
        if let Some(parent) = self.nodes.get_mut(&node.parent) {
            parent.children.remove(&pid);
        }
        Some(node)
    }
}
