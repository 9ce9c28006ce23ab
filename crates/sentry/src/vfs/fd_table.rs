//! File descriptors: [`FdTable`], a process's numbers for open file descriptions.
//!
//! Shared among threads by `Arc`, copied at fork by [`FdTable::fork`]. Lock class: `FdTable`, never held while a description is dropped.

use std::sync::Arc;

use abi::Errno;

use super::file::OpenFile;
use super::inode::new_id;
use super::locks;
use crate::sync::RwLock;
use crate::sync::order;

/// The most descriptors a process can have, whatever its limit (`NR_OPEN`).
pub const NR_OPEN: u32 = 1 << 20;

/// A process's descriptors.
pub struct FdTable {
    id: u64,
    slots: RwLock<Slots, order::FdTable>,
}

#[derive(Clone, Default)]
struct Slots {
    files: Vec<Option<Arc<OpenFile>>>,
    /// A bit per number: in use (reserved numbers too).
    used: Vec<u64>,
    /// A bit per number: to be closed at execve(2).
    cloexec: Vec<u64>,
    /// No number below this is free.
    lowest: usize,
}

/// A number that is taken and has no file yet: given back when dropped unused.
pub struct ReservedFd<'a> {
    table: &'a FdTable,
    fd: usize,
    armed: bool,
}

impl Default for FdTable {
    fn default() -> Self {
        FdTable {
            id: new_id(),
            slots: RwLock::new(Slots::default()),
        }
    }
}

impl FdTable {
    /// An empty table.
    pub fn new() -> Arc<FdTable> {
        Arc::default()
    }

    /// Its identity, which owns the POSIX locks that its process takes.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// A copy, as fork(2) makes it: the same descriptions under the same numbers.
    pub fn fork(&self) -> Arc<FdTable> {
        Arc::new(FdTable {
            id: new_id(),
            slots: RwLock::new(self.slots.read().settled()),
        })
    }

    /// The description of this number; EBADF.
    pub fn get(&self, fd: i32) -> Result<Arc<OpenFile>, Errno> {
        let fd = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        match self.slots.read().files.get(fd) {
            Some(Some(file)) => Ok(Arc::clone(file)),
            _ => Err(Errno::EBADF),
        }
    }

    /// The description of this number, unless it is a place only (`O_PATH`); EBADF.
    pub fn get_file(&self, fd: i32) -> Result<Arc<OpenFile>, Errno> {
        let file = self.get(fd)?;
        if file.is_path() {
            Err(Errno::EBADF)
        } else {
            Ok(file)
        }
    }

    /// Gives the description the lowest free number from `least` on and below `limit` (RLIMIT_NOFILE); EMFILE.
    pub fn insert(
        &self,
        file: Arc<OpenFile>,
        cloexec: bool,
        least: u32,
        limit: u64,
    ) -> Result<i32, Errno> {
        let mut slots = self.slots.write();
        let fd = slots.take(least as usize, limit)?;
        slots.files[fd] = Some(file);
        set(&mut slots.cloexec, fd, cloexec);
        Ok(number(fd))
    }

    /// Takes the lowest free number without a file yet, so that what follows can't fail for want of one.
    pub fn reserve(&self, limit: u64) -> Result<ReservedFd<'_>, Errno> {
        let fd = self.slots.write().take(0, limit)?;
        Ok(ReservedFd {
            table: self,
            fd,
            armed: true,
        })
    }

    /// dup2(2) and dup3(2): gives the description this number; what had it before is closed. EBADF for a number at or past `limit`.
    pub fn replace(
        &self,
        fd: i32,
        file: Arc<OpenFile>,
        cloexec: bool,
        limit: u64,
    ) -> Result<(), Errno> {
        let at = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        if at as u64 >= limit.min(u64::from(NR_OPEN)) {
            return Err(Errno::EBADF);
        }
        let mut slots = self.slots.write();
        slots.grow(at + 1);
        // A number that another thread has reserved and not filled is busy (dup2(2)).
        if bit(&slots.used, at) && slots.files[at].is_none() {
            return Err(Errno::EBUSY);
        }
        let old = slots.files[at].replace(file);
        set(&mut slots.used, at, true);
        set(&mut slots.cloexec, at, cloexec);
        drop(slots);
        if let Some(old) = old {
            // Errors of the implicit close are lost, as on Linux.
            let _ = self.closed(&old);
        }
        Ok(())
    }

    /// close(2): EBADF, or what the file's flush said; the number is free either way.
    pub fn close(&self, fd: i32) -> Result<(), Errno> {
        let at = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let old = self.slots.write().remove(at).ok_or(Errno::EBADF)?;
        self.closed(&old)
    }

    /// close_range(2): closes all numbers from `first` to `last`, both included.
    pub fn close_range(&self, first: u32, last: u32) {
        let mut at = first as usize;
        loop {
            // A batch at a time, so that the lock is not held while files go.
            let mut gone = Vec::new();
            let mut slots = self.slots.write();
            let end = slots.files.len().min(last as usize + 1);
            while at < end && gone.len() < 64 {
                gone.extend(slots.remove(at));
                at += 1;
            }
            drop(slots);
            for file in &gone {
                let _ = self.closed(file);
            }
            if at >= end {
                return;
            }
        }
    }

    /// close_range(2) with `CLOSE_RANGE_CLOEXEC`.
    pub fn cloexec_range(&self, first: u32, last: u32) {
        let mut slots = self.slots.write();
        let end = slots.files.len().min(last as usize + 1);
        for fd in first as usize..end {
            if slots.files[fd].is_some() {
                set(&mut slots.cloexec, fd, true);
            }
        }
    }

    /// What execve(2) closes.
    pub fn close_on_exec(&self) {
        let mut slots = self.slots.write();
        let mut gone = Vec::new();
        for word in 0..slots.cloexec.len() {
            let mut bits = core::mem::take(&mut slots.cloexec[word]);
            while bits != 0 {
                gone.extend(slots.remove(word * 64 + bits.trailing_zeros() as usize));
                bits &= bits - 1;
            }
        }
        drop(slots);
        for file in &gone {
            let _ = self.closed(file);
        }
    }

    /// What exit closes: everything.
    pub fn close_all(&self) {
        self.close_range(0, NR_OPEN);
    }

    /// Whether the number is closed at execve(2) (`F_GETFD`); EBADF.
    pub fn cloexec(&self, fd: i32) -> Result<bool, Errno> {
        let fd = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let slots = self.slots.read();
        match slots.files.get(fd) {
            Some(Some(_)) => Ok(bit(&slots.cloexec, fd)),
            _ => Err(Errno::EBADF),
        }
    }

    /// Sets whether the number is closed at execve(2) (`F_SETFD`); EBADF.
    pub fn set_cloexec(&self, fd: i32, cloexec: bool) -> Result<(), Errno> {
        let fd = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let mut slots = self.slots.write();
        match slots.files.get(fd) {
            Some(Some(_)) => {
                set(&mut slots.cloexec, fd, cloexec);
                Ok(())
            }
            _ => Err(Errno::EBADF),
        }
    }

    /// All numbers in use, in order.
    pub fn numbers(&self) -> Vec<i32> {
        let slots = self.slots.read();
        (0..slots.files.len())
            .filter(|fd| slots.files[*fd].is_some())
            .map(number)
            .collect()
    }

    /// The first number in use from `least` on, for reading `/proc/PID/fd` piece by piece.
    pub fn next(&self, least: i32) -> Option<i32> {
        let slots = self.slots.read();
        let least = usize::try_from(least).unwrap_or(0);
        (least..slots.files.len())
            .find(|fd| slots.files[*fd].is_some())
            .map(number)
    }

    /// How many numbers there are room for (`FDSize` of `/proc/PID/status`).
    pub fn size(&self) -> usize {
        self.slots.read().used.len() * 64
    }

    fn closed(&self, file: &Arc<OpenFile>) -> Result<(), Errno> {
        locks::release_posix(file.inode().key(), self.id);
        if file.is_path() {
            return Ok(());
        }
        file.ops().flush(file)
    }
}

impl Drop for FdTable {
    fn drop(&mut self) {
        self.close_all();
    }
}

impl ReservedFd<'_> {
    /// The number.
    pub fn fd(&self) -> i32 {
        number(self.fd)
    }

    /// Gives it a file.
    pub fn fill(mut self, file: Arc<OpenFile>, cloexec: bool) -> i32 {
        let mut slots = self.table.slots.write();
        slots.files[self.fd] = Some(file);
        set(&mut slots.cloexec, self.fd, cloexec);
        drop(slots);
        self.armed = false;
        number(self.fd)
    }
}

impl Drop for ReservedFd<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.table.slots.write().free(self.fd);
        }
    }
}

impl Slots {
    /// The lowest free number from `least` on, marked as used.
    fn take(&mut self, least: usize, limit: u64) -> Result<usize, Errno> {
        let from = least.max(self.lowest);
        let fd = self.first_free(from);
        if fd as u64 >= limit.min(u64::from(NR_OPEN)) {
            return Err(Errno::EMFILE);
        }
        self.grow(fd + 1);
        set(&mut self.used, fd, true);
        if least <= self.lowest {
            self.lowest = fd + 1;
        }
        Ok(fd)
    }

    fn first_free(&self, from: usize) -> usize {
        let mut word = from / 64;
        let mut mask = u64::MAX << (from % 64);
        while let Some(bits) = self.used.get(word) {
            let free = !bits & mask;
            if free != 0 {
                return word * 64 + free.trailing_zeros() as usize;
            }
            mask = u64::MAX;
            word += 1;
        }
        from.max(word * 64)
    }

    fn grow(&mut self, len: usize) {
        if self.files.len() < len {
            self.files.resize(len, None);
        }
        let words = len.div_ceil(64);
        if self.used.len() < words {
            self.used.resize(words, 0);
            self.cloexec.resize(words, 0);
        }
    }

    fn free(&mut self, fd: usize) {
        set(&mut self.used, fd, false);
        set(&mut self.cloexec, fd, false);
        self.lowest = self.lowest.min(fd);
    }

    fn remove(&mut self, fd: usize) -> Option<Arc<OpenFile>> {
        let file = self.files.get_mut(fd)?.take()?;
        self.free(fd);
        Some(file)
    }

    /// A copy without the numbers that are reserved and not filled.
    fn settled(&self) -> Slots {
        let mut copy = self.clone();
        for fd in 0..copy.files.len() {
            if copy.files[fd].is_none() && bit(&copy.used, fd) {
                copy.free(fd);
            }
        }
        copy
    }
}

fn bit(bits: &[u64], at: usize) -> bool {
    bits.get(at / 64)
        .is_some_and(|word| word >> (at % 64) & 1 != 0)
}

fn set(bits: &mut [u64], at: usize, to: bool) {
    if let Some(word) = bits.get_mut(at / 64) {
        *word = *word & !(1 << (at % 64)) | u64::from(to) << (at % 64);
    }
}

/// Numbers stay below `NR_OPEN`.
fn number(fd: usize) -> i32 {
    i32::try_from(fd).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Errno, FdTable};
    use crate::vfs::anon::AnonInode;
    use crate::vfs::{FileOps, OpenFile};
    use abi::fs::OpenFlags;
    use std::sync::Arc;

    struct Nothing;
    impl FileOps for Nothing {}

    fn file() -> Arc<OpenFile> {
        OpenFile::anonymous(AnonInode::new("[test]"), Arc::new(Nothing), OpenFlags::RDWR)
    }

    #[test]
    fn lowest_number_first() {
        let table = FdTable::new();
        for want in 0..130 {
            assert_eq!(table.insert(file(), false, 0, 1024), Ok(want));
        }
        table.close(7).expect("open");
        table.close(66).expect("open");
        assert_eq!(table.insert(file(), false, 8, 1024), Ok(66));
        assert_eq!(table.insert(file(), true, 0, 1024), Ok(7));
        assert_eq!(table.insert(file(), false, 0, 130), Err(Errno::EMFILE));
        assert_eq!(table.insert(file(), false, 500, 1024), Ok(500));
        assert_eq!(table.close(7), Ok(()));
        assert_eq!(table.close(7), Err(Errno::EBADF));
        assert_eq!(table.close(-1), Err(Errno::EBADF));
    }

    #[test]
    fn exec_closes_what_it_should() {
        let table = FdTable::new();
        table.insert(file(), true, 0, 10).expect("room");
        table.insert(file(), false, 0, 10).expect("room");
        table.set_cloexec(1, true).expect("open");
        table.insert(file(), false, 0, 10).expect("room");
        let child = table.fork();
        child.close_on_exec();
        assert_eq!(child.numbers(), [2]);
        assert_eq!(table.numbers(), [0, 1, 2]);
        table.close_range(1, u32::MAX);
        assert_eq!(table.numbers(), [0]);
    }

    #[test]
    fn reserved_numbers_come_back() {
        let table = FdTable::new();
        let reserved = table.reserve(10).expect("room");
        assert_eq!(reserved.fd(), 0);
        assert_eq!(table.replace(0, file(), false, 10), Err(Errno::EBUSY));
        assert_eq!(table.insert(file(), false, 0, 10), Ok(1));
        drop(reserved);
        assert_eq!(table.insert(file(), false, 0, 10), Ok(0));
        assert_eq!(table.replace(9, file(), true, 10), Ok(()));
        assert_eq!(table.replace(10, file(), true, 10), Err(Errno::EBADF));
        assert_eq!(table.cloexec(9), Ok(true));
    }
}
