//! Host files, by descriptors alone: one component at a time, links never followed, nothing relative to a working directory.
//!
//! Every open has `O_NOFOLLOW`, `O_NONBLOCK` (a FIFO must not hold up a worker), `O_NOCTTY` and `O_CLOEXEC`. The trees are detached mounts with
//! NOSYMFOLLOW, so the few calls that know no such flag (fchmodat) can't follow either.
//!
//! Invariant of the unsafe blocks: getdents64(2) writes only to the buffer it is given.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use abi::Errno;
use abi::time::Timespec;
use rustix::fs::{self as sys, AtFlags, Mode, OFlags, SeekFrom, Timestamps};

/// A host error as the guest's.
pub fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error()).unwrap_or(Errno::EIO)
}

/// What the host knows of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStat {
    /// Device.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device, of a device node.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Block size.
    pub blksize: u32,
    /// 512-byte blocks.
    pub blocks: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of the data.
    pub mtime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
}

impl From<sys::Stat> for HostStat {
    fn from(stat: sys::Stat) -> Self {
        let time = |sec: i64, nsec| Timespec {
            sec,
            nsec: i64::try_from(nsec).unwrap_or(0),
        };
        HostStat {
            dev: stat.st_dev,
            ino: stat.st_ino,
            mode: stat.st_mode,
            nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            blksize: u32::try_from(stat.st_blksize).unwrap_or(4096),
            blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// The time that file systems in memory stamp with: the host's coarse realtime clock, as Linux does.
pub fn file_time() -> Timespec {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timespec {
        sec: now.tv_sec,
        nsec: now.tv_nsec,
    }
}

const ALWAYS: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading.
    Read,
    /// For writing.
    Write,
    /// For both.
    ReadWrite,
}

impl Access {
    fn flags(self) -> OFlags {
        match self {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::WRONLY,
            Access::ReadWrite => OFlags::RDWR,
        }
    }
}

/// A handle on a directory, for `*at` calls only.
pub fn open_dir_handle(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    sys::openat(dir, name, flags, Mode::empty()).map_err(errno)
}

/// Opens what is there.
pub fn open(dir: BorrowedFd<'_>, name: &[u8], access: Access) -> Result<OwnedFd, Errno> {
    sys::openat(dir, name, access.flags() | ALWAYS, Mode::empty()).map_err(errno)
}

/// Opens a directory, given by its own handle, for reading its entries.
pub fn open_entries(dir: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    sys::openat(
        dir,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | ALWAYS,
        Mode::empty(),
    )
    .map_err(errno)
}

/// Makes a file, which must not be there, and opens it for reading and writing.
pub fn create(dir: BorrowedFd<'_>, name: &[u8], perm: u32) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | ALWAYS;
    sys::openat(dir, name, flags, mode(perm)).map_err(errno)
}

/// Makes a file without a name, and opens it for reading and writing.
pub fn create_unnamed(dir: BorrowedFd<'_>, perm: u32) -> Result<OwnedFd, Errno> {
    sys::openat(
        dir,
        ".",
        OFlags::RDWR | OFlags::TMPFILE | ALWAYS,
        mode(perm),
    )
    .map_err(errno)
}

/// Permissions without set-ID bits, which the sentry never gives to host files.
fn mode(perm: u32) -> Mode {
    Mode::from_raw_mode(perm & 0o1777)
}

/// fstat(2).
pub fn stat(fd: BorrowedFd<'_>) -> Result<HostStat, Errno> {
    sys::fstat(fd).map(HostStat::from).map_err(errno)
}

/// fstatat(2), of a link itself.
pub fn stat_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<HostStat, Errno> {
    sys::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .map(HostStat::from)
        .map_err(errno)
}

/// readlinkat(2).
pub fn readlink(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
    sys::readlinkat(dir, name, Vec::new())
        .map(|text| text.into_bytes())
        .map_err(errno)
}

/// mkdirat(2).
pub fn mkdir(dir: BorrowedFd<'_>, name: &[u8], perm: u32) -> Result<(), Errno> {
    sys::mkdirat(dir, name, mode(perm)).map_err(errno)
}

/// mknodat(2) of a FIFO, or of a socket's name.
pub fn mknod(dir: BorrowedFd<'_>, name: &[u8], socket: bool, perm: u32) -> Result<(), Errno> {
    let kind = if socket {
        sys::FileType::Socket
    } else {
        sys::FileType::Fifo
    };
    sys::mknodat(dir, name, kind, mode(perm), 0).map_err(errno)
}

/// symlinkat(2).
pub fn symlink(target: &[u8], dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    sys::symlinkat(target, dir, name).map_err(errno)
}

/// linkat(2).
pub fn link(
    from: BorrowedFd<'_>,
    name: &[u8],
    to: BorrowedFd<'_>,
    new: &[u8],
) -> Result<(), Errno> {
    sys::linkat(from, name, to, new, AtFlags::empty()).map_err(errno)
}

/// unlinkat(2).
pub fn unlink(dir: BorrowedFd<'_>, name: &[u8], directory: bool) -> Result<(), Errno> {
    let flags = if directory {
        AtFlags::REMOVEDIR
    } else {
        AtFlags::empty()
    };
    sys::unlinkat(dir, name, flags).map_err(errno)
}

/// renameat2(2).
pub fn rename(
    from: BorrowedFd<'_>,
    name: &[u8],
    to: BorrowedFd<'_>,
    new: &[u8],
    flags: abi::fs::RenameFlags,
) -> Result<(), Errno> {
    let flags = sys::RenameFlags::from_bits_retain(flags.bits());
    sys::renameat_with(from, name, to, new, flags).map_err(errno)
}

/// fchmodat(2); set-ID bits are left out.
pub fn chmod_at(dir: BorrowedFd<'_>, name: &[u8], perm: u32) -> Result<(), Errno> {
    sys::chmodat(dir, name, mode(perm), AtFlags::empty()).map_err(errno)
}

/// fchmod(2); set-ID bits are left out.
pub fn chmod(fd: BorrowedFd<'_>, perm: u32) -> Result<(), Errno> {
    sys::fchmod(fd, mode(perm)).map_err(errno)
}

/// fchownat(2), of a link itself.
pub fn chown_at(
    dir: BorrowedFd<'_>,
    name: &[u8],
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<(), Errno> {
    let (uid, gid) = (uid.map(sys::Uid::from_raw), gid.map(sys::Gid::from_raw));
    sys::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(errno)
}

/// fchown(2).
pub fn chown(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    let (uid, gid) = (uid.map(sys::Uid::from_raw), gid.map(sys::Gid::from_raw));
    sys::fchown(fd, uid, gid).map_err(errno)
}

/// A time for [`utimens_at`].
#[derive(Clone, Copy, Debug)]
pub enum SetTime {
    /// As it is.
    Omit,
    /// Now.
    Now,
    /// This time.
    At(Timespec),
}

fn timestamps(atime: SetTime, mtime: SetTime) -> Timestamps {
    let time = |time| match time {
        SetTime::Omit => sys::Timespec {
            tv_sec: 0,
            tv_nsec: sys::UTIME_OMIT,
        },
        SetTime::Now => sys::Timespec {
            tv_sec: 0,
            tv_nsec: sys::UTIME_NOW,
        },
        SetTime::At(time) => sys::Timespec {
            tv_sec: time.sec,
            tv_nsec: time.nsec,
        },
    };
    Timestamps {
        last_access: time(atime),
        last_modification: time(mtime),
    }
}

/// utimensat(2), of a link itself.
pub fn utimens_at(
    dir: BorrowedFd<'_>,
    name: &[u8],
    atime: SetTime,
    mtime: SetTime,
) -> Result<(), Errno> {
    sys::utimensat(
        dir,
        name,
        &timestamps(atime, mtime),
        AtFlags::SYMLINK_NOFOLLOW,
    )
    .map_err(errno)
}

/// futimens(3).
pub fn utimens(fd: BorrowedFd<'_>, atime: SetTime, mtime: SetTime) -> Result<(), Errno> {
    sys::futimens(fd, &timestamps(atime, mtime)).map_err(errno)
}

/// ftruncate(2).
pub fn truncate(fd: BorrowedFd<'_>, size: u64) -> Result<(), Errno> {
    sys::ftruncate(fd, size).map_err(errno)
}

/// fallocate(2).
pub fn fallocate(
    fd: BorrowedFd<'_>,
    flags: abi::fs::FallocFlags,
    at: u64,
    len: u64,
) -> Result<(), Errno> {
    sys::fallocate(
        fd,
        sys::FallocateFlags::from_bits_retain(flags.bits()),
        at,
        len,
    )
    .map_err(errno)
}

/// fsync(2), or fdatasync(2). May block.
pub fn sync(fd: BorrowedFd<'_>, data: bool) -> Result<(), Errno> {
    if data {
        sys::fdatasync(fd)
    } else {
        sys::fsync(fd)
    }
    .map_err(errno)
}

/// pread(2). May block on the disk.
pub fn pread(fd: BorrowedFd<'_>, to: &mut [u8], at: u64) -> Result<usize, Errno> {
    rustix::io::pread(fd, to, at).map_err(errno)
}

/// pwrite(2). May block on the disk.
pub fn pwrite(fd: BorrowedFd<'_>, from: &[u8], at: u64) -> Result<usize, Errno> {
    rustix::io::pwrite(fd, from, at).map_err(errno)
}

/// Writes at the end of the file, wherever that is by then (`RWF_APPEND`).
pub fn append(fd: BorrowedFd<'_>, from: &[u8]) -> Result<usize, Errno> {
    let from = [std::io::IoSlice::new(from)];
    rustix::io::pwritev2(fd, &from, 0, rustix::io::ReadWriteFlags::APPEND).map_err(errno)
}

/// lseek(2) to the next data or hole; moves nothing that anybody looks at.
pub fn seek_data(fd: BorrowedFd<'_>, at: u64, hole: bool) -> Result<u64, Errno> {
    let to = if hole {
        SeekFrom::Hole(at)
    } else {
        SeekFrom::Data(at)
    };
    sys::seek(fd, to).map_err(errno)
}

/// Moves a directory's cursor.
pub fn seek_entries(fd: BorrowedFd<'_>, at: u64) -> Result<(), Errno> {
    sys::seek(fd, SeekFrom::Start(at)).map(drop).map_err(errno)
}

/// getdents64(2): how many bytes of records were read; 0 at the end. See [`entries`].
pub fn getdents(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes to the buffer, which is borrowed for the time of the call.
    let got = unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            fd.as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    };
    usize::try_from(got).map_err(|_| {
        let raw = std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO);
        Errno::from_raw(raw).unwrap_or(Errno::EIO)
    })
}

/// One record of getdents64(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEntry<'a> {
    /// Inode number.
    pub ino: u64,
    /// The cursor after it.
    pub next: u64,
    /// `DT_*`.
    pub kind: u8,
    /// Name.
    pub name: &'a [u8],
    /// How many bytes the record has.
    pub len: usize,
}

/// The record at the start of these bytes.
pub fn entry(bytes: &[u8]) -> Option<RawEntry<'_>> {
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let len = usize::from(u16::from_ne_bytes(bytes.get(16..18)?.try_into().ok()?));
    let name = bytes.get(abi::fs::DIRENT64_HEAD..len)?;
    let end = name.iter().position(|byte| *byte == 0)?;
    Some(RawEntry {
        ino: word(0)?,
        next: word(8)?,
        kind: bytes[18],
        name: &name[..end],
        len,
    })
}

/// fstatfs(2).
pub fn statfs(fd: BorrowedFd<'_>) -> Result<abi::fs::Statfs, Errno> {
    let from = sys::fstatfs(fd).map_err(errno)?;
    Ok(abi::fs::Statfs {
        kind: from.f_type,
        bsize: from.f_bsize,
        blocks: from.f_blocks,
        bfree: from.f_bfree,
        bavail: from.f_bavail,
        files: from.f_files,
        ffree: from.f_ffree,
        namelen: from.f_namelen,
        frsize: from.f_frsize,
        ..abi::fs::Statfs::default()
    })
}

/// fgetxattr(2): at most 64 KiB, which is all there can be.
pub fn xattr(fd: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0u8; 256];
    loop {
        match sys::fgetxattr(fd, name, &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                return Ok(value);
            }
            Err(rustix::io::Errno::RANGE) if value.len() < 65536 => value.resize(65536, 0),
            Err(error) => return Err(errno(error)),
        }
    }
}

/// flistxattr(2).
pub fn xattrs(fd: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut list = vec![0u8; 1024];
    let len = loop {
        match sys::flistxattr(fd, &mut list[..]) {
            Ok(len) => break len,
            Err(rustix::io::Errno::RANGE) if list.len() < 65536 => list.resize(65536, 0),
            Err(error) => return Err(errno(error)),
        }
    };
    Ok(list[..len]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect())
}

/// fsetxattr(2): `flags` are `XATTR_CREATE` (1) or `XATTR_REPLACE` (2).
pub fn set_xattr(fd: BorrowedFd<'_>, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
    sys::fsetxattr(fd, name, value, sys::XattrFlags::from_bits_retain(flags)).map_err(errno)
}

/// fremovexattr(2).
pub fn remove_xattr(fd: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    sys::fremovexattr(fd, name).map_err(errno)
}

/// What a descriptor of a stream is ready for, by the bits of poll(2). Does not wait.
pub fn poll(fd: BorrowedFd<'_>) -> u32 {
    let all = rustix::event::PollFlags::IN
        | rustix::event::PollFlags::OUT
        | rustix::event::PollFlags::PRI
        | rustix::event::PollFlags::RDHUP;
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, all)];
    match rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())) {
        Ok(_) => u32::from(fds[0].revents().bits()),
        Err(_) => 0,
    }
}

/// read(2) at the descriptor's own position.
pub fn read(fd: BorrowedFd<'_>, to: &mut [u8]) -> Result<usize, Errno> {
    rustix::io::read(fd, to).map_err(errno)
}

/// write(2) at the descriptor's own position.
pub fn write(fd: BorrowedFd<'_>, from: &[u8]) -> Result<usize, Errno> {
    rustix::io::write(fd, from).map_err(errno)
}

/// The descriptor's own position.
pub fn tell(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    sys::tell(fd).map_err(errno)
}

/// Whether calls on the descriptor wait, and whether its writes go to the end.
pub fn modes(fd: BorrowedFd<'_>) -> Result<(bool, bool), Errno> {
    let flags = sys::fcntl_getfl(fd).map_err(errno)?;
    Ok((
        !flags.contains(OFlags::NONBLOCK),
        flags.contains(OFlags::APPEND),
    ))
}

/// Whether the descriptor may be read, and written; neither for `O_PATH`.
pub fn access(fd: BorrowedFd<'_>) -> Result<(bool, bool), Errno> {
    let flags = sys::fcntl_getfl(fd).map_err(errno)?;
    if flags.contains(OFlags::PATH) {
        return Ok((false, false));
    }
    Ok((
        !flags.contains(OFlags::WRONLY),
        flags.intersects(OFlags::WRONLY | OFlags::RDWR),
    ))
}

/// Another descriptor for the same open file.
pub fn duplicate(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(errno)
}

/// Fills a buffer with random bytes (getrandom(2)).
pub fn random(to: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < to.len() {
        done += rustix::rand::getrandom(&mut to[done..], rustix::rand::GetRandomFlags::empty())
            .map_err(errno)?;
    }
    Ok(())
}
