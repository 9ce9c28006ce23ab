//! sysfs (sysfs(5)): the little of it that programs ask for.

use std::sync::Arc;

use super::pseudo::{PseudoDir, PseudoFs};

/// `SYSFS_MAGIC`
pub const MAGIC: i64 = 0x6265_6572;

/// A sysfs for this many CPUs.
pub fn sysfs(cpus: u32) -> Arc<PseudoFs> {
    PseudoFs::new("sysfs", MAGIC, |dev| {
        let root = PseudoDir::new(dev, 0o555);
        let system = root.add_dir("devices").add_dir("system");
        add_cpus(&system.add_dir("cpu"), cpus.max(1));
        add_node(&system.add_dir("node"), cpus.max(1));
        let kernel = root.add_dir("kernel");
        let pages = kernel.add_dir("mm").add_dir("transparent_hugepage");
        text(&pages, "enabled", "always [madvise] never");
        text(
            &pages,
            "defrag",
            "always defer defer+madvise [madvise] never",
        );
        text(&pages, "hpage_pmd_size", "2097152");
        root.add_dir("fs").add_dir("cgroup");
        let class = root.add_dir("class");
        class.add_dir("net");
        class.add_dir("power_supply");
        root.add_dir("block");
        root.add_dir("bus");
        root.add_dir("dev");
        root.add_dir("firmware");
        root.add_dir("module");
        root.add_dir("power");
        root
    })
}

/// A file of a fixed text.
fn text(dir: &PseudoDir, name: &str, text: &str) {
    let bytes = format!("{text}\n").into_bytes();
    dir.add_file(name, move || Ok(bytes.clone()));
}

/// A list of CPUs from 0 on, as the kernel writes it.
fn list(cpus: u32) -> String {
    match cpus {
        1 => "0".to_owned(),
        _ => format!("0-{}", cpus - 1),
    }
}

/// A mask of CPUs from 0 on, in words of 32 bits.
fn mask(cpus: u32) -> String {
    let mut words = Vec::new();
    let mut left = cpus;
    while left > 0 {
        let here = left.min(32);
        words.push(format!("{:08x}", u32::MAX >> (32 - here)));
        left -= here;
    }
    words.reverse();
    words.join(",")
}

fn add_cpus(dir: &PseudoDir, cpus: u32) {
    for name in ["online", "possible", "present"] {
        text(dir, name, &list(cpus));
    }
    text(dir, "offline", "");
    text(dir, "kernel_max", "8191");
    for cpu in 0..cpus {
        let one = dir.add_dir(&format!("cpu{cpu}"));
        if cpu > 0 {
            text(&one, "online", "1");
        }
        let topology = one.add_dir("topology");
        text(&topology, "core_id", &cpu.to_string());
        text(&topology, "physical_package_id", "0");
        text(&topology, "core_siblings_list", &list(cpus));
        text(&topology, "thread_siblings_list", &cpu.to_string());
    }
}

fn add_node(dir: &PseudoDir, cpus: u32) {
    for name in ["online", "possible", "has_cpu", "has_memory"] {
        text(dir, name, "0");
    }
    let node = dir.add_dir("node0");
    text(&node, "cpulist", &list(cpus));
    text(&node, "cpumap", &mask(cpus));
    text(&node, "distance", "10");
}

#[cfg(test)]
mod tests {
    use super::{list, mask, sysfs};
    use crate::vfs::Mount;
    use crate::vfs::tests::World;

    #[test]
    fn cpus_are_listed() {
        assert_eq!((list(1), list(4)), ("0".to_owned(), "0-3".to_owned()));
        assert_eq!(mask(33), "00000001,ffffffff");
        let world = World::tmpfs();
        let mount = Mount::of(sysfs(2), abi::fs::MountFlags::empty(), "sysfs");
        crate::fs::root::mount_at(&world.vfs, &mount, b"/sys").expect("mounts");
        assert_eq!(
            world.read("/sys/devices/system/cpu/online"),
            Ok(b"0-1\n".to_vec())
        );
        assert_eq!(world.list("/sys/fs/cgroup", 9), [".", ".."]);
    }
}
