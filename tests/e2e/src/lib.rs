//! The harness: runs a program with a time limit, looks at its sandbox from the host, and checks that nothing of it is
//! left.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long anything here may take.
pub const LIMIT: Duration = Duration::from_secs(20);

/// The built `coffer`, from the directory where this test was built.
pub fn coffer() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let built = test
        .ancestors()
        .map(|directory| directory.join("coffer"))
        .find(|path| path.is_file());
    built.expect("coffer is not built: run cargo build first, or cargo xtask ci e2e")
}

/// What a finished program left.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// Its exit code; -1 where a signal killed it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }
}

/// A program that runs, with its sandbox. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Option<BufReader<File>>,
    stderr: Option<File>,
}

impl Running {
    /// Starts the program without input and with its output caught.
    pub fn start(command: &mut Command) -> Running {
        command.stdin(Stdio::null());
        Running::start_with_input(command)
    }

    /// Starts the program with the command's own input and with its output caught.
    pub fn start_with_input(command: &mut Command) -> Running {
        let (stdout_read, stdout) = std::io::pipe().expect("a pipe");
        let (stderr_read, stderr) = std::io::pipe().expect("a pipe");
        let child = command.stdout(stdout).stderr(stderr).spawn();
        // The command holds the pipes' other ends until it is told otherwise.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let stdout = File::from(std::os::fd::OwnedFd::from(stdout_read));
        Running {
            child: child.expect("the program starts"),
            stdout: Some(BufReader::new(stdout)),
            stderr: Some(File::from(std::os::fd::OwnedFd::from(stderr_read))),
        }
    }

    /// The program's pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line of its output.
    pub fn read_line(&mut self) -> String {
        let mut line = String::new();
        let stdout = self.stdout.as_mut().expect("not finished");
        stdout.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }

    /// Its sandbox, once there is one.
    pub fn sandbox(&self) -> Sandbox {
        Sandbox::of(wait_for("the sentry", || self.sentry()))
    }

    /// The sentry's pid, where there is one yet.
    fn sentry(&self) -> Option<u32> {
        let path = format!("/proc/{0}/task/{0}/children", self.pid());
        let children = std::fs::read_to_string(&path).ok()?;
        let pid = children.split_whitespace().next()?.parse().ok()?;
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        command.starts_with(b"coffer\0boot\0").then_some(pid)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.pid())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.expect("a pid"), signal).expect("it is there");
    }

    /// Waits for its end.
    pub fn finish(self) -> Finished {
        self.finish_within(LIMIT)
    }

    /// Waits for its end, up to this long.
    pub fn finish_within(mut self, limit: Duration) -> Finished {
        let mut stdout = self.stdout.take().expect("not finished");
        let mut stderr = self.stderr.take().expect("not finished");
        let readers = (
            std::thread::spawn(move || read_all(&mut stdout)),
            std::thread::spawn(move || read_all(&mut stderr)),
        );
        let child = &mut self.child;
        let status = wait_within(limit, "the program's end", || {
            child.try_wait().expect("a child")
        });
        Finished {
            status,
            stdout: readers.0.join().expect("its output"),
            stderr: readers.1.join().expect("its errors"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait()
            && let Some(sentry) = self.sentry()
            && kill(sentry)
        {
            // The launcher then cleans up and ends by itself.
            let child = &mut self.child;
            wait_for("the launcher's end", || child.try_wait().ok()?);
        }
        // Already dead is well enough.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Kills the process; whether it was there.
pub fn kill(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok();
    pid.and_then(rustix::process::Pid::from_raw)
        .is_some_and(|pid| {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok()
        })
}

fn read_all(source: &mut dyn Read) -> String {
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes).expect("readable output");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs the program to its end.
pub fn run(command: &mut Command) -> Finished {
    Running::start(command).finish()
}

/// A sandbox as the host sees it.
#[derive(Debug)]
pub struct Sandbox {
    /// The sentry's pid.
    pub pid: u32,
    namespace: PathBuf,
    cgroups: BTreeSet<PathBuf>,
}

impl Sandbox {
    fn of(pid: u32) -> Sandbox {
        let namespace = std::fs::read_link(format!("/proc/{pid}/ns/pid")).expect("its namespace");
        let cgroups = cgroups_of(pid);
        Sandbox {
            pid,
            namespace,
            cgroups,
        }
    }

    /// The cgroups named after it.
    pub fn cgroups(&self) -> &BTreeSet<PathBuf> {
        &self.cgroups
    }

    /// A field of the sentry's /proc/PID/status.
    pub fn status(&self, field: &str) -> String {
        let path = format!("/proc/{}/status", self.pid);
        let text = std::fs::read_to_string(path).expect("its status");
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value
            .expect("such a field")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// What each of the sentry's descriptors refers to.
    pub fn descriptors(&self) -> Vec<(i32, PathBuf)> {
        let directory =
            std::fs::read_dir(format!("/proc/{}/fd", self.pid)).expect("its descriptors");
        directory
            .map(|entry| {
                let entry = entry.expect("a descriptor");
                let number = entry
                    .file_name()
                    .to_string_lossy()
                    .parse()
                    .expect("a number");
                (number, std::fs::read_link(entry.path()).unwrap_or_default())
            })
            .collect()
    }

    /// Its processes, less those that are dead and wait for the host's init to take notice.
    pub fn processes(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
            let pid = entry.file_name().to_string_lossy().parse();
            let namespace = std::fs::read_link(entry.path().join("ns/pid"));
            if let (Ok(pid), Ok(namespace)) = (pid, namespace)
                && namespace == self.namespace
                && !is_zombie(pid)
            {
                pids.push(pid);
            }
        }
        pids
    }

    /// The stubs' pids, the first made first: the zygote's, then that of the guest's first process.
    pub fn stubs(&self) -> Vec<u32> {
        let mut stubs: Vec<(u32, u32)> = (self.processes().into_iter())
            .filter(|pid| *pid != self.pid)
            .filter_map(|pid| Some((status_field(pid, "NSpid")?.last().copied()?, pid)))
            .collect();
        stubs.sort_unstable();
        stubs.into_iter().map(|(_, pid)| pid).collect()
    }

    /// Processor time that its processes used so far, all threads together: nanoseconds.
    pub fn cpu_time(&self) -> u64 {
        let mut used = 0;
        for pid in self.processes() {
            let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
                continue;
            };
            for thread in threads.flatten() {
                let text = std::fs::read_to_string(thread.path().join("schedstat"));
                let text = text.unwrap_or_default();
                let first = text.split_whitespace().next();
                used += first.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            }
        }
        used
    }

    /// Anonymous and shared memory of its processes that is resident: bytes. Pages that several share count for each.
    pub fn own_memory(&self) -> u64 {
        let of = |pid: u32, field: &str| {
            let words = status_field(pid, field).unwrap_or_default();
            words
                .first()
                .map_or(0, |kilobytes| u64::from(*kilobytes) << 10)
        };
        (self.processes().into_iter())
            .map(|pid| of(pid, "RssAnon") + of(pid, "RssShmem"))
            .sum()
    }

    /// What is charged to its memory cgroup and can't be reclaimed: usage less the page cache and slab that can. `None` without such a cgroup.
    pub fn charged_memory(&self) -> Option<u64> {
        let number = |path: PathBuf| {
            std::fs::read_to_string(path)
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        self.cgroups.iter().find_map(|group| {
            let usage = number(group.join("memory.usage_in_bytes"))
                .or_else(|| number(group.join("memory.current")))?;
            let stat = std::fs::read_to_string(group.join("memory.stat")).ok()?;
            let cached = |name: &str| {
                let line = stat
                    .lines()
                    .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
                line.and_then(|value| value.parse::<u64>().ok())
            };
            let sum = |names: &[&str]| names.iter().filter_map(|name| cached(name)).sum::<u64>();
            // cgroup v1 counts those below only in the totals; it does not tell of slab.
            let files = match cached("total_inactive_file") {
                Some(_) => sum(&["total_inactive_file", "total_active_file"]),
                None => sum(&["inactive_file", "active_file", "slab_reclaimable"]),
            };
            Some(usage.saturating_sub(files))
        })
    }

    /// Waits until none of its processes is left, as long as this.
    pub fn assert_dead_within(&self, limit: Duration) {
        let begin = Instant::now();
        wait_for("the sandbox's death", || {
            self.processes().is_empty().then_some(())
        });
        assert!(
            begin.elapsed() <= limit,
            "dead only after {:?}",
            begin.elapsed()
        );
    }

    /// Nothing of it is left: processes or cgroups.
    pub fn assert_gone(&self) {
        assert_eq!(self.processes(), Vec::<u32>::new());
        for cgroup in &self.cgroups {
            assert!(!cgroup.exists(), "{} is left", cgroup.display());
        }
    }
}

/// The numbers of a field of the process's /proc/PID/status.
fn status_field(pid: u32, field: &str) -> Option<Vec<u32>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let words = line.split_whitespace();
    Some(words.filter_map(|word| word.parse().ok()).collect())
}

/// Whether the process is dead, or has gone meanwhile.
fn is_zombie(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.map_or(true, |text| text.contains("\nState:\tZ"))
}

/// The sandbox's own cgroups that the process is in, as directories.
fn cgroups_of(pid: u32) -> BTreeSet<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("its cgroups");
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    let mut found = BTreeSet::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next().unwrap_or_default();
        let path = Path::new(fields.next().unwrap_or_default());
        let Some(group) = path.ancestors().find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("coffer-")
        }) else {
            continue;
        };
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            let is_it = match kind {
                "cgroup" => !controllers.is_empty() && options.ends_with(controllers),
                "cgroup2" => controllers.is_empty(),
                _ => false,
            };
            is_it.then_some(point)
        });
        let mount = Path::new(mount.expect("a cgroup mount"));
        found.insert(mount.join(group.strip_prefix("/").expect("absolute")));
    }
    found
}

/// Asks until there is an answer, up to [`LIMIT`].
pub fn wait_for<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    wait_within(LIMIT, what, ask)
}

/// Asks until there is an answer, up to `limit`.
pub fn wait_within<T>(limit: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
