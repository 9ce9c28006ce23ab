//! Files as the ABI writes them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct stat` of x86-64 (stat(2)).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Stat {
    /// The device that holds the file.
    pub dev: u64,
    /// The inode's number.
    pub ino: u64,
    /// How many hard links.
    pub nlink: u64,
    /// Type and permissions.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Padding.
    pub pad0: u32,
    /// For device nodes: the device.
    pub rdev: u64,
    /// Bytes.
    pub size: i64,
    /// The block size that suits I/O.
    pub blksize: i64,
    /// 512-byte blocks that are allocated.
    pub blocks: i64,
    /// Last access.
    pub atime: crate::time::Timespec,
    /// Last change of the data.
    pub mtime: crate::time::Timespec,
    /// Last change of the inode.
    pub ctime: crate::time::Timespec,
    /// Reserved.
    pub unused: [i64; 3],
}

/// `struct iovec` (readv(2)).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Iovec {
    /// Where it begins.
    pub base: u64,
    /// How many bytes.
    pub len: u64,
}

bitflags::bitflags! {
    /// `O_*` of open(2), with the values of x86-64. Unknown bits are kept: open(2) ignores them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// For writing only.
        const WRONLY = 0o1;
        /// For reading and writing.
        const RDWR = 0o2;
        /// Both bits of the access mode.
        const ACCMODE = 0o3;
        /// Make the file where it is missing.
        const CREAT = 0o100;
        /// Fail where it exists.
        const EXCL = 0o200;
        /// Do not make a terminal the controlling one.
        const NOCTTY = 0o400;
        /// Empty it.
        const TRUNC = 0o1000;
        /// Each write goes to the end.
        const APPEND = 0o2000;
        /// Do not wait.
        const NONBLOCK = 0o4000;
        /// Write data through.
        const DSYNC = 0o10000;
        /// Signal-driven I/O.
        const ASYNC = 0o20000;
        /// Past the page cache; packets on a pipe.
        const DIRECT = 0o40000;
        /// Always set on 64-bit systems.
        const LARGEFILE = 0o100000;
        /// It must be a directory.
        const DIRECTORY = 0o200000;
        /// It must not be a symbolic link.
        const NOFOLLOW = 0o400000;
        /// Reading leaves the access time alone.
        const NOATIME = 0o1000000;
        /// Close at execve(2).
        const CLOEXEC = 0o2000000;
        /// `O_SYNC` less `O_DSYNC`.
        const SYNC_ONLY = 0o4000000;
        /// Write data and metadata through.
        const SYNC = 0o4010000;
        /// A place only, not a file to use.
        const PATH = 0o10000000;
        /// `O_TMPFILE` less `O_DIRECTORY`.
        const TMPFILE_ONLY = 0o20000000;
        /// A file without a name.
        const TMPFILE = 0o20200000;
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// `AT_*` flags of the `*at` calls.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AtFlags: u32 {
        /// `AT_SYMLINK_NOFOLLOW`
        const SYMLINK_NOFOLLOW = 0x100;
        /// `AT_REMOVEDIR` of unlinkat(2) and `AT_EACCESS` of faccessat2(2).
        const REMOVEDIR = 0x200;
        /// `AT_EACCESS`
        const EACCESS = 0x200;
        /// `AT_SYMLINK_FOLLOW` of linkat(2)
        const SYMLINK_FOLLOW = 0x400;
        /// `AT_NO_AUTOMOUNT`
        const NO_AUTOMOUNT = 0x800;
        /// `AT_EMPTY_PATH`
        const EMPTY_PATH = 0x1000;
        /// `AT_STATX_FORCE_SYNC`
        const STATX_FORCE_SYNC = 0x2000;
        /// `AT_STATX_DONT_SYNC`
        const STATX_DONT_SYNC = 0x4000;
    }
}

bitflags::bitflags! {
    /// `RENAME_*` of renameat2(2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail where the target exists.
        const NOREPLACE = 1;
        /// Swap the two.
        const EXCHANGE = 2;
        /// Leave a whiteout.
        const WHITEOUT = 4;
    }
}

bitflags::bitflags! {
    /// `RESOLVE_*` of openat2(2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ResolveFlags: u64 {
        /// Cross no mount point.
        const NO_XDEV = 1;
        /// Follow no link of procfs.
        const NO_MAGICLINKS = 2;
        /// Follow no link.
        const NO_SYMLINKS = 4;
        /// Stay below the starting directory.
        const BENEATH = 8;
        /// Take the starting directory for the root.
        const IN_ROOT = 16;
        /// Only what is cached.
        const CACHED = 32;
    }
}

bitflags::bitflags! {
    /// `MS_*` of mount(2) that stay with a mount.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MountFlags: u64 {
        /// Read-only.
        const RDONLY = 1;
        /// Set-user-ID bits do nothing.
        const NOSUID = 2;
        /// Device nodes can't be opened.
        const NODEV = 4;
        /// Nothing can be run.
        const NOEXEC = 8;
        /// Symbolic links can't be followed.
        const NOSYMFOLLOW = 256;
        /// No access times.
        const NOATIME = 1024;
        /// No access times of directories.
        const NODIRATIME = 2048;
        /// Access times now and then.
        const RELATIME = 1 << 21;
    }
}

bitflags::bitflags! {
    /// `FALLOC_FL_*` of fallocate(2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct FallocFlags: u32 {
        /// Leave the size as it is.
        const KEEP_SIZE = 1;
        /// Give the range's memory back.
        const PUNCH_HOLE = 2;
        /// Take the range out.
        const COLLAPSE_RANGE = 8;
        /// Make the range zero.
        const ZERO_RANGE = 16;
        /// Put a range in.
        const INSERT_RANGE = 32;
        /// Unshare blocks.
        const UNSHARE_RANGE = 64;
    }
}

/// `S_IFMT`: the type's bits in a mode.
pub const S_IFMT: u32 = 0o170000;
/// `S_IFSOCK`
pub const S_IFSOCK: u32 = 0o140000;
/// `S_IFLNK`
pub const S_IFLNK: u32 = 0o120000;
/// `S_IFREG`
pub const S_IFREG: u32 = 0o100000;
/// `S_IFBLK`
pub const S_IFBLK: u32 = 0o060000;
/// `S_IFDIR`
pub const S_IFDIR: u32 = 0o040000;
/// `S_IFCHR`
pub const S_IFCHR: u32 = 0o020000;
/// `S_IFIFO`
pub const S_IFIFO: u32 = 0o010000;
/// `S_ISUID`
pub const S_ISUID: u32 = 0o4000;
/// `S_ISGID`
pub const S_ISGID: u32 = 0o2000;
/// `S_ISVTX`
pub const S_ISVTX: u32 = 0o1000;
/// The longest name of a directory entry.
pub const NAME_MAX: usize = 255;
/// The longest path, with its NUL.
pub const PATH_MAX: usize = 4096;
/// `PIPE_BUF`: how many bytes a pipe takes all or nothing.
pub const PIPE_BUF: usize = 4096;
/// `AT_FDCWD`
pub const AT_FDCWD: i32 = -100;

/// What kind of file an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named or unnamed pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileType {
    /// The type in a mode; `None` where there is none (anonymous inodes have 0).
    pub const fn from_mode(mode: u32) -> Option<FileType> {
        Some(match mode & S_IFMT {
            S_IFREG => FileType::Regular,
            S_IFDIR => FileType::Directory,
            S_IFLNK => FileType::Symlink,
            S_IFIFO => FileType::Fifo,
            S_IFSOCK => FileType::Socket,
            S_IFCHR => FileType::CharDevice,
            S_IFBLK => FileType::BlockDevice,
            _ => return None,
        })
    }

    /// The bits of a mode.
    pub const fn mode(self) -> u32 {
        match self {
            FileType::Regular => S_IFREG,
            FileType::Directory => S_IFDIR,
            FileType::Symlink => S_IFLNK,
            FileType::Fifo => S_IFIFO,
            FileType::Socket => S_IFSOCK,
            FileType::CharDevice => S_IFCHR,
            FileType::BlockDevice => S_IFBLK,
        }
    }

    /// `DT_*`, as getdents64(2) writes it.
    pub const fn dirent(self) -> u8 {
        (self.mode() >> 12) as u8
    }

    /// The type that a `DT_*` names.
    pub const fn from_dirent(kind: u8) -> Option<FileType> {
        FileType::from_mode((kind as u32) << 12)
    }
}

/// The head of `struct linux_dirent64` (getdents64(2)), before the name.
pub const DIRENT64_HEAD: usize = 19;

/// `struct statx_timestamp` (statx(2)).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct StatxTimestamp {
    /// Whole seconds.
    pub sec: i64,
    /// Nanoseconds.
    pub nsec: u32,
    /// Reserved.
    pub reserved: i32,
}

/// `struct statx` (statx(2)).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Statx {
    /// Which fields are filled in.
    pub mask: u32,
    /// The block size that suits I/O.
    pub blksize: u32,
    /// `STATX_ATTR_*`.
    pub attributes: u64,
    /// How many hard links.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Type and permissions.
    pub mode: u16,
    /// Padding.
    pub pad0: u16,
    /// The inode's number.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks that are allocated.
    pub blocks: u64,
    /// Which attributes are known.
    pub attributes_mask: u64,
    /// Last access.
    pub atime: StatxTimestamp,
    /// Creation.
    pub btime: StatxTimestamp,
    /// Last change of the inode.
    pub ctime: StatxTimestamp,
    /// Last change of the data.
    pub mtime: StatxTimestamp,
    /// For device nodes: the major number.
    pub rdev_major: u32,
    /// For device nodes: the minor number.
    pub rdev_minor: u32,
    /// The device that holds the file: major.
    pub dev_major: u32,
    /// The device that holds the file: minor.
    pub dev_minor: u32,
    /// The mount's number.
    pub mnt_id: u64,
    /// Alignment that direct I/O asks of memory.
    pub dio_mem_align: u32,
    /// Alignment that direct I/O asks of offsets.
    pub dio_offset_align: u32,
    /// Reserved.
    pub spare: [u64; 12],
}

/// `STATX_BASIC_STATS`
pub const STATX_BASIC_STATS: u32 = 0x7ff;
/// `STATX_BTIME`
pub const STATX_BTIME: u32 = 0x800;
/// `STATX_MNT_ID`
pub const STATX_MNT_ID: u32 = 0x1000;
/// `STATX_ATTR_MOUNT_ROOT`
pub const STATX_ATTR_MOUNT_ROOT: u64 = 0x2000;

/// `struct statfs` of x86-64 (statfs(2)).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Statfs {
    /// The file system's magic number.
    pub kind: i64,
    /// The block size that suits I/O.
    pub bsize: i64,
    /// Blocks.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for those without privilege.
    pub bavail: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// An identity.
    pub fsid: [i32; 2],
    /// The longest name.
    pub namelen: i64,
    /// The fragment size.
    pub frsize: i64,
    /// `ST_*`.
    pub flags: i64,
    /// Reserved.
    pub spare: [i64; 4],
}

/// The device number of this major and minor (makedev(3)).
pub const fn makedev(major: u32, minor: u32) -> u64 {
    let (major, minor) = (major as u64, minor as u64);
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32
}

/// The major and minor of a device number.
pub const fn dev_parts(dev: u64) -> (u32, u32) {
    (
        ((dev >> 8 & 0xfff) | (dev >> 32 & !0xfff)) as u32,
        ((dev & 0xff) | (dev >> 12 & !0xff & 0xffff_ffff)) as u32,
    )
}
