//! `/proc/sys`: settings, nearly all of which only say how things are.

use std::sync::{Arc, OnceLock};

use abi::Errno;

use super::{RELEASE, SYSNAME, System, VERSION, line};
use crate::fs::pipe;
use crate::fs::pseudo::PseudoDir;
use crate::vfs::NR_OPEN;

/// Settings that are what they are: path below `/proc/sys`, value.
const FIXED: &[(&str, &str)] = &[
    ("fs/file-max", "9223372036854775807"),
    ("fs/inotify/max_queued_events", "16384"),
    ("fs/inotify/max_user_instances", "128"),
    ("fs/inotify/max_user_watches", "65536"),
    ("fs/lease-break-time", "45"),
    ("fs/mount-max", "10000"),
    ("fs/overflowgid", "65534"),
    ("fs/overflowuid", "65534"),
    ("fs/pipe-user-pages-soft", "16384"),
    ("fs/protected_hardlinks", "0"),
    ("fs/protected_symlinks", "0"),
    ("fs/suid_dumpable", "0"),
    ("kernel/cap_last_cap", "40"),
    ("kernel/core_pattern", "core"),
    ("kernel/msgmax", "8192"),
    ("kernel/msgmnb", "16384"),
    ("kernel/msgmni", "32000"),
    ("kernel/ngroups_max", "65536"),
    ("kernel/osrelease", RELEASE),
    ("kernel/ostype", SYSNAME),
    ("kernel/overflowgid", "65534"),
    ("kernel/overflowuid", "65534"),
    ("kernel/pid_max", "4194304"),
    ("kernel/random/entropy_avail", "256"),
    ("kernel/random/poolsize", "256"),
    ("kernel/randomize_va_space", "2"),
    ("kernel/sched_rt_runtime_us", "950000"),
    (
        "kernel/seccomp/actions_avail",
        "kill_process kill_thread trap errno trace log allow",
    ),
    ("kernel/sem", "32000\t1024000000\t500\t32000"),
    ("kernel/shmall", "18446744073692774399"),
    ("kernel/shmmax", "18446744073692774399"),
    ("kernel/shmmni", "4096"),
    ("kernel/tainted", "0"),
    ("kernel/threads-max", "126000"),
    ("kernel/version", VERSION),
    ("kernel/yama/ptrace_scope", "0"),
    ("net/core/somaxconn", "4096"),
    ("net/core/rmem_max", "212992"),
    ("net/core/wmem_max", "212992"),
    ("net/ipv4/ip_forward", "0"),
    ("net/ipv4/ip_local_port_range", "32768\t60999"),
    ("net/ipv4/tcp_fin_timeout", "60"),
    ("net/ipv4/tcp_syncookies", "1"),
    ("vm/max_map_count", "65530"),
    ("vm/min_free_kbytes", "67584"),
    ("vm/mmap_min_addr", "65536"),
    ("vm/overcommit_memory", "0"),
    ("vm/overcommit_ratio", "50"),
    ("vm/swappiness", "60"),
];

/// Fills `/proc/sys`.
pub fn add_sysctl(root: &Arc<PseudoDir>, system: &Arc<dyn System>) {
    let tree = Tree::new(root);
    for (path, value) in FIXED {
        tree.add(path, || line(value.as_bytes().to_vec()));
    }
    tree.add("fs/nr_open", || line(NR_OPEN.to_string().into_bytes()));
    tree.add("fs/pipe-max-size", || {
        line(pipe::MAX_CAPACITY.to_string().into_bytes())
    });
    tree.add("kernel/random/uuid", || line(uuid()?));
    tree.add("kernel/random/boot_id", || {
        static BOOT: OnceLock<Vec<u8>> = OnceLock::new();
        if let Some(id) = BOOT.get() {
            return line(id.clone());
        }
        let id = uuid()?;
        line(BOOT.get_or_init(|| id).clone())
    });
    let named = Arc::clone(system);
    tree.add("kernel/hostname", move || line(named.hostname()));
    let named = Arc::clone(system);
    tree.add("kernel/domainname", move || line(named.domainname()));
}

/// A directory and those below it, by their paths.
struct Tree {
    dirs: std::cell::RefCell<std::collections::BTreeMap<String, Arc<PseudoDir>>>,
}

impl Tree {
    fn new(root: &Arc<PseudoDir>) -> Tree {
        Tree {
            dirs: std::cell::RefCell::new([(String::new(), Arc::clone(root))].into()),
        }
    }

    fn dir(&self, path: &str) -> Arc<PseudoDir> {
        if let Some(dir) = self.dirs.borrow().get(path) {
            return Arc::clone(dir);
        }
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.dir(above).add_dir(name);
        self.dirs
            .borrow_mut()
            .insert(path.to_owned(), Arc::clone(&dir));
        dir
    }

    fn add(&self, path: &str, make: impl Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static) {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.dir(above).add_file(name, make);
    }
}

/// A random UUID (RFC 9562, version 4).
fn uuid() -> Result<Vec<u8>, Errno> {
    let mut bytes = [0; 16];
    host::fs::random(&mut bytes)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    Ok(text.into_bytes())
}
