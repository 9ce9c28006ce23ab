//! What the kernel tells the files about the system, and where procfs and sysfs are mounted.

use std::sync::{Arc, Weak};

use abi::Errno;
use abi::fs::{FileType, MountFlags};

use super::maps::resident;
use super::process::{Processes, add_self};
use super::{Load, MemoryInfo, System, Times, add_system, procfs};
use crate::fs::pseudo::{PseudoAttrs, PseudoDir};
use crate::fs::root::mount_at;
use crate::fs::sys::sysfs;
use crate::kernel::Kernel;
use crate::mm::Mm;
use crate::sync::Mutex;
use crate::sync::order::Leaf;
use crate::time::Clock;
use crate::vfs::Mount;

/// The kernel, as long as it is there.
struct Machine {
    kernel: Weak<Kernel>,
    cpu: String,
    /// When it was last asked for (monotonic), and the answer.
    anonymous: Mutex<(i64, u64), Leaf>,
}

impl Machine {
    /// Bytes of private memory in use, as they were within the last second: asking is work for each process.
    fn anonymous(&self, kernel: &Kernel) -> u64 {
        const FRESH: i64 = 1_000_000_000;
        let now = kernel.clocks().now(Clock::Monotonic);
        let (when, bytes) = *self.anonymous.lock();
        if when != 0 && now - when < FRESH {
            return bytes;
        }
        let mut spaces: Vec<Arc<Mm>> = kernel
            .tree()
            .lock()
            .tasks
            .values()
            .map(|task| task.mm())
            .collect();
        spaces.sort_by_key(Arc::as_ptr);
        spaces.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let bytes = spaces.iter().map(|mm| resident(mm).anonymous * 4096).sum();
        *self.anonymous.lock() = (now, bytes);
        bytes
    }
}

impl System for Machine {
    fn memory(&self) -> MemoryInfo {
        let Some(kernel) = self.kernel.upgrade() else {
            return MemoryInfo::default();
        };
        let total = kernel.limits().memory;
        let shared = kernel.mm().memory.used();
        let anonymous = self.anonymous(&kernel);
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
        let Some(kernel) = self.kernel.upgrade() else {
            return Times::default();
        };
        let up = kernel.clocks().now(Clock::Boottime);
        let boot = (kernel.clocks().now(Clock::Realtime) - up) / 1_000_000_000;
        let processes: Vec<_> = (kernel.tree().lock().nodes.values())
            .filter(|node| node.exit.is_none())
            .map(|node| Arc::clone(&node.process))
            .collect();
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
            forks: u64::from(kernel.tree().lock().last()),
            ..Times::default()
        }
    }

    fn cpus(&self) -> u32 {
        self.kernel
            .upgrade()
            .map_or(1, |kernel| kernel.limits().cpus.max(1))
    }

    fn cpu_text(&self) -> String {
        self.cpu.clone()
    }

    fn load(&self) -> Load {
        let Some(kernel) = self.kernel.upgrade() else {
            return Load::default();
        };
        let tree = kernel.tree().lock();
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
        self.kernel.upgrade().map_or_else(Vec::new, |kernel| {
            kernel.hostname.lock().clone().into_bytes()
        })
    }

    fn domainname(&self) -> Vec<u8> {
        self.kernel.upgrade().map_or_else(Vec::new, |kernel| {
            kernel.domainname.lock().clone().into_bytes()
        })
    }
}

/// Mounts `/proc` and `/sys`. `cpu` is what `/proc/cpuinfo` says of each CPU.
pub fn mount(kernel: &Arc<Kernel>, cpu: &str) -> Result<(), Errno> {
    let weak = Arc::downgrade(kernel);
    let system: Arc<dyn System> = Arc::new(Machine {
        kernel: Weak::clone(&weak),
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
    mount_at(kernel.vfs(), &Mount::of(proc, flags, "proc"), b"/proc")?;
    let sys = sysfs(kernel.limits().cpus);
    mount_at(
        kernel.vfs(),
        &Mount::of(sys, flags | MountFlags::RDONLY, "sysfs"),
        b"/sys",
    )
}
