//! The end of tasks: exit(2), exit_group(2), death by signal, and wait4(2).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::Errno;
use abi::UserPtr;
use abi::signal::{SigInfo, Signal};
use bitflags::bitflags;

use super::call::{Step, Wait};
use super::signal::{SA_NOCLDWAIT, SIG_IGN};
use super::tree::{ExitStatus, Report, Tree};
use super::{Process, Task};
use crate::sync::EventMask;

bitflags! {
    /// Options of waitid(2) and wait4(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WaitOptions: u32 {
        /// `WNOHANG`
        const NOHANG = 1;
        /// `WUNTRACED`, `WSTOPPED`
        const STOPPED = 2;
        /// `WEXITED`
        const EXITED = 4;
        /// `WCONTINUED`
        const CONTINUED = 8;
        /// `WNOWAIT`
        const NOWAIT = 0x100_0000;
        /// `__WNOTHREAD`
        const NOTHREAD = 0x2000_0000;
        /// `__WALL`
        const ALL = 0x4000_0000;
        /// `__WCLONE`
        const CLONE = 0x8000_0000;
    }
}

/// Which children are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// Any.
    Any,
    /// This one.
    Process(u32),
    /// Those of this group.
    Group(u32),
}

/// What a wait found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The child.
    pub pid: u32,
    /// Its real user.
    pub uid: u32,
    /// As wait4(2) stores it.
    pub status: u32,
    /// As SIGCHLD tells it: code and status.
    pub info: (i32, i32),
    /// Processor time: nanoseconds.
    pub cpu: u64,
}

impl Process {
    /// Begins the end of the whole process: the first status counts, and every thread is told.
    pub fn end(&self, status: ExitStatus) {
        let mut ending = self.ending.lock();
        if ending.is_some() {
            return;
        }
        *ending = Some(status);
        drop(ending);
        for task in self.threads() {
            task.notify();
            // Where no other process uses the memory, nothing need be waited for: the stub is about to be killed.
            let mm = task.mm();
            if mm.sole_user() {
                mm.space().hurry();
                task.claim()
            } else {
                task.poke()
            }
        }
    }

    /// Its end, where that has begun.
    pub fn ending(&self) -> Option<ExitStatus> {
        *self.ending.lock()
    }
}

impl Task {
    /// exit(2): ends this thread; with the last one the process ends, by this code where nothing else ended it.
    pub fn exit(self: &Arc<Self>, code: u8) {
        let last = self.process.threads.lock().len() == 1;
        if last {
            let mut ending = self.process.ending.lock();
            if ending.is_none() {
                *ending = Some(ExitStatus::Code(code));
            }
        }
        self.finish();
    }

    /// The thread is over: takes it out of everything. Its host thread is put aside, or ends with its address space.
    pub(super) fn finish(self: &Arc<Self>) {
        if !self.run.set_dead() {
            return;
        }
        let kernel = Arc::clone(&self.kernel);
        self.release_user_words();
        self.run.forget(&kernel);
        let host = self.thread.write().take();
        let rest = {
            let mut threads = self.process.threads.lock();
            threads.retain(|task| task.tid() != self.tid());
            threads.len()
        };
        let mm = self.mm();
        let used = self.count_time(host.as_deref(), rest == 0);
        let shared = mm.leave(rest == 0);
        if let Some(host) = host {
            self.container().unregister(host.context());
            // Where all of the process ends with its stub, nobody will want the thread again.
            if shared || (rest > 0 && self.process.ending().is_none()) {
                host.retire(used);
            }
        }
        // Descriptors go before the parent hears of it: what it waits for (a pipe's end) has happened by then.
        self.drop_files();
        if rest == 0 {
            if !shared {
                mm.space().kill();
            }
            self.finish_process();
        }
        let mut tree = self.tree().lock();
        let gone = tree.tasks.remove(&self.tid());
        drop(tree);
        drop(gone);
        // A leader whose threads outlive it stays as a zombie thread until they end.
        if rest > 0 {
            self.process.child_changed.notify(EventMask::IN);
        }
    }

    /// Keeps the processor time that could not be asked for later. The thread's own, where it was asked for.
    fn count_time(&self, host: Option<&dyn platform::Thread>, last: bool) -> Option<u64> {
        let own = self.process.guest_of_space.load(Ordering::Relaxed);
        let used = if own {
            host.map_or(0, |host| host.cpu_time())
        } else if last {
            self.mm().space().cpu_time()
        } else {
            0
        };
        self.process.past_cpu.fetch_add(used, Ordering::Relaxed);
        own.then_some(used)
    }

    fn drop_files(&self) {
        let files = self.files();
        self.set_files(crate::vfs::FdTable::new());
        drop(files);
    }

    /// The host's thread is gone: the task ends though it will not report.
    pub fn host_died(&self) {
        self.notify();
        self.claim();
    }

    /// `CLONE_CHILD_CLEARTID` and robust futexes.
    fn release_user_words(&self) {
        let mm = self.mm();
        if mm.space().is_dead() {
            return;
        }
        crate::ipc::futex::release_robust(self, &mm);
        let clear = core::mem::replace(&mut *self.clear_tid.lock(), UserPtr::new(0));
        // As Linux does: only where others use the memory too.
        if !clear.is_null() && mm.put_now(clear, &0).is_ok() {
            self.kernel.futexes.wake(&mm, clear.addr(), 1, u32::MAX);
        }
        // The thread copies nothing any more, and its window may be another's soon.
        mm.settle();
    }

    /// The last thread is over: children get another parent, the own parent is told.
    fn finish_process(self: &Arc<Self>) {
        let kernel = &self.kernel;
        let process = &self.process;
        let status = process.ending().unwrap_or(ExitStatus::Code(0));
        process.real_timer.set(0, 0);
        process.delete_timers();
        process.release_vfork();
        if process.pid == crate::container::INIT {
            kernel.end_container(self.container(), status);
        }
        let creds = self.creds();
        // What wait4(2) tells of it: with its own children that it waited for.
        let children = process.children_cpu.load(Ordering::Relaxed);
        let cpu = process.cpu_time().saturating_add(children);
        let mut tree = self.tree().lock();
        let Some(node) = tree.nodes.get_mut(&process.pid) else {
            return;
        };
        node.exit = Some(status);
        node.report = None;
        node.cpu = cpu;
        node.ids = (creds.uid.real, creds.gid.real);
        node.comm = self.comm();
        let parent = node.parent;
        let children = core::mem::take(&mut node.children);
        let heir = Task::heir(&tree, parent);
        let mut orphans = Vec::new();
        for child in children {
            if let Some(node) = tree.nodes.get_mut(&child) {
                node.parent = heir;
                node.parent_tid = heir;
                orphans.push(Arc::clone(&node.process));
                if node.exit.is_some() {
                    orphans.pop();
                }
            }
            if let Some(node) = tree.nodes.get_mut(&heir) {
                node.children.insert(child);
            }
        }
        let heir_process = tree.nodes.get(&heir).map(|node| Arc::clone(&node.process));
        let zombies: Vec<u32> = tree
            .nodes
            .get(&heir)
            .map(|node| node.children.iter().copied().collect::<Vec<_>>())
            .unwrap_or_default()
            .into_iter()
            .filter(|child| {
                tree.nodes
                    .get(child)
                    .is_some_and(|node| node.exit.is_some())
            })
            .collect();
        let parent_process = tree
            .nodes
            .get(&parent)
            .map(|node| Arc::clone(&node.process));
        drop(tree);
        for orphan in orphans {
            for task in orphan.threads() {
                if let Some(signal) =
                    Signal::from_raw(u32::from(task.death_signal.load(Ordering::Relaxed)))
                {
                    // An orphan that ends meanwhile needs no signal.
                    let _ = task.send(SigInfo::sent_by(
                        signal,
                        abi::signal::SI_USER,
                        process.pid,
                        creds.uid.real,
                    ));
                }
            }
        }
        if let Some(heir) = heir_process.filter(|_| !zombies.is_empty()) {
            heir.child_changed.notify(EventMask::IN);
        }
        let Some(parent) = parent_process else { return };
        let action = parent.handlers().lock().get(Signal::SIGCHLD);
        let signal = process.exit_signal.load(Ordering::Relaxed);
        let unwanted = signal == Signal::SIGCHLD.raw()
            && (action.handler == SIG_IGN || action.flags & SA_NOCLDWAIT != 0);
        if unwanted {
            let gone = self.tree().lock().reap(process.pid);
            drop(gone);
        }
        if let Some(signal) = Signal::from_raw(u32::from(signal)) {
            let (code, value) = status.to_siginfo();
            let mut info = SigInfo::child(code, process.pid, creds.uid.real, value);
            info.signo = i32::from(signal.raw());
            // A parent that is ending itself hears nothing.
            let _ = parent.send(info);
        }
        parent.child_changed.notify(EventMask::IN);
    }

    /// Who inherits the children of a child of `parent`: the nearest subreaper above, else the first process.
    fn heir(tree: &Tree, parent: u32) -> u32 {
        let mut at = parent;
        while let Some(node) = tree.nodes.get(&at) {
            if node.process.subreaper.load(Ordering::Relaxed) && node.exit.is_none() {
                return at;
            }
            if at == node.parent || node.parent == 0 {
                break;
            }
            at = node.parent;
        }
        1
    }

    /// wait4(2), waitid(2): a child that changed, or a wait for one.
    pub fn wait_for(&self, which: WaitFor, options: WaitOptions) -> Result<Found, Step> {
        let mut tree = self.tree().lock();
        let me = self.process.pid;
        let group = tree.process(me).map_or(0, |node| node.group);
        let children: Vec<u32> = tree
            .nodes
            .get(&me)
            .map(|node| node.children.iter().copied().collect())
            .unwrap_or_default();
        let mut any = false;
        for pid in children {
            let Some(node) = tree.nodes.get_mut(&pid) else {
                continue;
            };
            let wanted = match which {
                WaitFor::Any => true,
                WaitFor::Process(wanted) => wanted == pid,
                WaitFor::Group(0) => node.group == group,
                WaitFor::Group(wanted) => node.group == wanted,
            };
            let clone = node.process.exit_signal.load(Ordering::Relaxed) != Signal::SIGCHLD.raw();
            let kind =
                options.contains(WaitOptions::ALL) || clone == options.contains(WaitOptions::CLONE);
            if !wanted || !kind {
                continue;
            }
            any = true;
            if let Some(status) = node.exit {
                if !options.contains(WaitOptions::EXITED) {
                    continue;
                }
                let found = Found {
                    pid,
                    uid: node.ids.0,
                    status: status.to_wait(),
                    info: status.to_siginfo(),
                    cpu: node.cpu,
                };
                if !options.contains(WaitOptions::NOWAIT) {
                    let gone = tree.reap(pid);
                    self.process
                        .children_cpu
                        .fetch_add(found.cpu, Ordering::Relaxed);
                    drop(tree);
                    drop(gone);
                }
                return Ok(found);
            }
            let found = match node.report {
                Some(Report::Stopped(signal)) if options.contains(WaitOptions::STOPPED) => {
                    let number = i32::from(signal.raw());
                    Found {
                        pid,
                        uid: 0,
                        status: u32::from(signal.raw()) << 8 | 0x7f,
                        info: (abi::signal::CLD_STOPPED, number),
                        cpu: 0,
                    }
                }
                Some(Report::Continued) if options.contains(WaitOptions::CONTINUED) => {
                    let number = i32::from(Signal::SIGCONT.raw());
                    Found {
                        pid,
                        uid: 0,
                        status: 0xffff,
                        info: (abi::signal::CLD_CONTINUED, number),
                        cpu: 0,
                    }
                }
                _ => continue,
            };
            if !options.contains(WaitOptions::NOWAIT) {
                node.report = None;
            }
            return Ok(found);
        }
        drop(tree);
        if !any {
            return Err(Step::Done(Err(Errno::ECHILD)));
        }
        if options.contains(WaitOptions::NOHANG) {
            return Err(Step::Done(Ok(0)));
        }
        Err(Step::Wait(Wait::on(
            &self.process.child_changed,
            EventMask::IN,
        )))
    }
}
