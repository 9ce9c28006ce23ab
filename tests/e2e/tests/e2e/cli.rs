//! Usage errors, exit codes and messages.

use std::process::Command;

use e2e::{Finished, coffer, run};

use super::{evil, evil_with};

fn coffer_do(arguments: &[&str]) -> Finished {
    run(Command::new(coffer()).arg("do").args(arguments))
}

#[test]
fn usage_errors_name_the_thing() {
    let cases: &[(&[&str], &str)] = &[
        (&["--bogus", "--", "true"], "--bogus"),
        (&["--volume", "nonsense", "--", "true"], "nonsense"),
        (&["--volume", "a:b", "--", "true"], "a:b"),
        (&["--volume", "/a:/b:rx", "--", "true"], "/a:/b:rx"),
        (&["--memory", "5", "--", "true"], "--memory"),
        (&["--memory", "12Q", "--", "true"], "12Q"),
        (&["--pids", "0", "--", "true"], "--pids"),
        (&["--env", "NAME", "--", "true"], "NAME"),
        (&["--cwd", "here", "--", "true"], "--cwd"),
        (&[], "CMD"),
    ];
    for (arguments, name) in cases {
        let finished = coffer_do(arguments);
        assert_eq!(finished.code(), 2, "{arguments:?}: {finished:?}");
        assert!(finished.stderr.starts_with("coffer: "), "{finished:?}");
        assert!(finished.stderr.contains(name), "{finished:?}");
        assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
        assert_eq!(finished.stdout, "");
    }
}

#[test]
fn failures_of_coffer_s_own_are_one_line_and_125() {
    let cases: &[(&[&str], &str)] = &[
        (&["--volume", "/no/such:/b", "--", "true"], "/no/such"),
        (&["--root", "/no/such", "--", "true"], "/no/such"),
        (&["--root", "/etc/passwd", "--", "true"], "/etc/passwd"),
    ];
    for (arguments, name) in cases {
        let finished = coffer_do(arguments);
        assert_eq!(finished.code(), 125, "{arguments:?}: {finished:?}");
        assert!(finished.stderr.starts_with("coffer: "), "{finished:?}");
        assert!(finished.stderr.contains(name), "{finished:?}");
        assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
    }
}

#[test]
fn exit_codes_are_the_guest_s() {
    for (words, code) in [
        (&["exit", "0"], 0),
        (&["exit", "7"], 7),
        (&["exit", "255"], 255),
        (&["signal", "15"], 128 + 15),
        (&["signal", "9"], 128 + 9),
    ] {
        let finished = run(&mut evil(words));
        assert_eq!(finished.code(), code, "{words:?}: {finished:?}");
        assert_eq!(finished.stderr, "");
    }
}

#[test]
fn a_trace_ends_with_what_was_counted() {
    let script = "i=0; while [ $i -lt 20 ]; do /bin/true; kill -0 $$; i=$((i + 1)); done";
    let finished = coffer_do(&["--strace", "--", "sh", "-c", script]);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines: Vec<&str> = finished.stderr.lines().collect();
    let [.., calls, answers] = lines[..] else {
        panic!("{finished:?}")
    };
    let numbers = |line: &str| -> Vec<u64> {
        let words = line.split(|letter: char| !letter.is_ascii_digit());
        words.filter_map(|word| word.parse().ok()).collect()
    };
    let [
        trapped,
        patched,
        sites,
        _local,
        faults,
        _interrupts,
        batches,
    ] = numbers(calls)[..]
    else {
        panic!("{calls}")
    };
    let printed = lines.iter().filter(|line| line.contains("(")).count() as u64;
    // A call that waits is printed twice, one that was interrupted or restarted counts twice.
    let counted = trapped + patched;
    assert!(
        counted > 20 && printed >= counted / 2 && counted >= printed / 2,
        "{calls}, {printed} printed"
    );
    assert!(patched == 0 || sites > 0, "{calls}");
    assert!(faults < counted && batches > 20, "{calls}");
    let [spun, slept, woken, _] = numbers(answers)[..] else {
        panic!("{answers}")
    };
    assert!(spun + slept > 20 && woken <= counted, "{answers}");
}

/// The sentry's own lines go to standard error whatever the guest does with its own, and to nothing else.
#[test]
fn a_trace_does_not_depend_on_the_guest_s_descriptors() {
    let script = "exec 2>&-; exec 3< /etc/passwd 4< /etc/group; readlink /proc/self/fd/3";
    let finished = coffer_do(&["--strace", "--", "sh", "-c", script]);
    assert_eq!(finished.stdout, "/etc/passwd\n");
    assert!(finished.stderr.contains("exit_group(0)"), "{finished:?}");
    // Both streams are one pipe.
    let shell = "exec 2>&1; exec \"$0\" do --strace -- echo through";
    let both = run(Command::new("sh").args(["-c", shell]).arg(coffer()));
    assert!(both.stdout.contains("\nthrough\n"), "{both:?}");
    assert!(both.stdout.contains("exit_group(0)"), "{both:?}");
}

#[test]
fn failures_to_start_have_their_codes_and_a_line() {
    for (code, expected) in [("126", 126), ("127", 127)] {
        let finished = run(&mut evil(&["start-failed", code, "nope: not found"]));
        assert_eq!(finished.code(), expected);
        assert_eq!(finished.stderr, "coffer: nope: not found\n");
    }
}

#[test]
fn nothing_that_a_sentry_says_is_trusted() {
    let cases: &[(&[&str], &str)] = &[
        (&["garbage"], "makes no sense"),
        (&["endless"], "control socket"),
        (&["start-failed", "3", "x"], "only a launcher may"),
        (&["failed", "a\x1b[2Jb\nc"], "a\\u{1b}[2Jb\\nc"),
    ];
    for (words, text) in cases {
        let finished = run(&mut evil(words));
        assert_eq!(finished.code(), 125, "{words:?}: {finished:?}");
        assert!(finished.stderr.contains(text), "{words:?}: {finished:?}");
        assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
    }
}

#[test]
fn a_sentry_that_dies_silently_is_told_of() {
    let finished = run(&mut evil(&["silent", "3"]));
    assert_eq!(finished.code(), 125);
    assert_eq!(
        finished.stderr,
        "coffer: the sentry exited with code 3 without a word\n"
    );
    let finished = run(&mut evil(&["forbidden"]));
    assert_eq!(finished.code(), 125);
    let last = finished.stderr.lines().last().unwrap_or_default();
    let told = if cfg!(debug_assertions) {
        "code 159"
    } else {
        "SIGSYS"
    };
    assert!(
        last.starts_with("coffer: the sentry") && last.contains(told),
        "{finished:?}"
    );
}

#[test]
fn the_specification_says_what_was_asked_for() {
    let options = [
        "--env", "A=1", "--env", "PATH=/x", "--cwd", "/tmp", "--memory", "64M", "--pids", "77",
        "--strace",
    ];
    let finished = run(evil_with(&options, &["spec"])
        .env_clear()
        .env("PATH", "/y")
        .env("B", "2"));
    assert_eq!(finished.code(), 0, "{finished:?}");
    let spec: sentry::BootSpec = serde_json::from_str(&finished.stdout).expect("the specification");
    let mut env: Vec<&[u8]> = spec
        .env
        .iter()
        .map(|variable| variable.as_bytes())
        .collect();
    env.sort_unstable();
    assert_eq!(env, [b"A=1".as_slice(), b"B=2", b"PATH=/x"]);
    assert_eq!(spec.cwd.as_bytes(), b"/tmp");
    assert_eq!((spec.limits.memory, spec.limits.pids), (64 << 20, 77));
    assert!(spec.strace && spec.limits.cpus > 0);
    assert_eq!(spec.lower[0].0.as_bytes(), b"/");
    for (path, _) in &spec.lower {
        let path = String::from_utf8_lossy(path.as_bytes());
        assert!(
            !path.starts_with("/proc") && !path.starts_with("/sys") && !path.starts_with("/dev"),
            "{path}"
        );
    }
}

#[test]
fn without_its_capability_the_error_says_so() {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-sys_admin"]).arg(coffer());
    let finished = run(command.args(["do", "--", "true"]));
    assert_eq!(finished.code(), 125, "{finished:?}");
    assert!(
        finished.stderr.contains("root (CAP_SYS_ADMIN)"),
        "{finished:?}"
    );
    assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
}

/// The shell's standard output and error are one file; it closes both, and goes on making calls.
#[test]
fn calls_are_printed_whatever_becomes_of_the_guest_s_standard_error() {
    let script = "\"$0\" do --strace -- /bin/sh -c 'exec >&- 2>&-; test -e /some/name' 2>&1";
    let finished = run(Command::new("/bin/sh")
        .args(["-c", script])
        .arg(e2e::coffer()));
    assert!(finished.stdout.contains("/some/name"), "{finished:?}");
    assert!(finished.stdout.contains("exit_group(1)"), "{finished:?}");
}
