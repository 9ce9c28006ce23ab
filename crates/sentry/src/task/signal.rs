//! Signals: what is pending, what is to be done about it, and how it gets to a task (signal(7)).

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use abi::Errno;
use abi::signal::{SI_KERNEL, SI_TIMER, SI_USER, SigAction, SigInfo, SigSet, Signal};

use super::tree::{ExitStatus, Report};
use super::{Process, Resource, Task};
use crate::kernel::Kernel;
use crate::sync::Mutex;
use crate::sync::order::Leaf;
use crate::time::{Clock, OnTime, TimerId};

/// `SA_NOCLDSTOP`
pub const SA_NOCLDSTOP: u64 = 1;
/// `SA_NOCLDWAIT`
pub const SA_NOCLDWAIT: u64 = 2;
/// `SA_RESTORER`
pub const SA_RESTORER: u64 = 0x0400_0000;
/// `SA_ONSTACK`
pub const SA_ONSTACK: u64 = 0x0800_0000;
/// `SA_RESTART`
pub const SA_RESTART: u64 = 0x1000_0000;
/// `SA_NODEFER`
pub const SA_NODEFER: u64 = 0x4000_0000;
/// `SA_RESETHAND`
pub const SA_RESETHAND: u64 = 0x8000_0000;
/// `SIG_DFL`
pub const SIG_DFL: u64 = 0;
/// `SIG_IGN`
pub const SIG_IGN: u64 = 1;

/// A process's handlers, by signal.
#[derive(Clone)]
pub struct Handlers([SigAction; 64]);

impl Default for Handlers {
    fn default() -> Self {
        Handlers([SigAction::default(); 64])
    }
}

impl Handlers {
    /// What is to be done about a signal.
    pub fn get(&self, signal: Signal) -> SigAction {
        self.0[usize::from(signal.raw()) - 1]
    }

    /// Sets that; the old.
    pub fn set(&mut self, signal: Signal, action: SigAction) -> SigAction {
        core::mem::replace(&mut self.0[usize::from(signal.raw()) - 1], action)
    }

    /// After exec: what was caught is as at the start, what was ignored stays ignored.
    pub fn reset(&mut self) {
        for action in &mut self.0 {
            let handler = if action.handler == SIG_IGN {
                SIG_IGN
            } else {
                SIG_DFL
            };
            *action = SigAction {
                handler,
                ..SigAction::default()
            };
        }
    }

    /// Whether a signal would be thrown away.
    pub fn ignores(&self, signal: Signal) -> bool {
        let handler = self.get(signal).handler;
        handler == SIG_IGN
            || (handler == SIG_DFL && default_action(signal) == DefaultAction::Ignore)
    }

    /// The signals that are ignored by choice, and those that are caught: `SigIgn` and `SigCgt`.
    pub fn sets(&self) -> (SigSet, SigSet) {
        let (mut ignored, mut caught) = (SigSet::EMPTY, SigSet::EMPTY);
        for number in 1..=u32::from(Signal::MAX) {
            let Some(signal) = Signal::from_raw(number) else {
                continue;
            };
            match self.get(signal).handler {
                SIG_DFL => {}
                SIG_IGN => ignored.insert(signal),
                _ => caught.insert(signal),
            }
        }
        (ignored, caught)
    }
}

/// What a signal does where nothing else was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultAction {
    /// Ends the process.
    Terminate,
    /// Ends it, with a core dump where that is on.
    Core,
    /// Nothing.
    Ignore,
    /// Stops it.
    Stop,
    /// Continues it.
    Continue,
}

/// The default action of a signal.
pub fn default_action(signal: Signal) -> DefaultAction {
    match signal {
        Signal::SIGCHLD | Signal::SIGURG | Signal::SIGWINCH => DefaultAction::Ignore,
        Signal::SIGCONT => DefaultAction::Continue,
        Signal::SIGSTOP | Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU => {
            DefaultAction::Stop
        }
        Signal::SIGQUIT
        | Signal::SIGILL
        | Signal::SIGTRAP
        | Signal::SIGABRT
        | Signal::SIGBUS
        | Signal::SIGFPE
        | Signal::SIGSEGV
        | Signal::SIGXCPU
        | Signal::SIGXFSZ
        | Signal::SIGSYS => DefaultAction::Core,
        _ => DefaultAction::Terminate,
    }
}

/// Signals that wait to be delivered, in the order they came.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    set: SigSet,
    queue: VecDeque<SigInfo>,
}

impl Pending {
    /// Which are pending.
    pub fn set(&self) -> SigSet {
        self.set
    }

    /// How many entries.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds one; a standard signal that is pending already stays one. EAGAIN where a realtime signal finds the queue full.
    pub fn push(&mut self, signal: Signal, info: SigInfo, limit: u64) -> Result<(), Errno> {
        // Room for a timer's was made with the timer, and each of them has one of its own.
        if info.code != SI_TIMER {
            if !signal.is_realtime() && self.set.contains(signal) {
                return Ok(());
            }
            if signal.is_realtime() && self.queue.len() as u64 >= limit && info.code != SI_KERNEL {
                return Err(Errno::EAGAIN);
            }
        }
        self.set.insert(signal);
        self.queue.push_back(info);
        Ok(())
    }

    /// Takes the first of those in `among`: faults first, then the lowest number.
    pub fn take(&mut self, among: SigSet) -> Option<SigInfo> {
        let here = self.set.intersection(among);
        const FAULTS: SigSet = SigSet(1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30);
        let signal = here.intersection(FAULTS).first().or_else(|| here.first())?;
        let number = i32::from(signal.raw());
        let at = self.queue.iter().position(|info| info.signo == number);
        let info = at.and_then(|at| self.queue.remove(at));
        if !self.queue.iter().any(|info| info.signo == number) {
            self.set.remove(signal);
        }
        info.or_else(|| Some(SigInfo::new(signal, SI_USER)))
    }

    /// Throws away all of these.
    pub fn discard(&mut self, signals: SigSet) {
        self.set = self.set.difference(signals);
        self.queue.retain(|info| {
            u32::try_from(info.signo)
                .ok()
                .and_then(Signal::from_raw)
                .is_none_or(|signal| !signals.contains(signal))
        });
    }
}

/// ITIMER_REAL of a process (setitimer(2)), which alarm(2) sets too.
pub struct RealTimer {
    kernel: Weak<Kernel>,
    process: Weak<Process>,
    state: Mutex<RealTimerState, Leaf>,
}

/// When it expires next and then how often: monotonic nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct RealTimerState {
    next: Option<i64>,
    interval: i64,
    armed: Option<TimerId>,
}

impl RealTimer {
    pub(super) fn new(kernel: &Arc<Kernel>, process: &Weak<Process>) -> Arc<RealTimer> {
        Arc::new(RealTimer {
            kernel: Arc::downgrade(kernel),
            process: Weak::clone(process),
            state: Mutex::new(RealTimerState::default()),
        })
    }

    /// Sets it to expire in `value` nanoseconds (0: never) and every `interval` from then; what was left, and the old interval.
    pub fn set(self: &Arc<Self>, value: i64, interval: i64) -> (i64, i64) {
        let Some(kernel) = self.kernel.upgrade() else {
            return (0, 0);
        };
        let old = self.get();
        let previous = core::mem::take(&mut *self.state.lock());
        if let Some(armed) = previous.armed {
            kernel.disarm(armed);
        }
        if value > 0 {
            let deadline = kernel.clocks().after(Clock::Monotonic, value);
            let me: Weak<dyn OnTime> = Arc::downgrade(&(Arc::clone(self) as Arc<dyn OnTime>));
            let armed = kernel.arm(deadline, me);
            *self.state.lock() = RealTimerState {
                next: Some(deadline.nanos),
                interval,
                armed: Some(armed),
            };
        }
        old
    }

    /// What is left, and the interval: nanoseconds.
    pub fn get(&self) -> (i64, i64) {
        let state = *self.state.lock();
        let Some(kernel) = self.kernel.upgrade() else {
            return (0, 0);
        };
        let left = state.next.map_or(0, |next| {
            (next - kernel.clocks().now(Clock::Monotonic)).max(1)
        });
        (left, state.interval)
    }
}

impl OnTime for RealTimer {
    fn on_time(self: Arc<Self>, timer: TimerId) {
        let Some(kernel) = self.kernel.upgrade() else {
            return;
        };
        let mut state = self.state.lock();
        if state.armed != Some(timer) {
            return;
        }
        let interval = state.interval;
        let next = state.next.filter(|_| interval > 0).map(|next| {
            let now = kernel.clocks().now(Clock::Monotonic);
            let missed = (now - next).max(0) / interval;
            next + interval * (missed + 1)
        });
        state.next = next;
        state.armed = None;
        drop(state);
        if let Some(next) = next {
            let me: Weak<dyn OnTime> = Arc::downgrade(&(Arc::clone(&self) as Arc<dyn OnTime>));
            let armed = kernel.arm(
                crate::time::Deadline {
                    clock: Clock::Monotonic,
                    nanos: next,
                },
                me,
            );
            self.state.lock().armed = Some(armed);
        }
        if let Some(process) = self.process.upgrade() {
            // A process that has just ended needs no alarm.
            let _ = process.send(SigInfo::new(Signal::SIGALRM, SI_KERNEL));
        }
    }
}

impl Process {
    /// Signals that are pending for all of the process.
    pub fn pending_set(&self) -> SigSet {
        self.pending.lock().set()
    }

    /// Sends it a signal that any of its threads may take.
    pub fn send(self: &Arc<Self>, info: SigInfo) -> Result<(), Errno> {
        self.post(info).map(drop)
    }

    /// Sends it a signal: `false` where it is ignored.
    pub(super) fn post(self: &Arc<Self>, info: SigInfo) -> Result<bool, Errno> {
        let signal = u32::try_from(info.signo)
            .ok()
            .and_then(Signal::from_raw)
            .ok_or(Errno::EINVAL)?;
        if !self.prepare(signal, None) {
            return Ok(false);
        }
        let limit = self.limits.lock().get(Resource::Sigpending).0;
        self.pending.lock().push(signal, info, limit)?;
        self.signalled.notify(crate::sync::EventMask::IN);
        // The first thread where it can take it, else any that can; else it waits until one unblocks it.
        let threads = self.threads();
        let takes = |task: &&Arc<Task>| {
            signal == Signal::SIGKILL || !task.blocked.lock().mask.contains(signal)
        };
        if signal == Signal::SIGKILL {
            self.end(ExitStatus::Signal(signal, false));
            return Ok(true);
        }
        if let Some(task) = threads.iter().find(takes) {
            task.notify();
            task.poke();
        }
        Ok(true)
    }

    /// What a signal does as it is sent, whoever takes it: stop signals and SIGCONT undo each other, and what is ignored is thrown away. Whether
    /// it goes on to be queued.
    fn prepare(self: &Arc<Self>, signal: Signal, to: Option<&Task>) -> bool {
        const STOPS: SigSet = SigSet(1 << 18 | 1 << 19 | 1 << 20 | 1 << 21);
        if signal == Signal::SIGCONT {
            self.discard(STOPS);
            self.resume_stopped();
        } else if STOPS.contains(signal) {
            self.discard(SigSet::of(Signal::SIGCONT));
        }
        let ignored = self.handlers().lock().ignores(signal)
            && signal != Signal::SIGKILL
            && signal != Signal::SIGSTOP;
        // What is blocked is kept though it is ignored now: the handler may change before it is unblocked.
        let blocked = match to {
            Some(task) => task.blocked.lock().mask.contains(signal),
            None => self
                .threads()
                .iter()
                .all(|task| task.blocked.lock().mask.contains(signal)),
        };
        !ignored || blocked
    }

    fn discard(&self, signals: SigSet) {
        self.pending.lock().discard(signals);
        for task in self.threads() {
            task.pending.lock().discard(signals);
        }
    }

    /// Throws away what is pending of a signal that is ignored from now on.
    pub fn discard_signal(&self, signal: Signal) {
        self.discard(SigSet::of(signal));
        self.timer_signal_discarded(signal);
    }

    /// Stops it: every thread parks before it runs guest code again.
    pub(super) fn stop(self: &Arc<Self>, signal: Signal) {
        if self.stopped.swap(true, Ordering::SeqCst) {
            return;
        }
        for task in self.threads() {
            task.notify();
            task.poke();
        }
        self.report(Report::Stopped(signal));
    }

    fn resume_stopped(self: &Arc<Self>) {
        if !self.stopped.swap(false, Ordering::SeqCst) {
            return;
        }
        for task in self.threads() {
            task.poke();
        }
        self.report(Report::Continued);
    }

    /// Tells the parent of a stop or a continuation.
    fn report(self: &Arc<Self>, report: Report) {
        let mut tree = self.tree().lock();
        let Some(node) = tree.nodes.get_mut(&self.pid) else {
            return;
        };
        node.report = Some(report);
        let parent = node.parent;
        let parent = tree
            .nodes
            .get(&parent)
            .map(|node| Arc::clone(&node.process));
        drop(tree);
        if let Some(parent) = parent {
            let (code, status) = match report {
                Report::Stopped(signal) => (abi::signal::CLD_STOPPED, i32::from(signal.raw())),
                Report::Continued => (abi::signal::CLD_CONTINUED, i32::from(Signal::SIGCONT.raw())),
            };
            let quiet = parent.handlers().lock().get(Signal::SIGCHLD).flags & SA_NOCLDSTOP != 0;
            if !quiet {
                // A parent that ends meanwhile is told nothing.
                let _ = parent.send(SigInfo::child(code, self.pid, 0, status));
            }
            parent.child_changed.notify(crate::sync::EventMask::IN);
        }
    }
}

impl Task {
    /// Sends this thread a signal.
    pub fn send(&self, info: SigInfo) -> Result<(), Errno> {
        self.post(info).map(drop)
    }

    /// Sends this thread a signal: `false` where it is ignored.
    pub(super) fn post(&self, info: SigInfo) -> Result<bool, Errno> {
        let signal = u32::try_from(info.signo)
            .ok()
            .and_then(Signal::from_raw)
            .ok_or(Errno::EINVAL)?;
        if signal == Signal::SIGKILL {
            self.process.end(ExitStatus::Signal(signal, false));
            return Ok(true);
        }
        if !self.process.prepare(signal, Some(self)) {
            return Ok(false);
        }
        let limit = self.limit(Resource::Sigpending);
        self.pending.lock().push(signal, info, limit)?;
        self.process.signalled.notify(crate::sync::EventMask::IN);
        self.notify();
        self.poke();
        Ok(true)
    }

    /// Makes the thread take a signal that a fault of its own raised: where it is blocked or ignored, the process ends by it.
    pub fn force(&self, info: SigInfo) {
        let Some(signal) = u32::try_from(info.signo).ok().and_then(Signal::from_raw) else {
            return;
        };
        let handlers = self.process.handlers();
        let mut handlers = handlers.lock();
        let blocked = self.blocked.lock().mask.contains(signal);
        let action = handlers.get(signal);
        if blocked || action.handler == SIG_IGN {
            handlers.set(signal, SigAction::default());
            self.blocked.lock().mask.remove(signal);
        }
        drop(handlers);
        // The queue of a thread always has room for its own faults.
        let _ = self.pending.lock().push(signal, info, u64::MAX);
        self.notify();
    }

    /// The mask.
    pub fn mask(&self) -> SigSet {
        self.blocked.lock().mask
    }

    /// Sets the mask.
    pub fn set_mask(&self, mask: SigSet) {
        self.blocked.lock().mask = mask.difference(SigSet::UNBLOCKABLE);
        // What was pending and blocked may be deliverable now.
        self.notify();
    }

    /// Sets the mask for the length of the current call.
    pub fn set_temporary_mask(&self, mask: SigSet) {
        let mut blocked = self.blocked.lock();
        if blocked.saved.is_none() {
            blocked.saved = Some(blocked.mask);
        }
        blocked.mask = mask.difference(SigSet::UNBLOCKABLE);
        drop(blocked);
        self.notify();
    }

    /// sigaltstack(2)'s state.
    pub fn alt_stack(&self) -> (u64, u32, u64) {
        self.blocked.lock().stack
    }

    /// Sets it.
    pub fn set_alt_stack(&self, stack: (u64, u32, u64)) {
        self.blocked.lock().stack = stack;
    }

    /// What is pending for it, its process's included.
    pub fn pending_set(&self) -> SigSet {
        let own = self.pending.lock().set();
        own.union(self.process.pending_set())
    }

    /// Signals pending for this thread alone.
    pub fn own_pending_set(&self) -> SigSet {
        self.pending.lock().set()
    }

    /// Whether a signal can be delivered now, or the process is ending.
    pub fn interrupted(&self) -> bool {
        self.is_ending()
            || self.asked_to_end()
            || self.process.is_stopped()
            || !self.pending_set().difference(self.mask()).is_empty()
    }

    /// Takes a pending signal of this set, its own first (sigtimedwait(2), signalfd(2), delivery).
    pub fn take_signal(&self, among: SigSet) -> Option<SigInfo> {
        let own = self.pending.lock().take(among);
        let mut info = own.or_else(|| self.process.pending.lock().take(among))?;
        if info.code == SI_TIMER {
            self.process.timer_signal_taken(&mut info);
        }
        Some(info)
    }
}
