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
