//! The table of system calls.

use std::sync::Arc;

use super::{futex, identity, memory, misc, namespaces, process, signal, time};
use crate::task::{CallState, Step, Task};
use abi::Errno;

/// How complete a call is.
#[derive(Clone, Copy, Debug)]
pub enum Completeness {
    /// As Linux has it.
    Full,
    /// With these differences.
    Partial(&'static str),
    /// Refused, for this reason.
    Error(&'static str),
}

/// What serves a call.
#[derive(Clone, Copy)]
pub enum Run {
    /// A handler.
    Handler(fn(&Arc<Task>, &[u64; 6], &mut CallState) -> Step),
    /// Nothing: it fails with this.
    Error(Errno),
}

/// A row: a call.
pub struct Row {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: &'static str,
    /// What serves it.
    pub run: Run,
    /// Shows its arguments.
    pub show: fn(&Task, &[u64; 6]) -> String,
    /// How complete it is.
    pub complete: Completeness,
}

macro_rules! rows {
    ($($name:ident => $what:tt $handler:tt $(($note:literal))? ;)*) => {
        /// Rows of this module.
        pub(super) static ROWS: &[$crate::syscalls::table::Row] = &[$(rows!(@row $name $what $handler $(($note))?)),*];
    };
    (@row $name:ident full ($handler:path)) => {
        rows!(@handler $name $handler, $crate::syscalls::table::Completeness::Full)
    };
    (@row $name:ident partial ($handler:path) ($note:literal)) => {
        rows!(@handler $name $handler, $crate::syscalls::table::Completeness::Partial($note))
    };
    (@row $name:ident error ($errno:ident) ($note:literal)) => {
        $crate::syscalls::table::Row {
            number: abi::nr::nr::$name,
            name: stringify!($name),
            run: $crate::syscalls::table::Run::Error(abi::Errno::$errno),
            show: |_, args| format!("{:#x}, {:#x}, {:#x}", args[0], args[1], args[2]),
            complete: $crate::syscalls::table::Completeness::Error($note),
        }
    };
    (@handler $name:ident $handler:path, $complete:expr) => {
        $crate::syscalls::table::Row {
            number: abi::nr::nr::$name,
            name: stringify!($name),
            run: $crate::syscalls::table::Run::Handler(|task, args, state| $crate::syscalls::decode::Handler::invoke(&$handler, task, args, state)),
            show: |task, args| $crate::syscalls::decode::Handler::show(&$handler, task, args),
            complete: $complete,
        }
    };
}

pub(super) use rows;

rows! {
    // Processes.
    clone => partial (process::clone) ("of namespaces CLONE_NEWUTS alone, the rest is EPERM");
    clone3 => partial (process::clone3) ("no set_tid, no cgroup, no pidfd; of namespaces CLONE_NEWUTS alone, the rest is EPERM");
    fork => full (process::fork);
    vfork => full (process::vfork);
    execve => full (process::execve);
    execveat => full (process::execveat);
    exit => full (process::exit);
    exit_group => full (process::exit_group);
    wait4 => partial (process::wait4) ("processor time is all user time");
    waitid => partial (process::waitid) ("no P_PIDFD; processor time is all user time");
    getpid => full (process::getpid);
    gettid => full (process::gettid);
    getppid => full (process::getppid);
    getpgid => full (process::getpgid);
    getpgrp => full (process::getpgrp);
    setpgid => full (process::setpgid);
    getsid => full (process::getsid);
    setsid => full (process::setsid);
    set_tid_address => full (process::set_tid_address);
    set_robust_list => full (process::set_robust_list);
    get_robust_list => full (process::get_robust_list);
    prctl => partial (process::prctl) ("names, death signal, dumpable, subreaper, no_new_privs, timer slack, capability bounding set; the rest is EINVAL");
    arch_prctl => partial (process::arch_prctl) ("FS and GS bases; no CPUID faulting, no shadow stacks");
    prlimit64 => full (process::prlimit64);
    getrlimit => full (process::getrlimit);
    setrlimit => full (process::setrlimit);
    getrusage => partial (process::getrusage) ("processor time, all of it user time; no page faults or switches");
    times => partial (process::times) ("processor time is all user time");
    unshare => partial (namespaces::unshare) ("CLONE_FILES, CLONE_FS, CLONE_NEWUTS; other namespaces are EPERM");
    setns => partial (namespaces::setns) ("UTS namespaces; those of other kinds only where the caller is in them, mount namespaces never (EPERM)");

    // Memory.
    mmap => partial (memory::mmap) ("MAP_HUGETLB is refused, MAP_POPULATE and MAP_LOCKED do not touch pages");
    munmap => full (memory::munmap);
    mprotect => partial (memory::mprotect) ("no PROT_GROWSDOWN");
    mremap => full (memory::mremap);
    brk => full (memory::brk);
    madvise => partial (memory::madvise) ("MADV_REMOVE is refused for shared anonymous memory, hints have no effect");
    mincore => full (memory::mincore);
    msync => full (memory::msync);
    mlock => partial (memory::mlock) ("nothing is ever paged out by the sentry; the host may");
    mlock2 => partial (memory::mlock2) ("nothing is ever paged out by the sentry; the host may");
    munlock => full (memory::munlock);
    mlockall => partial (memory::mlockall) ("accepted; the host may page");
    munlockall => full (memory::munlockall);
    membarrier => partial (memory::membarrier) ("the query alone");

    // Futexes.
    futex => partial (futex::futex) ("no priority inheritance");
    futex_waitv => error (ENOSYS) ("not implemented yet");

    // Signals.
    rt_sigaction => full (signal::rt_sigaction);
    rt_sigprocmask => full (signal::rt_sigprocmask);
    rt_sigpending => full (signal::rt_sigpending);
    rt_sigsuspend => full (signal::rt_sigsuspend);
    rt_sigtimedwait => full (signal::rt_sigtimedwait);
    rt_sigqueueinfo => full (signal::rt_sigqueueinfo);
    rt_tgsigqueueinfo => full (signal::rt_tgsigqueueinfo);
    rt_sigreturn => full (signal::rt_sigreturn);
    sigaltstack => full (signal::sigaltstack);
    kill => full (signal::kill);
    tkill => full (signal::tkill);
    tgkill => full (signal::tgkill);
    pause => full (signal::pause);

    // Time.
    clock_gettime => full (time::clock_gettime);
    clock_getres => full (time::clock_getres);
    clock_nanosleep => full (time::clock_nanosleep);
    nanosleep => full (time::nanosleep);
    gettimeofday => full (time::gettimeofday);
    time => full (time::time);
    clock_settime => error (EPERM) ("the clock is the host's");
    settimeofday => error (EPERM) ("the clock is the host's");
    setitimer => partial (time::setitimer) ("ITIMER_REAL alone");
    getitimer => partial (time::getitimer) ("ITIMER_REAL alone");
    alarm => full (time::alarm);
    timer_create => partial (time::timer_create) ("no clocks of processor time");
    timer_settime => full (time::timer_settime);
    timer_gettime => full (time::timer_gettime);
    timer_getoverrun => full (time::timer_getoverrun);
    timer_delete => full (time::timer_delete);

    // Identity.
    getuid => full (identity::getuid);
    geteuid => full (identity::geteuid);
    getgid => full (identity::getgid);
    getegid => full (identity::getegid);
    getresuid => full (identity::getresuid);
    getresgid => full (identity::getresgid);
    getgroups => full (identity::getgroups);
    setgroups => full (identity::setgroups);
    setuid => full (identity::setuid);
    setgid => full (identity::setgid);
    setreuid => full (identity::setreuid);
    setregid => full (identity::setregid);
    setresuid => full (identity::setresuid);
    setresgid => full (identity::setresgid);
    setfsuid => full (identity::setfsuid);
    setfsgid => full (identity::setfsgid);
    capget => full (identity::capget);
    capset => full (identity::capset);

    // The machine and the rest.
    uname => full (misc::uname);
    sethostname => full (misc::sethostname);
    setdomainname => full (misc::setdomainname);
    sysinfo => partial (misc::sysinfo) ("no swap, no load");
    getrandom => full (misc::getrandom);
    getcpu => full (misc::getcpu);
    sched_yield => full (misc::sched_yield);
    sched_getaffinity => full (misc::sched_getaffinity);
    sched_setaffinity => partial (misc::sched_setaffinity) ("checked, and without effect");
    sched_getscheduler => full (misc::sched_getscheduler);
    sched_setscheduler => partial (misc::sched_setscheduler) ("SCHED_OTHER, SCHED_BATCH and SCHED_IDLE are accepted");
    sched_getparam => full (misc::sched_getparam);
    sched_setparam => full (misc::sched_setparam);
    sched_get_priority_max => full (misc::sched_get_priority_max);
    sched_get_priority_min => full (misc::sched_get_priority_min);
    getpriority => full (misc::getpriority);
    setpriority => partial (misc::setpriority) ("checked, and without effect");
    personality => partial (misc::personality) ("PER_LINUX alone");
    rseq => error (ENOSYS) ("preemption can't be seen from the sentry");
    userfaultfd => error (EPERM) ("page faults are the host's");
    syslog => error (EPERM) ("the host's log is not the guest's");
    ptrace => error (ENOSYS) ("not implemented yet");
    io_uring_setup => error (ENOSYS) ("not offered");
    io_setup => error (ENOSYS) ("not offered");
    bpf => error (EPERM) ("not offered");
    perf_event_open => error (ENOENT) ("not offered");
    kcmp => error (ENOSYS) ("not implemented yet");
    keyctl => error (ENOSYS) ("not offered");
    add_key => error (ENOSYS) ("not offered");
    request_key => error (ENOSYS) ("not offered");
    init_module => error (EPERM) ("the guest has no modules");
    finit_module => error (EPERM) ("the guest has no modules");
    delete_module => error (EPERM) ("the guest has no modules");
    reboot => error (EPERM) ("not the guest's");
    swapon => error (EPERM) ("not the guest's");
    swapoff => error (EPERM) ("not the guest's");
    iopl => error (EPERM) ("not the guest's");
    ioperm => error (EPERM) ("not the guest's");
    acct => error (EPERM) ("not the guest's");
}

/// The rows of all modules.
static ALL: &[&[Row]] = &[
    ROWS,
    super::attributes::ROWS,
    super::descriptors::ROWS,
    super::fcntl::ROWS,
    super::io::ROWS,
    super::names::ROWS,
    super::poll::ROWS,
    super::socket::ROWS,
    super::splice::ROWS,
];

/// Every row.
pub fn all_rows() -> impl Iterator<Item = &'static Row> {
    ALL.iter().copied().flatten()
}

/// The table, as the document docs/syscalls.md shows it.
pub fn document() -> String {
    let mut rows: Vec<&Row> = all_rows().collect();
    rows.sort_by_key(|row| row.number);
    let mut text = String::from(
        "# System calls\n\nMade by `cargo xtask syscalls` from the rows in `crates/sentry/src/syscalls/`. A call without a row returns ENOSYS, and is \
         logged once, by name.\n\n| number | call | |\n|---|---|---|\n",
    );
    for row in rows {
        let complete = match (row.complete, row.run) {
            (Completeness::Full, _) => "full".to_owned(),
            (Completeness::Partial(note), _) => format!("partial: {note}"),
            (Completeness::Error(note), Run::Error(error)) => format!("{error:?}: {note}"),
            (Completeness::Error(note), Run::Handler(_)) => note.to_owned(),
        };
        text.push_str(&format!(
            "| {} | `{}` | {complete} |\n",
            row.number, row.name
        ));
    }
    text
}

/// One more than the largest number with a row.
const NUMBERS: usize = 512;

/// Rows by number.
static INDEX: std::sync::OnceLock<[Option<&'static Row>; NUMBERS]> = std::sync::OnceLock::new();

/// The row of a call.
pub fn row(number: u32) -> Option<&'static Row> {
    let index = INDEX.get_or_init(|| {
        let mut index = [None; NUMBERS];
        for row in all_rows() {
            index[row.number as usize] = Some(row);
        }
        index
    });
    index.get(number as usize).copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::{NUMBERS, all_rows};

    #[test]
    fn the_document_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/syscalls.md");
        let document = std::fs::read_to_string(path).expect("docs/syscalls.md");
        assert!(
            document == super::document(),
            "the table changed: run cargo xtask syscalls"
        );
    }

    #[test]
    fn each_number_has_one_row() {
        let mut seen = [false; NUMBERS];
        for row in all_rows() {
            assert!(
                !std::mem::replace(&mut seen[row.number as usize], true),
                "{} stands twice",
                row.name
            );
        }
    }
}
