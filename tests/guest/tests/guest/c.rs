//! The C programs, one test each.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

macro_rules! programs {
    ($($name:ident)*) => {
        /// All of them.
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(
            #[test]
            fn $name() {
                let program = guest::compile(stringify!($name), Path::new(env!("CARGO_TARGET_TMPDIR")), &[]);
                guest::compare(&program.to_string_lossy(), &[]);
            }
        )*
    };
}

programs! {
    copy_on_write
    events
    faults
    futexes
    locks
    memory
    namespaces
    proc_self
    processes
    signals
    text_busy
    unix_sockets
    vdso
}

/// No clock is read by a call, which is what `--strace` shows natively too.
#[test]
fn clocks_are_no_calls() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clocks_are_no_calls");
    std::fs::create_dir_all(&directory).expect("a directory");
    let program = guest::compile("vdso", &directory, &[]);
    let mut command = std::process::Command::new(e2e::coffer());
    command
        .args(["do", "--strace", "--"])
        .arg(program)
        .arg("count");
    let finished = e2e::run(&mut command);
    assert_eq!((finished.code(), &*finished.stdout), (0, "counted\n"));
    // That calls are printed at all shows in the one that prints.
    assert!(finished.stderr.contains("write("), "{}", finished.stderr);
    let of_clocks = ["clock_gettime(", "gettimeofday(", "time("];
    let calls = finished
        .stderr
        .lines()
        .filter(|line| of_clocks.iter().any(|name| line.contains(name)));
    assert_eq!(calls.count(), 0, "{}", finished.stderr);
}

/// Memory by copying alone: what the host's memory management may not do, the sentry does.
#[test]
fn without_the_host_s_memory_management() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("copying");
    std::fs::create_dir_all(&directory).expect("a directory");
    // A file's copy does not follow the file, as a private mapping does until it is written to: documented, and what copy_on_write looks at.
    let followed = "--host-mm=no-mremap,no-thp,no-cow";
    for (name, option) in [
        ("copy_on_write", followed),
        ("faults", guest::NO_HOST_MM),
        ("memory", guest::NO_HOST_MM),
        ("processes", guest::NO_HOST_MM),
    ] {
        let program = guest::compile(name, &directory, &[]);
        guest::compare_with(&[option], &program.to_string_lossy(), &[]);
    }
    for switch in ["no-mremap", "no-thp", "no-private-files", "no-cow"] {
        let option = format!("--host-mm={switch}");
        let script =
            "echo $(ls /usr/bin | wc -l) $(python3 -c 'import json; print(json.dumps([1]))')";
        guest::compare_with(&[&option], "/bin/sh", &["-c", script]);
    }
}

/// Programs that mean something inside alone, and what they print there.
const INSIDE: &[&str] = &["hostile_stub"];

#[test]
fn hostile_stub() {
    let program = guest::compile("hostile_stub", Path::new(env!("CARGO_TARGET_TMPDIR")), &[]);
    let inside = guest::inside(&program.to_string_lossy(), &[]);
    let want = include_str!("../../programs/hostile_stub.txt");
    assert!(
        inside.stdout == want && inside.status.success(),
        "{}\n{}",
        inside.stdout,
        inside.stderr
    );
}

#[test]
fn a_sandbox_whose_board_is_wiped_ends_by_sigterm() {
    // Two tests of one program run at the same time, each with its own copy.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wipe");
    std::fs::create_dir_all(&directory).expect("a directory");
    let program = guest::compile("hostile_stub", &directory, &[]);
    let mut running = guest::start_inside(&program.to_string_lossy(), &["wipe"]);
    assert_eq!(running.read_line(), "wiping");
    running.signal(Signal::TERM);
    let ended = running.finish_within(Duration::from_secs(5));
    assert_eq!(ended.code(), 143, "{}", ended.stderr);
}

#[test]
fn each_program_has_a_test() {
    let mut found: Vec<String> = std::fs::read_dir(guest::programs())
        .expect("the programs")
        .flatten()
        .filter_map(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .strip_suffix(".c")
                .map(str::to_owned)
        })
        .collect();
    let mut known: Vec<String> = NAMES
        .iter()
        .chain(INSIDE)
        .map(|name| (*name).to_owned())
        .collect();
    found.sort();
    known.sort();
    assert_eq!(found, known);
}
