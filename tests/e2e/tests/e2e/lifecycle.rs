//! Signals, deaths, and what they leave.

use std::process::Command;
use std::time::Duration;

use e2e::{Running, run};
use rustix::process::Signal;

use super::{evil, evil_with};

#[test]
fn signals_reach_the_sentry_in_order() {
    let mut running = Running::start(&mut evil(&["count-signals", "8"]));
    assert_eq!(running.read_line(), "ready");
    let mut expected = Vec::new();
    for signal in [
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR1,
        Signal::WINCH,
        Signal::TSTP,
        Signal::CONT,
    ] {
        running.signal(signal);
        expected.push(signal.as_raw().to_string());
        // Signals that are pending at the same time have no order; give each its turn.
        let pending = format!("/proc/{}/status", running.pid());
        e2e::wait_for("the signal to be taken", || {
            let status = std::fs::read_to_string(&pending).ok()?;
            let line = status.lines().find(|line| line.starts_with("ShdPnd:"))?;
            line.ends_with("0000000000000000").then_some(())
        });
    }
    assert_eq!(running.read_line(), expected.join(" "));
    assert_eq!(running.finish().code(), 0);
}

#[test]
fn signals_that_the_caller_ignores_stay_ignored() {
    let mut command = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" do -- count-signals 1";
    let mut running = Running::start(command.args(["-c", script, env!("CARGO_BIN_EXE_evil")]));
    assert_eq!(running.read_line(), "ready");
    running.signal(Signal::HUP);
    running.signal(Signal::USR2);
    assert_eq!(running.read_line(), Signal::USR2.as_raw().to_string());
    assert_eq!(running.finish().code(), 0);
}

#[test]
fn a_sandbox_leaves_nothing() {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let mut running = Running::start(&mut evil(&["count-signals", "1"]));
    assert_eq!(running.read_line(), "ready");
    let sandbox = running.sandbox();
    assert!(!sandbox.cgroups().is_empty(), "no cgroups at all");
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code(), 0);
    sandbox.assert_gone();
    assert_eq!(
        std::fs::read_to_string("/proc/self/mountinfo").expect("mounts"),
        mounts
    );
}

#[test]
fn a_killed_launcher_takes_its_sandbox_along() {
    // One that listens to the control socket, and one that does not.
    for words in [&["count-signals", "1"][..], &["deaf"]] {
        let running = Running::start(&mut evil(words));
        let sandbox = running.sandbox();
        running.signal(Signal::KILL);
        running.finish();
        sandbox.assert_dead_within(Duration::from_secs(1));
        // The next launcher sweeps.
        assert_eq!(run(&mut evil(&["exit", "0"])).code(), 0);
        sandbox.assert_gone();
    }
}

#[test]
fn a_killed_sentry_is_told_of_and_leaves_nothing() {
    let running = Running::start(&mut evil(&["deaf"]));
    let sandbox = running.sandbox();
    let pid = i32::try_from(sandbox.pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.expect("a pid"), Signal::KILL).expect("killed");
    let finished = running.finish();
    assert_eq!(finished.code(), 125);
    assert!(
        finished
            .stderr
            .starts_with("coffer: the sentry was killed by signal 9"),
        "{finished:?}"
    );
    sandbox.assert_gone();
}

#[test]
fn limits_stand_on_the_group() {
    let running = Running::start(&mut evil_with(
        &["--memory", "64M", "--pids", "100"],
        &["deaf"],
    ));
    let sandbox = running.sandbox();
    let read = |names: &[&str]| {
        let found = sandbox.cgroups().iter().find_map(|group| {
            names
                .iter()
                .find_map(|name| std::fs::read_to_string(group.join(name)).ok())
        });
        found.expect("a limit").trim().to_owned()
    };
    assert_eq!(
        read(&["memory.limit_in_bytes", "memory.max"]),
        (64 << 20).to_string()
    );
    let tasks: u64 = read(&["pids.max"]).parse().expect("a number");
    assert!((200..400).contains(&tasks), "{tasks}");
    for group in sandbox.cgroups() {
        let procs =
            std::fs::read_to_string(group.join("sentry/cgroup.procs")).expect("the sentry's");
        assert_eq!(procs.trim(), sandbox.pid.to_string());
        assert!(group.join("guest/cgroup.procs").exists());
    }
}

#[test]
fn guest_processes_can_join_their_groups_from_inside() {
    let mut running = Running::start(&mut evil(&["join-guest", "count-signals", "1"]));
    assert_eq!(running.read_line(), "ready");
    let sandbox = running.sandbox();
    for group in sandbox.cgroups() {
        let procs = std::fs::read_to_string(group.join("guest/cgroup.procs")).expect("the guest's");
        assert_eq!(procs.trim(), sandbox.pid.to_string());
    }
    running.signal(Signal::TERM);
    assert_eq!(running.finish().code(), 0);
    sandbox.assert_gone();
}

#[test]
fn launchers_sweep_only_after_the_dead() {
    let sandboxes: Vec<_> = (0..6)
        .map(|_| {
            let running = Running::start(&mut evil(&["deaf"]));
            let sandbox = running.sandbox();
            running.signal(Signal::KILL);
            sandbox
        })
        .collect();
    for _ in 0..4 {
        let launchers: Vec<_> = (0..12)
            .map(|_| Running::start(&mut evil(&["exit", "5"])))
            .collect();
        for launcher in launchers {
            let finished = launcher.finish();
            assert_eq!(finished.code(), 5, "{finished:?}");
        }
    }
    for sandbox in sandboxes {
        sandbox.assert_gone();
    }
}

#[test]
fn a_waiting_launcher_is_small() {
    let mut running = Running::start(&mut evil(&["count-signals", "2"]));
    assert_eq!(running.read_line(), "ready");
    let path = format!("/proc/{}/status", running.pid());
    let resident = || {
        let text = std::fs::read_to_string(&path).expect("its status");
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.expect("a number of KiB")
    };
    // It lets go of its pages a moment after the sentry is on its way.
    e2e::wait_for("the launcher to shrink", || {
        (resident() <= 768).then_some(())
    });
    running.signal(Signal::USR1);
    running.signal(Signal::USR2);
    assert_eq!(running.finish().code(), 0);
}

#[test]
fn the_sentry_is_spared_once_the_zygote_runs() {
    let score = |sandbox: &e2e::Sandbox| -> i32 {
        let path = format!("/proc/{}/oom_score_adj", sandbox.pid);
        let text = std::fs::read_to_string(path).expect("its score");
        text.trim().parse().expect("a number")
    };
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").expect("our score");
    let own: i32 = own.trim().parse().expect("a number");
    let running = Running::start(&mut evil(&["deaf"]));
    assert_eq!(score(&running.sandbox()), (own + 500).min(1000));
    let running = Running::start(&mut evil(&["zygote-started", "deaf"]));
    let sandbox = running.sandbox();
    e2e::wait_for("the sentry to be spared", || {
        (score(&sandbox) == own).then_some(())
    });
}

#[test]
fn terminals_work_and_keep_their_flags() {
    use rustix::pty::OpenptFlags;
    use std::io::{BufRead, BufReader, Write};

    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    rustix::pty::grantpt(&master).expect("granted");
    rustix::pty::unlockpt(&master).expect("unlocked");
    let path = rustix::pty::ptsname(&master, Vec::new()).expect("its name");
    let path = path.into_string().expect("a path");
    let size = rustix::termios::Winsize {
        ws_row: 33,
        ws_col: 77,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&master, size).expect("sized");
    let slave = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .expect("the slave");
    let mut command = Command::new("setsid");
    command.args([
        "--ctty",
        "--wait",
        env!("CARGO_BIN_EXE_evil"),
        "do",
        "--",
        "terminal",
    ]);
    let copy = || slave.try_clone().expect("a copy");
    let mut child = command
        .stdin(copy())
        .stdout(copy())
        .stderr(copy())
        .spawn()
        .expect("started");
    drop(command);
    let mut master = std::fs::File::from(master);
    let mut lines = BufReader::new(master.try_clone().expect("a copy")).lines();
    let mut line = || lines.next().expect("a line").expect("readable");
    assert_eq!(line().trim(), "77x33");
    assert_eq!(line().trim(), "non-blocking: true");
    assert_eq!(line().trim(), "ready");
    let flags = rustix::fs::fcntl_getfl(&slave).expect("our flags");
    assert!(
        !flags.contains(rustix::fs::OFlags::NONBLOCK),
        "O_NONBLOCK leaked"
    );
    // Control-C: the terminal signals its foreground group, which is the launcher's.
    master.write_all(b"\x03").expect("typed");
    assert_eq!(line().trim(), "terminal's 2");
    let status = e2e::wait_for("the end", || child.try_wait().expect("a child"));
    assert!(status.success(), "{status}");
}
