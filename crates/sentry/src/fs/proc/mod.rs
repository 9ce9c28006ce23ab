//! procfs (proc(5)): files about the system, `/proc/sys`, and a directory for each process.
//!
//! A file is one function and one row: about the system, of what a [`System`] tells; about a process, in `process`. The root is a [`PseudoDir`] with
//! processes for its made-up entries, into which [`add_system`] puts the rest.

mod fds;
mod maps;
mod memory;
mod mounts;
mod net;
mod process;
mod status;
mod sysctl;
mod system;

use std::sync::Arc;

use abi::Errno;

use super::pseudo::{PseudoDir, PseudoFs};

pub use super::pseudo::Dynamic;
pub use mounts::{mountinfo, mounts};
pub use sysctl::add_sysctl;
pub use system::mount;

/// `PROC_SUPER_MAGIC`
pub const MAGIC: i64 = 0x9fa0;

/// What the files tell: asked for at each read.
pub trait System: Send + Sync {
    /// Memory.
    fn memory(&self) -> MemoryInfo;
    /// Time, and what was done in it.
    fn times(&self) -> Times;
    /// How many CPUs the guest has.
    fn cpus(&self) -> u32;
    /// One CPU's lines of `/proc/cpuinfo` from `vendor_id` on, each with its newline; those that differ by CPU aside.
    fn cpu_text(&self) -> String;
    /// Tasks and load.
    fn load(&self) -> Load;
    /// The name that uname(2) gives the host.
    fn hostname(&self) -> Vec<u8>;
    /// The domain name.
    fn domainname(&self) -> Vec<u8>;
    /// The kernel's command line.
    fn cmdline(&self) -> String {
        String::new()
    }
}

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryInfo {
    /// All there is.
    pub total: u64,
    /// What nobody uses.
    pub free: u64,
    /// What could be had.
    pub available: u64,
    /// Cached file pages.
    pub cached: u64,
    /// Anonymous pages.
    pub anonymous: u64,
    /// Pages of file mappings.
    pub mapped: u64,
    /// Shared memory and tmpfs.
    pub shared: u64,
    /// What was promised (`Committed_AS`).
    pub committed: u64,
}

/// Time, in nanoseconds unless it says otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Since boot (`CLOCK_BOOTTIME`).
    pub uptime: u64,
    /// When that was, in seconds of the epoch.
    pub boot: u64,
    /// Of all CPUs, in user mode.
    pub user: u64,
    /// In the kernel.
    pub system: u64,
    /// Forks since boot.
    pub forks: u64,
    /// Context switches.
    pub switches: u64,
}

/// Tasks and load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Averages over 1, 5 and 15 minutes, in hundredths.
    pub average: [u64; 3],
    /// Tasks that run.
    pub running: u32,
    /// Tasks that wait for a disk.
    pub blocked: u32,
    /// All tasks.
    pub tasks: u32,
    /// The PID that was given out last.
    pub last_pid: u32,
}

/// What uname(2) gives as the system's name.
pub const SYSNAME: &str = "Linux";
/// What uname(2) gives as the release.
pub const RELEASE: &str = "6.12.0-coffer";
/// What uname(2) gives as the version.
pub const VERSION: &str = "#1 SMP Coffer";

/// A procfs whose root is what `root` makes of the device number.
pub fn procfs(root: impl FnOnce(u64) -> Arc<PseudoDir>) -> Arc<PseudoFs> {
    PseudoFs::new("proc", MAGIC, |dev| root(dev))
}

type Make = fn(&dyn System) -> String;

const FILES: &[(&str, Make)] = &[
    ("cmdline", |system| format!("{}\n", system.cmdline())),
    ("cpuinfo", cpuinfo),
    ("filesystems", filesystems),
    ("loadavg", loadavg),
    ("meminfo", meminfo),
    ("stat", stat),
    ("swaps", |_| {
        "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n".to_owned()
    }),
    ("uptime", uptime),
    ("version", version),
    ("devices", devices),
];

/// Adds the files about the system, `/proc/sys`, and the links to `self`'s.
pub fn add_system(root: &PseudoDir, system: &Arc<dyn System>) {
    for (name, make) in FILES {
        let system = Arc::clone(system);
        root.add_file(name, move || Ok(make(&*system).into_bytes()));
    }
    root.add_link("mounts", "self/mounts");
    root.add_link("net", "self/net");
    add_sysctl(&root.add_dir("sys"), system);
}

fn cpuinfo(system: &dyn System) -> String {
    let (cpus, text) = (system.cpus(), system.cpu_text());
    let mut lines = String::new();
    for cpu in 0..cpus {
        lines.push_str(&format!("processor\t: {cpu}\n{text}\n"));
    }
    lines
}

fn filesystems(_: &dyn System) -> String {
    let mut lines = String::new();
    for kind in [
        "proc", "sysfs", "tmpfs", "devtmpfs", "pipefs", "sockfs", "overlay",
    ] {
        lines.push_str(&format!("nodev\t{kind}\n"));
    }
    lines
}

fn loadavg(system: &dyn System) -> String {
    let load = system.load();
    let mut text = String::new();
    for average in load.average {
        text.push_str(&format!("{}.{:02} ", average / 100, average % 100));
    }
    text.push_str(&format!(
        "{}/{} {}\n",
        load.running, load.tasks, load.last_pid
    ));
    text
}

fn meminfo(system: &dyn System) -> String {
    let memory = system.memory();
    let rows = [
        ("MemTotal", memory.total),
        ("MemFree", memory.free),
        ("MemAvailable", memory.available),
        ("Buffers", 0),
        ("Cached", memory.cached.saturating_add(memory.shared)),
        ("SwapCached", 0),
        ("Active", memory.anonymous),
        ("Inactive", memory.cached),
        ("Active(anon)", memory.anonymous),
        ("Inactive(anon)", 0),
        ("Active(file)", 0),
        ("Inactive(file)", memory.cached),
        ("Unevictable", 0),
        ("Mlocked", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", memory.anonymous),
        ("Mapped", memory.mapped),
        ("Shmem", memory.shared),
        ("Slab", 0),
        ("CommitLimit", memory.total),
        ("Committed_AS", memory.committed),
        ("VmallocTotal", 34_359_738_367 << 10),
    ];
    let mut lines = String::new();
    for (name, bytes) in rows {
        lines.push_str(&format!(
            "{:<15} {:>8} kB\n",
            format!("{name}:"),
            bytes >> 10
        ));
    }
    lines.push_str(
        "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n",
    );
    lines
}

/// Nanoseconds as ticks of 100 Hz (`USER_HZ`).
fn ticks(nanos: u64) -> u64 {
    nanos / 10_000_000
}

fn stat(system: &dyn System) -> String {
    let (times, load) = (system.times(), system.load());
    let cpus = u64::from(system.cpus().max(1));
    let line = |share: u64| {
        let (user, kernel, all) = (
            times.user / share,
            times.system / share,
            times.uptime.saturating_mul(cpus / share),
        );
        let idle = all.saturating_sub(user).saturating_sub(kernel);
        format!(
            "{} 0 {} {} 0 0 0 0 0 0\n",
            ticks(user),
            ticks(kernel),
            ticks(idle)
        )
    };
    let mut lines = format!("cpu  {}", line(1));
    for cpu in 0..cpus {
        lines.push_str(&format!("cpu{cpu} {}", line(cpus)));
    }
    lines.push_str(&format!(
        "intr 0\nctxt {}\nbtime {}\nprocesses {}\nprocs_running {}\nprocs_blocked {}\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n",
        times.switches, times.boot, times.forks, load.running, load.blocked
    ));
    lines
}

fn uptime(system: &dyn System) -> String {
    let times = system.times();
    let idle = (times.uptime.saturating_mul(u64::from(system.cpus())))
        .saturating_sub(times.user)
        .saturating_sub(times.system);
    let seconds = |nanos: u64| format!("{}.{:02}", nanos / 1_000_000_000, nanos / 10_000_000 % 100);
    format!("{} {}\n", seconds(times.uptime), seconds(idle))
}

fn version(_: &dyn System) -> String {
    format!("{SYSNAME} version {RELEASE} (coffer@sentry) (rustc) {VERSION}\n")
}

fn devices(_: &dyn System) -> String {
    "Character devices:\n  1 mem\n  5 /dev/tty\n136 pts\n\nBlock devices:\n".to_owned()
}

/// Bytes of a name, with a newline.
fn line(mut name: Vec<u8>) -> Result<Vec<u8>, Errno> {
    name.push(b'\n');
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::{Load, MemoryInfo, PseudoDir, System, Times, add_system, procfs};
    use crate::vfs::tests::World;
    use crate::vfs::{Mount, Seek};
    use abi::Errno;
    use abi::fs::{MountFlags, OpenFlags};
    use std::sync::Arc;

    struct Fixed;
    impl System for Fixed {
        fn memory(&self) -> MemoryInfo {
            MemoryInfo {
                total: 1 << 30,
                ..MemoryInfo::default()
            }
        }
        fn times(&self) -> Times {
            Times {
                uptime: 12_340_000_000,
                user: 1_000_000_000,
                ..Times::default()
            }
        }
        fn cpus(&self) -> u32 {
            2
        }
        fn cpu_text(&self) -> String {
            "vendor_id\t: Test\n".to_owned()
        }
        fn load(&self) -> Load {
            Load {
                average: [5, 110, 0],
                running: 1,
                blocked: 0,
                tasks: 3,
                last_pid: 9,
            }
        }
        fn hostname(&self) -> Vec<u8> {
            b"box".to_vec()
        }
        fn domainname(&self) -> Vec<u8> {
            b"(none)".to_vec()
        }
    }

    fn world() -> World {
        let world = World::tmpfs();
        let system: Arc<dyn System> = Arc::new(Fixed);
        let fs = procfs(|dev| {
            let root = PseudoDir::new(dev, 0o555);
            add_system(&root, &system);
            root
        });
        let mount = Mount::of(fs, MountFlags::empty(), "proc");
        crate::fs::root::mount_at(&world.vfs, &mount, b"/proc").expect("mounts");
        world
    }

    #[test]
    fn files_say_what_they_should() {
        let world = world();
        let text = |path: &str| String::from_utf8(world.read(path).expect("reads")).expect("text");
        assert_eq!(text("/proc/uptime"), "12.34 23.68\n");
        assert_eq!(text("/proc/loadavg"), "0.05 1.10 0.00 1/3 9\n");
        assert_eq!(text("/proc/sys/kernel/hostname"), "box\n");
        assert!(text("/proc/meminfo").starts_with("MemTotal:        1048576 kB\n"));
        assert_eq!(text("/proc/cpuinfo").matches("processor").count(), 2);
        assert!(text("/proc/stat").starts_with("cpu  100 0 0 2368 "));
        assert_eq!(
            world.open("/proc/uptime", OpenFlags::WRONLY).map(drop),
            Err(Errno::EACCES)
        );
        assert_eq!(
            world.open("/proc/x", OpenFlags::CREAT).map(drop),
            Err(Errno::EACCES)
        );
        assert_eq!(world.unlink("/proc/uptime"), Err(Errno::EPERM));
        assert!(world.list("/proc", 3).contains(&"sys".to_owned()));
        let file = world
            .open("/proc/uptime", OpenFlags::empty())
            .expect("opens");
        assert_eq!(file.seek(6, Seek::Set), Ok(6));
        let mut to = [0; 5];
        assert_eq!(file.read(&mut crate::io::Sink::slice(&mut to)), Ok(5));
        assert_eq!(&to, b"23.68");
    }

    #[test]
    fn mount_tables() {
        let world = world();
        let mounts = super::mounts(&world.vfs, &world.fs.root());
        let text = String::from_utf8(mounts).expect("text");
        assert!(text.contains("proc /proc proc rw 0 0\n"), "{text}");
        let info = String::from_utf8(super::mountinfo(&world.vfs, &world.fs.root())).expect("text");
        assert!(info.contains(" / /proc rw - proc proc rw\n"), "{info}");
    }
}
