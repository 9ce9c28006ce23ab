//! The clocks' page: what the sandbox adds to the host's clocks, for the guest's vDSO and the sentry alike.
//!
//! There is no second copy: the sentry reads the page that stubs read, so the two can't disagree. Stubs have it read-only, under a seal.
//! A sequence count lets readers see the records of one moment; it is odd while they change.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use abi::Errno;
use parking_lot::Mutex;

use super::area::SharedPages;
use super::layout::{clocks, clocks::record, shared};
use super::symbols::HostVdso;
use super::zygote;

const SECOND: i64 = 1_000_000_000;

/// How a clock of the sandbox differs from the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adjustment {
    /// What is added to the host's clock: nanoseconds.
    pub offset: i64,
    /// The clock never shows less than this: nanoseconds.
    pub floor: i64,
}

/// How the clocks of a container differ from the host's, by their number (clock_gettime(2)): CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW,
/// CLOCK_MONOTONIC_COARSE and CLOCK_BOOTTIME can; the others are the host's.
pub struct ClockPage {
    pages: Arc<SharedPages>,
    /// Where in them the page is.
    base: u64,
    /// Held by who changes it.
    writer: Mutex<()>,
}

impl ClockPage {
    /// The page among a container's shared pages, with the host's vDSO as it lies in every stub.
    pub(super) fn new(pages: &Arc<SharedPages>, host: Option<&HostVdso>) -> ClockPage {
        let page = ClockPage {
            pages: Arc::clone(pages),
            base: shared::CLOCKS,
            writer: Mutex::new(()),
        };
        for (at, address) in [
            (clocks::GETTIME, host.and_then(|host| host.gettime)),
            (
                clocks::GETTIMEOFDAY,
                host.and_then(|host| host.gettimeofday),
            ),
            (clocks::TIME, host.and_then(|host| host.time)),
            (clocks::GETRES, host.and_then(|host| host.getres)),
            (clocks::GETCPU, host.and_then(|host| host.getcpu)),
        ] {
            page.pages.set64(page.base + at, address.unwrap_or(0));
        }
        page
    }

    /// A page that no stub has, with the host's clocks as they are: for a kernel without guests.
    pub fn detached() -> Result<ClockPage, Errno> {
        use std::os::fd::AsFd;
        let file = zygote::memory_file(c"clocks", 4096)?;
        Ok(ClockPage {
            pages: Arc::new(SharedPages::map(file.as_fd(), 4096)?),
            base: 0,
            writer: Mutex::new(()),
        })
    }

    fn record(&self, clock: u32) -> u64 {
        self.base + clocks::RECORDS + u64::from(clock) * record::SIZE
    }

    /// Nanoseconds, of the seconds and nanoseconds at this place.
    fn nanos(&self, at: u64) -> i64 {
        let part = |at: u64| self.pages.get64(at).cast_signed();
        part(at)
            .saturating_mul(SECOND)
            .saturating_add(part(at + record::NSEC - record::SEC))
    }

    fn set_nanos(&self, at: u64, nanos: i64) {
        self.pages
            .set64(at, nanos.div_euclid(SECOND).cast_unsigned());
        self.pages.set64(
            at + record::NSEC - record::SEC,
            nanos.rem_euclid(SECOND).cast_unsigned(),
        );
    }

    /// What a clock of the container shows: nanoseconds. `host` reads the same clock of the host; it is called again where the page
    /// changes meanwhile.
    pub fn now(&self, clock: u32, host: impl Fn() -> i64) -> i64 {
        if !adjustable(clock) {
            return host();
        }
        loop {
            let sequence = self.pages.load32(self.base + clocks::SEQ);
            if sequence & 1 != 0 {
                std::hint::spin_loop();
                continue;
            }
            let time = host();
            let adjustment = self.adjustment(clock);
            fence(Ordering::Acquire);
            if self.pages.load32(self.base + clocks::SEQ) == sequence {
                return time.saturating_add(adjustment.offset).max(adjustment.floor);
            }
        }
    }

    fn adjustment(&self, clock: u32) -> Adjustment {
        let record = self.record(clock);
        Adjustment {
            offset: self.nanos(record + record::SEC),
            floor: self.nanos(record + record::FLOOR_SEC),
        }
    }

    /// Changes how clocks differ, all in one moment. `change` says so by number and adjustment; readers, guests among them, wait for it, so it may
    /// read the host's clocks and little else. EINVAL, and nothing changed, where a clock can't differ or a floor is negative.
    pub fn adjust(&self, change: impl FnOnce() -> Vec<(u32, Adjustment)>) -> Result<(), Errno> {
        let writer = self.writer.lock();
        self.pages.add32(self.base + clocks::SEQ, 1);
        let changes = change();
        let sane = changes
            .iter()
            .all(|(clock, adjustment)| adjustable(*clock) && adjustment.floor >= 0);
        if sane {
            for (clock, adjustment) in changes {
                let record = self.record(clock);
                self.set_nanos(record + record::SEC, adjustment.offset);
                self.set_nanos(record + record::FLOOR_SEC, adjustment.floor);
            }
        }
        self.pages.add32(self.base + clocks::SEQ, 1);
        drop(writer);
        if sane { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// Whether a clock can differ from the host's.
fn adjustable(clock: u32) -> bool {
    clock < clocks::IDS && clocks::OFFSET & 1 << clock != 0
}

#[cfg(test)]
mod tests {
    use super::{Adjustment, ClockPage, Errno};
    use std::sync::Arc;

    const MONOTONIC: u32 = 1;
    const COARSE: u32 = 6;
    const REALTIME: u32 = 0;

    #[test]
    fn offsets_and_floors() {
        let page = ClockPage::detached().expect("a page");
        assert_eq!(page.now(MONOTONIC, || 5), 5);
        for offset in [-1, 1, 999_999_999, -1_000_000_001, 3_000_000_000_000] {
            let adjustment = Adjustment { offset, floor: 0 };
            page.adjust(|| vec![(MONOTONIC, adjustment)])
                .expect("changed");
            assert_eq!(page.adjustment(MONOTONIC), adjustment);
            let host = 5_000_000_000;
            assert_eq!(page.now(MONOTONIC, || host), (host + offset).max(0));
        }
        let floor = 7_500_000_000;
        page.adjust(|| vec![(COARSE, Adjustment { offset: -1, floor })])
            .expect("changed");
        assert_eq!(page.now(COARSE, || 7_500_000_000), floor);
        assert_eq!(page.now(COARSE, || 7_500_000_002), floor + 1);
    }

    #[test]
    fn what_cannot_differ() {
        let page = ClockPage::detached().expect("a page");
        let adjustment = Adjustment {
            offset: 1,
            floor: 0,
        };
        for clock in [REALTIME, 2, 3, 5, 8, 11, 12, 40] {
            let changes = vec![(MONOTONIC, adjustment), (clock, adjustment)];
            assert_eq!(page.adjust(|| changes), Err(Errno::EINVAL), "{clock}");
        }
        let below = Adjustment {
            offset: 0,
            floor: -1,
        };
        assert_eq!(page.adjust(|| vec![(MONOTONIC, below)]), Err(Errno::EINVAL));
        assert_eq!(
            (page.now(MONOTONIC, || 5), page.now(REALTIME, || 5)),
            (5, 5)
        );
    }

    #[test]
    fn readers_see_one_moment() {
        let page = Arc::new(ClockPage::detached().expect("a page"));
        let writer = {
            let page = Arc::clone(&page);
            std::thread::spawn(move || {
                for turn in 0..20_000i64 {
                    // Offset and floor always add up to the same.
                    let offset = turn * 1_000_000_001;
                    let adjustment = Adjustment {
                        offset: 1 << 50,
                        floor: (1 << 50) + offset,
                    };
                    page.adjust(|| vec![(COARSE, adjustment)]).expect("changed");
                }
            })
        };
        let mut last = 0;
        while !writer.is_finished() {
            let now = page.now(COARSE, || 0);
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
        writer.join().expect("it ends");
    }
}
