//! The start of the first stub.
//!
//! Invariant: between fork and exec the child makes async-signal-safe calls only and touches no memory but its copy; the sentry has one thread when it
//! calls this.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use abi::Errno;

use super::layout::file;

/// What the zygote is made of.
pub(crate) struct Parts<'a> {
    /// The stub's executable.
    pub(crate) stub: BorrowedFd<'a>,
    /// Command pages, sealed against writing.
    pub(crate) commands: BorrowedFd<'a>,
    /// Thread areas.
    pub(crate) areas: BorrowedFd<'a>,
    /// The memory file.
    pub(crate) memory: BorrowedFd<'a>,
    /// The socket on which files arrive.
    pub(crate) socket: BorrowedFd<'a>,
    /// Filters, doorbell and clocks, sealed against writing.
    pub(crate) shared: BorrowedFd<'a>,
    /// `cgroup.procs` files to write 0 to.
    pub(crate) cgroups: &'a [BorrowedFd<'a>],
    /// Whether the host may give it, and all that comes of it, huge pages.
    pub(crate) huge_pages: bool,
}

fn last() -> Errno {
    std::io::Error::last_os_error()
        .raw_os_error()
        .and_then(Errno::from_raw)
        .unwrap_or(Errno::EIO)
}

/// A memory file with these contents, sealed against change, that may be executed.
pub(crate) fn executable(contents: &[u8]) -> Result<OwnedFd, Errno> {
    const MFD_EXEC: libc::c_uint = 0x10;
    // SAFETY: the name is a C string.
    let mut fd = unsafe {
        libc::memfd_create(
            c"stub".as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | MFD_EXEC,
        )
    };
    if fd < 0 {
        // Linux before 6.3 knows no MFD_EXEC, and makes every memory file executable.
        // SAFETY: the name is a C string.
        fd = unsafe {
            libc::memfd_create(
                c"stub".as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
            )
        };
    }
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: a descriptor that was just made, and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut done = 0;
    while done < contents.len() {
        // SAFETY: the bytes are the slice's.
        let wrote = unsafe {
            libc::write(
                fd.as_raw_fd(),
                contents[done..].as_ptr().cast(),
                contents.len() - done,
            )
        };
        done += usize::try_from(wrote).map_err(|_| last())?;
    }
    // SAFETY: the descriptor is ours.
    let sealed = unsafe {
        libc::fcntl(
            fd.as_raw_fd(),
            libc::F_ADD_SEALS,
            libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL,
        )
    };
    if sealed < 0 { Err(last()) } else { Ok(fd) }
}

/// A memory file of this (sparse) size.
pub(crate) fn memory_file(name: &std::ffi::CStr, len: i64) -> Result<OwnedFd, Errno> {
    const MFD_NOEXEC_SEAL: libc::c_uint = 0x8;
    // SAFETY: the name is a C string.
    let mut fd = unsafe {
        libc::memfd_create(
            name.as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL,
        )
    };
    if fd < 0 {
        // SAFETY: the name is a C string.
        fd = unsafe {
            libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
    }
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: a descriptor that was just made, and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the descriptor is ours.
    let sized = unsafe { libc::ftruncate(fd.as_raw_fd(), len) };
    if sized < 0 { Err(last()) } else { Ok(fd) }
}

/// Forbids new writable mappings of a memory file, and writes to it; the ones there are stay (`F_SEAL_FUTURE_WRITE`).
pub(crate) fn seal_future_writes(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    const F_SEAL_FUTURE_WRITE: libc::c_int = 0x10;
    let seals = F_SEAL_FUTURE_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: no memory is involved.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        Err(last())
    } else {
        Ok(())
    }
}

/// Starts the zygote; its PID. Every one of its signals is blocked, it has no capability, a session of its own, and the files of
/// [`file`] alone.
pub(crate) fn spawn(parts: &Parts<'_>) -> Result<i32, Errno> {
    let files = [
        (parts.commands.as_raw_fd(), file::COMMANDS),
        (parts.areas.as_raw_fd(), file::AREAS),
        (parts.memory.as_raw_fd(), file::MEMORY),
        (parts.socket.as_raw_fd(), file::SOCKET),
        (parts.shared.as_raw_fd(), file::SHARED),
    ]
    .map(|(fd, number)| (fd, i32::try_from(number).expect("small")));
    let stub = parts.stub.as_raw_fd();
    // SAFETY: the sentry has one thread now, so the child's copy of memory is consistent.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(last());
    }
    if pid == 0 {
        child(&files, stub, parts.cgroups, parts.huge_pages);
    }
    Ok(pid)
}

/// The child's part; ends in exec, or with exit code 1 to 10, which says where it failed.
fn child(files: &[(i32, i32); 5], stub: i32, cgroups: &[BorrowedFd<'_>], huge_pages: bool) -> ! {
    let fail = |code: i32| -> ! {
        // SAFETY: ends the process, with no handlers run.
        unsafe { libc::_exit(code) }
    };
    for cgroup in cgroups {
        // SAFETY: one byte of a literal.
        if unsafe { libc::write(cgroup.as_raw_fd(), b"0".as_ptr().cast(), 1) } < 0 {
            fail(2);
        }
    }
    // Out of the way first, so that no target number is still a source.
    let mut moved = [0; 5];
    for (index, (fd, _)) in files.iter().enumerate() {
        // SAFETY: duplicates a descriptor of the child's own table.
        moved[index] = unsafe { libc::fcntl(*fd, libc::F_DUPFD, 100) };
        if moved[index] < 0 {
            fail(3);
        }
    }
    // SAFETY: as above.
    let stub = unsafe { libc::fcntl(stub, libc::F_DUPFD_CLOEXEC, 200) };
    if stub < 0 {
        fail(3);
    }
    for (index, (_, number)) in files.iter().enumerate() {
        // SAFETY: the child's own table.
        if unsafe { libc::dup2(moved[index], *number) } < 0 {
            fail(3);
        }
    }
    let last = files[4].1;
    for (from, to) in [
        (0u32, 2u32),
        (last as u32 + 1, stub as u32 - 1),
        (stub as u32 + 1, u32::MAX),
    ] {
        // SAFETY: closes descriptors of the child's own table, which nothing here uses any more.
        if unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) } < 0 {
            fail(4);
        }
    }
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the raw call, since the C library keeps two signals for itself; the set is 8 bytes of it.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            all.as_ptr(),
            std::ptr::null_mut::<u8>(),
            8,
        )
    };
    // SAFETY: no memory is involved.
    unsafe { libc::setsid() };
    const ADDR_NO_RANDOMIZE: libc::c_ulong = 0x0004_0000;
    // SAFETY: no memory is involved. Stack and vDSO then lie above the stub, always.
    if unsafe { libc::personality(ADDR_NO_RANDOMIZE) } < 0 {
        fail(5);
    }
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the struct lives until the call returns.
    if unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) } < 0 {
        fail(6);
    }
    // SAFETY: no memory is involved.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } < 0 {
        fail(7);
    }
    // SAFETY: no memory is involved. It holds over exec, and for whatever is cloned.
    if !huge_pages && unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } < 0 {
        fail(10);
    }
    // SAFETY: no memory is involved; fails only where there is nothing to clear.
    unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    };
    // capset(2), version 3: no effective, permitted or inheritable capability.
    let header: [u32; 2] = [0x2008_0522, 0];
    let empty = [0u32; 6];
    // SAFETY: both arrays have the sizes that version 3 asks for.
    if unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), empty.as_ptr()) } < 0 {
        fail(8);
    }
    let argv = [c"coffer-stub".as_ptr(), std::ptr::null()];
    let envp = [std::ptr::null::<libc::c_char>()];
    // SAFETY: path and vectors are NUL-terminated; on success this does not return.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            stub,
            c"".as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    fail(9)
}
