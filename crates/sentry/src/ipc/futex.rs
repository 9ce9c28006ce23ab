//! Futexes (futex(2)): waiting for, and waking by, a word of memory.
//!
//! A waiter is named by its word: private ones by address space and address, shared ones by shared object and offset. Waiters stand in
//! buckets; a word is read again under its bucket's lock, so that no wake-up is lost between a look and a wait. Lock class: `FutexBucket`. It does not do (yet): priority
//! inheritance, `futex_waitv`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::Errno;
use abi::UserPtr;

use crate::mm::Mm;
use crate::sync::order::{FutexBucket, Leaf};
use crate::sync::{EventMask, Mutex, WaitQueue};
use crate::task::{CallState, OnSignal, Step, Task, Wait};
use crate::time::Deadline;

/// Any waiter (`FUTEX_BITSET_MATCH_ANY`).
pub const ANY: u32 = u32::MAX;
/// `FUTEX_WAITERS`: others wait for a robust or PI word.
const WAITERS: u32 = 0x8000_0000;
/// `FUTEX_OWNER_DIED`: its owner ended.
const OWNER_DIED: u32 = 0x4000_0000;
/// `FUTEX_TID_MASK`
const TID_MASK: u32 = 0x3fff_ffff;
/// How long a robust list may be (`ROBUST_LIST_LIMIT`).
const ROBUST_LIST_LIMIT: usize = 2048;

const BUCKETS: usize = 256;

/// What names a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    /// The address space's identity, or the shared object's.
    space: u64,
    offset: u64,
    shared: bool,
}

/// One who waits.
#[derive(Debug)]
pub struct Waiter {
    key: Mutex<Key, Leaf>,
    bits: u32,
    woken: AtomicBool,
    queue: Arc<WaitQueue>,
    deadline: Option<Deadline>,
}

/// All who wait.
pub struct Futexes {
    buckets: Vec<Mutex<Vec<Arc<Waiter>>, FutexBucket>>,
    /// How many wait at all: waking nobody is cheap.
    waiting: AtomicU64,
}

impl Default for Futexes {
    fn default() -> Self {
        Futexes {
            buckets: (0..BUCKETS).map(|_| Mutex::new(Vec::new())).collect(),
            waiting: AtomicU64::new(0),
        }
    }
}

impl Futexes {
    fn key(mm: &Mm, addr: u64, private: bool) -> Result<Key, Errno> {
        if !addr.is_multiple_of(4) {
            return Err(Errno::EINVAL);
        }
        if addr >= platform::USER_TOP {
            return Err(Errno::EFAULT);
        }
        if !private && let Some((space, offset)) = mm.shared_at(addr) {
            return Ok(Key {
                space,
                offset,
                shared: true,
            });
        }
        Ok(Key {
            space: mm.space().id().0,
            offset: addr,
            shared: false,
        })
    }

    fn bucket(&self, key: &Key) -> &Mutex<Vec<Arc<Waiter>>, FutexBucket> {
        let hash = ((key.offset / 4) ^ key.space.rotate_left(17))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            >> 56;
        &self.buckets[usize::try_from(hash).unwrap_or(0) % BUCKETS]
    }

    /// `FUTEX_WAIT`: waits while the word is `value`.
    pub fn wait(
        &self,
        task: &Task,
        addr: u64,
        value: u32,
        bits: u32,
        private: bool,
        deadline: Option<Deadline>,
        state: &mut CallState,
    ) -> Step {
        if let CallState::Futex(waiter) = state {
            if waiter.woken.load(Ordering::SeqCst) {
                return Step::Done(Ok(0));
            }
            if waiter
                .deadline
                .is_some_and(|deadline| task.kernel.clocks().passed(deadline))
            {
                let woken = self.cancel(waiter);
                return Step::Done(if woken { Ok(0) } else { Err(Errno::ETIMEDOUT) });
            }
            return Self::parked(waiter);
        }
        if bits == 0 {
            return Step::Done(Err(Errno::EINVAL));
        }
        let mm = task.mm();
        let key = match Self::key(&mm, addr, private) {
            Ok(key) => key,
            Err(error) => return Step::Done(Err(error)),
        };
        // Counted before the word is looked at: who changes the word after that finds somebody to wake, and takes the bucket's lock.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let given_up = |error| {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            Step::Done(Err(error))
        };
        loop {
            // Where the page is not there, it is brought in first, without the lock.
            if let Err(error) = mm.get::<u32>(UserPtr::new(addr)) {
                return given_up(error);
            }
            let mut bucket = self.bucket(&key).lock();
            let mut word = [0; 4];
            if mm.space().read(addr, &mut word) != Ok(4) {
                drop(bucket);
                continue;
            }
            if u32::from_ne_bytes(word) != value {
                return given_up(Errno::EAGAIN);
            }
            let waiter = Arc::new(Waiter {
                key: Mutex::new(key),
                bits,
                woken: AtomicBool::new(false),
                queue: Arc::new(WaitQueue::new()),
                deadline,
            });
            bucket.push(Arc::clone(&waiter));
            drop(bucket);
            let step = Self::parked(&waiter);
            *state = CallState::Futex(waiter);
            return step;
        }
    }

    fn parked(waiter: &Arc<Waiter>) -> Step {
        let rule = if waiter.deadline.is_some() {
            OnSignal::RestartBlock
        } else {
            OnSignal::Restart
        };
        Step::Wait(
            Wait::on(&waiter.queue, EventMask::IN)
                .deadline(waiter.deadline)
                .on_signal(rule),
        )
    }

    /// Takes a waiter out; whether it had been woken.
    pub fn cancel(&self, waiter: &Arc<Waiter>) -> bool {
        loop {
            let key = *waiter.key.lock();
            let mut bucket = self.bucket(&key).lock();
            if waiter.woken.load(Ordering::SeqCst) {
                return true;
            }
            let before = bucket.len();
            bucket.retain(|other| !Arc::ptr_eq(other, waiter));
            if bucket.len() < before {
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                return false;
            }
            // It was requeued between the two looks.
        }
    }

    /// Wakes up to `most` who wait on the word, private and shared names alike.
    pub fn wake(&self, mm: &Mm, addr: u64, most: u32, bits: u32) -> usize {
        // Who is woken looks at the word, which the caller may have changed just now.
        mm.settle();
        let mut woken = 0;
        for private in [true, false] {
            if let Ok(key) = Self::key(mm, addr, private)
                && (private || key.shared)
            {
                woken += self.wake_key(&key, most, bits);
            }
        }
        woken
    }

    fn wake_key(&self, key: &Key, most: u32, bits: u32) -> usize {
        if self.waiting.load(Ordering::SeqCst) == 0 || most == 0 {
            return 0;
        }
        let mut bucket = self.bucket(key).lock();
        let mut woken = Vec::new();
        let mut at = 0;
        while at < bucket.len() && woken.len() < most as usize {
            if *bucket[at].key.lock() == *key && bucket[at].bits & bits != 0 {
                let waiter = bucket.remove(at);
                waiter.woken.store(true, Ordering::SeqCst);
                woken.push(waiter);
            } else {
                at += 1;
            }
        }
        self.waiting.fetch_sub(woken.len() as u64, Ordering::SeqCst);
        drop(bucket);
        for waiter in &woken {
            waiter.queue.notify(EventMask::IN);
        }
        woken.len()
    }

    /// `FUTEX_WAKE`, `FUTEX_WAKE_BITSET`.
    pub fn wake_call(
        &self,
        task: &Task,
        addr: u64,
        most: u32,
        bits: u32,
        private: bool,
    ) -> Result<usize, Errno> {
        if bits == 0 {
            return Err(Errno::EINVAL);
        }
        let key = Self::key(&task.mm(), addr, private)?;
        Ok(self.wake_key(&key, most, bits))
    }

    /// `FUTEX_REQUEUE`, `FUTEX_CMP_REQUEUE`: wakes some, lets others wait on another word.
    pub fn requeue(
        &self,
        task: &Task,
        from: u64,
        to: u64,
        wake: u32,
        most: u32,
        compare: Option<u32>,
        private: bool,
    ) -> Result<usize, Errno> {
        let mm = task.mm();
        let source = Self::key(&mm, from, private)?;
        let target = Self::key(&mm, to, private)?;
        if let Some(value) = compare {
            mm.get::<u32>(UserPtr::new(from))?;
            let bucket = self.bucket(&source).lock();
            let mut word = [0; 4];
            if mm.space().read(from, &mut word) != Ok(4) || u32::from_ne_bytes(word) != value {
                return Err(Errno::EAGAIN);
            }
            drop(bucket);
        }
        let woken = self.wake_key(&source, wake, ANY);
        let mut moved = Vec::new();
        let (mut a, b) = Mutex::lock_pair(self.bucket(&source), self.bucket(&target));
        let mut at = 0;
        while at < a.len() && moved.len() < most as usize {
            if *a[at].key.lock() == source {
                moved.push(a.remove(at));
            } else {
                at += 1;
            }
        }
        for waiter in &moved {
            *waiter.key.lock() = target;
        }
        let count = moved.len();
        match b {
            Some(mut b) => b.extend(moved),
            None => a.extend(moved),
        }
        // The man page has FUTEX_REQUEUE tell of the woken alone; Linux tells of both.
        Ok(woken + count)
    }

    /// `FUTEX_WAKE_OP`: changes the second word, wakes on the first, and on the second where its old value compares.
    #[allow(clippy::too_many_arguments, reason = "futex(2) has as many")]
    pub fn wake_op(
        &self,
        task: &Task,
        first: u64,
        second: u64,
        wake: u32,
        wake_second: u32,
        op: u32,
        private: bool,
        state: &mut CallState,
    ) -> Step {
        let mm = task.mm();
        let keys = Self::key(&mm, first, private)
            .and_then(|key| Ok((key, Self::key(&mm, second, private)?)));
        let (key, second_key) = match keys {
            Ok(keys) => keys,
            Err(error) => return Step::Done(Err(error)),
        };
        let code = op >> 28 & 7;
        let sign = |value: u32| ((value << 20).cast_signed()) >> 20;
        let argument = if op >> 31 != 0 {
            1u32.wrapping_shl(op >> 12 & 31)
        } else {
            sign(op >> 12 & 0xfff).cast_unsigned()
        };
        let apply = |old: u32| match code {
            0 => Some(argument),
            1 => Some(old.wrapping_add(argument)),
            2 => Some(old | argument),
            3 => Some(old & !argument),
            4 => Some(old ^ argument),
            _ => None,
        };
        let old = match state {
            CallState::Atomic {
                found: Some(None), ..
            } => return Step::Done(Err(Errno::EFAULT)),
            CallState::Atomic {
                found: Some(Some(found)),
                expected,
                ..
            } if found == expected => *found,
            CallState::Atomic {
                found: Some(Some(found)),
                ..
            } => {
                let found = *found;
                return match apply(found) {
                    Some(new) => Step::Atomic {
                        addr: second,
                        old: found,
                        new,
                    },
                    None => Step::Done(Err(Errno::ENOSYS)),
                };
            }
            _ => {
                let word = match mm.get::<u32>(UserPtr::new(second)) {
                    Ok(word) => word,
                    Err(error) => return Step::Done(Err(error)),
                };
                return match apply(word) {
                    Some(new) => Step::Atomic {
                        addr: second,
                        old: word,
                        new,
                    },
                    None => Step::Done(Err(Errno::ENOSYS)),
                };
            }
        };
        let compare = sign(op & 0xfff);
        let value = old.cast_signed();
        let holds = match op >> 24 & 15 {
            0 => value == compare,
            1 => value != compare,
            2 => value < compare,
            3 => value <= compare,
            4 => value > compare,
            5 => value >= compare,
            _ => return Step::Done(Err(Errno::ENOSYS)),
        };
        let mut woken = self.wake_key(&key, wake, ANY);
        if holds {
            woken += self.wake_key(&second_key, wake_second, ANY);
        }
        Step::Done(Ok(woken))
    }
}

/// The words of a thread's robust list (set_robust_list(2)), in order, the one it was just taking or giving back last. Nothing where the list can't be read;
/// as far as it can, else.
fn robust_words(task: &Task, mm: &Mm) -> Vec<u64> {
    let mut words = Vec::new();
    let head = task.robust_list.load(Ordering::Relaxed);
    if head == 0 {
        return words;
    }
    let get = |addr: u64| mm.get::<u64>(UserPtr::new(addr));
    let (Ok(mut entry), Ok(offset), Ok(pending)) = (
        get(head),
        get(head.wrapping_add(8)),
        get(head.wrapping_add(16)),
    ) else {
        return words;
    };
    let word = |entry: u64| (entry & !1).wrapping_add(offset);
    for _ in 0..ROBUST_LIST_LIMIT {
        if entry & !1 == head {
            break;
        }
        let Ok(next) = get(entry & !1) else {
            return words;
        };
        if entry != pending {
            words.push(word(entry));
        }
        entry = next;
    }
    if pending & !1 != 0 {
        words.push(word(pending));
    }
    words
}

/// What a word of a dead owner's becomes; `None` where the owner is another.
fn released(value: u32, owner: u32) -> Option<u32> {
    (value & TID_MASK == owner).then_some(value & WAITERS | OWNER_DIED)
}

/// exit(2): the locks of the thread's robust list are marked by the thread itself, with one atomic operation each, since others may be about to say that they wait; one
/// waiter each is woken. `None` once all is done.
pub fn release_own_robust(task: &Task, state: &mut CallState) -> Option<Step> {
    let mm = task.mm();
    let mut rest = match core::mem::take(state) {
        CallState::Atomic {
            addr,
            found,
            expected,
            mut rest,
        } => {
            let found = found.flatten();
            match found.and_then(|value| released(value, task.tid()).map(|new| (value, new))) {
                Some((value, new)) if value != expected => {
                    *state = CallState::Dying(rest);
                    return Some(Step::Atomic {
                        addr,
                        old: value,
                        new,
                    });
                }
                done => {
                    if done.is_some_and(|(value, _)| value & WAITERS != 0) {
                        task.kernel.futexes.wake(&mm, addr, 1, ANY);
                    }
                    rest.pop();
                }
            }
            rest
        }
        _ => {
            let mut words = robust_words(task, &mm);
            words.reverse();
            words
        }
    };
    while let Some(word) = rest.last().copied() {
        let value = Some(word)
            .filter(|word| word.is_multiple_of(4))
            .and_then(|word| mm.get::<u32>(UserPtr::new(word)).ok());
        if let Some((value, new)) =
            value.and_then(|value| Some((value, released(value, task.tid())?)))
        {
            *state = CallState::Dying(rest);
            return Some(Step::Atomic {
                addr: word,
                old: value,
                new,
            });
        }
        rest.pop();
    }
    task.robust_list.store(0, Ordering::Relaxed);
    None
}

/// A thread ends that can't do it itself any more (its process was killed, or executes another program): as [`release_own_robust`], by the sentry.
///
/// The words are changed without an atomic operation of the thread's own: it runs no more, and who else changes such a word at that moment is waiting for it.
pub fn release_robust(task: &Task, mm: &Mm) {
    let words = robust_words(task, mm);
    task.robust_list.store(0, Ordering::Relaxed);
    for word in words {
        if !word.is_multiple_of(4) {
            continue;
        }
        let Ok(value) = mm.get::<u32>(UserPtr::new(word)) else {
            continue;
        };
        if let Some(new) = released(value, task.tid())
            && mm.put_now(UserPtr::new(word), &new).is_ok()
            && value & WAITERS != 0
        {
            task.kernel.futexes.wake(mm, word, 1, ANY);
        }
    }
}
