//! The sandbox's tree of mounts: [`build_root`].

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ::host::fd::Inherited;
use abi::Errno;
use abi::cap::CapSet;
use abi::fs::{FileType, MountFlags, ResolveFlags};

use super::host::{HostFs, HostMount};
use super::overlay::OverlayFs;
use super::tmpfs::TmpFs;
use super::{dev, host};
use crate::container::Container;
use crate::mm::memory_file::{MemoryFile, Quota};
use crate::spec::BootSpec;
use crate::task::credentials::Credentials;
use crate::vfs::{Caching, FileSystem, FsContext, Inode, Location, Mount, PathCx, Vfs};

/// Why the tree could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The spec names no root.
    #[error("the boot spec names no lower tree for the root: its first must be \"/\"")]
    NoRoot,
    /// Something could not be mounted.
    #[error("{what} {path:?} can't be mounted: {errno}")]
    Mount {
        /// What it is.
        what: &'static str,
        /// Where it was to appear.
        path: String,
        /// The error.
        errno: Errno,
    },
}

/// What the tree is made with.
pub struct BuiltRoot {
    /// The namespace.
    pub vfs: Arc<Vfs>,
    /// A tmpfs that is mounted nowhere, for memfd_create(2) and shared anonymous memory.
    pub unseen: Arc<TmpFs>,
    /// Its mount.
    pub unseen_mount: Arc<Mount>,
}

/// The mount points that are the sandbox's own, whatever the host has there.
const OWN: [&[u8]; 3] = [b"/proc", b"/sys", b"/dev"];

/// Builds the sandbox's tree: the root's lower trees each under an overlay, `/dev` and `/dev/shm`, directories for `/proc` and `/sys`, then the
/// volumes in order. Descriptors that the spec names are taken charge of. A volume of a regular file has to be a descriptor that is open
/// for reading (and writing), since a mere place (`O_PATH`) can't be opened any more.
pub fn build_root(
    spec: &BootSpec,
    memory: &Arc<MemoryFile>,
    inherited: &mut Inherited,
) -> Result<BuiltRoot, BuildError> {
    let bytes = spec.limits.memory / 2;
    // What a file costs beside its pages is the sentry's own memory: a quarter of the limit at most.
    let inodes = (spec.limits.memory / 4096).clamp(1024, 1 << 22);
    let quota = || Quota::new(bytes, inodes);
    let overlays = quota();
    let mut lower = spec.lower.iter();
    let (_, fd) = lower
        .next()
        .filter(|(path, _)| path.as_bytes() == b"/")
        .ok_or(BuildError::NoRoot)?;
    let error = |what, path: &[u8]| {
        let path = String::from_utf8_lossy(path).into_owned();
        move |errno| BuildError::Mount { what, path, errno }
    };
    let mut overlay = |fd: i32| -> Result<Arc<Mount>, Errno> {
        let fd = inherited.take(fd)?;
        let lower = HostFs::new(fd, Caching::Assume)?;
        let fs = OverlayFs::new(&lower, Arc::clone(memory), Arc::clone(&overlays));
        Ok(Mount::of(fs, MountFlags::RELATIME, "overlay"))
    };
    let vfs = Vfs::new(overlay(*fd).map_err(error("the root", b"/"))?);
    dev::register(&vfs);
    let tree = Tree::new(&vfs);
    for (path, fd) in lower {
        let path = path.as_bytes();
        if OWN
            .iter()
            .any(|own| path.starts_with(own) && matches!(path.get(own.len()), None | Some(b'/')))
        {
            continue;
        }
        let mount = overlay(*fd).map_err(error("the host's file system at", path))?;
        tree.mount(&mount, path)
            .map_err(error("the host's file system at", path))?;
    }
    for path in OWN {
        tree.directory(path)
            .map_err(error("a file system of the sandbox's own at", path))?;
    }
    let own = error("a file system of the sandbox's own at", b"/dev");
    let devices = dev::devtmpfs(Arc::clone(memory), Quota::new(1 << 20, 1024)).and_then(|fs| {
        tree.mount(
            &Mount::of(
                fs,
                MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::RELATIME,
                "devtmpfs",
            ),
            b"/dev",
        )
    });
    devices.map_err(own)?;
    let own = error("a file system of the sandbox's own at", b"/dev/shm");
    let shm = TmpFs::new(Arc::clone(memory), quota(), 0o1777).and_then(|fs| {
        let flags =
            MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RELATIME;
        tree.mount(&Mount::of(fs, flags, "tmpfs"), b"/dev/shm")
    });
    shm.map_err(own)?;
    for volume in &spec.volumes {
        let path = volume.target.as_bytes();
        let mounted = inherited
            .take(volume.fd)
            .and_then(|fd| tree.volume(fd, path, volume.read_only));
        mounted.map_err(error("the volume", path))?;
    }
    let unseen = TmpFs::new(Arc::clone(memory), Quota::new(u64::MAX, u64::MAX), 0o1777)
        .map_err(error("a file system of the sandbox's own at", b""))?;
    let unseen_mount = Mount::hidden(Arc::clone(&unseen) as Arc<dyn FileSystem>);
    Ok(BuiltRoot {
        vfs,
        unseen,
        unseen_mount,
    })
}

/// Mounts a file system at an absolute path, making directories for it (a file for a file) where they are missing: for procfs and sysfs.
pub fn mount_at(vfs: &Vfs, mount: &Arc<Mount>, path: &[u8]) -> Result<(), Errno> {
    Tree::new(vfs).mount(mount, path)
}

/// A file system for mount(2): a tmpfs of its own, or another view of the sandbox's proc and sysfs. ENODEV for all others, EINVAL for options
/// that a tmpfs does not have.
pub fn new_file_system(
    container: &Container,
    kind: &[u8],
    options: &[u8],
) -> Result<Arc<dyn FileSystem>, Errno> {
    match kind {
        b"tmpfs" | b"ramfs" => {
            let half = container.limits().memory / 2;
            let (mut bytes, mut inodes, mut perm) = (
                half,
                (container.limits().memory / 4096).clamp(1024, 1 << 22),
                0o1777,
            );
            let options = core::str::from_utf8(options).map_err(|_| Errno::EINVAL)?;
            for option in options.split(',').filter(|option| !option.is_empty()) {
                match option.split_once('=') {
                    Some(("size", value)) => bytes = size(value, half).ok_or(Errno::EINVAL)?,
                    Some(("nr_inodes", value)) => {
                        inodes = size(value, half).ok_or(Errno::EINVAL)?
                    }
                    Some(("mode", value)) => {
                        perm = u32::from_str_radix(value, 8).map_err(|_| Errno::EINVAL)?
                    }
                    // Owners other than root, NUMA policies, huge pages.
                    Some(("uid" | "gid" | "mpol" | "huge" | "nr_blocks", _)) => {}
                    _ => return Err(Errno::EINVAL),
                }
            }
            Ok(TmpFs::new(
                Arc::clone(&container.mm().memory),
                Quota::new(bytes, inodes),
                perm & 0o7777,
            )?)
        }
        b"proc" | b"sysfs" => (container.namespaces().mount.vfs().mounts().all().iter())
            .map(|mount| mount.fs())
            .find(|fs| fs.kind().as_bytes() == kind)
            .cloned()
            .ok_or(Errno::ENODEV),
        _ => Err(Errno::ENODEV),
    }
}

/// A size as mount options have it: bytes, with `k`, `m` or `g`, or a share of the memory in percent.
fn size(text: &str, half: u64) -> Option<u64> {
    let (digits, unit) = text.split_at(
        text.trim_end_matches(|letter: char| !letter.is_ascii_digit())
            .len(),
    );
    let number: u64 = digits.parse().ok()?;
    match unit {
        "" => Some(number),
        "k" | "K" => number.checked_mul(1 << 10),
        "m" | "M" => number.checked_mul(1 << 20),
        "g" | "G" => number.checked_mul(1 << 30),
        "%" => Some(half.checked_mul(2)? / 100 * number.min(100)),
        _ => None,
    }
}

/// A namespace on which root acts while it is built.
struct Tree<'a> {
    vfs: &'a Vfs,
    fs: Arc<FsContext>,
    creds: Credentials,
}

impl<'a> Tree<'a> {
    fn new(vfs: &'a Vfs) -> Tree<'a> {
        let fs = FsContext::new(vfs.root());
        fs.set_umask(0);
        Tree {
            vfs,
            fs,
            creds: Credentials::root(CapSet::FULL),
        }
    }

    fn cx(&self) -> PathCx<'_> {
        PathCx {
            fs: &self.fs,
            creds: &self.creds,
            dirfd: None,
        }
    }

    fn resolve(&self, path: &[u8]) -> Result<Location, Errno> {
        self.vfs
            .resolve(&self.cx(), path, true, ResolveFlags::empty())
    }

    /// The directory at this path, made with all above it where it is missing.
    fn directory(&self, path: &[u8]) -> Result<Location, Errno> {
        for end in (1..=path.len()).filter(|end| *end == path.len() || path[*end] == b'/') {
            match self.resolve(&path[..end]) {
                Ok(_) => {}
                Err(Errno::ENOENT) => self.vfs.mkdir(&self.cx(), &path[..end], 0o755)?,
                Err(error) => return Err(error),
            }
        }
        self.resolve(path)
    }

    /// The file at this path, made with all above it where it is missing.
    fn file(&self, path: &[u8]) -> Result<Location, Errno> {
        match self.resolve(path) {
            Err(Errno::ENOENT) => {}
            found => return found,
        }
        if let Some(slash) = path
            .iter()
            .rposition(|byte| *byte == b'/')
            .filter(|slash| *slash > 0)
        {
            self.directory(&path[..slash])?;
        }
        self.vfs
            .mknod(&self.cx(), path, FileType::Regular.mode() | 0o644, 0)?;
        self.resolve(path)
    }

    fn mount(&self, mount: &Arc<Mount>, path: &[u8]) -> Result<(), Errno> {
        let at = if mount.root().inode().file_type() == FileType::Directory {
            self.directory(path)?
        } else {
            self.file(path)?
        };
        self.vfs.mount(mount, at)
    }

    fn volume(&self, fd: OwnedFd, path: &[u8], read_only: bool) -> Result<(), Errno> {
        let fs = host::HostFs::new(fd, Caching::Revalidate)?;
        let mut flags = MountFlags::NODEV | MountFlags::RELATIME;
        if read_only {
            flags |= MountFlags::RDONLY;
        }
        let fs: Arc<dyn FileSystem> = Arc::new(HostMount(fs));
        let root: Arc<dyn Inode> = fs.root();
        debug_assert_eq!(root.key().dev, fs.dev());
        self.mount(&Mount::of(fs, flags, "volume"), path)
    }
}

#[cfg(test)]
mod tests;
