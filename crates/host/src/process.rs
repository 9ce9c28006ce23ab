//! Processes of Coffer's own: making one in new namespaces, executing a program in it, waiting for it.
//!
//! Invariant of the unsafe code: a child made here shares no memory with its parent, and runs on a copy of its only
//! thread's stack.

use std::convert::Infallible;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use abi::Errno;
use abi::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Resource, Rlimit, WaitId, WaitIdOptions};

use crate::error::{check, errno, last};

/// A child process that this process made and has not yet reaped, so that its pid is nobody else's.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
}

/// How a process died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
}

/// Which of the two processes a copy leaves behind this one is.
#[derive(Debug)]
pub enum Fork {
    /// The copy. It ends by [`execute`] or [`exit_now`], and never returns to what the original was doing.
    Copy,
    /// The original, and its new child.
    Original(Child),
}

/// Copies the calling process into new user, PID, mount, network, IPC, UTS and cgroup namespaces.
///
/// The caller must have one thread: a lock that another thread holds stays locked in the copy for ever.
pub fn fork_isolated() -> Result<Fork, Errno> {
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    fork_with(namespaces)
}

/// Copies the calling process, which must have one thread, as for [`fork_isolated`].
pub fn fork() -> Result<Fork, Errno> {
    fork_with(0)
}

/// Ends the process at once, without running what was set to run at its end.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process; nothing of it runs any more.
    unsafe { libc::_exit(code) }
}

fn fork_with(namespaces: libc::c_int) -> Result<Fork, Errno> {
    let mut pidfd: RawFd = -1;
    // SAFETY: all-zero is a valid clone_args: every field is an integer.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = u64::from((namespaces | libc::CLONE_PIDFD).cast_unsigned());
    arguments.pidfd = (&raw mut pidfd).expose_provenance() as u64;
    arguments.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    // SAFETY: without CLONE_VM the child has a copy of all memory and goes on with a copy of this stack, as after
    // fork; the kernel writes the pidfd to `pidfd`, which outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const arguments,
            size_of::<libc::clone_args>(),
        )
    };
    let pid = check(result)?;
    if pid == 0 {
        return Ok(Fork::Copy);
    }
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or(Errno::EIO)?;
    // SAFETY: clone3 succeeded, so it made this descriptor, and nothing else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Fork::Original(Child { pid, pidfd }))
}

impl Child {
    /// Its pid in this process's PID namespace.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Kills it, and with it, where it is the first of its PID namespace, all processes there. Not an error where it
    /// is dead already.
    pub fn kill(&self) {
        // The one possible failure is that it is dead.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
    }

    /// Waits until it is dead, at most this long; whether it is.
    pub fn dies_within(&self, limit: Duration) -> Result<bool, Errno> {
        let limit = Timespec::try_from(limit).map_err(|_| Errno::EINVAL)?;
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&limit)))
            .map(|ready| ready > 0)
            .map_err(errno)
    }

    /// Waits until it is dead and reaps it.
    pub fn wait(self) -> Result<Death, Errno> {
        let status = rustix::io::retry_on_intr(|| {
            rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)
        })
        .map_err(errno)?
        .ok_or(Errno::ECHILD)?;
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Ok(Death::Exited(code)),
            (None, Some(signal)) => Ok(Death::Killed(signal)),
            (None, None) => Err(Errno::EIO),
        }
    }
}

/// Executes the program that the descriptor refers to, with these arguments and no environment. Returns on failure.
pub fn execute(program: BorrowedFd<'_>, arguments: &[&CStr]) -> Result<Infallible, Errno> {
    let mut argv: Vec<*const libc::c_char> = arguments.iter().map(|text| text.as_ptr()).collect();
    argv.push(std::ptr::null());
    let envp = [std::ptr::null::<libc::c_char>()];
    // SAFETY: both vectors end with a null pointer, and their strings outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    Err(last())
}

/// Has the kernel kill this process when the thread that made it ends.
///
/// Forgotten when the process's ids change or it gains capabilities.
pub fn die_with_parent() -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(errno)
}

/// Makes this process not dumpable: no core, no core handler, and no access for others of its user.
pub fn set_not_dumpable() -> Result<(), Errno> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(errno)
}

/// Starts a session of its own, away from the caller's terminal; and takes no bits from modes (umask 0).
pub fn start_session() -> Result<(), Errno> {
    rustix::process::setsid().map_err(errno)?;
    rustix::process::umask(rustix::fs::Mode::empty());
    Ok(())
}

/// Names this UTS namespace's host.
pub fn set_hostname(name: &str) -> Result<(), Errno> {
    rustix::system::sethostname(name.as_bytes()).map_err(errno)
}

/// Raises the hard limit of descriptors to this many, for this process and those that it will make; not an error where
/// the host refuses.
pub fn raise_file_limit(files: u64) {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < files) {
        limit.maximum = Some(files);
        // What there is must do, then.
        let _ = rustix::process::setrlimit(Resource::Nofile, limit);
    }
}

/// Allows no core files, and as many descriptors as the hard limit does.
pub fn set_limits() -> Result<(), Errno> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, none).map_err(errno)?;
    let mut files = rustix::process::getrlimit(Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(Resource::Nofile, files).map_err(errno)
}

/// Sends the signal to this very process.
pub fn raise(signal: Signal) {
    // SAFETY: takes a number alone; the C library refuses those that are no signals.
    unsafe { libc::raise(i32::from(signal.raw())) };
}

/// Gives what the C library's allocator holds but does not use back to the kernel.
pub fn trim_heap() {
    // SAFETY: touches the allocator's own free memory, under its own locks.
    unsafe { libc::malloc_trim(0) };
}

/// Lets all threads allocate from one arena: less memory, and the C library never asks the host how many processors there are,
/// which a locked process may not.
pub fn share_heap() {
    // SAFETY: sets a number of the allocator, before there is a second thread.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Lets go of the pages of this program's code and constants. They come back from its file as they are touched: for
/// a process that has done most of its work and is about to wait for long.
pub fn shed_code() {
    unsafe extern "C" {
        /// Where the linker put the program's first byte.
        #[link_name = "__executable_start"]
        static START: u8;
        /// The end of its code, before which nothing is writable.
        #[link_name = "etext"]
        static END: u8;
    }
    let start = (&raw const START).expose_provenance();
    let end = (&raw const END).expose_provenance() & !(rustix::param::page_size() - 1);
    if start < end {
        // SAFETY: constants come before code, both are mapped from the file, neither was ever written (there are no
        // relocations there), so that what is read next is what was there. A failure changes nothing.
        unsafe {
            libc::madvise(
                std::ptr::with_exposed_provenance_mut(start),
                end - start,
                libc::MADV_DONTNEED,
            )
        };
    }
}

/// Waits until one of these is readable or hung up, without a time limit; which of them are.
pub fn wait_readable<const N: usize>(fds: [BorrowedFd<'_>; N]) -> Result<[bool; N], Errno> {
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, None)).map_err(errno)?;
    Ok(polled.map(|fd| !fd.revents().is_empty()))
}

#[cfg(test)]
mod tests {
    use super::{Child, Death, Fork, exit_now, fork};

    fn child(body: impl FnOnce() -> i32) -> Child {
        match fork().expect("a child") {
            Fork::Copy => exit_now(body()),
            Fork::Original(child) => child,
        }
    }

    #[test]
    fn a_childs_death_is_told() {
        assert_eq!(child(|| 7).wait(), Ok(Death::Exited(7)));
        let endless = child(|| {
            loop {
                std::thread::park();
            }
        });
        endless.kill();
        assert_eq!(endless.wait(), Ok(Death::Killed(9)));
    }
}
