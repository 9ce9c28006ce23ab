//! How a task runs: from a report of its thread, through its call, to the answer; and what it is meanwhile.
//!
//! A task is in one of the states of [`State`], kept in one atomic byte; who changes `Guest`, `Queued` or a stop into `Kernel` owns the task until
//! it changes that again, so that everything else of a blocked call lies under a lock that nobody contends for.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use abi::Errno;
use abi::signal::{SigInfo, Signal};
use platform::{Event, Thread};
use smallvec::SmallVec;

use super::Task;
use super::call::{CallState, OnSignal, Step, Wait};
use super::signal::{DefaultAction, SA_NODEFER, SA_RESETHAND, SA_RESTART, SIG_DFL, default_action};
use super::signal_frame::FaultInfo;
use super::tree::ExitStatus;
use crate::kernel::{Item, Kernel};
use crate::mm::patch::Caught;
use crate::mm::window::{self, Results};
use crate::mm::{Fault, Mm};
use crate::sync::order::TaskState;
use crate::sync::{EventMask, Mutex, WaitQueue, WaiterId, Wake};
use crate::syscalls;
use crate::time::{OnTime, TimerId};

/// The thread runs guest code (or is about to), and only its report brings it here.
const GUEST: u8 = 0;
/// A worker has it.
const KERNEL: u8 = 1;
/// A worker has it, and somebody woke it meanwhile.
const WOKEN: u8 = 2;
/// Its call waits.
const PARKED: u8 = 3;
/// It was woken and waits for a worker.
const QUEUED: u8 = 4;
/// Its process is stopped.
const STOPPED: u8 = 5;
/// It is over.
const DEAD: u8 = 6;

/// A task's state of running.
pub(super) struct Run {
    state: AtomicU8,
    call: Mutex<Option<Call>, TaskState>,
    /// Which interrupt it has not answered yet; 0 for none.
    owed: AtomicU32,
    weak: Weak<Task>,
}

/// A call under way.
pub(crate) struct Call {
    /// Its number.
    pub number: u32,
    /// Its arguments.
    pub args: [u64; 6],
    /// What it remembers.
    pub state: CallState,
    registrations: SmallVec<[(Arc<WaitQueue>, WaiterId); 2]>,
    timer: Option<TimerId>,
    outcome: Outcome,
    fault: FaultInfo,
    /// What the stub is to copy when the call is answered.
    results: Option<Results>,
}

/// What is to be done once the thread goes on.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// The handler is to be called.
    Pending,
    /// The call returns this.
    Result(u64),
    /// The call was interrupted.
    Interrupted(OnSignal),
    /// The registers are what they are to be.
    Resume,
}

impl Call {
    fn new(number: u32, args: [u64; 6]) -> Call {
        Call {
            number,
            args,
            state: CallState::New,
            registrations: SmallVec::new(),
            timer: None,
            outcome: Outcome::Pending,
            fault: FaultInfo::default(),
            results: None,
        }
    }

    fn resume() -> Call {
        let mut call = Call::new(0, [0; 6]);
        call.outcome = Outcome::Resume;
        call
    }

    /// Writes its results to guest memory now, since the thread will not come by for them.
    fn flush(&mut self, mm: &Mm, thread: &dyn Thread) {
        if let Some(results) = self.results.take() {
            // The call is past the point where it could fail: a guest that unmapped its own buffer meanwhile loses the result.
            let _ = window::flush(mm, thread, results);
        }
    }

    /// Takes back what it was registered for.
    fn unregister(&mut self, kernel: &Kernel) {
        for (queue, id) in self.registrations.drain(..) {
            queue.unregister(id);
        }
        if let Some(timer) = self.timer.take() {
            kernel.disarm(timer);
        }
    }
}

impl Run {
    pub(super) fn new(weak: Weak<Task>) -> Run {
        Run {
            state: AtomicU8::new(KERNEL),
            call: Mutex::new(None),
            owed: AtomicU32::new(0),
            weak,
        }
    }

    pub(super) fn weak(&self) -> Weak<Task> {
        Weak::clone(&self.weak)
    }

    /// Which interrupt it has not answered yet; 0 for none.
    pub(super) fn owed(&self) -> &AtomicU32 {
        &self.owed
    }

    pub(super) fn is_dead(&self) -> bool {
        self.state.load(Ordering::SeqCst) == DEAD
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    pub(super) fn set_guest(&self) {
        self.state.store(GUEST, Ordering::SeqCst);
    }

    /// Marks it as over; false where it was already.
    pub(super) fn set_dead(&self) -> bool {
        self.state.swap(DEAD, Ordering::SeqCst) != DEAD
    }

    /// Drops what is left of a call.
    pub(super) fn forget(&self, kernel: &Kernel) {
        let call = self.call.lock().take();
        if let Some(mut call) = call {
            call.unregister(kernel);
            call.state.cancel(kernel);
        }
    }

    fn keep(&self, call: Call) {
        *self.call.lock() = Some(call);
    }

    fn take(&self) -> Option<Call> {
        self.call.lock().take()
    }
}

impl Task {
    /// One letter for what it does, as `/proc/PID/stat` has it: `R`, `S`, `T` or `Z`.
    pub fn state_letter(&self) -> char {
        match self.run.state.load(Ordering::SeqCst) {
            PARKED => 'S',
            STOPPED => 'T',
            DEAD => 'Z',
            _ => 'R',
        }
    }
}

impl Wake for Task {
    fn wake(&self, _: EventMask) -> bool {
        self.wake_call()
    }
}

impl OnTime for Task {
    fn on_time(self: Arc<Self>, _: TimerId) {
        self.wake_call();
    }
}

impl Task {
    /// Its waiting call is to be looked at again.
    fn wake_call(&self) -> bool {
        loop {
            match self.run.state.load(Ordering::SeqCst) {
                PARKED if self.run.change(PARKED, QUEUED) => {
                    if let Some(task) = self.run.weak.upgrade() {
                        self.kernel.enqueue(Item::Resume(task));
                    }
                    return true;
                }
                KERNEL if self.run.change(KERNEL, WOKEN) => return true,
                PARKED | KERNEL => {}
                WOKEN | QUEUED => return true,
                _ => return false,
            }
        }
    }

    /// Something is to be looked at before guest code runs ([`Task::notify`] was called): wherever the task is, it comes here soon.
    pub(super) fn poke(&self) {
        loop {
            match self.run.state.load(Ordering::SeqCst) {
                GUEST => {
                    if let Ok(thread) = self.thread() {
                        self.expect_answer();
                        thread.interrupt();
                    }
                    return;
                }
                STOPPED if self.run.change(STOPPED, QUEUED) => {
                    if let Some(task) = self.run.weak.upgrade() {
                        self.kernel.enqueue(Item::Resume(task));
                    }
                    return;
                }
                STOPPED => {}
                PARKED | KERNEL => {
                    self.wake_call();
                    return;
                }
                _ => return,
            }
        }
    }

    /// The thread will not report any more, or need not: takes the task from it, to be ended by a worker.
    pub(super) fn claim(&self) {
        if self.run.change(GUEST, QUEUED) {
            if let Some(task) = self.run.weak.upgrade() {
                self.kernel.enqueue(Item::Resume(task));
            }
        } else {
            self.poke();
        }
    }

    /// A worker has taken a report of the task's thread.
    pub fn on_report(self: &Arc<Self>) {
        if !self.run.change(GUEST, KERNEL) {
            return;
        }
        let Ok(thread) = self.thread() else { return };
        let event = thread.event();
        // After the event was read, which takes back the note of an interrupt that came before.
        if self.run.owed.load(Ordering::Relaxed) != 0 {
            self.run.owed.store(0, Ordering::SeqCst);
        }
        match event {
            Event::Call {
                number,
                args,
                compat,
            } => {
                // 32-bit calls have numbers of their own, none of which is served.
                if thread.is_full() && !compat {
                    let rip = thread.rip();
                    let mm = self.mm();
                    let alone = || mm.sole_user() && self.process.threads.lock().len() == 1;
                    if let Some(at) = mm.trapped_at(rip, number, &alone) {
                        thread.set_rip(at);
                    }
                }
                let number = if compat {
                    u32::MAX
                } else {
                    u32::try_from(number).unwrap_or(u32::MAX)
                };
                self.run_call(Call::new(number, args), &thread);
            }
            Event::Fault {
                info,
                trap,
                error,
                address,
            } => {
                if let Some(call) = self.patched_fault(thread.as_ref()) {
                    return match call.outcome {
                        Outcome::Pending => self.run_call(call, &thread),
                        _ => self.leave(call, &thread),
                    };
                }
                let mut call = Call::resume();
                if let Some(info) = self.judge_fault(&info, trap, error, address) {
                    call.fault = FaultInfo {
                        trap,
                        error,
                        address,
                    };
                    self.force(info);
                }
                self.leave(call, &thread);
            }
            Event::Interrupt => self.leave(Call::resume(), &thread),
            Event::Converted => match self.run.take() {
                Some(call) => self.leave(call, &thread),
                None => self.tampered(&thread),
            },
            Event::Atomic { found } => match self.run.take() {
                Some(mut call) => {
                    if let CallState::Atomic { found: place, .. } = &mut call.state {
                        *place = Some(found);
                        self.run_call(call, &thread);
                    } else {
                        self.tampered(&thread);
                    }
                }
                None => self.tampered(&thread),
            },
            Event::Forged => self.tampered(&thread),
        }
    }

    /// A fault that comes of a replaced call site rather than of the guest: what is to be done instead of a signal.
    fn patched_fault(&self, thread: &dyn Thread) -> Option<Call> {
        let mm = self.mm();
        let rip = thread.rip();
        let call = |after: u64| {
            let mut regs = thread.regs();
            let number = u32::try_from(regs.rax).unwrap_or(u32::MAX);
            let call = Call::new(
                number,
                [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9],
            );
            regs.rip = after;
            thread.set_regs(&regs);
            call
        };
        if rip == platform::systrap::ENTRY {
            // The guest has a GS base of its own: the stub could not even begin. RCX says where the call returns to.
            mm.stop_patching().ok()?;
            return Some(call(thread.regs().rcx));
        }
        match mm.caught_in_site(rip)? {
            Caught::At(at) => {
                thread.set_rip(at);
                Some(Call::resume())
            }
            Caught::Call(after) => Some(call(after)),
        }
    }

    /// The thread reported what only a guest that meddles with the stub can: its process ends.
    fn tampered(self: &Arc<Self>, thread: &Arc<dyn Thread>) {
        self.process.end(ExitStatus::Signal(Signal::SIGSEGV, false));
        self.leave(Call::resume(), thread);
    }

    /// What signal a fault is, or `None` where it was served.
    fn judge_fault(&self, host: &SigInfo, trap: u64, error: u64, address: u64) -> Option<SigInfo> {
        const PAGE_FAULT: u64 = 14;
        let signal = u32::try_from(host.signo)
            .ok()
            .and_then(Signal::from_raw)
            .unwrap_or(Signal::SIGSEGV);
        if trap == PAGE_FAULT && matches!(signal, Signal::SIGSEGV | Signal::SIGBUS) {
            let (write, exec) = (error & 2 != 0, error & 16 != 0);
            if signal == Signal::SIGBUS {
                return Some(SigInfo::fault(Signal::SIGBUS, 2, address));
            }
            if address >= platform::USER_TOP {
                // Nothing is mapped there for the guest: SEGV_MAPERR, for the kernel's half too. An address that is not canonical is no
                // page fault.
                return Some(SigInfo::fault(Signal::SIGSEGV, 1, address));
            }
            return match self.mm().fault(address, write, exec) {
                Fault::Served => None,
                Fault::Signal(info) => Some(info),
            };
        }
        // The host's own words for the processor's other faults are the guest's: code and address are those of the instruction.
        let mut info = SigInfo::new(signal, host.code);
        info.fields[0] = host.fields[0];
        Some(info)
    }

    /// A worker has taken the task from the queue.
    pub fn on_resume(self: &Arc<Self>) {
        if !self.run.change(QUEUED, KERNEL) {
            return;
        }
        let Ok(thread) = self.thread() else { return };
        let call = self.run.take().unwrap_or_else(Call::resume);
        match call.outcome {
            Outcome::Pending => self.run_call(call, &thread),
            _ => self.leave(call, &thread),
        }
    }

    /// Calls the handler until it is done, or parks.
    fn run_call(self: &Arc<Self>, mut call: Call, thread: &Arc<dyn Thread>) {
        call.outcome = Outcome::Pending;
        let mut registered = false;
        loop {
            if !registered {
                call.unregister(&self.kernel);
            }
            let mm = self.mm();
            window::begin(&mm, thread, syscalls::defers_results(call.number));
            let step = syscalls::dispatch(self, &mut call);
            call.results = window::end();
            if !matches!(step, Step::Done(_)) {
                call.flush(&mm, thread.as_ref());
            }
            match step {
                Step::Done(result) => {
                    call.unregister(&self.kernel);
                    call.outcome = Outcome::Result(to_register(result));
                    return self.leave(call, thread);
                }
                Step::NoReturn => {
                    call.unregister(&self.kernel);
                    call.outcome = Outcome::Resume;
                    return self.leave(call, thread);
                }
                Step::Gone => return,
                Step::Atomic { addr, old, new } => {
                    call.unregister(&self.kernel);
                    let rest = match core::mem::take(&mut call.state) {
                        CallState::Atomic { rest, .. } | CallState::Dying(rest) => rest,
                        _ => Vec::new(),
                    };
                    call.state = CallState::Atomic {
                        addr,
                        found: None,
                        expected: old,
                        rest,
                    };
                    self.run.keep(call);
                    self.run.set_guest();
                    thread.atomic(addr, old, new);
                    return;
                }
                Step::Wait(wait) => {
                    let ends = if wait.on_signal == OnSignal::Killable {
                        self.is_ending() || self.asked_to_end()
                    } else {
                        self.interrupted()
                    };
                    if ends {
                        call.unregister(&self.kernel);
                        call.outcome = Outcome::Interrupted(wait.on_signal);
                        return self.leave(call, thread);
                    }
                    if !registered {
                        self.register(&mut call, &wait);
                        registered = true;
                        continue;
                    }
                    self.run.keep(call);
                    thread.park();
                    if self.run.change(KERNEL, PARKED) {
                        return;
                    }
                    // Woken meanwhile.
                    self.run.state.store(KERNEL, Ordering::SeqCst);
                    let Some(kept) = self.run.take() else { return };
                    call = kept;
                    registered = false;
                }
            }
        }
    }

    fn register(self: &Arc<Self>, call: &mut Call, wait: &Wait) {
        for (queue, events) in &wait.queues {
            let waker: Arc<dyn Wake> = self.clone();
            let id = queue.register(waker, *events, wait.exclusive);
            call.registrations.push((Arc::clone(queue), id));
        }
        if let Some(deadline) = wait.deadline {
            let weak: Weak<dyn OnTime> = self.run.weak.clone();
            call.timer = Some(self.kernel.arm(deadline, weak));
        }
    }

    /// Everything between a call's end and guest code: ends, stops and signals.
    fn leave(self: &Arc<Self>, mut call: Call, thread: &Arc<dyn Thread>) {
        loop {
            if self.is_ending() || self.asked_to_end() {
                call.unregister(&self.kernel);
                call.state.cancel(&self.kernel);
                return self.finish();
            }
            if self.attention.load(Ordering::SeqCst) {
                call.flush(&self.mm(), thread.as_ref());
            }
            if self.attention.swap(false, Ordering::SeqCst)
                || matches!(call.outcome, Outcome::Interrupted(_))
                || self.process.is_stopped()
            {
                if self.process.is_stopped() {
                    self.run.keep(call);
                    self.run.state.store(STOPPED, Ordering::SeqCst);
                    if self.process.is_stopped() && !self.is_ending() {
                        return;
                    }
                    if !self.run.change(STOPPED, KERNEL) {
                        // Somebody has queued it already.
                        return;
                    }
                    let Some(kept) = self.run.take() else { return };
                    call = kept;
                    self.notify();
                    continue;
                }
                if !self.pending_set().difference(self.mask()).is_empty() {
                    if !thread.is_full() {
                        self.notify();
                        self.run.keep(call);
                        self.run.set_guest();
                        return thread.convert();
                    }
                    self.deliver(&mut call, thread);
                    self.notify();
                    continue;
                }
                if let Outcome::Interrupted(rule) = call.outcome {
                    match rule {
                        OnSignal::Interrupt => {
                            let done = call.state.cancel(&self.kernel);
                            call.outcome =
                                Outcome::Result(done.unwrap_or(Errno::EINTR.to_return()));
                        }
                        OnSignal::Partial(done) => call.outcome = Outcome::Result(done as u64),
                        OnSignal::Restart
                        | OnSignal::RestartNoHandler
                        | OnSignal::RestartBlock
                        | OnSignal::Killable => {
                            return self.run_call(call, thread);
                        }
                    }
                }
            }
            if self.restore_mask() {
                self.notify();
                continue;
            }
            self.run.state.store(GUEST, Ordering::SeqCst);
            if self.attention.load(Ordering::SeqCst) && self.run.change(GUEST, KERNEL) {
                continue;
            }
            return match call.outcome {
                Outcome::Result(value) => {
                    if let Some(results) = call.results {
                        thread.copy_out(results.addr, results.len);
                    }
                    thread.answer(value);
                }
                _ => thread.resume(),
            };
        }
    }

    /// Puts the mask back that the ending call replaced; whether there was one.
    fn restore_mask(&self) -> bool {
        let mut blocked = self.blocked.lock();
        match blocked.saved.take() {
            Some(mask) => {
                blocked.mask = mask;
                true
            }
            None => false,
        }
    }

    /// Takes one signal and does what is to be done about it.
    fn deliver(self: &Arc<Self>, call: &mut Call, thread: &Arc<dyn Thread>) {
        let mask = self.mask();
        let Some(info) = self.take_signal(abi::signal::SigSet(!mask.0)) else {
            return;
        };
        let Some(signal) = u32::try_from(info.signo).ok().and_then(Signal::from_raw) else {
            return;
        };
        let handlers = self.process.handlers();
        let action = {
            let mut handlers = handlers.lock();
            let action = handlers.get(signal);
            if action.flags & SA_RESETHAND != 0 && action.handler > 1 {
                handlers.set(signal, abi::signal::SigAction::default());
            }
            action
        };
        if action.handler == super::signal::SIG_IGN {
            return;
        }
        if action.handler == SIG_DFL {
            match default_action(signal) {
                DefaultAction::Ignore | DefaultAction::Continue => {}
                DefaultAction::Stop => self.process.stop(signal),
                DefaultAction::Terminate | DefaultAction::Core => {
                    self.kernel.log_fatal(self, &info);
                    self.process.end(ExitStatus::Signal(signal, false));
                }
            }
            return;
        }
        let mm = self.mm();
        let mut regs = thread.regs();
        match call.outcome {
            Outcome::Result(value) => {
                regs.rax = value;
                regs.rcx = regs.rip;
                regs.r11 = regs.eflags;
            }
            Outcome::Interrupted(rule) => {
                let again = match rule {
                    OnSignal::Restart => action.flags & SA_RESTART != 0,
                    OnSignal::Killable => true,
                    OnSignal::Interrupt
                    | OnSignal::RestartNoHandler
                    | OnSignal::RestartBlock
                    | OnSignal::Partial(_) => false,
                };
                let done = call.state.cancel(&self.kernel);
                match (done, rule) {
                    (Some(value), _) => regs.rax = value,
                    (None, OnSignal::Partial(done)) => regs.rax = done as u64,
                    (None, _) if again => {
                        regs.rip = mm.restart_rip(regs.rip);
                        regs.rax = u64::from(call.number);
                    }
                    (None, _) => regs.rax = Errno::EINTR.to_return(),
                }
            }
            Outcome::Pending | Outcome::Resume => {}
        }
        regs.rip = mm.shown_rip(regs.rip);
        let saved = {
            let mut blocked = self.blocked.lock();
            blocked.saved.take().unwrap_or(mask)
        };
        if self
            .enter_handler(
                thread.as_ref(),
                &mut regs,
                &action,
                &info,
                saved,
                call.fault,
            )
            .is_err()
        {
            // No stack for the handler: SIGSEGV, by its default action where that was what failed.
            if signal == Signal::SIGSEGV {
                handlers
                    .lock()
                    .set(signal, abi::signal::SigAction::default());
            }
            self.force(SigInfo::new(Signal::SIGSEGV, abi::signal::SI_KERNEL));
            call.outcome = Outcome::Resume;
            thread.set_regs(&regs);
            return;
        }
        let mut blocked = mask.union(action.mask);
        if action.flags & SA_NODEFER == 0 {
            blocked.insert(signal);
        }
        self.set_mask(blocked);
        thread.set_regs(&regs);
        call.outcome = Outcome::Resume;
        call.fault = FaultInfo::default();
    }
}

fn to_register(result: Result<usize, Errno>) -> u64 {
    match result {
        Ok(value) => value as u64,
        Err(error) => {
            debug_assert!(!error.is_restart(), "a restart code reaches the guest");
            error.to_return()
        }
    }
}
