//! Signals (signal(7)).

use std::sync::Arc;

use abi::signal::{SI_TKILL, SI_USER, SigAction, SigInfo, SigSet, Signal};
use abi::time::Timespec;
use abi::{Errno, UserPtr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::decode::SignalNumber;
use crate::sync::EventMask;
use crate::task::signal::SIG_IGN;
use crate::task::{CallState, OnSignal, Process, Step, Task, Wait};
use crate::time::Clock;
use abi::cap::Cap;

/// The size of a signal mask.
const MASK: usize = 8;

pub(super) fn rt_sigaction(
    task: &Arc<Task>,
    signal: SignalNumber,
    new: UserPtr<SigAction>,
    old: UserPtr<SigAction>,
    size: usize,
) -> Result<(), Errno> {
    if size != MASK {
        return Err(Errno::EINVAL);
    }
    let signal = signal.signal()?;
    let mm = task.mm();
    let new = new.non_null().map(|new| mm.get(new)).transpose()?;
    if new.is_some() && SigSet::UNBLOCKABLE.contains(signal) {
        return Err(Errno::EINVAL);
    }
    let handlers = task.process.handlers();
    let mut handlers = handlers.lock();
    let before = handlers.get(signal);
    if let Some(mut action) = new {
        action.mask = action.mask.difference(SigSet::UNBLOCKABLE);
        handlers.set(signal, action);
        let ignored = handlers.ignores(signal);
        drop(handlers);
        if action.handler == SIG_IGN || ignored {
            task.process.discard_signal(signal);
        }
    } else {
        drop(handlers);
    }
    mm.put_opt(old, &before)
}

pub(super) fn rt_sigprocmask(
    task: &Arc<Task>,
    how: u32,
    new: UserPtr<SigSet>,
    old: UserPtr<SigSet>,
    size: usize,
) -> Result<(), Errno> {
    if size != MASK {
        return Err(Errno::EINVAL);
    }
    let mm = task.mm();
    let before = task.mask();
    if let Some(new) = new.non_null() {
        let set = mm.get(new)?;
        task.set_mask(match how {
            0 => before.union(set),
            1 => before.difference(set),
            2 => set,
            _ => return Err(Errno::EINVAL),
        });
    }
    mm.put_opt(old, &before)
}

pub(super) fn rt_sigpending(task: &Arc<Task>, to: UserPtr<u8>, size: usize) -> Result<(), Errno> {
    if size > MASK {
        return Err(Errno::EINVAL);
    }
    let pending = task.pending_set().intersection(task.mask());
    task.mm().write(to.addr(), &pending.as_bytes()[..size])
}

pub(super) fn rt_sigsuspend(
    task: &Arc<Task>,
    mask: UserPtr<SigSet>,
    size: usize,
    state: &mut CallState,
) -> Step {
    if size != MASK {
        return Step::Done(Err(Errno::EINVAL));
    }
    if matches!(state, CallState::New) {
        match task.mm().get(mask) {
            Ok(mask) => task.set_temporary_mask(mask),
            Err(error) => return Step::Done(Err(error)),
        }
        *state = CallState::Until(None);
    }
    Step::Wait(Wait::until(None).on_signal(OnSignal::RestartNoHandler))
}

pub(super) fn pause(_: &Arc<Task>) -> Step {
    Step::Wait(Wait::until(None).on_signal(OnSignal::RestartNoHandler))
}

pub(super) fn rt_sigtimedwait(
    task: &Arc<Task>,
    set: UserPtr<SigSet>,
    info: UserPtr<SigInfo>,
    timeout: UserPtr<Timespec>,
    size: usize,
    state: &mut CallState,
) -> Step {
    if size != MASK {
        return Step::Done(Err(Errno::EINVAL));
    }
    let mm = task.mm();
    let set = match mm.get(set) {
        Ok(set) => set.difference(SigSet::UNBLOCKABLE),
        Err(error) => return Step::Done(Err(error)),
    };
    if matches!(state, CallState::New) {
        let deadline = match timeout.non_null() {
            None => None,
            Some(timeout) => match mm
                .get(timeout)
                .and_then(|time| time.to_nanos().ok_or(Errno::EINVAL))
            {
                Ok(nanos) => Some(task.kernel.clocks().after(Clock::Monotonic, nanos)),
                Err(error) => return Step::Done(Err(error)),
            },
        };
        *state = CallState::Until(deadline);
    }
    let CallState::Until(deadline) = *state else {
        return Step::Done(Err(Errno::EINVAL));
    };
    if let Some(taken) = task.take_signal(set) {
        let number = usize::try_from(taken.signo).unwrap_or(0);
        return Step::Done(mm.put_opt(info, &taken).map(|()| number));
    }
    if deadline.is_some_and(|deadline| task.kernel.clocks().passed(deadline)) {
        return Step::Done(Err(Errno::EAGAIN));
    }
    Step::Wait(
        Wait::on(&task.process.signalled, EventMask::IN)
            .deadline(deadline)
            .on_signal(OnSignal::Interrupt),
    )
}

pub(super) fn rt_sigreturn(task: &Arc<Task>) -> Step {
    let left = task
        .thread()
        .and_then(|thread| task.leave_handler(thread.as_ref()));
    if left.is_err() {
        task.force(SigInfo::new(Signal::SIGSEGV, abi::signal::SI_KERNEL));
    }
    Step::NoReturn
}

/// `stack_t`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct StackT {
    sp: u64,
    flags: u32,
    pad: u32,
    size: u64,
}

pub(super) fn sigaltstack(
    task: &Arc<Task>,
    new: UserPtr<StackT>,
    old: UserPtr<StackT>,
) -> Result<(), Errno> {
    const ONSTACK: u32 = 1;
    const DISABLE: u32 = 2;
    const AUTODISARM: u32 = 1 << 31;
    let mm = task.mm();
    let (sp, flags, size) = task.alt_stack();
    let new = new.non_null().map(|new| mm.get(new)).transpose()?;
    let stack_pointer = task.thread()?.regs().rsp;
    // A stack that is disarmed is never "on".
    let on =
        flags & AUTODISARM == 0 && size > 0 && stack_pointer > sp && stack_pointer - sp <= size;
    if let Some(new) = new {
        if on {
            return Err(Errno::EPERM);
        }
        if new.flags & !(AUTODISARM | DISABLE | ONSTACK) != 0
            || new.flags & (DISABLE | ONSTACK) == DISABLE | ONSTACK
        {
            return Err(Errno::EINVAL);
        }
        if new.flags & DISABLE != 0 {
            task.set_alt_stack((0, DISABLE, 0));
        } else {
            if new.size < 2048 {
                return Err(Errno::ENOMEM);
            }
            task.set_alt_stack((new.sp, new.flags & AUTODISARM, new.size));
        }
    }
    let shown = if on { flags | ONSTACK } else { flags };
    mm.put_opt(
        old,
        &StackT {
            sp,
            flags: shown,
            pad: 0,
            size,
        },
    )
}

/// Whether the caller may send this process this signal (kill(2)).
fn may_signal(task: &Task, target: &Arc<Process>, signal: Option<Signal>) -> Result<(), Errno> {
    if Arc::ptr_eq(&task.process, target) {
        return Ok(());
    }
    let Some(other) = target.any_thread() else {
        return Ok(());
    };
    let (mine, theirs) = (task.creds(), other.creds());
    let same = [mine.uid.real, mine.uid.effective]
        .iter()
        .any(|uid| *uid == theirs.uid.real || *uid == theirs.uid.saved);
    if same || mine.has(Cap::KILL) {
        return Ok(());
    }
    if signal == Some(Signal::SIGCONT) {
        let tree = task.tree().lock();
        if tree.process(task.process.pid)?.session == tree.process(target.pid)?.session {
            return Ok(());
        }
    }
    Err(Errno::EPERM)
}

fn from_caller(task: &Task, signal: Signal, code: i32) -> SigInfo {
    SigInfo::sent_by(signal, code, task.process.pid, task.creds().uid.real)
}

pub(super) fn kill(task: &Arc<Task>, pid: i32, signal: SignalNumber) -> Result<(), Errno> {
    let signal = signal.optional()?;
    let targets: Vec<Arc<Process>> = {
        let tree = task.tree().lock();
        match pid {
            i32::MIN => return Err(Errno::ESRCH),
            -1 => tree
                .nodes
                .values()
                .filter(|node| {
                    node.process.pid != 1
                        && node.process.pid != task.process.pid
                        && node.exit.is_none()
                })
                .map(|node| Arc::clone(&node.process))
                .collect(),
            pid if pid > 0 => {
                let pid = pid.unsigned_abs();
                // A thread's number names its process too.
                match (tree.process(pid), tree.tasks.get(&pid)) {
                    (Ok(node), _) => vec![Arc::clone(&node.process)],
                    (Err(_), Some(thread)) => vec![Arc::clone(&thread.process)],
                    (Err(error), None) => return Err(error),
                }
            }
            group => {
                let group = if group == 0 {
                    tree.process(task.process.pid)?.group
                } else {
                    group.unsigned_abs()
                };
                tree.group(group)
            }
        }
    };
    if targets.is_empty() {
        return Err(Errno::ESRCH);
    }
    let mut result = Err(Errno::EPERM);
    for target in targets {
        let sent = may_signal(task, &target, signal).and_then(|()| match signal {
            Some(signal) => target.send(from_caller(task, signal, SI_USER)),
            None => Ok(()),
        });
        if pid > 0 || sent.is_ok() {
            result = sent;
        }
    }
    result
}

fn to_thread(
    task: &Arc<Task>,
    group: Option<u32>,
    tid: i32,
    signal: Option<Signal>,
    info: Option<SigInfo>,
) -> Result<(), Errno> {
    let tid = u32::try_from(tid)
        .ok()
        .filter(|tid| *tid > 0)
        .ok_or(Errno::EINVAL)?;
    let target = task
        .tree()
        .lock()
        .tasks
        .get(&tid)
        .cloned()
        .ok_or(Errno::ESRCH)?;
    if group.is_some_and(|group| target.process.pid != group) {
        return Err(Errno::ESRCH);
    }
    may_signal(task, &target.process, signal)?;
    match signal {
        Some(signal) => target.send(info.unwrap_or_else(|| from_caller(task, signal, SI_TKILL))),
        None => Ok(()),
    }
}

pub(super) fn tkill(task: &Arc<Task>, tid: i32, signal: SignalNumber) -> Result<(), Errno> {
    to_thread(task, None, tid, signal.optional()?, None)
}

pub(super) fn tgkill(
    task: &Arc<Task>,
    group: i32,
    tid: i32,
    signal: SignalNumber,
) -> Result<(), Errno> {
    let group = u32::try_from(group)
        .ok()
        .filter(|group| *group > 0)
        .ok_or(Errno::EINVAL)?;
    to_thread(task, Some(group), tid, signal.optional()?, None)
}

/// The siginfo that a caller of sigqueue(3) makes; EPERM where it poses as the kernel or as kill(2).
fn queued(
    task: &Arc<Task>,
    signal: SignalNumber,
    info: UserPtr<SigInfo>,
    to_self: bool,
) -> Result<Option<(Signal, SigInfo)>, Errno> {
    let mut info = task.mm().get(info)?;
    let Some(signal) = signal.optional()? else {
        return Ok(None);
    };
    info.signo = i32::from(signal.raw());
    if !to_self && (info.code >= 0 || info.code == SI_TKILL) {
        return Err(Errno::EPERM);
    }
    Ok(Some((signal, info)))
}

pub(super) fn rt_sigqueueinfo(
    task: &Arc<Task>,
    pid: i32,
    signal: SignalNumber,
    info: UserPtr<SigInfo>,
) -> Result<(), Errno> {
    let pid = u32::try_from(pid).map_err(|_| Errno::ESRCH)?;
    let queued = queued(task, signal, info, pid == task.process.pid)?;
    let target = Arc::clone(&task.tree().lock().process(pid)?.process);
    may_signal(task, &target, queued.map(|(signal, _)| signal))?;
    match queued {
        Some((_, info)) => target.send(info),
        None => Ok(()),
    }
}

pub(super) fn rt_tgsigqueueinfo(
    task: &Arc<Task>,
    group: i32,
    tid: i32,
    signal: SignalNumber,
    info: UserPtr<SigInfo>,
) -> Result<(), Errno> {
    let group = u32::try_from(group)
        .ok()
        .filter(|group| *group > 0)
        .ok_or(Errno::EINVAL)?;
    let queued = queued(task, signal, info, group == task.process.pid)?;
    to_thread(
        task,
        Some(group),
        tid,
        queued.map(|(signal, _)| signal),
        queued.map(|(_, info)| info),
    )
}
