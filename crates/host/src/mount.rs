//! Mounts: detached trees to hand to the sentry, and the empty root that it lives in.
//!
//! Invariant of the unsafe code: mount_setattr reads one struct of this stack frame.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use abi::Errno;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, OpenTreeFlags, UnmountFlags};

use crate::error::{check, errno};

/// Opens a path, following links, as a place alone (O_PATH).
pub fn open_place(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(errno)
}

/// The identity of the mount that the descriptor lies on, as /proc/self/mountinfo numbers it.
pub fn mount_id(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)
        .map(|stat| stat.stx_mnt_id)
        .map_err(errno)
}

/// Whether the descriptor refers to a directory.
pub fn is_directory(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let stat = rustix::fs::fstat(fd).map_err(errno)?;
    Ok(rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory)
}

/// What a detached tree allows, beyond what its mount on the host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// A detached copy of what lies at the place and below, without the mounts below it: private, without setuid
/// programs, devices and symbolic links that the host would follow. It lives as long as the descriptor.
///
/// Needs SYS_ADMIN. EINVAL where the place is on an unbindable mount.
pub fn detached(place: BorrowedFd<'_>, access: Access) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(place, "", flags).map_err(errno)?;
    let mut set = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOSYMFOLLOW;
    if access == Access::ReadOnly {
        set |= libc::MOUNT_ATTR_RDONLY;
    }
    let attributes = libc::mount_attr {
        attr_set: set,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    // SAFETY: the path is a literal C string, and the kernel reads the struct whose size it is told, nothing more.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    check(result)?;
    Ok(tree)
}

/// Makes an empty, read-only file system the root of this mount namespace, and detaches everything else from it.
///
/// For a process in a mount namespace of its own.
pub fn enter_empty_root() -> Result<(), Errno> {
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", private).map_err(errno)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Any directory will do to mount it on, and this one is everywhere.
    let options = c"mode=0555,nr_inodes=2,nr_blocks=1";
    rustix::mount::mount("none", "/proc", "tmpfs", flags, options).map_err(errno)?;
    rustix::process::chdir("/proc").map_err(errno)?;
    // The old root ends up on top of the new one, from where it is detached.
    rustix::process::pivot_root(".", ".").map_err(errno)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(errno)?;
    rustix::process::chdir("/").map_err(errno)
}

/// The running program, as something to execute that nobody can write through: a detached read-only bind of its file.
pub fn own_program() -> Result<OwnedFd, Errno> {
    let program = rustix::fs::openat(
        CWD,
        "/proc/self/exe",
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(errno)?;
    detached(program.as_fd(), Access::ReadOnly)
}
