//! What a file system offers: [`FileSystem`] and [`Inode`].
//!
//! The VFS checks names, permissions, types and mounts before it calls; an inode only does what it is told. Calls that change a directory are
//! made under that directory's `InodeOp` lock, and so are look-ups.

use core::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abi::Errno;
use abi::fs::{FileType, OpenFlags, RenameFlags, Stat, Statfs, Statx, StatxTimestamp, dev_parts};
use abi::time::Timespec;

use super::dentry::Location;
use super::file::FileOps;
use crate::task::credentials::Credentials;

/// Names a file for as long as it lives: what locks, FIFOs, socket addresses and shared futexes are keyed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeKey {
    /// `st_dev`
    pub dev: u64,
    /// `st_ino`
    pub ino: u64,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A number that no other object of the kernel has: its identity in a checkpoint.
pub fn new_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

static NEXT_DEV: AtomicU64 = AtomicU64::new(1);

/// A device number for a file system without a device.
pub fn new_dev() -> u64 {
    let minor = u32::try_from(NEXT_DEV.fetch_add(1, Ordering::Relaxed)).unwrap_or(u32::MAX);
    abi::fs::makedev(0, minor)
}

/// A file's attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    /// The device that holds it.
    pub dev: u64,
    /// Its number there.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// For device nodes: the device.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// The block size that suits I/O.
    pub blksize: u32,
    /// 512-byte blocks that are allocated.
    pub blocks: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of the data.
    pub mtime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
    /// Creation, where it is known.
    pub btime: Option<Timespec>,
}

impl Attrs {
    /// As stat(2) writes them.
    pub fn to_stat(&self) -> Stat {
        Stat {
            dev: self.dev,
            ino: self.ino,
            nlink: u64::from(self.nlink),
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: i64::try_from(self.size).unwrap_or(i64::MAX),
            blksize: i64::from(self.blksize),
            blocks: i64::try_from(self.blocks).unwrap_or(i64::MAX),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            ..Stat::default()
        }
    }

    /// As statx(2) writes them.
    pub fn to_statx(&self) -> Statx {
        let time = |t: Timespec| StatxTimestamp {
            sec: t.sec,
            nsec: u32::try_from(t.nsec).unwrap_or(0),
            reserved: 0,
        };
        let ((dev_major, dev_minor), (rdev_major, rdev_minor)) =
            (dev_parts(self.dev), dev_parts(self.rdev));
        Statx {
            mask: abi::fs::STATX_BASIC_STATS | self.btime.map_or(0, |_| abi::fs::STATX_BTIME),
            blksize: self.blksize,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            mode: u16::try_from(self.mode & 0xffff).unwrap_or(0),
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: time(self.atime),
            btime: time(self.btime.unwrap_or_default()),
            ctime: time(self.ctime),
            mtime: time(self.mtime),
            rdev_major,
            rdev_minor,
            dev_major,
            dev_minor,
            ..Statx::default()
        }
    }

    /// What permission checks look at.
    pub const fn owner(&self) -> Owner {
        Owner {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
        }
    }
}

/// What permission checks look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the change (`UTIME_NOW`).
    Now,
    /// This time.
    At(Timespec),
}

/// A change of attributes; `None` leaves one as it is. Permission was checked, set-ID bits were dropped where they must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttrs {
    /// Permissions (`07777`).
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size; the file is regular.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the data.
    pub mtime: Option<SetTime>,
}

/// What to make.
#[derive(Clone, Copy, Debug)]
pub enum NewKind<'a> {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A FIFO.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    CharDevice(u64),
    /// A block device.
    BlockDevice(u64),
}

impl NewKind<'_> {
    /// The type that comes of it.
    pub const fn file_type(&self) -> FileType {
        match self {
            NewKind::File => FileType::Regular,
            NewKind::Directory => FileType::Directory,
            NewKind::Symlink(_) => FileType::Symlink,
            NewKind::Fifo => FileType::Fifo,
            NewKind::Socket => FileType::Socket,
            NewKind::CharDevice(_) => FileType::CharDevice,
            NewKind::BlockDevice(_) => FileType::BlockDevice,
        }
    }
}

/// A file to be made: the umask is applied, a set-group-ID directory's group inherited.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// What it is.
    pub kind: NewKind<'a>,
    /// Permissions (`07777`).
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What a symbolic link leads to.
#[derive(Clone, Debug)]
pub enum LinkTarget {
    /// A path, to be walked.
    Path(Vec<u8>),
    /// A place, as the links of `/proc/PID/{fd,cwd,root,exe}` are.
    Place(Location),
    /// An open file without a place (a pipe, a socket), which can be opened anew.
    Inode(Arc<dyn Inode>, String),
}

/// How far the VFS may rely on what it knows about a directory's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Nothing changes but through the VFS: entries and misses are kept.
    Assume,
    /// Others may change it: an entry is asked for again ([`Inode::revalidate`]) at each look-up, misses are not kept.
    Revalidate,
    /// Entries are made up at each look-up.
    Never,
}

/// How xattrs are set (setxattr(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Made or replaced.
    Any,
    /// `XATTR_CREATE`: EEXIST where it is there.
    Create,
    /// `XATTR_REPLACE`: ENODATA where it is not.
    Replace,
}

/// A mounted file system's superblock.
pub trait FileSystem: Any + Send + Sync {
    /// Its type, as `/proc/mounts` names it.
    fn kind(&self) -> &'static str;
    /// The device number of its files.
    fn dev(&self) -> u64;
    /// Its root.
    fn root(&self) -> Arc<dyn Inode>;
    /// statfs(2).
    fn statfs(&self) -> Result<Statfs, Errno>;
    /// Options beyond the mount's flags, as `/proc/mounts` writes them, each after a comma.
    fn options(&self) -> String {
        String::new()
    }
    /// syncfs(2). May block.
    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }
}

/// A file of a file system. Calls that a type has no use for have defaults: ENOTDIR for directories' calls, EOPNOTSUPP or EPERM for what a file
/// system does not do.
pub trait Inode: Any + Send + Sync {
    /// Its key, which never changes.
    fn key(&self) -> InodeKey;

    /// Its type, which never changes.
    fn file_type(&self) -> FileType;

    /// Its attributes.
    fn attrs(&self) -> Result<Attrs, Errno>;

    /// Mode and owners, for permission checks on each component of a path: the cheap part of [`Inode::attrs`].
    fn owner(&self) -> Result<Owner, Errno> {
        Ok(self.attrs()?.owner())
    }

    /// Changes attributes. EPERM where the file system has none that can change.
    fn set_attrs(&self, _change: &SetAttrs) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// How far this directory's entries may be kept.
    fn caching(&self) -> Caching {
        Caching::Assume
    }

    /// For a directory of [`Caching::Never`]: whether this entry is kept all the same, since it is always there.
    fn keeps(&self, _name: &[u8]) -> bool {
        false
    }

    /// Whether `child` is still what `name` leads to in this directory; attributes are refreshed by the way.
    fn revalidate(&self, _name: &[u8], _child: &Arc<dyn Inode>) -> Result<bool, Errno> {
        Ok(true)
    }

    /// The entry of this name; ENOENT where there is none. Never `.` or `..`.
    fn lookup(&self, _name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::ENOTDIR)
    }

    /// Makes an entry; the VFS found none of this name, EEXIST where one came about meanwhile.
    fn create(&self, _name: &[u8], _new: &NewNode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EPERM)
    }

    /// Makes a file without a name (`O_TMPFILE`).
    fn tmpfile(&self, _new: &NewNode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Makes a further name for a file of the same file system.
    fn link(&self, _name: &[u8], _target: &Arc<dyn Inode>) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// Takes away the name of what is not a directory.
    fn unlink(&self, _name: &[u8], _child: &Arc<dyn Inode>) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// Takes away an empty directory; ENOTEMPTY.
    fn rmdir(&self, _name: &[u8], _child: &Arc<dyn Inode>) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// Renames an entry of this directory, replacing or (`EXCHANGE`) swapping with what is there. Types, emptiness by type, loops and
    /// permissions were checked; whether a replaced directory is empty was not. `from.child` is what moves, `to.child` what is there.
    fn rename(
        &self,
        _from: RenameEnd<'_>,
        _to: RenameEnd<'_>,
        _flags: RenameFlags,
    ) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    /// A symbolic link's text.
    fn readlink(&self) -> Result<Vec<u8>, Errno> {
        Err(Errno::EINVAL)
    }

    /// What following a symbolic link leads to.
    fn follow(&self) -> Result<LinkTarget, Errno> {
        Ok(LinkTarget::Path(self.readlink()?))
    }

    /// What `/proc/PID/fd/N` calls it, for what has no place: `pipe:[7]`.
    fn anonymous_name(&self) -> String {
        format!("inode:[{}]", self.key().ino)
    }

    /// An extended attribute's value: ENODATA where it is not set, EOPNOTSUPP where there are none.
    fn xattr(&self, _name: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The names of all extended attributes.
    fn xattrs(&self) -> Result<Vec<Vec<u8>>, Errno> {
        Ok(Vec::new())
    }

    /// Sets an extended attribute.
    fn set_xattr(&self, _name: &[u8], _value: &[u8], _how: SetXattr) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Takes an extended attribute away: ENODATA where it is not set.
    fn remove_xattr(&self, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Opens it. Permission was checked; `TRUNC` is for the file system to do, before or as it opens. FIFOs and devices
    /// are opened by the VFS where this says ENXIO.
    fn open(
        self: Arc<Self>,
        flags: OpenFlags,
        creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno>;
}

/// One end of a rename.
#[derive(Clone, Copy)]
pub struct RenameEnd<'a> {
    /// The directory.
    pub dir: &'a Arc<dyn Inode>,
    /// The name in it.
    pub name: &'a [u8],
    /// What is there.
    pub child: Option<&'a Arc<dyn Inode>>,
}

impl core::fmt::Debug for dyn Inode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Inode({:?}, {:?})", self.key(), self.file_type())
    }
}
