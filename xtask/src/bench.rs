//! Benchmarks: the same program natively, inside Coffer and inside a peer, in turn, several times; medians, and how many times as long as natively.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::{cargo, root};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Set {
    /// Single system calls, faults, processes and threads, by the guest's own clock.
    Syscalls,
    /// How long a sandbox takes to start, and what an idle one needs.
    Start,
    /// Builds and other programs as they are used.
    Apps,
}

/// How it is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// What.
    set: Set,
    /// Another runtime to compare with, which takes gVisor's `do` and its options.
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Keep one processor busy with something else meanwhile.
    #[arg(long)]
    busy: bool,
    /// How often each is run.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only what has this in its name.
    #[arg(long)]
    only: Vec<String>,
}

/// The longest that one run may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Where a program runs.
#[derive(Clone, Debug)]
enum Place {
    Native,
    Coffer(PathBuf),
    Peer(PathBuf),
}

impl Place {
    fn name(&self) -> &'static str {
        match self {
            Place::Native => "native",
            Place::Coffer(_) => "coffer",
            Place::Peer(_) => "peer",
        }
    }

    /// The command that runs these words there, in this directory.
    fn command(&self, directory: &Path, words: &[&str]) -> Command {
        let mut command = match self {
            Place::Native => Command::new(words[0]),
            Place::Coffer(program) | Place::Peer(program) => Command::new(program),
        };
        match self {
            Place::Native => command.args(&words[1..]),
            Place::Coffer(_) => command.args(["do", "--"]).args(words),
            Place::Peer(_) => command
                .args([
                    "--platform=systrap",
                    "--network=none",
                    "--ignore-cgroups",
                    "do",
                ])
                .args(words),
        };
        command.current_dir(directory).stdin(Stdio::null());
        command
    }
}

/// A directory that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Scratch> {
        let path = std::env::temp_dir().join(format!("coffer-bench-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("{}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left is in the way of nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A thread that does nothing as fast as it can, until dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn begin() -> Busy {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Busy(stop)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Measured values by row, in the rows' order, and by place.
#[derive(Default)]
struct Table {
    order: Vec<String>,
    values: BTreeMap<(String, &'static str), Vec<f64>>,
}

impl Table {
    fn add(&mut self, row: &str, place: &Place, value: f64) {
        if !self.order.iter().any(|known| known == row) {
            self.order.push(row.to_owned());
        }
        self.values
            .entry((row.to_owned(), place.name()))
            .or_default()
            .push(value);
    }

    fn print(&self, places: &[Place], unit: &str) {
        print!("{:<30}", format!("median, {unit}"));
        for place in places {
            print!("{:>14}", place.name());
        }
        for place in &places[1..] {
            print!("{:>16}", format!("{}/native", place.name()));
        }
        if places.len() > 2 {
            print!("{:>14}", "peer/coffer");
        }
        println!();
        for row in &self.order {
            print!("{row:<30}");
            let medians: Vec<Option<f64>> =
                places.iter().map(|place| self.median(row, place)).collect();
            for median in &medians {
                print!(
                    "{:>14}",
                    median.map_or("-".to_owned(), |value| format!("{value:.1}"))
                );
            }
            for median in &medians[1..] {
                print!("{:>16}", ratio(*median, medians[0]));
            }
            if let [_, coffer, peer] = medians[..] {
                print!("{:>14}", ratio(peer, coffer));
            }
            println!();
        }
    }

    fn median(&self, row: &str, place: &Place) -> Option<f64> {
        let mut values = self.values.get(&(row.to_owned(), place.name()))?.clone();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }
}

fn ratio(value: Option<f64>, of: Option<f64>) -> String {
    match (value, of) {
        (Some(value), Some(of)) if of > 0.0 => format!("{:.2}", value / of),
        _ => "-".to_owned(),
    }
}

/// Runs the benchmarks that were asked for.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    cargo(&["build", "--release", "--package", "coffer"])?;
    let mut places = vec![Place::Native, Place::Coffer(built())];
    places.extend(options.peer.clone().map(Place::Peer));
    let scratch = Scratch::new()?;
    let _busy = options.busy.then(Busy::begin);
    match options.set {
        Set::Syscalls => syscalls(options, &places, &scratch.0),
        Set::Start => start(options, &places, &scratch.0),
        Set::Apps => apps(options, &places, &scratch.0),
    }
}

/// The program, as it was built for release: beside this one, whichever profile that has.
fn built() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let found = own
        .ancestors()
        .map(|directory| directory.join("release/coffer"))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| root().join("target/release/coffer"))
}

fn wanted(options: &Options, name: &str) -> bool {
    options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str()))
}

fn syscalls(options: &Options, places: &[Place], scratch: &Path) -> anyhow::Result<()> {
    let program = scratch.join("calls");
    let source = root().join("bench/calls.c");
    let compiled = Command::new("gcc")
        .args(["-O2", "-static", "-pthread", "-Wno-unused-result", "-o"])
        .arg(&program)
        .arg(source)
        .status()
        .context("gcc")?;
    ensure!(compiled.success(), "gcc: {compiled}");
    fs::write(scratch.join("data"), vec![7; 1 << 20])?;
    let (program, directory) = (program.to_string_lossy(), scratch.to_string_lossy());
    let mut words = vec![&*program, &*directory];
    words.extend(options.only.iter().map(String::as_str));
    let mut table = Table::default();
    for round in 0..options.rounds {
        for place in places {
            eprintln!(
                "round {} of {}, {}",
                round + 1,
                options.rounds,
                place.name()
            );
            match output(&mut place.command(scratch, &words)) {
                Ok(text) => {
                    for (value, name) in text.lines().filter_map(|line| line.split_once(' ')) {
                        table.add(
                            name,
                            place,
                            value
                                .parse()
                                .with_context(|| format!("not a number: {value}"))?,
                        );
                    }
                }
                Err(error) => eprintln!("{}: {error:#}", place.name()),
            }
        }
    }
    table.print(places, "ns");
    Ok(())
}

/// Runs a command to its end within [`LIMIT`], its output through a pipe.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{command:?}"))?;
    let mut stdout = child.stdout.take().context("no output")?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let status = within(&mut child, LIMIT)?;
    ensure!(status.success(), "{command:?}: {status}");
    reader
        .join()
        .map_err(|_| anyhow::anyhow!("the reader ended"))?
        .context("its output")
}

/// Waits for a child's end; kills it, and what it started, where that takes too long.
fn within(child: &mut Child, limit: Duration) -> anyhow::Result<std::process::ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            end(child);
            bail!("it took longer than {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills a child and all that descends from it, by their numbers.
fn end(child: &mut Child) {
    let mut all = descendants(child.id());
    all.insert(0, child.id());
    for pid in all {
        // One that has ended meanwhile is well enough.
        let _ = Command::new("kill")
            .args(["-KILL", &pid.to_string()])
            .stderr(Stdio::null())
            .status();
    }
    let _ = child.wait();
}

/// Asks a child to end, so that it can clean up; kills it where it does not within some seconds.
fn stop(child: &mut Child) {
    // One that has ended meanwhile is well enough, and one that does not listen is killed.
    let _ = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .stderr(Stdio::null())
        .status();
    if within(child, Duration::from_secs(5)).is_err() {
        end(child);
    }
}

fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
        {
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

fn start(options: &Options, places: &[Place], scratch: &Path) -> anyhow::Result<()> {
    const PROGRAMS: &[(&str, &[&str])] = &[
        ("/bin/true", &["/bin/true"]),
        ("python3 -c pass", &["/usr/bin/python3", "-c", "pass"]),
    ];
    time(options, places, scratch, PROGRAMS, 4)?;
    let mut table = Table::default();
    for place in &places[1..] {
        for _ in 0..options.rounds.min(3) {
            match idle_memory(place, scratch) {
                Ok((all, shared)) => {
                    table.add("idle, not reclaimable", place, all / 1024.0);
                    table.add("idle, anonymous and shared", place, shared / 1024.0);
                }
                Err(error) => eprintln!("{}: {error:#}", place.name()),
            }
        }
    }
    table.print(places, "KiB");
    Ok(())
}

/// Wall-clock time of these commands, each in turn in each place, `times` times as often as rounds were asked for.
fn time(
    options: &Options,
    places: &[Place],
    scratch: &Path,
    programs: &[(&str, &[&str])],
    times: usize,
) -> anyhow::Result<()> {
    let mut table = Table::default();
    for (name, words) in programs.iter().filter(|program| wanted(options, program.0)) {
        for _ in 0..options.rounds * times {
            for place in places {
                let begin = Instant::now();
                match output(&mut place.command(scratch, words)) {
                    Ok(_) => table.add(name, place, begin.elapsed().as_secs_f64() * 1000.0),
                    Err(error) => eprintln!("{name}, {}: {error:#}", place.name()),
                }
            }
        }
    }
    table.print(places, "ms");
    Ok(())
}

/// A cgroup that goes when it is dropped, once nothing is in it.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> anyhow::Result<Cgroup> {
        let text = fs::read_to_string("/proc/self/cgroup")?;
        let name = format!("coffer-bench-{}", std::process::id());
        for line in text.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            let mount = match controllers {
                "memory" => "/sys/fs/cgroup/memory",
                "" if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() => "/sys/fs/cgroup",
                _ => continue,
            };
            let group = Path::new(mount)
                .join(path.trim_start_matches('/'))
                .join(&name);
            fs::create_dir_all(&group).with_context(|| format!("{}", group.display()))?;
            return Ok(Cgroup(group));
        }
        bail!("no cgroup with a memory controller at hand")
    }

    /// What of its memory, and of those below it, can't be reclaimed, and what of that is anonymous or shared: bytes.
    fn used(&self) -> anyhow::Result<(f64, f64)> {
        let text = fs::read_to_string(self.0.join("memory.stat"))?;
        let field = |names: [&str; 2]| {
            let value = |name: &str| {
                text.lines().find_map(|line| {
                    line.strip_prefix(name)?
                        .strip_prefix(' ')?
                        .parse::<f64>()
                        .ok()
                })
            };
            names.into_iter().find_map(value)
        };
        let total = ["memory.usage_in_bytes", "memory.current"]
            .into_iter()
            .find_map(|name| fs::read_to_string(self.0.join(name)).ok())
            .context("memory.current")?;
        let total: f64 = total.trim().parse()?;
        let anonymous = field(["total_rss", "anon"]).context("memory.stat")?;
        let file = field(["total_cache", "file"]).context("memory.stat")?;
        let shared = field(["total_shmem", "shmem"]).unwrap_or(0.0);
        let slab = field(["slab_reclaimable", "slab_reclaimable"]).unwrap_or(0.0);
        Ok((total - (file - shared) - slab, anonymous + shared))
    }
}

/// Removes a cgroup with those below it, which a runtime that was killed has left: whether it could.
fn remove_group(group: &Path) -> bool {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_group(&entry.path());
        }
    }
    fs::remove_dir(group).is_ok()
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if remove_group(&self.0) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The memory of a sandbox that does nothing, as [`Cgroup::used`] tells it.
fn idle_memory(place: &Place, scratch: &Path) -> anyhow::Result<(f64, f64)> {
    let group = Cgroup::new()?;
    let inner = place.command(scratch, &["/bin/sleep", "1000"]);
    let procs = group.0.join("cgroup.procs");
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
        .arg(procs)
        .arg(inner.get_program())
        .args(inner.get_args());
    let mut child = command
        .current_dir(scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    std::thread::sleep(Duration::from_secs(2));
    let running = child.try_wait()?;
    let used = group.used();
    stop(&mut child);
    ensure!(running.is_none(), "it ended by itself: {running:?}");
    used
}

fn apps(options: &Options, places: &[Place], scratch: &Path) -> anyhow::Result<()> {
    const PROGRAMS: &[(&str, &[&str])] = &[
        ("C project, make -j2", &["/bin/sh", "-c", MAKE]),
        (
            "find, sha256sum",
            &[
                "/bin/sh",
                "-c",
                "find /usr/share/doc -type f | xargs sha256sum | tail -1",
            ],
        ),
        (
            "tar, xz",
            &[
                "/bin/sh",
                "-c",
                "tar cf - -C /usr/share doc | xz -0 | wc -c",
            ],
        ),
        ("git init to log", &["/bin/sh", "-c", GIT]),
        (
            "200 shell commands",
            &[
                "/bin/sh",
                "-c",
                "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i + 1)); done",
            ],
        ),
        (
            "python, json and sqlite",
            &["/usr/bin/python3", "-c", PYTHON],
        ),
    ];
    time(options, places, scratch, PROGRAMS, 1)
}

const MAKE: &str = "d=$(mktemp -d); cd $d; for i in $(seq 30); do echo '#include <stdio.h>' > f$i.c; for j in $(seq 40); do echo \"int f${i}_$j(int x) { return printf(\\\"%d\\\", x * $j); }\" >> f$i.c; done; done; echo 'int main(void) { return 0; }' > main.c; printf 'prog: $(patsubst %%.c,%%.o,$(wildcard *.c))\\n\\tgcc -o $@ $^\\n%%.o: %%.c\\n\\tgcc -O1 -c -o $@ $<\\n' > Makefile; make -s -j2 && ./prog; cd /; rm -r $d";
const GIT: &str = "d=$(mktemp -d); cd $d; export HOME=$d GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e; git init -q .; for i in $(seq 10); do seq $i 2000 > f$i; git add . && git commit -q -m c$i; done; git log --stat | wc -l; git gc -q; cd /; rm -rf $d";
const PYTHON: &str = "import json, sqlite3, hashlib\nd = {str(i): [i] * 10 for i in range(20000)}\nfor _ in range(5): d = json.loads(json.dumps(d))\nc = sqlite3.connect(':memory:'); c.execute('create table t (a, b)')\nc.executemany('insert into t values (?, ?)', ((i, str(i)) for i in range(50000)))\nprint(c.execute('select sum(a) from t').fetchone())";
