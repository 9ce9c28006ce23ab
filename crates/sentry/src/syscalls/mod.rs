//! System calls: decoding, dispatch, and a module for each family.
//!
//! A call is two edits: a handler in its family's module, and a row in [`table`]. Arity and decoding come from the handler's types
//! ([`decode`]); dispatch, `--strace`, the log of what is missing and `docs/syscalls.md` all come from the row.

mod attributes;
pub mod decode;
mod descriptors;
mod fcntl;
mod futex;
mod identity;
mod io;
mod memory;
mod message;
mod misc;
mod names;
mod namespaces;
mod poll;
mod process;
mod signal;
mod socket;
mod splice;
pub mod table;
mod time;

use std::sync::Arc;

use abi::Errno;

use crate::container::ContainerId;
use crate::task::run::Call;
use crate::task::{CallState, Step, Task};

thread_local! {
    static CURRENT: core::cell::Cell<Option<(ContainerId, u32)>> = const { core::cell::Cell::new(None) };
}

/// The number of the task whose call this worker serves, where it is of this container. For the few files that are what they are by who reads them
/// (`/proc/self`).
pub(crate) fn current(container: ContainerId) -> Option<u32> {
    let (of, tid) = CURRENT.get()?;
    (of == container).then_some(tid)
}

/// Whether a call's results may wait in the window until it is answered: those that are for the caller alone. Not so where another
/// thread is woken, or born, that may look at them first.
pub(crate) fn defers_results(number: u32) -> bool {
    use abi::nr::nr;
    matches!(
        number,
        nr::read
            | nr::pread64
            | nr::stat
            | nr::fstat
            | nr::lstat
            | nr::newfstatat
            | nr::statx
            | nr::readlink
            | nr::readlinkat
            | nr::getcwd
            | nr::getdents64
            | nr::poll
            | nr::epoll_wait
            | nr::epoll_pwait
            | nr::ioctl
            | nr::recvfrom
            | nr::pipe
            | nr::pipe2
            | nr::socketpair
            | nr::rt_sigaction
            | nr::rt_sigprocmask
            | nr::clock_gettime
            | nr::gettimeofday
            | nr::uname
            | nr::sysinfo
            | nr::prlimit64
            | nr::getrlimit
            | nr::getrusage
            | nr::getrandom
            | nr::wait4
    )
}

/// Calls the handler of a task's call.
pub(crate) fn dispatch(task: &Arc<Task>, call: &mut Call) -> Step {
    CURRENT.set(Some((task.container().id(), task.tid())));
    let Some(row) = table::row(call.number) else {
        task.kernel.log_unimplemented(call.number);
        if task.kernel.strace {
            print(
                task,
                &format!("syscall_{}", call.number),
                &call.args,
                6,
                None,
                Err(Errno::ENOSYS),
            );
        }
        return Step::Done(Err(Errno::ENOSYS));
    };
    let first = matches!(call.state, CallState::New);
    let step = match row.run {
        table::Run::Handler(run) => run(task, &call.args, &mut call.state),
        table::Run::Error(error) => Step::Done(Err(error)),
    };
    if task.kernel.strace {
        trace(task, row, call, first, &step);
    }
    step
}

/// Prints a call that is done, or that begins to wait.
fn trace(task: &Arc<Task>, row: &table::Row, call: &Call, first: bool, step: &Step) {
    let shown = || (row.show)(task, &call.args);
    match step {
        Step::Done(result) => print(task, row.name, &call.args, 0, Some(shown()), *result),
        Step::Wait(_) if first => {
            host::log::line(&format!("[{:5}] {}({}) ...", task.tid(), row.name, shown()))
        }
        Step::NoReturn | Step::Gone => {
            host::log::line(&format!("[{:5}] {}({}) = ?", task.tid(), row.name, shown()))
        }
        Step::Wait(_) | Step::Atomic { .. } => {}
    }
}

fn print(
    task: &Arc<Task>,
    name: &str,
    args: &[u64; 6],
    arity: usize,
    shown: Option<String>,
    result: Result<usize, Errno>,
) {
    let shown = shown.unwrap_or_else(|| {
        args[..arity]
            .iter()
            .map(|arg| format!("{arg:#x}"))
            .collect::<Vec<_>>()
            .join(", ")
    });
    let result = match result {
        Ok(value) if value > 0xffff_ffff => format!("{value:#x}"),
        Ok(value) => value.to_string(),
        Err(error) => format!("-1 {error}"),
    };
    host::log::line(&format!("[{:5}] {name}({shown}) = {result}", task.tid()));
}
