//! What the kernel tells the files about the system, and where procfs and sysfs are mounted.

use std::sync::{Arc, Weak};

use abi::Errno;
use abi::fs::{FileType, MountFlags};

use super::maps::resident;
use super::process::{Processes, add_self, reader};
use super::{Load, MemoryInfo, System, Times, add_system, procfs};
use crate::container::Container;
use crate::fs::pseudo::{PseudoAttrs, PseudoDir};
use crate::fs::root::mount_at;
use crate::fs::sys::sysfs;
use crate::kernel::Kernel;
use crate::mm::Mm;
use crate::namespace::UtsNames;
use crate::sync::Mutex;
use crate::sync::order::Leaf;
use crate::time::Clock;
use crate::vfs::Mount;

/// A container and its kernel, as long as they are there.
struct Machine {
    kernel: Weak<Kernel>,
    container: Weak<Container>,
    cpu: String,
    /// When it was last asked for (monotonic), and the answer.
    anonymous: Mutex<(i64, u64), Leaf>,
}

impl Machine {
    fn upgrade(&self) -> Option<(Arc<Kernel>, Arc<Container>)> {
        self.kernel.upgrade().zip(self.container.upgrade())
    }

    /// The names that the reader sees, or the container's first.
    fn names(&self) -> Option<UtsNames> {
        let container = self.container.upgrade()?;
        Some(match reader(&container) {
            Ok(reader) => reader.namespaces().uts.names(),
            Err(_) => container.namespaces().uts.names(),
        })
    }

    /// Bytes of private memory in use, as they were within the last second: asking is work for each process.
    fn anonymous(&self, kernel: &Kernel, container: &Container) -> u64 {
        const FRESH: i64 = 1_000_000_000;
        let now = kernel.clocks().now(Clock::Monotonic);
        let (when, bytes) = *self.anonymous.lock();
        if when != 0 && now - when < FRESH {
            return bytes;
        }
        let tree = container.namespaces().pid.tree().lock();
        let mut spaces: Vec<Arc<Mm>> = tree.tasks.values().map(|task| task.mm()).collect();
        drop(tree);
        spaces.sort_by_key(Arc::as_ptr);
        spaces.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let bytes = spaces.iter().map(|mm| resident(mm).anonymous * 4096).sum();
        *self.anonymous.lock() = (now, bytes);
        bytes
    }
}

impl System for Machine {
    fn memory(&self) -> MemoryInfo {
        let Some((kernel, container)) = self.upgrade() else {
            return MemoryInfo::default();
        };
        let total = container.limits().memory;
        let shared = container.mm().memory.used();
        let anonymous = self.anonymous(&kernel, &container);
        let free = total.saturating_sub(shared).saturating_sub(anonymous);
        MemoryInfo {
            total,
            free,
            available: free,
            shared,
            anonymous,
            committed: shared.saturating_add(anonymous),
            ..MemoryInfo::default()
        }
    }

    fn times(&self) -> Times {
        let Some((kernel, container)) = self.upgrade() else {
            return Times::default();
        };
        let up = kernel.clocks().now(Clock::Boottime);
        let boot = (kernel.clocks().now(Clock::Realtime) - up) / 1_000_000_000;
        let tree = container.namespaces().pid.tree().lock();
        let processes: Vec<_> = (tree.nodes.values())
            .filter(|node| node.exit.is_none())
            .map(|node| Arc::clone(&node.process))
            .collect();
        let forks = u64::from(tree.last());
        drop(tree);
        let mut user = 0;
        for process in &processes {
            user += process
                .children_cpu
                .load(core::sync::atomic::Ordering::Relaxed);
            user += process.cpu_time();
        }
        Times {
            uptime: u64::try_from(up).unwrap_or(0),
            boot: u64::try_from(boot).unwrap_or(0),
            user,
            forks,
            ..Times::default()
        }
    }

    fn cpus(&self) -> u32 {
        self.container
            .upgrade()
            .map_or(1, |container| container.limits().cpus.max(1))
    }

    fn cpu_text(&self) -> String {
        self.cpu.clone()
    }

    fn load(&self) -> Load {
        let Some(container) = self.container.upgrade() else {
            return Load::default();
        };
        let tree = container.namespaces().pid.tree().lock();
        let tasks: Vec<_> = tree.tasks.values().cloned().collect();
        let last_pid = tree.last();
        drop(tree);
        let running = tasks
            .iter()
            .filter(|task| task.state_letter() == 'R')
            .count();
        Load {
            running: u32::try_from(running).unwrap_or(u32::MAX),
            tasks: u32::try_from(tasks.len()).unwrap_or(u32::MAX),
            last_pid,
            ..Load::default()
        }
    }

    fn hostname(&self) -> Vec<u8> {
        self.names()
            .map_or_else(Vec::new, |names| names.host.into_bytes())
    }

    fn domainname(&self) -> Vec<u8> {
        self.names()
            .map_or_else(Vec::new, |names| names.domain.into_bytes())
    }
}

/// Mounts a container's `/proc` and `/sys`. `cpu` is what `/proc/cpuinfo` says of each CPU.
pub fn mount(kernel: &Arc<Kernel>, container: &Arc<Container>, cpu: &str) -> Result<(), Errno> {
    let weak = Arc::downgrade(container);
    let system: Arc<dyn System> = Arc::new(Machine {
        kernel: Arc::downgrade(kernel),
        container: Weak::clone(&weak),
        cpu: cpu.to_owned(),
        anonymous: Mutex::new((0, 0)),
    });
    let proc = procfs(|dev| {
        let attrs = PseudoAttrs::new(dev, FileType::Directory.mode() | 0o555);
        let root = PseudoDir::with(attrs, Some(Arc::new(Processes(Weak::clone(&weak)))));
        add_system(&root, &system);
        add_self(&root, &weak);
        root
    });
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RELATIME;
    let vfs = container.namespaces().mount.vfs();
    mount_at(vfs, &Mount::of(proc, flags, "proc"), b"/proc")?;
    let sys = sysfs(container.limits().cpus);
    mount_at(
        vfs,
        &Mount::of(sys, flags | MountFlags::RDONLY, "sysfs"),
        b"/sys",
    )
}
