//! The host's directories that a sandbox sees, as detached mount trees.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use host::mount::{Access, detached, mount_id, open_place};

use super::Volume;

/// File systems that show the host's own state rather than files: a sandbox has its own of each, or none.
const PSEUDO: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nfsd",
    "nsfs",
    "proc",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "smackfs",
    "sysfs",
    "tracefs",
];

/// Directories whose mounts are all left out, whatever they are.
const PSEUDO_PLACES: &[&str] = &["/proc", "/sys", "/dev"];

/// One mount, of /proc/self/mountinfo.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MountEntry {
    /// The mount's identity.
    pub(super) id: u64,
    /// Which part of the file system is mounted.
    pub(super) root: PathBuf,
    /// Where.
    pub(super) point: PathBuf,
    /// The file system's type.
    pub(super) kind: String,
    /// The file system's own options, separated by commas.
    pub(super) options: String,
}

/// This process's mounts.
pub(super) fn entries() -> anyhow::Result<Vec<MountEntry>> {
    let path = "/proc/self/mountinfo";
    let text = std::fs::read(path).context(path)?;
    Ok(text
        .split(|&byte| byte == b'\n')
        .filter_map(parse)
        .collect())
}

fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let root = unescape(fields.nth(2)?);
    let point = unescape(fields.next()?);
    let mut tail = fields.skip_while(|&field| field != b"-").skip(1);
    let kind = String::from_utf8_lossy(tail.next()?).into_owned();
    let options = String::from_utf8_lossy(tail.nth(1)?).into_owned();
    Some(MountEntry {
        id,
        root,
        point,
        kind,
        options,
    })
}

/// A path as mountinfo writes it: space, tab, newline and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\');
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                path.push(code);
                rest = &after[3..];
            }
            None => {
                path.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

/// The root's lower trees, read-only, the root itself first and each after what it is mounted on: where they lie
/// below the root, and their trees.
///
/// The host's whole tree comes with its submounts, any other directory alone.
pub(super) fn lower(root: &Path) -> anyhow::Result<Vec<(Vec<u8>, OwnedFd)>> {
    let place = open_place(root).with_context(|| format!("--root {}", root.display()))?;
    let tree = detached(place.as_fd(), Access::ReadOnly)
        .with_context(|| format!("--root {}: cloning its mount", root.display()))?;
    let mut trees = vec![(b"/".to_vec(), tree)];
    if root != Path::new("/") {
        return Ok(trees);
    }
    let mut mounts = entries()?;
    mounts.retain(is_shown);
    mounts.sort_by(|a, b| a.point.cmp(&b.point));
    for mount in mounts {
        if let Some(tree) = submount(&mount) {
            trees.push((mount.point.into_os_string().into_vec(), tree));
        }
    }
    Ok(trees)
}

fn is_shown(mount: &MountEntry) -> bool {
    mount.point != Path::new("/")
        && !PSEUDO.contains(&mount.kind.as_str())
        && !PSEUDO_PLACES
            .iter()
            .any(|place| mount.point.starts_with(place))
}

/// The mount's tree; `None` where another mount hides it, or it is not to be cloned: the sandbox then sees what the
/// host's administrator left below.
fn submount(mount: &MountEntry) -> Option<OwnedFd> {
    let place = open_place(&mount.point).ok()?;
    if mount_id(place.as_fd()).ok()? != mount.id {
        return None;
    }
    let tree = detached(place.as_fd(), Access::ReadOnly).ok()?;
    opened(tree, Access::ReadOnly).ok()
}

/// A tree that is a single file is handed over open, since nobody can open it by a name from inside: for writing too where it may be written.
fn opened(tree: OwnedFd, access: Access) -> Result<OwnedFd, abi::Errno> {
    host::fd::open_file(tree, matches!(access, Access::ReadWrite))
}

/// The volume's tree (or single file).
pub(super) fn volume(volume: &Volume) -> anyhow::Result<OwnedFd> {
    let access = if volume.read_only {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    };
    let name = || {
        let target = String::from_utf8_lossy(&volume.target);
        format!("--volume {}:{target}", volume.source.display())
    };
    let place = open_place(&volume.source).with_context(name)?;
    let tree = detached(place.as_fd(), access).with_context(name)?;
    opened(tree, access).with_context(name)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{MountEntry, parse};

    #[test]
    fn mountinfo_lines() {
        let line =
            br"28 27 0:25 /sub /mnt/a\040b ro,nosuid shared:1 master:2 - tmpfs none ro,size=4k";
        let expected = MountEntry {
            id: 28,
            root: PathBuf::from("/sub"),
            point: PathBuf::from("/mnt/a b"),
            kind: "tmpfs".to_owned(),
            options: "ro,size=4k".to_owned(),
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"28 27 0:25 / /mnt ro"), None);
    }
}
