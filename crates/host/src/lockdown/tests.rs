//! Each forbidden class dies, and what the sentry lives on works, in a child that locks itself.

use abi::Errno;
use abi::nr::nr;

use super::{Filter, Profile};
use crate::process::{Death, Fork, exit_now, fork};

/// What a call did.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Returned,
    Failed(i32),
    Died,
}

/// Makes the call in a child that is locked first.
fn locked_call(profile: Profile, number: u32, arguments: [u64; 6]) -> Fate {
    let child = match fork().expect("a child") {
        Fork::Original(child) => child,
        Fork::Copy => {
            if Filter::new(profile).lock().is_err() {
                exit_now(251);
            }
            let [a, b, c, d, e, f] = arguments;
            // SAFETY: the tests pass no address but null and those of their own live values, and a child that goes
            // wrong is its own problem.
            let result = unsafe { libc::syscall(i64::from(number), a, b, c, d, e, f) };
            if result >= 0 {
                exit_now(0);
            }
            exit_now(crate::error::last().raw())
        }
    };
    match child.wait().expect("reaped") {
        Death::Exited(0) => Fate::Returned,
        Death::Exited(159) | Death::Killed(libc::SIGSYS) => Fate::Died,
        Death::Exited(code) => Fate::Failed(code),
        death => panic!("call {number}: {death:?}"),
    }
}

const CWD: u64 = -100_i64 as u64;
const BAD_FD: u64 = 900;
const NOFOLLOW: u64 = libc::O_NOFOLLOW as u64;

fn path() -> u64 {
    c"/".as_ptr().expose_provenance() as u64
}

#[test]
fn forbidden_calls_die() {
    let path = path();
    let exec = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    let anon = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let cases: &[(&str, u32, [u64; 6])] = &[
        ("a program", nr::execve, [path, 0, 0, 0, 0, 0]),
        ("a program by fd", nr::execveat, [0, path, 0, 0, 0, 0]),
        ("a process", nr::clone, [17, 0, 0, 0, 0, 0]),
        ("a process", nr::fork, [0; 6]),
        ("a process", nr::vfork, [0; 6]),
        (
            "a namespace",
            nr::clone,
            [libc::CLONE_NEWUSER as u64 | 17, 0, 0, 0, 0, 0],
        ),
        ("a namespace", nr::unshare, [0; 6]),
        ("a namespace", nr::setns, [0; 6]),
        ("ptrace", nr::ptrace, [0; 6]),
        ("a pidfd", nr::pidfd_open, [1, 0, 0, 0, 0, 0]),
        ("a pidfd's fd", nr::pidfd_getfd, [0; 6]),
        ("a socket", nr::socket, [1, 1, 0, 0, 0, 0]),
        ("a connection", nr::connect, [0; 6]),
        ("a mount", nr::mount, [0; 6]),
        ("a mount", nr::open_tree, [CWD, path, 0, 0, 0, 0]),
        ("a mount", nr::move_mount, [0; 6]),
        ("a root", nr::chroot, [path, 0, 0, 0, 0, 0]),
        ("a handle", nr::open_by_handle_at, [0; 6]),
        ("openat2", nr::openat2, [0; 6]),
        ("open", nr::open, [path, 0, 0, 0, 0, 0]),
        (
            "the working directory",
            nr::openat,
            [CWD, path, NOFOLLOW, 0, 0, 0],
        ),
        ("following links", nr::openat, [BAD_FD, path, 0, 0, 0, 0]),
        (
            "a setuid file",
            nr::openat,
            [BAD_FD, path, NOFOLLOW, 0o4755, 0, 0],
        ),
        ("a setuid file", nr::fchmod, [BAD_FD, 0o4755, 0, 0, 0, 0]),
        (
            "a setgid file",
            nr::fchmodat,
            [BAD_FD, path, 0o2755, 0, 0, 0],
        ),
        (
            "a setgid file",
            nr::fchmodat2,
            [BAD_FD, path, 0o2755, 0, 0, 0],
        ),
        (
            "a setgid directory",
            nr::mkdirat,
            [BAD_FD, path, 0o2755, 0, 0, 0],
        ),
        (
            "a device",
            nr::mknodat,
            [BAD_FD, path, 0o020666, 0x0101, 0, 0],
        ),
        (
            "a device",
            nr::mknodat,
            [BAD_FD, path, 0o060666, 0x0101, 0, 0],
        ),
        (
            "a link to an fd",
            nr::linkat,
            [BAD_FD, path, BAD_FD, path, 0x1000, 0],
        ),
        (
            "attributes from the cwd",
            nr::newfstatat,
            [CWD, path, 0, 0, 0, 0],
        ),
        (
            "executable memory",
            nr::mmap,
            [0, 4096, exec, anon, u64::MAX, 0],
        ),
        ("executable memory", nr::mprotect, [0, 0, exec, 0, 0, 0]),
        ("executable memory", nr::pkey_mprotect, [0; 6]),
        (
            "an executable memfd",
            nr::memfd_create,
            [path, 0, 0, 0, 0, 0],
        ),
        (
            "an executable memfd",
            nr::memfd_create,
            [path, 0x10, 0, 0, 0, 0],
        ),
        ("every process", nr::kill, [u64::MAX, 0, 0, 0, 0, 0]),
        ("a process group", nr::kill, [0, 0, 0, 0, 0, 0]),
        ("terminal input", nr::ioctl, [0, libc::TIOCSTI, 0, 0, 0, 0]),
        ("terminal input", nr::ioctl, [0, 0x541c, 0, 0, 0, 0]),
        (
            "an fd's owner",
            nr::fcntl,
            [0, libc::F_SETOWN as u64, 1, 0, 0, 0],
        ),
        (
            "being dumpable",
            nr::prctl,
            [libc::PR_SET_DUMPABLE as u64, 1, 0, 0, 0, 0],
        ),
        ("another filter", nr::seccomp, [0; 6]),
        ("a user", nr::setuid, [0; 6]),
        ("a user", nr::setresuid, [0; 6]),
        ("capabilities", nr::capset, [0; 6]),
        ("bpf", nr::bpf, [0; 6]),
        ("io_uring", nr::io_uring_setup, [0; 6]),
        ("userfaultfd", nr::userfaultfd, [0; 6]),
        ("perf events", nr::perf_event_open, [0; 6]),
        ("keys", nr::keyctl, [0; 6]),
        ("kexec", nr::kexec_load, [0; 6]),
        ("membarrier", nr::membarrier, [0; 6]),
        ("the x32 table", 0x4000_0000 | nr::getpid, [0; 6]),
        ("no call", 5000, [0; 6]),
    ];
    for (name, number, arguments) in cases {
        let fate = locked_call(Profile::Directfs, *number, *arguments);
        assert_eq!(fate, Fate::Died, "{name}: call {number} {arguments:x?}");
    }
}

#[test]
fn every_unlisted_number_dies() {
    const PAST_THE_LAST: u32 = 480;
    for number in (0..PAST_THE_LAST).filter(|number| abi::nr::name(*number).is_some()) {
        let listed = super::calls::CALLS.iter().any(|call| call.number == number);
        if !listed && number != nr::clone3 {
            let fate = locked_call(Profile::Directfs, number, [0; 6]);
            assert_eq!(fate, Fate::Died, "call {number}");
        }
    }
}

#[test]
fn high_halves_do_not_fool_the_filter() {
    let path = path();
    let high = 1_u64 << 32;
    let cwd = CWD & 0xffff_ffff;
    let died = |number, arguments| locked_call(Profile::Directfs, number, arguments) == Fate::Died;
    assert!(died(nr::openat, [cwd, path, NOFOLLOW, 0, 0, 0]));
    assert!(died(nr::openat, [high | cwd, path, NOFOLLOW, 0, 0, 0]));
    assert!(died(nr::fchmod, [BAD_FD, high | 0o4000, 0, 0, 0, 0]));
    assert!(died(nr::ioctl, [0, high | libc::TIOCSTI, 0, 0, 0, 0]));
    assert!(died(
        nr::clone,
        [high | super::calls::THREAD, 0, 0, 0, 0, 0]
    ));
}

#[test]
fn allowed_calls_reach_the_kernel() {
    let path = path();
    let anon = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let bad = Fate::Failed(Errno::EBADF.raw());
    let cases: &[(u32, [u64; 6], &Fate)] = &[
        (nr::getpid, [0; 6], &Fate::Returned),
        (nr::mmap, [0, 4096, 3, anon, u64::MAX, 0], &Fate::Returned),
        (nr::memfd_create, [path, 3 | 8, 0, 0, 0, 0], &Fate::Returned),
        (
            nr::openat,
            [
                BAD_FD,
                c"x".as_ptr().expose_provenance() as u64,
                NOFOLLOW,
                0,
                0,
                0,
            ],
            &bad,
        ),
        (nr::fchmod, [BAD_FD, 0o1777, 0, 0, 0, 0], &bad),
        (nr::ioctl, [BAD_FD, libc::TCGETS, 0, 0, 0, 0], &bad),
        (nr::fcntl, [BAD_FD, libc::F_GETFL as u64, 0, 0, 0, 0], &bad),
    ];
    for (number, arguments, expected) in cases {
        let fate = locked_call(Profile::Directfs, *number, *arguments);
        assert_eq!(fate, **expected, "call {number}");
    }
    // The C library takes this for an old kernel, and falls back to clone.
    let clone3 = locked_call(Profile::Directfs, nr::clone3, [0; 6]);
    assert_eq!(clone3, Fate::Failed(Errno::ENOSYS.raw()));
}

#[test]
fn a_gofer_s_sentry_names_no_files() {
    let path = path();
    let call = [BAD_FD, path, NOFOLLOW, 0, 0, 0];
    assert_eq!(locked_call(Profile::Gofer, nr::openat, call), Fate::Died);
    assert_eq!(
        locked_call(Profile::Gofer, nr::getpid, [0; 6]),
        Fate::Returned
    );
}

#[test]
fn a_fence_keeps_signals_in() {
    // The parent of the fenced child stands outside, the child's own child inside.
    let child = match fork().expect("a child") {
        Fork::Original(child) => child,
        Fork::Copy => {
            let reaches = |pid| rustix::process::test_kill_process(pid).is_ok();
            let outside = rustix::process::getppid().expect("a parent");
            let before = reaches(outside);
            let fenced = super::fence().is_ok();
            let after = reaches(outside);
            let inside = match fork() {
                Ok(Fork::Copy) => loop {
                    std::thread::park();
                },
                Ok(Fork::Original(child)) => child,
                Err(_) => exit_now(9),
            };
            let own = rustix::process::Pid::from_raw(inside.pid()).is_some_and(reaches);
            inside.kill();
            let dead = inside.wait() == Ok(Death::Killed(libc::SIGKILL));
            let kept_in = after != super::landlock::scopes_signals();
            exit_now(i32::from(!(before && fenced && kept_in && own && dead)))
        }
    };
    assert_eq!(child.wait(), Ok(Death::Exited(0)));
}

#[test]
fn threads_and_allocation_work_when_locked() {
    let child = match fork().expect("a child") {
        Fork::Original(child) => child,
        Fork::Copy => {
            let locked = super::refuse_executable_memory().is_ok()
                && Filter::new(Profile::Directfs).lock().is_ok();
            let threads: Vec<_> = (0..4_u8)
                .filter_map(|n| {
                    let name = format!("worker-{n}");
                    let work = move || vec![n; 1 << 20].into_iter().map(usize::from).sum::<usize>();
                    std::thread::Builder::new().name(name).spawn(work).ok()
                })
                .collect();
            let _ = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
            rustix::param::page_size();
            let sum: usize = threads
                .into_iter()
                .filter_map(|thread| thread.join().ok())
                .sum();
            exit_now(i32::from(!locked || sum != 6 << 20))
        }
    };
    assert_eq!(child.wait(), Ok(Death::Exited(0)));
}

#[test]
fn every_call_has_one_row() {
    let mut numbers: Vec<u32> = super::calls::CALLS.iter().map(|call| call.number).collect();
    numbers.sort_unstable();
    let rows = numbers.len();
    numbers.dedup();
    assert_eq!(numbers.len(), rows);
}

#[test]
fn the_document_shows_the_list() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/host-calls.md");
    let document = std::fs::read_to_string(path).expect("docs/host-calls.md");
    assert!(
        document == super::document(),
        "the list of host calls changed: review it, and run cargo xtask host-calls"
    );
}
