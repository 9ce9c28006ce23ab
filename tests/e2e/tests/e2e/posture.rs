//! How the locked sentry looks from the host.

use std::collections::BTreeMap;
use std::path::Path;

use e2e::{Running, run};

use super::{evil, evil_with};

#[test]
fn the_sentry_is_nobody_and_can_gain_nothing() {
    let mut running = Running::start(&mut evil(&["count-signals", "1"]));
    assert_eq!(running.read_line(), "ready");
    let sandbox = running.sandbox();
    // CHOWN, DAC_OVERRIDE, FOWNER, SYS_PTRACE.
    let four = format!("{:016x}", 1 | 1 << 1 | 1 << 3 | 1 << 19);
    let none = "0000000000000000";
    for (field, expected) in [
        ("Uid", "65000 65000 65000 65000"),
        ("Gid", "65000 65000 65000 65000"),
        ("Groups", ""),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
        ("CapPrm", &four),
        ("CapEff", &four),
        ("CapInh", none),
        ("CapBnd", none),
        ("CapAmb", none),
    ] {
        assert_eq!(sandbox.status(field), expected, "{field}");
    }
    assert!(
        sandbox.status("NSpid").ends_with(" 1"),
        "not its namespace's first process"
    );
    let limits =
        std::fs::read_to_string(format!("/proc/{}/limits", sandbox.pid)).expect("its limits");
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"))
        .unwrap_or_default();
    assert_eq!(
        core.split_whitespace().collect::<Vec<_>>()[4..6],
        ["0", "0"]
    );
    // The files of /proc/PID belong to root where a process is not dumpable.
    use std::os::unix::fs::MetadataExt;
    let owner =
        std::fs::metadata(format!("/proc/{}/environ", sandbox.pid)).expect("its environment");
    assert_eq!(owner.uid(), 0, "dumpable");
    let environment =
        std::fs::read(format!("/proc/{}/environ", sandbox.pid)).expect("its environment");
    assert_eq!(environment, b"");
}

#[test]
fn the_sentry_shares_no_namespace() {
    let running = Running::start(&mut evil(&["deaf"]));
    let sandbox = running.sandbox();
    for name in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
        let own = std::fs::read_link(format!("/proc/self/ns/{name}")).expect("our namespace");
        let its =
            std::fs::read_link(format!("/proc/{}/ns/{name}", sandbox.pid)).expect("its namespace");
        assert_ne!(own, its, "{name}");
    }
    let mounts =
        std::fs::read_to_string(format!("/proc/{}/mounts", sandbox.pid)).expect("its mounts");
    assert_eq!(mounts.lines().count(), 1, "{mounts}");
    assert!(
        mounts.contains(" / tmpfs ro,nosuid,nodev,noexec"),
        "{mounts}"
    );
    let root = std::fs::read_dir(format!("/proc/{}/root/", sandbox.pid)).expect("its root");
    assert_eq!(root.count(), 0);
}

#[test]
fn the_sentry_holds_no_other_descriptor() {
    let mut running = Running::start(&mut evil(&["count-signals", "1"]));
    assert_eq!(running.read_line(), "ready");
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, target) in running.sandbox().descriptors() {
        let text = target.to_string_lossy().into_owned();
        let kind = match text.as_str() {
            _ if number <= 2 => "standard",
            text if text.starts_with("socket:") => "control",
            text if text.ends_with("/guest/cgroup.procs") => "guest cgroup",
            _ if target.is_absolute() && Path::new(&target).is_dir() => "tree",
            _ => panic!("descriptor {number} is {text}"),
        };
        *kinds.entry(kind).or_default() += 1;
    }
    assert_eq!((kinds["standard"], kinds["control"]), (3, 1), "{kinds:?}");
}

#[test]
fn the_trees_and_the_root_hold() {
    let directory = std::env::temp_dir().join(format!("coffer-e2e-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("sub")).expect("a directory");
    std::os::unix::fs::symlink("/etc/passwd", directory.join("absolute")).expect("a link");
    std::os::unix::fs::symlink("sub", directory.join("relative")).expect("a link");
    let volume = |suffix: &str| format!("{}:/v{suffix}", directory.display());
    let options = ["--volume", &volume(":ro"), "--volume", &volume("")];
    let finished = run(&mut evil_with(&options, &["unlocked", "escape"]));
    let made = directory.join(".coffer-e2e").exists();
    std::fs::remove_dir_all(&directory).expect("removed");
    assert_eq!(finished.stdout, "", "{finished:?}");
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(made, "the writable volume was not writable");
}
