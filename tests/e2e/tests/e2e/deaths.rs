//! Sudden deaths of a sandbox's processes while a real guest runs, and what it costs while it waits.

use std::process::Command;
use std::time::{Duration, Instant};

use e2e::{Running, Sandbox, coffer, kill, run, wait_for};

/// A guest that has one child and tells how that ends, ready once its first line was read.
fn parent() -> (Running, Sandbox) {
    let script = "sleep 1000 & echo started; wait $!; echo child $?";
    let mut running = Running::start(Command::new(coffer()).args(["do", "--", "sh", "-c", script]));
    assert_eq!(running.read_line(), "started");
    let sandbox = running.sandbox();
    (running, sandbox)
}

/// The stubs by age: the zygote's, init's, its child's.
fn stubs(sandbox: &Sandbox) -> [u32; 3] {
    wait_for("three stubs", || sandbox.stubs().try_into().ok())
}

#[test]
fn a_killed_command_takes_all_of_a_guest_along() {
    let (running, sandbox) = parent();
    running.signal(rustix::process::Signal::KILL);
    running.finish();
    sandbox.assert_dead_within(Duration::from_secs(1));
    // Who comes next sweeps.
    assert_eq!(run(Command::new(coffer()).args(["do", "true"])).code(), 0);
    sandbox.assert_gone();
}

#[test]
fn a_killed_sentry_takes_all_of_a_guest_along() {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let (running, sandbox) = parent();
    assert!(kill(sandbox.pid));
    sandbox.assert_dead_within(Duration::from_secs(1));
    let finished = running.finish();
    assert_eq!(finished.code(), 125, "{finished:?}");
    let told = "coffer: the sentry was killed by signal 9";
    assert!(finished.stderr.starts_with(told), "{finished:?}");
    sandbox.assert_gone();
    let after = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert_eq!(after, mounts);
}

#[test]
fn a_killed_stub_of_init_ends_the_container() {
    let (running, sandbox) = parent();
    let [_, init, _] = stubs(&sandbox);
    assert!(kill(init));
    sandbox.assert_dead_within(Duration::from_secs(1));
    let finished = running.finish();
    assert_eq!(finished.code(), 128 + 9, "{finished:?}");
    assert_eq!(finished.stdout, "");
    sandbox.assert_gone();
}

#[test]
fn a_killed_stub_is_one_dead_guest_process() {
    let (running, sandbox) = parent();
    let [_, _, child] = stubs(&sandbox);
    assert!(kill(child));
    let finished = running.finish();
    assert_eq!((finished.code(), &*finished.stdout), (0, "child 137\n"));
    sandbox.assert_gone();
}

/// A sandbox that waits uses no processor time, and no more memory than it has to. The bound on memory is that of a build for release.
#[test]
fn an_idle_sandbox_costs_nothing() {
    let running = Running::start(Command::new(coffer()).args(["do", "--", "sleep", "1000"]));
    let sandbox = running.sandbox();
    let settled = |sandbox: &Sandbox| {
        let used = sandbox.cpu_time();
        std::thread::sleep(Duration::from_millis(300));
        (used == sandbox.cpu_time()).then_some(used)
    };
    wait_for("sleep(1) to sleep", || {
        (sandbox.stubs().len() == 2).then_some(())
    });
    let before = wait_for("an idle sandbox", || settled(&sandbox));
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs(3));
    let used = sandbox.cpu_time() - before;
    assert_eq!(used, 0, "nanoseconds in {:?}", begin.elapsed());
    if cfg!(debug_assertions) {
        return;
    }
    let own = sandbox.own_memory();
    assert!(own <= 1536 << 10, "anonymous and shared: {own} bytes");
    println!("anonymous and shared: {} KiB", own >> 10);
    let charged = sandbox.charged_memory().expect("a memory cgroup");
    println!("not reclaimable: {} KiB", charged >> 10);
    assert!(charged <= 2560 << 10, "not reclaimable: {charged} bytes");
}
