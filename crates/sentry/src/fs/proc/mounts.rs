//! `/proc/PID/mounts` and `/proc/PID/mountinfo`.

use std::sync::Arc;

use abi::fs::{MountFlags, dev_parts};

use crate::vfs::{Location, Mount, Vfs};

/// The mounts that can be seen from this root, and their paths from there.
fn visible(vfs: &Vfs, root: &Location) -> Vec<(Arc<Mount>, Vec<u8>)> {
    let mut visible = Vec::new();
    for mount in vfs.mounts().all() {
        let path = vfs.path_of(&mount.location(), root);
        if !path.starts_with(b"(unreachable)") {
            visible.push((mount, escape(&path)));
        }
    }
    visible
}

/// White space and backslashes as octal numbers, as getmntent(3) reads them.
fn escape(text: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(text.len());
    for byte in text {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => {
                escaped.extend_from_slice(format!("\\{byte:03o}").as_bytes())
            }
            _ => escaped.push(*byte),
        }
    }
    escaped
}

fn options(flags: MountFlags) -> String {
    let mut text = if flags.contains(MountFlags::RDONLY) {
        "ro"
    } else {
        "rw"
    }
    .to_owned();
    for (flag, name) in [
        (MountFlags::NOSUID, ",nosuid"),
        (MountFlags::NODEV, ",nodev"),
        (MountFlags::NOEXEC, ",noexec"),
        (MountFlags::NOATIME, ",noatime"),
        (MountFlags::NODIRATIME, ",nodiratime"),
        (MountFlags::RELATIME, ",relatime"),
        (MountFlags::NOSYMFOLLOW, ",nosymfollow"),
    ] {
        if flags.contains(flag) {
            text.push_str(name);
        }
    }
    text
}

/// The lines of `/proc/PID/mounts` for this root.
pub fn mounts(vfs: &Vfs, root: &Location) -> Vec<u8> {
    let mut lines = Vec::new();
    for (mount, path) in visible(vfs, root) {
        let fs = mount.fs();
        lines.extend_from_slice(&escape(mount.source().as_bytes()));
        lines.push(b' ');
        lines.extend_from_slice(&path);
        let rest = format!(
            " {} {}{} 0 0\n",
            fs.kind(),
            options(mount.flags()),
            fs.options()
        );
        lines.extend_from_slice(rest.as_bytes());
    }
    lines
}

/// The lines of `/proc/PID/mountinfo` for this root.
pub fn mountinfo(vfs: &Vfs, root: &Location) -> Vec<u8> {
    let mut lines = Vec::new();
    for (mount, path) in visible(vfs, root) {
        let fs = mount.fs();
        let parent = mount.at().map_or(mount.id(), |at| at.mount.id());
        let (major, minor) = dev_parts(fs.dev());
        lines.extend_from_slice(format!("{} {parent} {major}:{minor} ", mount.id()).as_bytes());
        lines.extend_from_slice(&root_within(&mount));
        lines.push(b' ');
        lines.extend_from_slice(&path);
        let flags = mount.flags();
        let write = if flags.contains(MountFlags::RDONLY) {
            "ro"
        } else {
            "rw"
        };
        lines.extend_from_slice(format!(" {} - {} ", options(flags), fs.kind()).as_bytes());
        lines.extend_from_slice(&escape(mount.source().as_bytes()));
        lines.extend_from_slice(format!(" {write}{}\n", fs.options()).as_bytes());
    }
    lines
}

/// What of its file system a mount shows.
fn root_within(mount: &Mount) -> Vec<u8> {
    let mut names = Vec::new();
    let mut at = Arc::clone(mount.root());
    while let Some(parent) = at.parent() {
        names.push(at.name());
        at = parent;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    escape(&path)
}
