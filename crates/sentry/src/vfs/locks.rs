//! File locks: POSIX record locks, open file description locks and flock(2) (fcntl(2), "Advisory record locking").
//!
//! Kept in one table by inode key, so that files without locks cost nothing. Lock class: `FileLocks`; waking is done without it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use abi::Errno;

use super::inode::InodeKey;
use crate::sync::order::FileLocks;
use crate::sync::{EventMask, Mutex, WaitQueue};

/// Who holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockOwner {
    /// A process, by the identity of its descriptor table (POSIX locks).
    Process(u64),
    /// An open file description, by its identity (OFD locks).
    Description(u64),
}

/// A record lock, its range end excluded (`u64::MAX` for "to the end of the file").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLock {
    /// Who holds it.
    pub owner: LockOwner,
    /// What `F_GETLK` calls the holder (-1 for OFD locks).
    pub pid: i32,
    /// Whether it excludes readers.
    pub write: bool,
    /// First byte.
    pub start: u64,
    /// Past the last byte.
    pub end: u64,
}

#[derive(Default)]
struct Table {
    files: HashMap<InodeKey, FileLocksOf>,
    /// Which process waits for a lock that which others hold: for deadlocks.
    waits: HashMap<LockOwner, LockOwner>,
}

#[derive(Default)]
struct FileLocksOf {
    records: Vec<RecordLock>,
    /// (description, exclusive)
    flocks: Vec<(u64, bool)>,
    queue: Arc<WaitQueue>,
}

static HELD: AtomicUsize = AtomicUsize::new(0);

fn table() -> &'static Mutex<Table, FileLocks> {
    static TABLE: OnceLock<Mutex<Table, FileLocks>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default)
}

/// Why a lock was not given.
#[derive(Debug)]
pub enum Refused {
    /// An error: EDEADLK, ENOLCK.
    Failed(Errno),
    /// Somebody holds it (EAGAIN for those who do not wait): this queue tells when locks of the file go.
    Busy(Arc<WaitQueue>),
}

/// The most record locks that one file can have.
const RECORDS_MAX: usize = 65536;

/// Takes or converts a record lock (`F_SETLK`, `F_OFD_SETLK`). With `wait`, the caller goes on to wait on the queue: a POSIX lock
/// that would close a circle of waiters is EDEADLK instead, and [`stop_waiting`] is to be called where waiting ends without success.
pub fn lock_record(key: InodeKey, lock: RecordLock, wait: bool) -> Result<(), Refused> {
    if lock.start >= lock.end {
        return Err(Refused::Failed(Errno::EINVAL));
    }
    let mut table = table().lock();
    let file = table.files.entry(key).or_default();
    if let Some(holder) = file.conflict(&lock).map(|held| held.owner) {
        let queue = Arc::clone(&file.queue);
        if wait && matches!(lock.owner, LockOwner::Process(_)) {
            if table.would_deadlock(lock.owner, holder) {
                return Err(Refused::Failed(Errno::EDEADLK));
            }
            table.waits.insert(lock.owner, holder);
        }
        return Err(Refused::Busy(queue));
    }
    table.waits.remove(&lock.owner);
    let file = table.files.entry(key).or_default();
    if file.records.len() >= RECORDS_MAX {
        return Err(Refused::Failed(Errno::ENOLCK));
    }
    let shrunk = file.cut(lock.owner, lock.start, lock.end, Some(lock.write));
    file.add(lock);
    let queue = shrunk.then(|| Arc::clone(&file.queue));
    table.count();
    drop(table);
    if let Some(queue) = queue {
        queue.notify(EventMask::IN);
    }
    Ok(())
}

/// Gives a range back (`F_UNLCK`).
pub fn unlock_record(key: InodeKey, owner: LockOwner, start: u64, end: u64) {
    let mut table = table().lock();
    let Some(file) = table.files.get_mut(&key) else {
        return;
    };
    let queue = file
        .cut(owner, start, end, None)
        .then(|| Arc::clone(&file.queue));
    table.tidy(key);
    drop(table);
    if let Some(queue) = queue {
        queue.notify(EventMask::IN);
    }
}

/// The lock that stands in the way of this one (`F_GETLK`).
pub fn conflicting(key: InodeKey, lock: &RecordLock) -> Option<RecordLock> {
    table().lock().files.get(&key)?.conflict(lock).copied()
}

/// Ends a wait for a record lock that did not succeed.
pub fn stop_waiting(owner: LockOwner) {
    table().lock().waits.remove(&owner);
}

/// flock(2): takes or converts the description's lock.
pub fn flock(key: InodeKey, description: u64, exclusive: bool) -> Result<(), Refused> {
    let mut table = table().lock();
    let file = table.files.entry(key).or_default();
    // Converting gives the old lock up first (flock(2), NOTES).
    let before = file.flocks.len();
    let mut had = None;
    file.flocks.retain(|(owner, how)| {
        if *owner == description {
            had = Some(*how);
        }
        *owner != description
    });
    let freed = file.flocks.len() < before && had != Some(exclusive);
    let busy = file.flocks.iter().any(|(_, how)| exclusive || *how);
    let queue = Arc::clone(&file.queue);
    if !busy {
        file.flocks.push((description, exclusive));
    }
    table.tidy(key);
    drop(table);
    if freed {
        queue.notify(EventMask::IN);
    }
    if busy {
        Err(Refused::Busy(queue))
    } else {
        Ok(())
    }
}

/// flock(2) with `LOCK_UN`.
pub fn funlock(key: InodeKey, description: u64) {
    drop_locks(key, |file| {
        let before = file.flocks.len();
        file.flocks.retain(|(owner, _)| *owner != description);
        file.flocks.len() < before
    });
}

/// A descriptor of the file was closed: the process's POSIX locks on it go (fcntl(2)).
pub(super) fn release_posix(key: InodeKey, table: u64) {
    drop_locks(key, |file| {
        file.cut(LockOwner::Process(table), 0, u64::MAX, None)
    });
}

/// A description went: its OFD locks and its flock go.
pub(super) fn release_description(key: InodeKey, description: u64) {
    drop_locks(key, |file| {
        let before = file.flocks.len();
        file.flocks.retain(|(owner, _)| *owner != description);
        file.cut(LockOwner::Description(description), 0, u64::MAX, None)
            || file.flocks.len() < before
    });
}

/// A record lock, and its file.
pub type HeldRecord = (InodeKey, RecordLock);
/// A lock of flock(2): file, description, whether it is exclusive.
pub type HeldFlock = (InodeKey, u64, bool);

/// All locks, for `/proc/locks`: records, then (file, description, exclusive) of flock(2).
pub fn all() -> (Vec<HeldRecord>, Vec<HeldFlock>) {
    let table = table().lock();
    let (mut records, mut flocks) = (Vec::new(), Vec::new());
    for (key, file) in &table.files {
        records.extend(file.records.iter().map(|lock| (*key, *lock)));
        flocks.extend(
            file.flocks
                .iter()
                .map(|(owner, exclusive)| (*key, *owner, *exclusive)),
        );
    }
    (records, flocks)
}

fn drop_locks(key: InodeKey, change: impl FnOnce(&mut FileLocksOf) -> bool) {
    if HELD.load(Ordering::SeqCst) == 0 {
        return;
    }
    let mut table = table().lock();
    let Some(file) = table.files.get_mut(&key) else {
        return;
    };
    let queue = change(file).then(|| Arc::clone(&file.queue));
    table.tidy(key);
    drop(table);
    if let Some(queue) = queue {
        queue.notify(EventMask::IN);
    }
}

impl Table {
    fn count(&self) {
        HELD.store(self.files.len(), Ordering::SeqCst);
    }

    fn tidy(&mut self, key: InodeKey) {
        if let Some(file) = self.files.get(&key)
            && file.records.is_empty()
            && file.flocks.is_empty()
            && Arc::strong_count(&file.queue) == 1
        {
            self.files.remove(&key);
        }
        self.count();
    }

    fn would_deadlock(&self, waiter: LockOwner, mut holder: LockOwner) -> bool {
        for _ in 0..=self.waits.len() {
            if holder == waiter {
                return true;
            }
            match self.waits.get(&holder) {
                Some(next) => holder = *next,
                None => return false,
            }
        }
        false
    }
}

impl FileLocksOf {
    fn conflict(&self, lock: &RecordLock) -> Option<&RecordLock> {
        self.records.iter().find(|held| {
            held.owner != lock.owner
                && held.start < lock.end
                && lock.start < held.end
                && (held.write || lock.write)
        })
    }

    /// Takes a range out of the owner's locks. Says whether others may have been waiting for it: with `to`, whether a lock was weakened.
    fn cut(&mut self, owner: LockOwner, start: u64, end: u64, to: Option<bool>) -> bool {
        let mut freed = false;
        let mut rest = Vec::new();
        self.records.retain(|held| {
            if held.owner != owner || held.end <= start || held.start >= end {
                return true;
            }
            freed |= to.is_none_or(|write| held.write && !write);
            if held.start < start {
                rest.push(RecordLock {
                    end: start,
                    ..*held
                });
            }
            if held.end > end {
                rest.push(RecordLock {
                    start: end,
                    ..*held
                });
            }
            false
        });
        self.records.append(&mut rest);
        freed
    }

    /// Adds a lock, joined with the owner's neighbours of its kind.
    fn add(&mut self, mut lock: RecordLock) {
        self.records.retain(|held| {
            let joins = held.owner == lock.owner
                && held.write == lock.write
                && held.start <= lock.end
                && lock.start <= held.end;
            if joins {
                lock.start = lock.start.min(held.start);
                lock.end = lock.end.max(held.end);
            }
            !joins
        });
        self.records.push(lock);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Errno, InodeKey, LockOwner, RecordLock, Refused, conflicting, flock, funlock, lock_record,
        release_posix, stop_waiting, unlock_record,
    };

    fn key() -> InodeKey {
        InodeKey {
            dev: u64::MAX,
            ino: super::super::inode::new_id(),
        }
    }

    fn lock(owner: u64, write: bool, start: u64, end: u64) -> RecordLock {
        RecordLock {
            owner: LockOwner::Process(owner),
            pid: 1,
            write,
            start,
            end,
        }
    }

    #[test]
    fn ranges_split_and_join() {
        let key = key();
        let (a, b) = (super::super::inode::new_id(), super::super::inode::new_id());
        lock_record(key, lock(a, true, 0, 100), false).expect("free");
        unlock_record(key, LockOwner::Process(a), 40, 60);
        lock_record(key, lock(b, true, 40, 60), false).expect("freed");
        assert!(matches!(
            lock_record(key, lock(b, false, 60, 61), false),
            Err(Refused::Busy(_))
        ));
        lock_record(key, lock(a, false, 60, 100), false).expect("its own");
        lock_record(key, lock(b, false, 60, u64::MAX), false).expect("shared");
        assert_eq!(
            conflicting(key, &lock(b, true, 0, 10)).map(|held| (held.start, held.end)),
            Some((0, 40))
        );
        release_posix(key, a);
        lock_record(key, lock(b, true, 0, u64::MAX), false).expect("alone");
        release_posix(key, b);
    }

    #[test]
    fn circles_are_found() {
        let (one, two) = (key(), key());
        let (a, b) = (super::super::inode::new_id(), super::super::inode::new_id());
        lock_record(one, lock(a, true, 0, 1), true).expect("free");
        lock_record(two, lock(b, true, 0, 1), true).expect("free");
        assert!(matches!(
            lock_record(two, lock(a, true, 0, 1), true),
            Err(Refused::Busy(_))
        ));
        assert!(matches!(
            lock_record(one, lock(b, true, 0, 1), true),
            Err(Refused::Failed(Errno::EDEADLK))
        ));
        stop_waiting(LockOwner::Process(a));
        assert!(matches!(
            lock_record(one, lock(b, true, 0, 1), true),
            Err(Refused::Busy(_))
        ));
        release_posix(one, a);
        release_posix(two, b);
    }

    #[test]
    fn flocks_are_by_description() {
        let key = key();
        let (a, b) = (super::super::inode::new_id(), super::super::inode::new_id());
        flock(key, a, false).expect("free");
        flock(key, b, false).expect("shared");
        assert!(matches!(flock(key, a, true), Err(Refused::Busy(_))));
        funlock(key, b);
        flock(key, a, true).expect("alone");
        funlock(key, a);
    }
}
