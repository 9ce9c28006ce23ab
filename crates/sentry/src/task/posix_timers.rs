//! POSIX timers of a process (timer_create(2)).
//!
//! A timer that sends a signal has at most one of its own queued. As in Linux, one with an interval is armed again when that signal is taken, and what it
//! missed until then is the overrun; so a short interval costs no more than the guest makes of it. Lock class: `TaskState`, for the table and for each
//! timer, never both at once. It does not do: clocks of processor time.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use abi::Errno;
use abi::signal::{SI_TIMER, SigInfo, Signal};

use super::{Process, Resource, Task};
use crate::kernel::Kernel;
use crate::sync::Mutex;
use crate::sync::order::TaskState;
use crate::time::{Clock, Deadline, OnTime, TimerId};

/// How long at least until a timer whose signal nobody takes is looked at again: Linux's tick.
const TICK: i64 = 4_000_000;

/// Whom an expiry tells.
pub enum Notify {
    /// Nobody (`SIGEV_NONE`): it is only read.
    Nobody,
    /// The process, by this signal.
    Process(Signal),
    /// One of its threads.
    Thread(Signal, Weak<Task>),
}

/// The timers of a process.
#[derive(Default)]
pub struct PosixTimers {
    table: Mutex<Table, TaskState>,
}

#[derive(Default)]
struct Table {
    timers: BTreeMap<i32, Arc<PosixTimer>>,
    next: i32,
}

/// A timer.
pub struct PosixTimer {
    this: Weak<PosixTimer>,
    kernel: Weak<Kernel>,
    process: Weak<Process>,
    id: i32,
    clock: Clock,
    notify: Notify,
    /// `si_value`.
    value: u64,
    state: Mutex<State, TaskState>,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// When it expires next; when it expired, while its signal is queued.
    next: Option<Deadline>,
    /// How often from then: nanoseconds, 0 for once.
    interval: i64,
    armed: Option<TimerId>,
    /// Its signal waits to be taken.
    queued: bool,
    /// Which setting this is: signals of an earlier one arm nothing.
    setting: u32,
    /// Expirations that the signal taken last stood for, but its own.
    overrun: i32,
}

impl State {
    /// Moves on to the first expiry after `now`: how many have passed by then.
    fn forward(&mut self, now: i64) -> i64 {
        let Some(next) = self.next.filter(|next| next.nanos <= now) else {
            return 0;
        };
        if self.interval == 0 {
            self.next = None;
            return 1;
        }
        let times = now.saturating_sub(next.nanos) / self.interval + 1;
        let nanos = next
            .nanos
            .saturating_add(times.saturating_mul(self.interval));
        self.next = Some(Deadline { nanos, ..next });
        times
    }
}

impl Process {
    /// timer_create(2): its number. `value` is what its signals carry, or its number. EAGAIN at `RLIMIT_SIGPENDING`.
    pub fn create_timer(
        self: &Arc<Self>,
        kernel: &Arc<Kernel>,
        clock: Clock,
        notify: Notify,
        value: Option<u64>,
    ) -> Result<i32, Errno> {
        let limit = self.limits.lock().get(Resource::Sigpending).0;
        let mut table = self.timers.table.lock();
        if table.timers.len() as u64 >= limit {
            return Err(Errno::EAGAIN);
        }
        let mut id = table.next;
        while table.timers.contains_key(&id) {
            id = id.checked_add(1).unwrap_or(0);
        }
        table.next = id.checked_add(1).unwrap_or(0);
        let timer = Arc::new_cyclic(|this| PosixTimer {
            this: Weak::clone(this),
            kernel: Arc::downgrade(kernel),
            process: Arc::downgrade(self),
            id,
            clock,
            notify,
            value: value.unwrap_or(u64::from(id.unsigned_abs())),
            state: Mutex::new(State::default()),
        });
        table.timers.insert(id, timer);
        Ok(id)
    }

    /// The timer with this number; EINVAL.
    pub fn timer(&self, id: i32) -> Result<Arc<PosixTimer>, Errno> {
        self.timers
            .table
            .lock()
            .timers
            .get(&id)
            .cloned()
            .ok_or(Errno::EINVAL)
    }

    /// timer_delete(2); EINVAL.
    pub fn delete_timer(&self, id: i32) -> Result<(), Errno> {
        let gone = self.timers.table.lock().timers.remove(&id);
        gone.ok_or(Errno::EINVAL)?.set(0, 0, false);
        Ok(())
    }

    /// Deletes all of them: exec, exit.
    pub(super) fn delete_timers(&self) {
        let gone = core::mem::take(&mut *self.timers.table.lock());
        for timer in gone.timers.values() {
            timer.set(0, 0, false);
        }
    }

    /// A signal of a timer is taken: says what it missed, and lets the timer go on. Anybody can make one up that looks like it, to no effect.
    pub(super) fn timer_signal_taken(&self, info: &mut SigInfo) {
        let id = (info.fields[0] & 0xffff_ffff) as u32;
        let setting = core::mem::take(&mut info.fields[2]);
        let timer = self.timer(id.cast_signed()).ok();
        if let Some(overrun) = timer.and_then(|timer| timer.taken(Some(setting))) {
            info.fields[0] = u64::from(id) | u64::from(overrun.unsigned_abs()) << 32;
        }
    }

    /// A signal was thrown away where it was pending: timers that wait for it to be taken go on.
    pub(super) fn timer_signal_discarded(&self, signal: Signal) {
        let timers: Vec<_> = self.timers.table.lock().timers.values().cloned().collect();
        for timer in timers {
            if matches!(timer.notify, Notify::Process(of) | Notify::Thread(of, _) if of == signal) {
                timer.taken(None);
            }
        }
    }
}

impl PosixTimer {
    /// timer_settime(2): value 0 disarms. What was left and the interval before: nanoseconds.
    pub fn set(&self, value: i64, interval: i64, absolute: bool) -> (i64, i64) {
        let Some(kernel) = self.kernel.upgrade() else {
            return (0, 0);
        };
        let mut state = self.state.lock();
        let old = self.left(&kernel, &mut state);
        if let Some(armed) = state.armed {
            kernel.disarm(armed);
        }
        *state = State {
            setting: state.setting.wrapping_add(1),
            ..State::default()
        };
        if value > 0 {
            state.interval = interval;
            state.next = Some(match self.clock {
                clock if absolute => Deadline {
                    clock,
                    nanos: value,
                },
                // Steps of the time of day do not change how long a relative time is.
                Clock::Realtime => kernel.clocks().after(Clock::Monotonic, value),
                clock => kernel.clocks().after(clock, value),
            });
            self.arm(&kernel, &mut state);
        }
        old
    }

    /// timer_gettime(2): what is left, and the interval: nanoseconds.
    pub fn get(&self) -> (i64, i64) {
        let Some(kernel) = self.kernel.upgrade() else {
            return (0, 0);
        };
        self.left(&kernel, &mut self.state.lock())
    }

    /// timer_getoverrun(2).
    pub fn overrun(&self) -> i32 {
        self.state.lock().overrun
    }

    fn left(&self, kernel: &Kernel, state: &mut State) -> (i64, i64) {
        let Some(next) = state.next else {
            return (0, state.interval);
        };
        let now = kernel.clocks().now(next.clock);
        let silent = matches!(self.notify, Notify::Nobody);
        // Not moved where a signal is queued: what it missed is counted from its own expiry.
        let mut shown = *state;
        if shown.queued || silent {
            shown.forward(now);
        }
        let left = shown.next.map_or(0, |next| (next.nanos - now).max(1));
        (left, shown.interval)
    }

    fn arm(&self, kernel: &Kernel, state: &mut State) {
        if let Some(next) = state.next
            && !matches!(self.notify, Notify::Nobody)
        {
            let me: Weak<dyn OnTime> = Weak::clone(&self.this) as _;
            state.armed = Some(kernel.arm(next, me));
        }
    }

    /// Its signal is no longer queued: goes on, and says what was missed. `None` where that signal was of another setting.
    fn taken(&self, setting: Option<u64>) -> Option<i32> {
        let kernel = self.kernel.upgrade()?;
        let mut state = self.state.lock();
        if !state.queued || setting.is_some_and(|setting| setting != u64::from(state.setting)) {
            return None;
        }
        state.queued = false;
        let now = state.next.map(|next| kernel.clocks().now(next.clock));
        let passed = now.map_or(0, |now| state.forward(now));
        let missed = (passed - 1).max(0);
        state.overrun = i32::try_from(missed).unwrap_or(i32::MAX);
        self.arm(&kernel, &mut state);
        Some(state.overrun)
    }

    /// Whether the signal is queued now; not where it is ignored, or nobody is there to take it.
    fn tell(&self, setting: u32) -> bool {
        let info = |signal: Signal| {
            let mut info = SigInfo::new(signal, SI_TIMER);
            info.fields[0] = u64::from(self.id.unsigned_abs());
            info.fields[1] = self.value;
            info.fields[2] = u64::from(setting);
            info
        };
        let sent = match &self.notify {
            Notify::Nobody => return false,
            Notify::Process(signal) => self
                .process
                .upgrade()
                .map(|process| process.post(info(*signal))),
            Notify::Thread(signal, task) => task.upgrade().map(|task| task.post(info(*signal))),
        };
        matches!(sent, Some(Ok(true)))
    }
}

impl OnTime for PosixTimer {
    fn on_time(self: Arc<Self>, timer: TimerId) {
        let Some(kernel) = self.kernel.upgrade() else {
            return;
        };
        let mut state = self.state.lock();
        if state.armed != Some(timer) {
            return;
        }
        state.armed = None;
        // Before it is sent, since it may be taken at once.
        state.queued = true;
        let setting = state.setting;
        drop(state);
        if self.tell(setting) {
            return;
        }
        let mut state = self.state.lock();
        if state.setting == setting && state.queued {
            state.queued = false;
            if let Some(next) = state.next {
                let rest = if state.interval < TICK { TICK } else { 0 };
                state.forward(kernel.clocks().now(next.clock).saturating_add(rest));
            }
            self.arm(&kernel, &mut state);
        }
    }
}
