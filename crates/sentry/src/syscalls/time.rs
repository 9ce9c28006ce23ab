//! Clocks and sleeping (time(7)).

use std::sync::Arc;

use abi::signal::{Sigevent, Signal};
use abi::time::{Itimerspec, Itimerval, Timespec, Timeval};
use abi::{Errno, UserPtr};

use crate::task::posix_timers::Notify;
use crate::task::{CallState, OnSignal, Step, Task, Wait};
use crate::time::{Clock, Deadline, Reading};

const REALTIME: i32 = 0;
const MONOTONIC: i32 = 1;
const PROCESS_CPUTIME: i32 = 2;
const THREAD_CPUTIME: i32 = 3;
const MONOTONIC_RAW: i32 = 4;
const REALTIME_COARSE: i32 = 5;
const MONOTONIC_COARSE: i32 = 6;
const BOOTTIME: i32 = 7;
const REALTIME_ALARM: i32 = 8;
const BOOTTIME_ALARM: i32 = 9;
const TAI: i32 = 11;

/// The clock that timers and sleeps by this number run on; EINVAL.
pub(super) fn waitable(id: i32) -> Result<Clock, Errno> {
    match id {
        REALTIME | TAI => Ok(Clock::Realtime),
        MONOTONIC => Ok(Clock::Monotonic),
        BOOTTIME => Ok(Clock::Boottime),
        REALTIME_ALARM | BOOTTIME_ALARM => Err(Errno::EPERM),
        _ => Err(Errno::EINVAL),
    }
}

/// The clock of this number, where it is one of the machine's.
fn reading(id: i32) -> Option<Reading> {
    Some(match id {
        REALTIME | REALTIME_ALARM => Reading::Realtime,
        REALTIME_COARSE => Reading::RealtimeCoarse,
        TAI => Reading::Tai,
        MONOTONIC => Reading::Monotonic,
        MONOTONIC_COARSE => Reading::MonotonicCoarse,
        MONOTONIC_RAW => Reading::MonotonicRaw,
        BOOTTIME | BOOTTIME_ALARM => Reading::Boottime,
        _ => return None,
    })
}

/// A clock's time: nanoseconds.
fn read(task: &Arc<Task>, id: i32) -> Result<i64, Errno> {
    if let Some(clock) = reading(id) {
        return Ok(task.kernel.clocks().read(clock));
    }
    let cpu = |nanos: u64| i64::try_from(nanos).unwrap_or(i64::MAX);
    Ok(match id {
        PROCESS_CPUTIME => cpu(task.process.cpu_time()),
        THREAD_CPUTIME => cpu(task.thread()?.cpu_time()),
        // Clocks of other processes and threads: the number is in the upper bits, negated.
        id if id < 0 && id & 3 != 3 => {
            let number = u32::try_from(!(id >> 3)).map_err(|_| Errno::EINVAL)?;
            if id & 4 != 0 {
                let mut own = task.process.threads().into_iter();
                let of = if number == 0 {
                    Arc::clone(task)
                } else {
                    // Threads of other processes have no clock for us.
                    own.find(|thread| thread.tid() == number)
                        .ok_or(Errno::EINVAL)?
                };
                cpu(of.thread()?.cpu_time())
            } else if number == 0 || number == task.tid() {
                cpu(task.process.cpu_time())
            } else {
                let of = (task.tree().lock().process(number))
                    .map(|node| Arc::clone(&node.process))
                    .map_err(|_| Errno::EINVAL)?;
                cpu(of.cpu_time())
            }
        }
        _ => return Err(Errno::EINVAL),
    })
}

pub(super) fn clock_gettime(task: &Arc<Task>, id: i32, to: UserPtr<Timespec>) -> Result<(), Errno> {
    // The host's vDSO asks for the host's time: what called it adjusts that.
    let raw = reading(id).filter(|_| {
        let rip = task.thread().map_or(0, |thread| thread.rip());
        task.container().platform().in_host_vdso(rip)
    });
    let now = match raw {
        Some(clock) => clock.of_host(),
        None => read(task, id)?,
    };
    task.mm().put(to, &Timespec::from_nanos(now))
}

pub(super) fn clock_getres(task: &Arc<Task>, id: i32, to: UserPtr<Timespec>) -> Result<(), Errno> {
    read(task, id)?;
    let nanos = if matches!(id, REALTIME_COARSE | MONOTONIC_COARSE) {
        host::time::coarse_resolution()
    } else {
        1
    };
    task.mm().put_opt(to, &Timespec::from_nanos(nanos))
}

pub(super) fn gettimeofday(
    task: &Arc<Task>,
    to: UserPtr<Timeval>,
    zone: UserPtr<[i32; 2]>,
) -> Result<(), Errno> {
    let mm = task.mm();
    mm.put_opt(
        to,
        &Timeval::from_nanos(task.kernel.clocks().now(Clock::Realtime)),
    )?;
    mm.put_opt(zone, &[0, 0])
}

pub(super) fn time(task: &Arc<Task>, to: UserPtr<i64>) -> Result<usize, Errno> {
    let seconds = task.kernel.clocks().now(Clock::Realtime) / 1_000_000_000;
    task.mm().put_opt(to, &seconds)?;
    usize::try_from(seconds).map_err(|_| Errno::EOVERFLOW)
}

/// Sleeps until a deadline. A relative sleep that a handler ends says what was left.
fn sleep(task: &Arc<Task>, deadline: Deadline, left: Option<UserPtr<Timespec>>) -> Step {
    let clocks = task.kernel.clocks();
    if clocks.passed(deadline) {
        return Step::Done(Ok(0));
    }
    let rule = if left.is_some() {
        OnSignal::RestartBlock
    } else {
        OnSignal::RestartNoHandler
    };
    if let Some(left) = left
        && task.interrupted()
    {
        // Written now, since an interruption does not come back here.
        if let Err(error) = task
            .mm()
            .put_opt(left, &Timespec::from_nanos(clocks.until(deadline)))
        {
            return Step::Done(Err(error));
        }
    }
    Step::Wait(Wait::until(Some(deadline)).on_signal(rule))
}

pub(super) fn nanosleep(
    task: &Arc<Task>,
    time: UserPtr<Timespec>,
    left: UserPtr<Timespec>,
    state: &mut CallState,
) -> Step {
    // By POSIX on CLOCK_REALTIME, but a step of that clock does not change how long it sleeps.
    clock_nanosleep(task, MONOTONIC, 0, time, left, state)
}

pub(super) fn clock_nanosleep(
    task: &Arc<Task>,
    id: i32,
    flags: u32,
    time: UserPtr<Timespec>,
    left: UserPtr<Timespec>,
    state: &mut CallState,
) -> Step {
    const ABSTIME: u32 = 1;
    let absolute = flags & ABSTIME != 0;
    if let CallState::Until(Some(deadline)) = *state {
        return sleep(task, deadline, (!absolute).then_some(left));
    }
    let prepared = (|| {
        // CPU-time clocks can't be slept on yet.
        let clock = match id {
            PROCESS_CPUTIME => return Err(Errno::EOPNOTSUPP),
            id => waitable(id)?,
        };
        let nanos = task.mm().get(time)?.to_nanos().ok_or(Errno::EINVAL)?;
        if absolute {
            return Ok(Deadline { clock, nanos });
        }
        // A relative time on the realtime clock runs on the monotonic one.
        let clock = if clock == Clock::Realtime {
            Clock::Monotonic
        } else {
            clock
        };
        Ok(task.kernel.clocks().after(clock, nanos))
    })();
    match prepared {
        Ok(deadline) => {
            *state = CallState::Until(Some(deadline));
            sleep(task, deadline, (!absolute).then_some(left))
        }
        Err(error) => Step::Done(Err(error)),
    }
}

pub(super) fn setitimer(
    task: &Arc<Task>,
    which: u32,
    new: UserPtr<Itimerval>,
    old: UserPtr<Itimerval>,
) -> Result<(), Errno> {
    if which != 0 {
        return Err(Errno::EINVAL);
    }
    let mm = task.mm();
    let new = match new.non_null() {
        Some(new) => mm.get(new)?,
        None => Itimerval::default(),
    };
    let value = new.value.to_nanos().ok_or(Errno::EINVAL)?;
    let interval = new.interval.to_nanos().ok_or(Errno::EINVAL)?;
    let before = task.process.real_timer.set(value, interval);
    mm.put_opt(
        old,
        &Itimerval {
            interval: Timeval::from_nanos(before.1),
            value: Timeval::from_nanos(before.0),
        },
    )
}

pub(super) fn getitimer(task: &Arc<Task>, which: u32, to: UserPtr<Itimerval>) -> Result<(), Errno> {
    if which != 0 {
        return Err(Errno::EINVAL);
    }
    let (left, interval) = task.process.real_timer.get();
    task.mm().put(
        to,
        &Itimerval {
            interval: Timeval::from_nanos(interval),
            value: Timeval::from_nanos(left),
        },
    )
}

pub(super) fn alarm(task: &Arc<Task>, seconds: u32) -> Result<usize, Errno> {
    let (left, _) = task
        .process
        .real_timer
        .set(i64::from(seconds) * 1_000_000_000, 0);
    // Rounded to the nearest second, but never to none where something was left.
    let whole = (left + 500_000_000) / 1_000_000_000;
    usize::try_from(if left > 0 { whole.max(1) } else { 0 }).map_err(|_| Errno::EOVERFLOW)
}

/// Whom a timer tells (sigevent(7)); EINVAL.
fn notify(task: &Arc<Task>, event: &Sigevent) -> Result<Notify, Errno> {
    const SIGNAL: i32 = 0;
    const NONE: i32 = 1;
    const THREAD: i32 = 2;
    const THREAD_ID: i32 = 4;
    let signal = || {
        u32::try_from(event.signo)
            .ok()
            .and_then(Signal::from_raw)
            .ok_or(Errno::EINVAL)
    };
    match event.notify {
        // Threads that are started at expiry are the C library's business.
        SIGNAL | THREAD => Ok(Notify::Process(signal()?)),
        NONE => Ok(Notify::Nobody),
        THREAD_ID => {
            let mut threads = task.process.threads().into_iter();
            let thread = threads
                .find(|thread| i32::try_from(thread.tid()) == Ok(event.tid))
                .ok_or(Errno::EINVAL)?;
            Ok(Notify::Thread(signal()?, Arc::downgrade(&thread)))
        }
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn timer_create(
    task: &Arc<Task>,
    id: i32,
    event: UserPtr<Sigevent>,
    to: UserPtr<i32>,
) -> Result<(), Errno> {
    let mm = task.mm();
    let event = event.non_null().map(|event| mm.get(event)).transpose()?;
    let clock = match id {
        // Clocks that are there, but not for timers; Linux has those of processor time.
        PROCESS_CPUTIME | THREAD_CPUTIME | MONOTONIC_RAW | REALTIME_COARSE | MONOTONIC_COARSE => {
            return Err(Errno::EOPNOTSUPP);
        }
        id => waitable(id)?,
    };
    let (notify, value) = match event {
        Some(event) => (notify(task, &event)?, Some(event.value)),
        None => (Notify::Process(Signal::SIGALRM), None),
    };
    let timer = task
        .process
        .create_timer(&task.kernel, clock, notify, value)?;
    mm.put(to, &timer).inspect_err(|_| {
        // It was made just now; another thread can have deleted it by guessing its number.
        let _ = task.process.delete_timer(timer);
    })
}

fn itimerspec((value, interval): (i64, i64)) -> Itimerspec {
    Itimerspec {
        interval: Timespec::from_nanos(interval),
        value: Timespec::from_nanos(value),
    }
}

pub(super) fn timer_settime(
    task: &Arc<Task>,
    timer: i32,
    flags: u32,
    new: UserPtr<Itimerspec>,
    old: UserPtr<Itimerspec>,
) -> Result<(), Errno> {
    const ABSTIME: u32 = 1;
    let mm = task.mm();
    let new = mm.get(new.non_null().ok_or(Errno::EINVAL)?)?;
    let value = new.value.to_nanos().ok_or(Errno::EINVAL)?;
    let interval = new.interval.to_nanos().ok_or(Errno::EINVAL)?;
    let timer = task.process.timer(timer)?;
    let before = timer.set(value, interval, flags & ABSTIME != 0);
    mm.put_opt(old, &itimerspec(before))
}

pub(super) fn timer_gettime(
    task: &Arc<Task>,
    timer: i32,
    to: UserPtr<Itimerspec>,
) -> Result<(), Errno> {
    let left = task.process.timer(timer)?.get();
    task.mm().put(to, &itimerspec(left))
}

pub(super) fn timer_getoverrun(task: &Arc<Task>, timer: i32) -> Result<usize, Errno> {
    let overrun = task.process.timer(timer)?.overrun();
    usize::try_from(overrun).map_err(|_| Errno::EOVERFLOW)
}

pub(super) fn timer_delete(task: &Arc<Task>, timer: i32) -> Result<(), Errno> {
    task.process.delete_timer(timer)
}
