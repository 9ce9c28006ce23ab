//! The heap of deadlines.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::{Clock, Clocks, Deadline};
use crate::sync::Mutex;
use crate::sync::order;

/// Told when a deadline has passed.
pub trait OnTime: Send + Sync {
    /// The deadline of this timer has passed. Called from the main loop, without locks; must not block.
    fn on_time(self: Arc<Self>, timer: TimerId);
}

/// Names a deadline in the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId {
    clock: Clock,
    nanos: i64,
    serial: u64,
}

/// Deadlines, in order, for each clock.
#[derive(Default)]
pub struct Timers {
    heap: Mutex<Heap, order::Timers>,
}

#[derive(Default)]
struct Heap {
    entries: BTreeMap<TimerId, Weak<dyn OnTime>>,
    serial: u64,
    /// When the main loop will look by itself: monotonic nanoseconds.
    planned: i64,
}

impl Timers {
    /// An empty heap.
    pub const fn new() -> Timers {
        Timers {
            heap: Mutex::new(Heap {
                entries: BTreeMap::new(),
                serial: 0,
                planned: i64::MAX,
            }),
        }
    }

    /// Arms a deadline: its name. Where it is the first, `plan` is told in how many nanoseconds the main loop is to look; it is called under the
    /// heap's lock, so that what was planned last is what counts.
    pub fn arm(
        &self,
        clocks: &Clocks,
        deadline: Deadline,
        whom: Weak<dyn OnTime>,
        plan: &dyn Fn(i64),
    ) -> TimerId {
        let wait = clocks.until(deadline);
        let at = clocks.now(Clock::Monotonic).saturating_add(wait);
        let mut heap = self.heap.lock();
        heap.serial += 1;
        let id = TimerId {
            clock: deadline.clock,
            nanos: deadline.nanos,
            serial: heap.serial,
        };
        heap.entries.insert(id, whom);
        if at < heap.planned {
            heap.planned = at;
            plan(wait);
        }
        id
    }

    /// Takes a deadline back; nothing happens where it has passed.
    pub fn disarm(&self, id: TimerId) {
        let gone = self.heap.lock().entries.remove(&id);
        drop(gone);
    }

    /// Takes out what has passed, and plans for the next, as [`Timers::arm`] does.
    pub fn expire(&self, clocks: &Clocks, plan: &dyn Fn(i64)) -> Vec<(TimerId, Arc<dyn OnTime>)> {
        let mut passed = Vec::new();
        let mut next: Option<i64> = None;
        let mut heap = self.heap.lock();
        for clock in [Clock::Realtime, Clock::Monotonic, Clock::Boottime] {
            let now = clocks.now(clock);
            let first = TimerId {
                clock,
                nanos: i64::MIN,
                serial: 0,
            };
            while let Some((&id, _)) = heap.entries.range(first..).next() {
                if id.clock != clock {
                    break;
                }
                if id.nanos > now {
                    let wait = id.nanos - now;
                    next = Some(next.map_or(wait, |next| next.min(wait)));
                    break;
                }
                if let Some(whom) = heap.entries.remove(&id).and_then(|whom| whom.upgrade()) {
                    passed.push((id, whom));
                }
            }
        }
        heap.planned = next.map_or(i64::MAX, |wait| {
            clocks.now(Clock::Monotonic).saturating_add(wait)
        });
        if let Some(wait) = next {
            plan(wait);
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, Clock, Clocks, Deadline, OnTime, TimerId, Timers, Weak};

    struct Nobody;
    impl OnTime for Nobody {
        fn on_time(self: Arc<Self>, _: TimerId) {}
    }

    #[test]
    fn deadlines_expire_in_order() {
        let page = platform::ClockPage::detached().expect("a page");
        let clocks = Clocks::new(Arc::new(page));
        let timers = Timers::new();
        let whom: Arc<dyn OnTime> = Arc::new(Nobody);
        let weak = || -> Weak<dyn OnTime> { Arc::downgrade(&whom) };
        let planned = std::cell::Cell::new(0);
        let plan = |wait: i64| planned.set(wait);
        let now = clocks.now(Clock::Monotonic);
        let late = timers.arm(
            &clocks,
            Deadline {
                clock: Clock::Monotonic,
                nanos: now + 1_000_000_000_000,
            },
            weak(),
            &plan,
        );
        assert!(planned.get() > 999_000_000_000);
        let soon = timers.arm(
            &clocks,
            Deadline {
                clock: Clock::Monotonic,
                nanos: now,
            },
            weak(),
            &plan,
        );
        assert_eq!(planned.get(), 0);
        let passed = timers.expire(&clocks, &plan);
        assert_eq!(passed.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [soon]);
        assert!(planned.get() > 999_000_000_000);
        timers.disarm(late);
        planned.set(0);
        assert!(timers.expire(&clocks, &plan).is_empty());
        assert_eq!(planned.get(), 0);
    }
}
