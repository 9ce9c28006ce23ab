//! Open file descriptions: [`OpenFile`], and the operations behind one, [`FileOps`].
//!
//! Nothing here waits: what would block says EAGAIN, and [`OpenFile::queue`] names the queue that tells when to try again.
//! Lock classes: `FilePos` (held across a read or write, as Linux holds `f_pos_lock`), `Leaf`.

use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use abi::Errno;
use abi::fs::{FallocFlags, FileType, OpenFlags};
use smallvec::SmallVec;

use super::dentry::Location;
use super::inode::{Attrs, Inode, SetAttrs, new_id};
use super::uses::Use;
use crate::fs::host::HostFile;
use crate::io::{GuestMemory, Sink, Source};
use crate::mm::memory_file::{SharedObject, Window};
use crate::sync::order::{FilePos, Leaf};
use crate::sync::{EventMask, Mutex, WaitQueue};

/// One entry of a directory, as getdents64(2) tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Its inode's number.
    pub ino: u64,
    /// The cursor from which reading goes on after this entry (`d_off`).
    pub next: u64,
    /// Its type, where the file system knows it.
    pub kind: Option<FileType>,
    /// Its name.
    pub name: &'a [u8],
}

/// What a mapping of a file is made of (mmap(2)).
pub enum MmapSource {
    /// A host file: the stub maps its descriptor at the file's own offsets.
    Host(Arc<HostFile>),
    /// A window of the memory file: offset 0 of the file is the window's start. Pages are mapped once
    /// [`SharedObject::populate`] allocated them; it also knows where the file ends.
    Memory {
        /// The window.
        window: Arc<Window>,
        /// Who allocates its pages.
        object: Arc<dyn SharedObject>,
    },
    /// Fresh zero pages (`/dev/zero`).
    AnonymousZero,
}

/// `whence` of lseek(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// From the start.
    Set,
    /// From where it is.
    Current,
    /// From the end.
    End,
    /// To the next data.
    Data,
    /// To the next hole.
    Hole,
}

impl Seek {
    /// The one that lseek(2) gives this number; EINVAL.
    pub const fn from_raw(whence: i32) -> Result<Seek, Errno> {
        Ok(match whence {
            0 => Seek::Set,
            1 => Seek::Current,
            2 => Seek::End,
            3 => Seek::Data,
            4 => Seek::Hole,
            _ => return Err(Errno::EINVAL),
        })
    }
}

/// The operations of an open file, by type of file. The access mode was checked.
pub trait FileOps: Any + Send + Sync {
    /// Whether it has a position: reads and writes at offsets, lseek(2), pread(2).
    fn seekable(&self) -> bool {
        false
    }

    /// Reads at `at` (0 where it is not seekable). 0 bytes is the end.
    fn read(&self, _file: &OpenFile, _to: &mut Sink<'_>, _at: u64) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Writes at `at`, or at the end where `append` says so and the file is seekable; moves `at` to where writing ended.
    fn write(
        &self,
        _file: &OpenFile,
        _from: &mut Source<'_>,
        _at: &mut u64,
        _append: bool,
    ) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Tells of the entries from the cursor `at` on, `.` and `..` included, until there are no more or `emit` says false, which means
    /// that this entry did not fit. Leaves `at` at the first entry that was not taken.
    fn readdir(
        &self,
        _file: &OpenFile,
        _at: &mut u64,
        _emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        Err(Errno::ENOTDIR)
    }

    /// Where `SEEK_DATA` or `SEEK_HOLE` from `at` leads; ENXIO past the end. By default all is data.
    fn seek_data(&self, file: &OpenFile, at: u64, hole: bool) -> Result<u64, Errno> {
        let size = file.inode().attrs()?.size;
        if at >= size {
            return Err(Errno::ENXIO);
        }
        Ok(if hole { size } else { at })
    }

    /// A directory's lseek(2): whether it can be at this cursor. Others: any offset.
    fn check_position(&self, _at: u64) -> Result<(), Errno> {
        Ok(())
    }

    /// ioctl(2); ENOTTY for what the file does not know. The result is the call's.
    fn ioctl(
        &self,
        _file: &OpenFile,
        _request: u32,
        _arg: u64,
        _memory: &dyn GuestMemory,
    ) -> Result<u64, Errno> {
        Err(Errno::ENOTTY)
    }

    /// What it is ready for. Regular files always are.
    fn poll(&self, _file: &OpenFile) -> EventMask {
        EventMask::IN | EventMask::OUT | EventMask::RDNORM | EventMask::WRNORM
    }

    /// Who tells of readiness; `None` where it never changes.
    fn queue(&self) -> Option<&Arc<WaitQueue>> {
        None
    }

    /// Whether epoll(7) takes it: EPERM for regular files and directories.
    fn pollable(&self) -> bool {
        self.queue().is_some()
    }

    /// fsync(2), or fdatasync(2) where `data` only. May block.
    fn sync(&self, _file: &OpenFile, _data: bool) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// ftruncate(2) of a file that is open for writing.
    fn truncate(&self, _file: &OpenFile, _size: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// fallocate(2) of a file that is open for writing; the range was checked not to overflow.
    fn fallocate(
        &self,
        _file: &OpenFile,
        _mode: FallocFlags,
        _at: u64,
        _len: u64,
    ) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// What a mapping is made of; ENODEV where it can't be mapped.
    fn mmap(&self, _file: &OpenFile) -> Result<MmapSource, Errno> {
        Err(Errno::ENODEV)
    }

    /// Called at each close(2) of a descriptor (the description may live on).
    fn flush(&self, _file: &OpenFile) -> Result<(), Errno> {
        Ok(())
    }

    /// Called once, when the description goes.
    fn release(&self, _file: &OpenFile) {}

    /// Whether an open(2) that waits for the other side (FIFOs) still waits. It is over once this says false.
    fn open_pending(&self) -> bool {
        false
    }

    /// Called when status flags change by fcntl(2): an error keeps the old ones.
    fn set_flags(&self, _file: &OpenFile, _flags: OpenFlags) -> Result<(), Errno> {
        Ok(())
    }

    /// Extra lines of `/proc/PID/fdinfo/N`.
    fn fdinfo(&self, _file: &OpenFile) -> String {
        String::new()
    }
}

/// Told when an open file description goes away: epoll instances that watch it.
pub trait CloseHook: Send + Sync {
    /// The description of this identity is gone.
    fn closed(&self, file: u64);
}

/// Who gets SIGIO (fcntl(2), `F_SETOWN`): kept here, acted upon by the syscall layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsyncOwner {
    /// `F_OWNER_TID` 0, `F_OWNER_PID` 1, `F_OWNER_PGRP` 2.
    pub kind: i32,
    /// The number, 0 for nobody.
    pub pid: i32,
    /// `F_SETSIG`; 0 for SIGIO.
    pub signal: i32,
}

/// An open file description (open(2)).
pub struct OpenFile {
    id: u64,
    flags: AtomicU32,
    position: Mutex<u64, FilePos>,
    /// The position as it was last set, for those who may not wait for it.
    seen: AtomicU64,
    inode: Arc<dyn Inode>,
    location: Option<Location>,
    ops: Arc<dyn FileOps>,
    strips: AtomicBool,
    /// It writes a file that others can't run meanwhile.
    _writes: Option<Use>,
    extra: Mutex<Extra, Leaf>,
}

#[derive(Default)]
struct Extra {
    hooks: SmallVec<[Weak<dyn CloseHook>; 1]>,
    owner: AsyncOwner,
}

/// The flags that fcntl(2) can change (`F_SETFL`).
pub const CHANGEABLE: OpenFlags = OpenFlags::APPEND
    .union(OpenFlags::NONBLOCK)
    .union(OpenFlags::ASYNC)
    .union(OpenFlags::DIRECT)
    .union(OpenFlags::NOATIME);

/// The flags that only count at open(2).
const AT_OPEN: OpenFlags = OpenFlags::CREAT
    .union(OpenFlags::EXCL)
    .union(OpenFlags::NOCTTY)
    .union(OpenFlags::TRUNC)
    .union(OpenFlags::CLOEXEC);

impl OpenFile {
    /// A description of a file with a place.
    pub fn new(
        location: Location,
        inode: Arc<dyn Inode>,
        ops: Arc<dyn FileOps>,
        flags: OpenFlags,
    ) -> Arc<OpenFile> {
        OpenFile::make(Some(location), inode, ops, flags, None)
    }

    /// A description of a file that it was opened to write.
    pub(super) fn writing(
        location: Location,
        inode: Arc<dyn Inode>,
        ops: Arc<dyn FileOps>,
        flags: OpenFlags,
        writes: Option<Use>,
    ) -> Arc<OpenFile> {
        OpenFile::make(Some(location), inode, ops, flags, writes)
    }

    /// A description of a file without a place: a pipe, a socket, an eventfd. See [`super::anon::AnonInode`].
    pub fn anonymous(
        inode: Arc<dyn Inode>,
        ops: Arc<dyn FileOps>,
        flags: OpenFlags,
    ) -> Arc<OpenFile> {
        OpenFile::make(None, inode, ops, flags, None)
    }

    fn make(
        location: Option<Location>,
        inode: Arc<dyn Inode>,
        ops: Arc<dyn FileOps>,
        flags: OpenFlags,
        writes: Option<Use>,
    ) -> Arc<OpenFile> {
        Arc::new(OpenFile {
            id: new_id(),
            flags: AtomicU32::new(flags.difference(AT_OPEN).bits()),
            position: Mutex::new(0),
            seen: AtomicU64::new(0),
            inode,
            location,
            ops,
            strips: AtomicBool::new(false),
            _writes: writes,
            extra: Mutex::new(Extra::default()),
        })
    }

    /// Its identity.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Access mode and status flags, as `F_GETFL` tells them.
    pub fn flags(&self) -> OpenFlags {
        OpenFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    /// Replaces the flags that can change (`F_SETFL`).
    pub fn set_flags(&self, flags: OpenFlags) -> Result<(), Errno> {
        let new = self.flags().difference(CHANGEABLE) | flags.intersection(CHANGEABLE);
        self.ops.set_flags(self, new)?;
        self.flags.store(new.bits(), Ordering::Relaxed);
        Ok(())
    }

    /// Whether calls on it should wait.
    pub fn blocking(&self) -> bool {
        !self.flags().contains(OpenFlags::NONBLOCK)
    }

    /// Whether it is a place only (`O_PATH`).
    pub fn is_path(&self) -> bool {
        self.flags().contains(OpenFlags::PATH)
    }

    /// Whether it can be read.
    pub fn readable(&self) -> bool {
        let flags = self.flags();
        !flags.contains(OpenFlags::PATH) && !flags.contains(OpenFlags::WRONLY)
    }

    /// Whether it can be written.
    pub fn writable(&self) -> bool {
        let flags = self.flags();
        !flags.contains(OpenFlags::PATH)
            && (flags & OpenFlags::ACCMODE == OpenFlags::WRONLY
                || flags & OpenFlags::ACCMODE == OpenFlags::RDWR)
    }

    /// Its inode.
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    /// Where it was opened; `None` for what has no place.
    pub fn location(&self) -> Option<&Location> {
        self.location.as_ref()
    }

    /// The operations, for those who know the type behind them.
    pub fn ops(&self) -> &Arc<dyn FileOps> {
        &self.ops
    }

    /// The operations as a `T`, where that is what they are.
    pub fn ops_as<T: FileOps>(&self) -> Option<&T> {
        let any: &dyn Any = &*self.ops;
        any.downcast_ref()
    }

    /// fstat(2).
    pub fn attrs(&self) -> Result<Attrs, Errno> {
        self.inode.attrs()
    }

    /// EBADF unless it can be read; EISDIR for directories.
    fn check_read(&self) -> Result<(), Errno> {
        if !self.readable() {
            return Err(Errno::EBADF);
        }
        if self.inode.file_type() == FileType::Directory {
            return Err(Errno::EISDIR);
        }
        Ok(())
    }

    fn check_write(&self) -> Result<(), Errno> {
        if self.writable() {
            Ok(())
        } else {
            Err(Errno::EBADF)
        }
    }

    /// read(2).
    pub fn read(&self, to: &mut Sink<'_>) -> Result<usize, Errno> {
        self.check_read()?;
        if !self.ops.seekable() {
            return self.ops.read(self, to, 0);
        }
        let mut position = self.position.lock();
        check_range(*position, to.remaining())?;
        let got = self.ops.read(self, to, *position)?;
        *position = position.saturating_add(got as u64);
        self.seen.store(*position, Ordering::Relaxed);
        Ok(got)
    }

    /// write(2).
    pub fn write(&self, from: &mut Source<'_>) -> Result<usize, Errno> {
        self.check_write()?;
        if !self.ops.seekable() {
            return self.ops.write(self, from, &mut 0, false);
        }
        let append = self.flags().contains(OpenFlags::APPEND);
        let mut position = self.position.lock();
        check_range(*position, from.remaining())?;
        let put = self.ops.write(self, from, &mut position, append)?;
        self.seen.store(*position, Ordering::Relaxed);
        self.strip_setid()?;
        Ok(put)
    }

    /// pread(2): ESPIPE where there are no offsets, EINVAL for a negative one.
    pub fn pread(&self, to: &mut Sink<'_>, at: i64) -> Result<usize, Errno> {
        let at = u64::try_from(at).map_err(|_| Errno::EINVAL)?;
        if !self.readable() {
            return Err(Errno::EBADF);
        }
        if !self.ops.seekable() {
            return Err(Errno::ESPIPE);
        }
        self.check_read()?;
        check_range(at, to.remaining())?;
        self.ops.read(self, to, at)
    }

    /// pwrite(2). With `O_APPEND` it goes to the end, as Linux does it.
    pub fn pwrite(&self, from: &mut Source<'_>, at: i64) -> Result<usize, Errno> {
        let mut at = u64::try_from(at).map_err(|_| Errno::EINVAL)?;
        self.check_write()?;
        if !self.ops.seekable() {
            return Err(Errno::ESPIPE);
        }
        check_range(at, from.remaining())?;
        let append = self.flags().contains(OpenFlags::APPEND);
        let put = self.ops.write(self, from, &mut at, append)?;
        self.strip_setid()?;
        Ok(put)
    }

    /// pwritev2(2) with `RWF_NOAPPEND`: to this offset, whatever `O_APPEND` says.
    pub fn pwrite_there(&self, from: &mut Source<'_>, at: i64) -> Result<usize, Errno> {
        let mut at = u64::try_from(at).map_err(|_| Errno::EINVAL)?;
        self.check_write()?;
        if !self.ops.seekable() {
            return Err(Errno::ESPIPE);
        }
        check_range(at, from.remaining())?;
        let put = self.ops.write(self, from, &mut at, false)?;
        self.strip_setid()?;
        Ok(put)
    }

    /// pwritev2(2) with `RWF_APPEND`: to the end; the position follows where it `moves`.
    pub fn append(&self, from: &mut Source<'_>, moves: bool) -> Result<usize, Errno> {
        self.check_write()?;
        if !self.ops.seekable() {
            return self.ops.write(self, from, &mut 0, false);
        }
        let put = if moves {
            let mut position = self.position.lock();
            let put = self.ops.write(self, from, &mut position, true)?;
            self.seen.store(*position, Ordering::Relaxed);
            put
        } else {
            self.ops.write(self, from, &mut 0, true)?
        };
        self.strip_setid()?;
        Ok(put)
    }

    /// Moves the position on, where somebody else moved the bytes (sendfile(2)).
    pub fn advance(&self, by: u64) {
        let mut position = self.position.lock();
        *position = position.saturating_add(by);
        self.seen.store(*position, Ordering::Relaxed);
    }

    /// A file that somebody without CAP_FSETID writes to loses its set-ID bits (write(2)): whoever opened it counts.
    fn strip_setid(&self) -> Result<(), Errno> {
        if !self.strips.load(Ordering::Relaxed) {
            return Ok(());
        }
        let perm = super::permission::without_setid(self.inode.owner()?.mode);
        match perm {
            None => Ok(()),
            perm => self.inode.set_attrs(&SetAttrs {
                perm,
                ..SetAttrs::default()
            }),
        }
    }

    /// Writes take set-ID bits away from now on.
    pub(super) fn set_strips(&self) {
        self.strips.store(true, Ordering::Relaxed);
    }

    /// Where the position is.
    pub fn position(&self) -> u64 {
        *self.position.lock()
    }

    /// Where the position was last, without waiting for a read or write under way: a file of procfs tells of itself too.
    pub fn last_position(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Sets where the position is, for a file that was taken over from elsewhere.
    pub fn set_position(&self, position: u64) {
        *self.position.lock() = position;
        self.seen.store(position, Ordering::Relaxed);
    }

    /// lseek(2): EINVAL for a position before the start, ENXIO past the end for data and holes, EOVERFLOW past what a position can hold.
    pub fn seek(&self, offset: i64, whence: Seek) -> Result<u64, Errno> {
        if self.is_path() {
            return Err(Errno::EBADF);
        }
        if !self.ops.seekable() {
            return Err(Errno::ESPIPE);
        }
        let mut position = self.position.lock();
        let base = match whence {
            Seek::Set => 0,
            Seek::Current => *position,
            Seek::End => self.inode.attrs()?.size,
            Seek::Data | Seek::Hole => {
                let at = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                let found = self.ops.seek_data(self, at, whence == Seek::Hole)?;
                *position = found;
                self.seen.store(found, Ordering::Relaxed);
                return Ok(found);
            }
        };
        let target = i128::from(base) + i128::from(offset);
        if target > i128::from(i64::MAX) {
            return Err(Errno::EOVERFLOW);
        }
        let target = u64::try_from(target).map_err(|_| Errno::EINVAL)?;
        self.ops.check_position(target)?;
        *position = target;
        self.seen.store(target, Ordering::Relaxed);
        Ok(target)
    }

    /// getdents64(2): tells of entries from the position on until `emit` says that one did not fit.
    pub fn readdir(&self, emit: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<(), Errno> {
        if !self.readable() {
            return Err(Errno::EBADF);
        }
        if self.inode.file_type() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        let mut position = self.position.lock();
        let told = self.ops.readdir(self, &mut position, emit);
        self.seen.store(*position, Ordering::Relaxed);
        told
    }

    /// ioctl(2).
    pub fn ioctl(&self, request: u32, arg: u64, memory: &dyn GuestMemory) -> Result<u64, Errno> {
        if self.is_path() {
            return Err(Errno::EBADF);
        }
        self.ops.ioctl(self, request, arg, memory)
    }

    /// What it is ready for.
    pub fn poll(&self) -> EventMask {
        if self.is_path() {
            return EventMask::NVAL;
        }
        self.ops.poll(self)
    }

    /// Who tells of readiness.
    pub fn queue(&self) -> Option<&Arc<WaitQueue>> {
        self.ops.queue()
    }

    /// fsync(2) or fdatasync(2). May block.
    pub fn sync(&self, data: bool) -> Result<(), Errno> {
        if self.is_path() {
            return Err(Errno::EBADF);
        }
        self.ops.sync(self, data)
    }

    /// ftruncate(2): EINVAL unless it is a regular file that is open for writing.
    pub fn truncate(&self, size: i64) -> Result<(), Errno> {
        let size = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
        if self.is_path() {
            return Err(Errno::EBADF);
        }
        if !self.writable() || self.inode.file_type() != FileType::Regular {
            return Err(Errno::EINVAL);
        }
        self.ops.truncate(self, size)
    }

    /// fallocate(2).
    pub fn fallocate(&self, mode: u32, at: i64, len: i64) -> Result<(), Errno> {
        self.check_write()?;
        let at = u64::try_from(at).map_err(|_| Errno::EINVAL)?;
        let len = u64::try_from(len)
            .ok()
            .filter(|len| *len > 0)
            .ok_or(Errno::EINVAL)?;
        let mode = FallocFlags::from_bits(mode).ok_or(Errno::EOPNOTSUPP)?;
        if mode.contains(FallocFlags::PUNCH_HOLE) && !mode.contains(FallocFlags::KEEP_SIZE) {
            return Err(Errno::EOPNOTSUPP);
        }
        if mode.contains(FallocFlags::PUNCH_HOLE | FallocFlags::ZERO_RANGE) {
            return Err(Errno::EOPNOTSUPP);
        }
        match self.inode.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::EISDIR),
            FileType::Fifo => return Err(Errno::ESPIPE),
            _ => return Err(Errno::ENODEV),
        }
        if at.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::EFBIG);
        }
        self.ops.fallocate(self, mode, at, len)
    }

    /// What a mapping is made of: ENODEV where it can't be mapped, EACCES where it is not open for reading.
    pub fn mmap_source(&self) -> Result<MmapSource, Errno> {
        if self.is_path() {
            return Err(Errno::EBADF);
        }
        if !self.readable() {
            return Err(Errno::EACCES);
        }
        self.ops.mmap(self)
    }

    /// Whether an open(2) that waits for the other side still waits (FIFOs).
    pub fn open_pending(&self) -> bool {
        self.ops.open_pending()
    }

    /// Who gets SIGIO.
    pub fn owner(&self) -> AsyncOwner {
        self.extra.lock().owner
    }

    /// Sets who gets SIGIO.
    pub fn set_owner(&self, owner: AsyncOwner) {
        self.extra.lock().owner = owner;
    }

    /// Asks to be told when this description goes away.
    pub fn on_close(&self, hook: Weak<dyn CloseHook>) {
        let mut extra = self.extra.lock();
        if !extra.hooks.iter().any(|known| known.ptr_eq(&hook)) {
            extra.hooks.retain(|known| known.strong_count() > 0);
            extra.hooks.push(hook);
        }
    }

    /// What `/proc/PID/fd/N` leads to, for what has no place: `pipe:[7]`, `anon_inode:[eventpoll]`.
    pub fn anonymous_name(&self) -> Option<String> {
        if self.location.is_some() {
            return None;
        }
        Some(self.inode.anonymous_name())
    }
}

/// EINVAL where a transfer would end past what an offset can hold.
fn check_range(at: u64, len: usize) -> Result<(), Errno> {
    match at.checked_add(len as u64) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.ops.release(self);
        super::locks::release_description(self.inode.key(), self.id);
        let hooks = core::mem::take(&mut self.extra.get_mut().hooks);
        for hook in hooks {
            if let Some(hook) = hook.upgrade() {
                hook.closed(self.id);
            }
        }
    }
}

impl core::fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "OpenFile({}, {:?}, {:?})",
            self.id,
            self.inode.key(),
            self.flags()
        )
    }
}
