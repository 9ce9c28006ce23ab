//! Wait queues: who is to be told when something may have become ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bitflags::bitflags;
use smallvec::SmallVec;

use super::Mutex;
use super::order::WaitList;

bitflags! {
    /// What a file is ready for, by the bits of poll(2) and epoll(7).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct EventMask: u32 {
        /// There is something to read.
        const IN = 0x1;
        /// There is urgent data.
        const PRI = 0x2;
        /// Writing would not block.
        const OUT = 0x4;
        /// An error is pending.
        const ERR = 0x8;
        /// The other side hung up.
        const HUP = 0x10;
        /// `POLLNVAL`: the descriptor is not open.
        const NVAL = 0x20;
        /// Same as `IN`.
        const RDNORM = 0x40;
        /// Priority band data can be read.
        const RDBAND = 0x80;
        /// Same as `OUT`.
        const WRNORM = 0x100;
        /// Priority data may be written.
        const WRBAND = 0x200;
        /// The other side shut down writing.
        const RDHUP = 0x2000;
    }
}

/// Whoever can be told of a wake-up: a task, an epoll interest.
pub trait Wake: Send + Sync {
    /// Something may have become ready. Called without any lock of the queue; must not block. Says whether the waiter took the wake-up
    /// (an exclusive wake-up that was not taken goes to the next).
    fn wake(&self, events: EventMask) -> bool;
}

/// Names one registration in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaiterId(u64);

/// Those who wait for something. Waking is a hint: a waiter looks again and may go on waiting.
#[derive(Default)]
pub struct WaitQueue {
    /// How many are registered, so that a wake-up of nobody costs one load.
    count: AtomicUsize,
    entries: Mutex<Vec<Entry>, WaitList>,
}

struct Entry {
    id: WaiterId,
    events: EventMask,
    exclusive: bool,
    waker: Arc<dyn Wake>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl WaitQueue {
    /// An empty queue.
    pub const fn new() -> Self {
        WaitQueue {
            count: AtomicUsize::new(0),
            entries: Mutex::new(Vec::new()),
        }
    }

    /// Registers a waiter for these events (`ERR` and `HUP` always count). With `exclusive`, a [`WaitQueue::notify_one`]
    /// wakes one of those only. The caller looks at the condition once more after this.
    pub fn register(&self, waker: Arc<dyn Wake>, events: EventMask, exclusive: bool) -> WaiterId {
        let id = WaiterId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let events = events | EventMask::ERR | EventMask::HUP;
        let mut entries = self.entries.lock();
        entries.push(Entry {
            id,
            events,
            exclusive,
            waker,
        });
        self.count.store(entries.len(), Ordering::SeqCst);
        drop(entries);
        core::sync::atomic::fence(Ordering::SeqCst);
        id
    }

    /// Takes a registration back; nothing happens where it is gone.
    pub fn unregister(&self, id: WaiterId) {
        let mut entries = self.entries.lock();
        let gone = entries
            .iter()
            .position(|entry| entry.id == id)
            .map(|at| entries.remove(at));
        self.count.store(entries.len(), Ordering::SeqCst);
        drop(entries);
        drop(gone);
    }

    /// Tells all who wait for any of these events.
    pub fn notify(&self, events: EventMask) {
        self.tell(events, usize::MAX);
    }

    /// Tells all who did not register exclusively, and of the others the first that takes it.
    pub fn notify_one(&self, events: EventMask) {
        self.tell(events, 1);
    }

    /// Whether nobody is registered.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    fn tell(&self, events: EventMask, mut exclusives: usize) {
        core::sync::atomic::fence(Ordering::SeqCst);
        if self.is_empty() {
            return;
        }
        let wakers: SmallVec<[(bool, Arc<dyn Wake>); 4]> = self
            .entries
            .lock()
            .iter()
            .filter(|entry| entry.events.intersects(events))
            .map(|entry| (entry.exclusive, Arc::clone(&entry.waker)))
            .collect();
        for (exclusive, waker) in wakers {
            if exclusive && exclusives == 0 {
                continue;
            }
            if waker.wake(events) && exclusive {
                exclusives -= 1;
            }
        }
    }
}

impl core::fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "WaitQueue({})", self.count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, AtomicUsize, EventMask, Ordering, WaitQueue, Wake};

    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(&self, _: EventMask) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed);
            true
        }
    }

    #[test]
    fn exclusive_waiters_are_woken_one_at_a_time() {
        let queue = WaitQueue::new();
        let shared = Arc::new(Count(AtomicUsize::new(0)));
        let (first, second) = (
            Arc::new(Count(AtomicUsize::new(0))),
            Arc::new(Count(AtomicUsize::new(0))),
        );
        queue.register(shared.clone(), EventMask::IN, false);
        let id = queue.register(first.clone(), EventMask::IN, true);
        queue.register(second.clone(), EventMask::IN, true);
        queue.notify_one(EventMask::IN);
        queue.notify_one(EventMask::OUT);
        assert_eq!(
            [
                shared.0.load(Ordering::Relaxed),
                first.0.load(Ordering::Relaxed),
                second.0.load(Ordering::Relaxed)
            ],
            [1, 1, 0]
        );
        queue.unregister(id);
        queue.notify(EventMask::HUP);
        assert_eq!(
            [
                shared.0.load(Ordering::Relaxed),
                first.0.load(Ordering::Relaxed),
                second.0.load(Ordering::Relaxed)
            ],
            [2, 1, 1]
        );
    }
}
