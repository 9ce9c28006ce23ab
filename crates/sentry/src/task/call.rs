//! What a system call comes to: a result, or a wait that is data.
//!
//! A handler never sleeps. It returns [`Step::Done`] or [`Step::Wait`]; in the second case the dispatcher registers the task with the queues that the
//! [`Wait`] names, and once one of them tells, or the deadline passes, calls the handler again from the top, with the same arguments and the same
//! [`CallState`]. Arguments and [`CallState`] are all that there is of a blocked call.

use std::sync::Arc;

use abi::Errno;
use smallvec::SmallVec;

use crate::sync::{EventMask, WaitQueue};
use crate::time::Deadline;

/// What a call's register gets.
pub type CallResult = Result<usize, Errno>;

/// What a handler comes to.
pub enum Step {
    /// The call is done.
    Done(CallResult),
    /// The call waits.
    Wait(Wait),
    /// The call replaced the task's registers (exec, sigreturn) or its task is ending: there is nothing to return.
    NoReturn,
    /// The task goes on with another host thread, which has been started.
    Gone,
    /// The thread is to do this compare-and-exchange in its own memory, then the handler is called again with what it found.
    Atomic {
        /// The word's address.
        addr: u64,
        /// What is expected there.
        old: u32,
        /// What is to be there.
        new: u32,
    },
}

/// What a blocked call comes to where a signal arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSignal {
    /// EINTR, always.
    Interrupt,
    /// It begins again where the handler was installed with SA_RESTART, or where none runs; else EINTR.
    Restart,
    /// It goes on where no handler runs; else EINTR. (Linux: ERESTARTNOHAND.)
    RestartNoHandler,
    /// It goes on where no handler runs, with its first deadline kept; else EINTR. (Linux: ERESTART_RESTARTBLOCK.)
    RestartBlock,
    /// It returns this: what was moved before it had to wait.
    Partial(usize),
    /// Only a fatal signal ends the wait (vfork's parent).
    Killable,
}

/// What a call waits for.
pub struct Wait {
    /// Who tells, and of what.
    pub queues: SmallVec<[(Arc<WaitQueue>, EventMask); 2]>,
    /// When the handler is called again though nobody told.
    pub deadline: Option<Deadline>,
    /// What a signal does.
    pub on_signal: OnSignal,
    /// Whether one wake-up of a queue is to go to one waiter only.
    pub exclusive: bool,
}

impl Wait {
    /// Waits for a queue to tell of these events; restarts by SA_RESTART.
    pub fn on(queue: &Arc<WaitQueue>, events: EventMask) -> Wait {
        Wait {
            queues: SmallVec::from_iter([(Arc::clone(queue), events)]),
            deadline: None,
            on_signal: OnSignal::Restart,
            exclusive: false,
        }
    }

    /// Waits for a deadline or a signal alone.
    pub fn until(deadline: Option<Deadline>) -> Wait {
        Wait {
            queues: SmallVec::new(),
            deadline,
            on_signal: OnSignal::Interrupt,
            exclusive: false,
        }
    }

    /// With this deadline too.
    pub fn deadline(mut self, deadline: Option<Deadline>) -> Wait {
        self.deadline = deadline;
        self
    }

    /// With this rule for signals.
    pub fn on_signal(mut self, rule: OnSignal) -> Wait {
        self.on_signal = rule;
        self
    }

    /// As one of several of whom one is woken at a time.
    pub fn exclusive(mut self) -> Wait {
        self.exclusive = true;
        self
    }
}

/// What a blocked call remembers between two looks, beside its arguments.
#[derive(Debug, Default)]
pub enum CallState {
    /// Nothing: the call was just made, or it needs to remember nothing.
    #[default]
    New,
    /// Bytes that were moved before it had to wait.
    Moved(usize),
    /// That it began, and when it ends.
    Until(Option<Deadline>),
    /// A child that a vfork waits for.
    Vfork(u32),
    /// A futex waiter that is queued.
    Futex(Arc<crate::ipc::futex::Waiter>),
    /// An atomic operation by the thread itself.
    Atomic {
        /// The word's address.
        addr: u64,
        /// What was found; `None` inside for a bad address, outside while it is under way.
        found: Option<Option<u32>>,
        /// What was expected.
        expected: u32,
        /// Words that are to be changed after this one, and this one, the last (a dying thread's robust list).
        rest: Vec<u64>,
    },
    /// Words that a dying thread is to change, the last first.
    Dying(Vec<u64>),
    /// Messages and bytes of the next that were moved, and when it gives up (sockets).
    Transfer {
        /// Messages.
        messages: usize,
        /// Bytes of the next.
        bytes: usize,
        /// When it gives up.
        until: Option<Deadline>,
    },
    /// A file that was opened and waits for its other end (FIFOs).
    Opening(Arc<crate::vfs::OpenFile>),
    /// A record lock that somebody else holds.
    Locking(crate::vfs::locks::LockOwner),
}

impl CallState {
    /// Whether the handler has not been here before.
    pub fn is_new(&self) -> bool {
        matches!(self, CallState::New)
    }

    /// The call will not go on: what it holds elsewhere is taken back. Where it had been given what it waited for, that is its result.
    pub fn cancel(&mut self, kernel: &crate::kernel::Kernel) -> Option<u64> {
        match core::mem::take(self) {
            CallState::Futex(waiter) => kernel.futexes.cancel(&waiter).then_some(0),
            CallState::Moved(done) if done > 0 => Some(done as u64),
            CallState::Locking(owner) => {
                crate::vfs::locks::stop_waiting(owner);
                None
            }
            _ => None,
        }
    }
}
