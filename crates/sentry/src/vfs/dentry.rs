//! Names in a tree: [`Dentry`], the bounded cache of them, and [`Location`], a name in a mount.
//!
//! A dentry holds its parent, the cache holds dentries; one that nobody else holds can be evicted at any time, and a further look-up makes a
//! new one. What was found missing is kept as a record in the cache, without a dentry.
//!
//! Lock classes: `InodeOp` (a directory's entries), `DentryChildren` (a shard of the cache), `Leaf` (name and parent). Nothing is dropped under them.

use core::hash::BuildHasher;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use abi::fs::FileType;

use super::inode::{Caching, Inode, new_id};
use super::mount::Mount;
use crate::sync::order::{DentryChildren, InodeOp, Leaf};
use crate::sync::{Mutex, MutexGuard};

/// A name in a directory, and the inode behind it.
pub struct Dentry {
    id: u64,
    inode: Arc<dyn Inode>,
    caching: Caching,
    kind: FileType,
    /// Not in the cache, nor is anything below it.
    ephemeral: bool,
    /// How many mounts are mounted on it, in any mount of its file system.
    pub(super) mounted: AtomicU32,
    dead: AtomicBool,
    links: Mutex<Links, Leaf>,
    dir: Mutex<(), InodeOp>,
}

/// The locks of one or two directories.
pub(super) type TwoLocks<'a> = (
    MutexGuard<'a, (), InodeOp>,
    Option<MutexGuard<'a, (), InodeOp>>,
);

struct Links {
    parent: Option<Arc<Dentry>>,
    name: Arc<[u8]>,
}

impl Dentry {
    /// The root of a tree.
    pub fn root(inode: Arc<dyn Inode>) -> Arc<Dentry> {
        Dentry::new(None, Arc::from([]), inode, false)
    }

    /// A name that is not in the cache: of a file without a name, or of a directory that makes its entries up.
    pub fn detached(parent: &Arc<Dentry>, name: &[u8], inode: Arc<dyn Inode>) -> Arc<Dentry> {
        Dentry::new(Some(Arc::clone(parent)), Arc::from(name), inode, true)
    }

    fn new(
        parent: Option<Arc<Dentry>>,
        name: Arc<[u8]>,
        inode: Arc<dyn Inode>,
        ephemeral: bool,
    ) -> Arc<Dentry> {
        Arc::new(Dentry {
            id: new_id(),
            caching: if ephemeral {
                Caching::Never
            } else {
                inode.caching()
            },
            ephemeral,
            kind: inode.file_type(),
            inode,
            mounted: AtomicU32::new(0),
            dead: AtomicBool::new(false),
            links: Mutex::new(Links { parent, name }),
            dir: Mutex::new(()),
        })
    }

    /// Its identity.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The inode.
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    /// The inode's type.
    pub fn kind(&self) -> FileType {
        self.kind
    }

    /// How far its entries may be kept, where it is a directory.
    pub(super) fn caching(&self) -> Caching {
        self.caching
    }

    /// The directory that it is in; `None` for a root.
    pub fn parent(&self) -> Option<Arc<Dentry>> {
        self.links.lock().parent.clone()
    }

    /// Its name; empty for a root.
    pub fn name(&self) -> Arc<[u8]> {
        Arc::clone(&self.links.lock().name)
    }

    /// Whether the name was taken away.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Marks the name as taken away.
    pub(super) fn kill(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Marks a name that never was in a directory as taken away: `/proc/PID/fd` then says ` (deleted)`.
    pub fn mark_dead(&self) {
        self.kill();
    }

    /// Whether what this directory has of that name is kept in the cache.
    pub(super) fn keeps(&self, name: &[u8]) -> bool {
        !self.ephemeral && (self.caching != Caching::Never || self.inode.keeps(name))
    }

    /// Takes the lock under which this directory's entries are looked up anew and changed. None where entries are made up: what makes them up
    /// takes locks of its own, which come before this one.
    #[track_caller]
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, (), InodeOp>> {
        (self.caching != Caching::Never).then(|| self.dir.lock())
    }

    /// Takes the locks of two directories, in an order that can't deadlock; one where they are the same.
    pub(super) fn lock_two<'a>(a: &'a Dentry, b: &'a Dentry) -> Option<TwoLocks<'a>> {
        let made_up = a.caching == Caching::Never || b.caching == Caching::Never;
        (!made_up).then(|| Mutex::lock_pair(&a.dir, &b.dir))
    }

    /// Whether `above` is this directory or one of those it is in.
    pub(super) fn is_within(self: &Arc<Self>, above: &Arc<Dentry>) -> bool {
        let mut at = Arc::clone(self);
        loop {
            if Arc::ptr_eq(&at, above) {
                return true;
            }
            let Some(parent) = at.parent() else {
                return false;
            };
            at = parent;
        }
    }
}

impl Drop for Dentry {
    fn drop(&mut self) {
        // A chain of parents that only children held goes one by one: recursion could use up the stack on a deep tree.
        let mut next = self.links.get_mut().parent.take();
        while let Some(parent) = next {
            next =
                Arc::into_inner(parent).and_then(|mut parent| parent.links.get_mut().parent.take());
        }
    }
}

impl core::fmt::Debug for Dentry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "Dentry({}, {:?})",
            self.id,
            String::from_utf8_lossy(&self.name())
        )
    }
}

/// A name in a mount: where a path leads.
#[derive(Clone, Debug)]
pub struct Location {
    /// The mount.
    pub mount: Arc<Mount>,
    /// The name.
    pub dentry: Arc<Dentry>,
}

impl Location {
    /// The inode.
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.dentry.inode
    }

    /// Whether both are the same place.
    pub fn is(&self, other: &Location) -> bool {
        Arc::ptr_eq(&self.dentry, &other.dentry) && Arc::ptr_eq(&self.mount, &other.mount)
    }
}

/// What the cache knows of a name.
pub(super) enum Cached {
    /// It is there.
    Present(Arc<Dentry>),
    /// It is missing.
    Missing,
    /// Nothing.
    Unknown,
}

const SHARDS: usize = 16;

/// The cache of names.
pub(super) struct DentryCache {
    hasher: hashbrown::DefaultHashBuilder,
    shards: [Mutex<Shard, DentryChildren>; SHARDS],
}

#[derive(Default)]
struct Shard {
    /// Indexes of `slots`, by the hash of parent and name.
    index: hashbrown::HashTable<u32>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    capacity: usize,
    hand: usize,
}

struct Slot {
    hash: u64,
    parent: u64,
    name: Arc<[u8]>,
    /// Used since the hand went by last.
    used: bool,
    what: What,
}

enum What {
    Free,
    Present(Arc<Dentry>),
    Missing,
}

impl DentryCache {
    /// A cache of about this many names; more only while more are in use.
    pub(super) fn new(capacity: usize) -> DentryCache {
        DentryCache {
            hasher: hashbrown::DefaultHashBuilder::default(),
            shards: core::array::from_fn(|_| {
                Mutex::new(Shard {
                    capacity: (capacity / SHARDS).max(8),
                    ..Shard::default()
                })
            }),
        }
    }

    fn place(&self, parent: u64, name: &[u8]) -> (u64, &Mutex<Shard, DentryChildren>) {
        let hash = self.hasher.hash_one((parent, name));
        (hash, &self.shards[(hash >> 48) as usize % SHARDS])
    }

    /// What is known of this name.
    pub(super) fn get(&self, parent: &Dentry, name: &[u8]) -> Cached {
        let (hash, shard) = self.place(parent.id, name);
        let mut shard = shard.lock();
        let Some(at) = shard.find(hash, parent.id, name) else {
            return Cached::Unknown;
        };
        let slot = &mut shard.slots[at];
        slot.used = true;
        match &slot.what {
            What::Present(dentry) => Cached::Present(Arc::clone(dentry)),
            What::Missing => Cached::Missing,
            What::Free => Cached::Unknown,
        }
    }

    /// Records that the name leads to this inode. The parent's lock is held.
    pub(super) fn insert(
        &self,
        parent: &Arc<Dentry>,
        name: &[u8],
        inode: Arc<dyn Inode>,
    ) -> Arc<Dentry> {
        let dentry = Dentry::new(Some(Arc::clone(parent)), Arc::from(name), inode, false);
        self.put(parent.id, dentry.name(), What::Present(Arc::clone(&dentry)));
        dentry
    }

    /// Records that the name is missing. The parent's lock is held.
    pub(super) fn insert_missing(&self, parent: &Dentry, name: &[u8]) {
        if parent.caching == Caching::Assume {
            self.put(parent.id, Arc::from(name), What::Missing);
        }
    }

    /// Forgets the name, which stays alive where it is in use. The parent's lock is held.
    pub(super) fn forget(&self, parent: &Dentry, name: &[u8]) {
        let (hash, shard) = self.place(parent.id, name);
        let mut shard = shard.lock();
        let gone = shard.find(hash, parent.id, name).map(|at| shard.clear(at));
        drop(shard);
        drop(gone);
    }

    /// The name was taken away: it is missing from now on, and its dentry dead. The parent's lock is held.
    pub(super) fn unlink(&self, parent: &Arc<Dentry>, dentry: &Arc<Dentry>) {
        dentry.kill();
        let name = dentry.name();
        self.forget(parent, &name);
        self.insert_missing(parent, &name);
    }

    /// A dentry gets another name and parent. Both parents' locks are held; what was at the new name was unlinked.
    pub(super) fn rename(&self, dentry: &Arc<Dentry>, to: &Arc<Dentry>, name: &[u8]) {
        let name: Arc<[u8]> = Arc::from(name);
        let old = {
            let mut links = dentry.links.lock();
            Links {
                parent: links.parent.replace(Arc::clone(to)),
                name: core::mem::replace(&mut links.name, Arc::clone(&name)),
            }
        };
        if let Some(from) = &old.parent {
            self.forget(from, &old.name);
            self.insert_missing(from, &old.name);
        }
        if to.caching != Caching::Never {
            self.put(to.id, name, What::Present(Arc::clone(dentry)));
        }
    }

    /// Two dentries swap their names and parents. Both parents' locks are held.
    pub(super) fn exchange(&self, a: &Arc<Dentry>, b: &Arc<Dentry>) {
        let (Some(pa), Some(pb)) = (a.parent(), b.parent()) else {
            return;
        };
        let (na, nb) = (a.name(), b.name());
        for (dentry, parent, name) in [(a, &pb, &nb), (b, &pa, &na)] {
            let old = {
                let mut links = dentry.links.lock();
                links.name = Arc::clone(name);
                links.parent.replace(Arc::clone(parent))
            };
            drop(old);
            self.put(
                parent.id,
                Arc::clone(name),
                What::Present(Arc::clone(dentry)),
            );
        }
    }

    /// Drops all that nobody uses, and all that is known to be missing.
    pub(super) fn shrink(&self) {
        loop {
            // Children keep their parents in use: go on until nothing more falls.
            let mut gone = Vec::new();
            for shard in &self.shards {
                let mut shard = shard.lock();
                for at in 0..shard.slots.len() {
                    if shard.slots[at].evictable() {
                        gone.push(shard.clear(at));
                    }
                }
            }
            if gone.is_empty() {
                return;
            }
        }
    }

    /// How many names are recorded.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().index.len())
            .sum()
    }

    fn put(&self, parent: u64, name: Arc<[u8]>, what: What) {
        let (hash, shard) = self.place(parent, &name);
        let mut shard = shard.lock();
        let gone = shard.put(Slot {
            hash,
            parent,
            name,
            used: true,
            what,
        });
        drop(shard);
        drop(gone);
    }
}

impl Slot {
    fn evictable(&self) -> bool {
        match &self.what {
            What::Free => false,
            What::Missing => true,
            // Only the shard holds it, and only the shard could hand it out.
            What::Present(dentry) => Arc::strong_count(dentry) == 1,
        }
    }
}

impl Shard {
    fn find(&self, hash: u64, parent: u64, name: &[u8]) -> Option<usize> {
        self.index
            .find(hash, |at| {
                let slot = &self.slots[*at as usize];
                slot.parent == parent && *slot.name == *name
            })
            .map(|at| *at as usize)
    }

    /// Empties a slot, and gives back what it held.
    fn clear(&mut self, at: usize) -> What {
        let number = u32::try_from(at).unwrap_or(u32::MAX);
        if let Ok(entry) = self
            .index
            .find_entry(self.slots[at].hash, |known| *known == number)
        {
            entry.remove();
        }
        self.free.push(number);
        self.slots[at].name = Arc::from([]);
        core::mem::replace(&mut self.slots[at].what, What::Free)
    }

    /// Fills a slot, and gives back what had to go: the old record of the name, and one that the hand chose.
    fn put(&mut self, slot: Slot) -> [Option<What>; 2] {
        if let Some(at) = self.find(slot.hash, slot.parent, &slot.name) {
            let old = core::mem::replace(&mut self.slots[at], slot);
            return [Some(old.what), None];
        }
        let mut gone = None;
        if self.free.is_empty() && self.slots.len() >= self.capacity {
            gone = self.evict();
        }
        let hash = slot.hash;
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        let slots = &self.slots;
        self.index
            .insert_unique(hash, at, |at| slots[*at as usize].hash);
        [gone, None]
    }

    /// Clears a slot that was not used of late.
    fn evict(&mut self) -> Option<What> {
        for _ in 0..self.slots.len().min(512) * 2 {
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[self.hand];
            if slot.used {
                slot.used = false;
            } else if slot.evictable() {
                return Some(self.clear(self.hand));
            }
        }
        None
    }
}
