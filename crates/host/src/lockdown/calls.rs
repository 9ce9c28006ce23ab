//! The host calls that a locked sentry may make.

use abi::nr::nr;

/// A call that is allowed.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) number: u32,
    pub(super) group: Group,
    /// What the sentry needs it for, and what its arguments are held to.
    pub(super) why: &'static str,
    /// Sets of tests, one of which must pass as a whole; no set at all allows any arguments.
    pub(super) allowed: &'static [&'static [Test]],
}

/// Who may make the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// Every sentry.
    Always,
    /// A sentry that reaches host files itself.
    Directfs,
}

/// What an argument (0 to 5) must be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Test {
    /// This value.
    Is(u8, Width, u64),
    /// Under the mask, this value.
    Bits(u8, Width, u64, u64),
    /// As a 32-bit number, at least this.
    AtLeast(u8, u64),
    /// As a 32-bit number, at most this.
    AtMost(u8, u64),
}

/// How much of the register the kernel reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Width {
    /// 32 bits.
    Half,
    /// 64 bits.
    Full,
}

const fn always(number: u32, why: &'static str) -> Call {
    checked(number, why, &[])
}

const fn checked(number: u32, why: &'static str, allowed: &'static [&'static [Test]]) -> Call {
    Call {
        number,
        group: Group::Always,
        why,
        allowed,
    }
}

const fn files(number: u32, why: &'static str, allowed: &'static [&'static [Test]]) -> Call {
    Call {
        number,
        group: Group::Directfs,
        why,
        allowed,
    }
}

/// The 32-bit argument is this number.
const fn is(argument: u8, value: u32) -> Test {
    Test::Is(argument, Width::Half, value as u64)
}

/// The 32-bit argument has none of these bits.
const fn lacks(argument: u8, mask: u32) -> Test {
    Test::Bits(argument, Width::Half, mask as u64, 0)
}

/// The argument is a descriptor: neither AT_FDCWD nor any other negative number.
const fn dir(argument: u8) -> Test {
    Test::AtMost(argument, i32::MAX as u64)
}

/// The argument is one process or thread, not a group or all of them.
const fn one(argument: u8) -> [Test; 2] {
    [
        Test::AtLeast(argument, 1),
        Test::AtMost(argument, i32::MAX as u64),
    ]
}

/// PROT_EXEC.
const EXEC: u64 = libc::PROT_EXEC as u64;
/// The set-user-id and set-group-id bits of a mode.
const SET_ID: u32 = 0o6000;
/// A mode's type and set-id bits.
const TYPE_AND_SET_ID: u64 = 0o176000;
/// What the C library's pthread_create asks of clone.
pub(super) const THREAD: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u64;
/// MFD_EXEC.
const MFD_EXEC: u64 = 0x10;
/// MFD_NOEXEC_SEAL.
const MFD_NOEXEC_SEAL: u64 = 8;
/// MFD_HUGETLB and the sizes that go with it.
const MFD_HUGE: u64 = 4 | 0x3f << 26;

/// The list, by function.
pub(super) const CALLS: &[Call] = &[
    // The guest.
    // No test of the flags: the kernel refuses all but 0 itself, and without a test its cache lets the call pass.
    always(
        nr::process_vm_readv,
        "reads guest memory as its protection allows; flags are 0 by the kernel's own check",
    ),
    always(
        nr::process_vm_writev,
        "writes guest memory as its protection allows; flags are 0 by the kernel's own check",
    ),
    checked(
        nr::tgkill,
        "interrupts a guest thread; abort; one thread",
        &[&[one(0)[0], one(0)[1], one(1)[0], one(1)[1]]],
    ),
    checked(
        nr::kill,
        "kills a stub; one process of this PID namespace",
        &[&one(0)],
    ),
    always(nr::waitid, "reaps stubs, which are all its own children"),
    always(nr::wait4, "reaps stubs, which are all its own children"),
    always(
        nr::sched_setaffinity,
        "keeps a guest thread and its worker on one core",
    ),
    // Its own threads and memory.
    checked(
        nr::clone,
        "starts a thread of its own: exactly the C library's flags, so neither process nor namespace",
        &[&[Test::Is(0, Width::Full, THREAD)]],
    ),
    always(nr::set_robust_list, "a new thread's start"),
    always(nr::rseq, "a new thread's start, in the C library"),
    checked(
        nr::prctl,
        "names a thread (PR_SET_NAME), nothing else",
        &[&[is(0, libc::PR_SET_NAME as u32)]],
    ),
    checked(
        nr::mmap,
        "memory of its own and windows of the memory file; not executable",
        &[&[Test::Bits(2, Width::Full, EXEC, 0)]],
    ),
    checked(
        nr::mprotect,
        "thread stacks' guards; not executable",
        &[&[Test::Bits(2, Width::Full, EXEC, 0)]],
    ),
    always(nr::munmap, "gives memory back"),
    always(
        nr::mremap,
        "the allocator grows a block; protection cannot change",
    ),
    always(nr::madvise, "gives memory back, asks for huge pages"),
    always(nr::brk, "the allocator's heap"),
    always(nr::futex, "locks and waiting"),
    always(nr::futex_waitv, "waits on several doorbells"),
    always(nr::sched_yield, "spinning gives way"),
    always(
        nr::sched_getaffinity,
        "which CPUs there are; a new thread's stack bounds, in the C library",
    ),
    always(nr::gettid, "who a thread is; abort"),
    always(nr::getpid, "who the process is; abort"),
    always(nr::exit, "a thread's end"),
    always(nr::exit_group, "the process's end"),
    // Signals.
    always(nr::rt_sigaction, "its own dispositions"),
    always(nr::rt_sigprocmask, "its own masks"),
    always(nr::rt_sigreturn, "returns from a handler"),
    always(
        nr::rt_sigtimedwait,
        "who a new stub is, by the kernel's si_pid",
    ),
    always(
        nr::signalfd4,
        "who a new stub is, by the kernel's si_pid; deaths",
    ),
    always(nr::sigaltstack, "a new thread's start"),
    always(
        nr::restart_syscall,
        "the kernel's own restart of an interrupted sleep",
    ),
    // Events and time.
    always(nr::epoll_create1, "host readiness"),
    always(nr::epoll_ctl, "host readiness"),
    always(nr::epoll_wait, "host readiness"),
    always(nr::epoll_pwait, "host readiness"),
    always(nr::epoll_pwait2, "host readiness, with nanoseconds"),
    always(nr::poll, "host readiness of one descriptor"),
    always(nr::ppoll, "host readiness of one descriptor"),
    always(nr::eventfd2, "wakes a worker that waits for readiness"),
    always(
        nr::timerfd_create,
        "the deadline heap's alarm; steps of the host's clock",
    ),
    always(nr::timerfd_settime, "the deadline heap's alarm"),
    always(nr::timerfd_gettime, "the deadline heap's alarm"),
    always(nr::clock_gettime, "time, where the vDSO asks the kernel"),
    always(nr::clock_getres, "time, where the vDSO asks the kernel"),
    always(nr::clock_nanosleep, "a bounded wait"),
    always(nr::nanosleep, "a bounded wait"),
    always(nr::getrandom, "entropy for guests and for hash tables"),
    // Descriptors as such.
    always(nr::close, "gives a descriptor back"),
    always(nr::dup, "another number for a descriptor"),
    always(nr::dup3, "another number for a descriptor"),
    always(nr::pipe2, "wakes a worker; passes pages"),
    checked(
        nr::fcntl,
        "flags, copies, pipe sizes, seals and open-file locks; no owner, no lease, no notification",
        &[
            &[is(1, libc::F_DUPFD_CLOEXEC as u32)],
            &[is(1, libc::F_GETFD as u32)],
            &[is(1, libc::F_SETFD as u32)],
            &[is(1, libc::F_GETFL as u32)],
            &[is(1, libc::F_SETFL as u32)],
            &[is(1, libc::F_GETPIPE_SZ as u32)],
            &[is(1, libc::F_SETPIPE_SZ as u32)],
            &[is(1, libc::F_ADD_SEALS as u32)],
            &[is(1, libc::F_GET_SEALS as u32)],
            &[is(1, libc::F_OFD_GETLK as u32)],
            &[is(1, libc::F_OFD_SETLK as u32)],
        ],
    ),
    checked(
        nr::ioctl,
        "terminal settings, size and queues; never what puts input into a terminal (TIOCSTI, TIOCLINUX)",
        &[
            &[is(1, libc::TCGETS as u32)],
            &[is(1, libc::TCSETS as u32)],
            &[is(1, libc::TCSETSW as u32)],
            &[is(1, libc::TCSETSF as u32)],
            &[is(1, libc::TCGETS2 as u32)],
            &[is(1, libc::TCSETS2 as u32)],
            &[is(1, libc::TCSETSW2 as u32)],
            &[is(1, libc::TCSETSF2 as u32)],
            &[is(1, libc::TCSBRK as u32)],
            &[is(1, libc::TCSBRKP as u32)],
            &[is(1, libc::TCXONC as u32)],
            &[is(1, libc::TCFLSH as u32)],
            &[is(1, libc::TIOCGWINSZ as u32)],
            &[is(1, libc::TIOCSWINSZ as u32)],
            &[is(1, libc::TIOCGPGRP as u32)],
            &[is(1, libc::TIOCOUTQ as u32)],
            &[is(1, libc::FIONREAD as u32)],
        ],
    ),
    checked(
        nr::memfd_create,
        "the memory file; never executable, never of huge pages",
        &[&[Test::Bits(
            1,
            Width::Half,
            MFD_EXEC | MFD_NOEXEC_SEAL | MFD_HUGE,
            MFD_NOEXEC_SEAL,
        )]],
    ),
    always(nr::sendmsg, "packets to the launcher and to zygotes"),
    always(nr::recvmsg, "packets from the launcher and from zygotes"),
    // Data of open files: the standard three, the memory file, host files.
    always(nr::read, "file data"),
    always(nr::write, "file data"),
    always(nr::readv, "file data"),
    always(nr::writev, "file data"),
    always(nr::pread64, "file data"),
    always(nr::pwrite64, "file data"),
    always(nr::preadv, "file data"),
    always(nr::pwritev, "file data"),
    always(nr::preadv2, "file data"),
    always(nr::pwritev2, "file data"),
    always(nr::lseek, "holes and data; a shared offset"),
    always(nr::ftruncate, "a file's size; the memory file's"),
    always(nr::fallocate, "a file's blocks; holes in the memory file"),
    always(
        nr::copy_file_range,
        "copies between host files, or into the memory file",
    ),
    always(nr::fstat, "a file's attributes"),
    always(nr::fsync, "what a guest asks to be on disk"),
    always(nr::fdatasync, "what a guest asks to be on disk"),
    always(nr::sync_file_range, "what a guest asks to be on disk"),
    // Host files by name, below directories that were handed in.
    files(
        nr::openat,
        "opens below a directory: never by a link, never with set-id bits",
        &[&[
            dir(0),
            Test::Bits(
                2,
                Width::Half,
                libc::O_NOFOLLOW as u64,
                libc::O_NOFOLLOW as u64,
            ),
            lacks(3, SET_ID),
        ]],
    ),
    files(nr::newfstatat, "attributes below a directory", &[&[dir(0)]]),
    files(nr::statx, "attributes below a directory", &[&[dir(0)]]),
    files(nr::fstatfs, "a file system's numbers", &[]),
    files(nr::getdents64, "a directory's entries", &[]),
    files(nr::readlinkat, "a link's text", &[&[dir(0)]]),
    files(nr::unlinkat, "removes a name", &[&[dir(0)]]),
    files(
        nr::mkdirat,
        "makes a directory without set-id bits",
        &[&[dir(0), lacks(2, SET_ID)]],
    ),
    files(
        nr::renameat2,
        "renames within the trees",
        &[&[dir(0), dir(2)]],
    ),
    files(
        nr::linkat,
        "a name for a named file; no flags, so neither through links nor from a bare descriptor",
        &[&[dir(0), dir(2), is(4, 0)]],
    ),
    files(nr::symlinkat, "makes a link", &[&[dir(1)]]),
    files(
        nr::mknodat,
        "makes a file, FIFO or socket without set-id bits; never a device",
        &[
            &[
                dir(0),
                Test::Bits(2, Width::Half, TYPE_AND_SET_ID, libc::S_IFREG as u64),
            ],
            &[
                dir(0),
                Test::Bits(2, Width::Half, TYPE_AND_SET_ID, libc::S_IFIFO as u64),
            ],
            &[
                dir(0),
                Test::Bits(2, Width::Half, TYPE_AND_SET_ID, libc::S_IFSOCK as u64),
            ],
        ],
    ),
    files(
        nr::fchmod,
        "a file's permissions without set-id bits",
        &[&[lacks(1, SET_ID)]],
    ),
    files(
        nr::fchmodat,
        "permissions below a directory without set-id bits",
        &[&[dir(0), lacks(2, SET_ID)]],
    ),
    files(
        nr::fchmodat2,
        "permissions below a directory without set-id bits, not by a link",
        &[&[dir(0), lacks(2, SET_ID)]],
    ),
    files(nr::fchown, "a file's owner", &[]),
    files(nr::fchownat, "an owner below a directory", &[&[dir(0)]]),
    files(nr::utimensat, "a file's times", &[&[dir(0)]]),
    files(nr::fgetxattr, "extended attributes", &[]),
    files(nr::fsetxattr, "extended attributes", &[]),
    files(nr::flistxattr, "extended attributes", &[]),
    files(nr::fremovexattr, "extended attributes", &[]),
    files(
        nr::getxattrat,
        "extended attributes of what cannot be opened",
        &[&[dir(0)]],
    ),
    files(
        nr::setxattrat,
        "extended attributes of what cannot be opened",
        &[&[dir(0)]],
    ),
    files(
        nr::listxattrat,
        "extended attributes of what cannot be opened",
        &[&[dir(0)]],
    ),
    files(
        nr::removexattrat,
        "extended attributes of what cannot be opened",
        &[&[dir(0)]],
    ),
];
