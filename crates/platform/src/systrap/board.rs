//! The container's board: which contexts have reported.
//!
//! A stub's thread that reports says so in its own context (`POSTED`), then sets its bit in a page that all stubs of the container can write. So a bit
//! is a hint: a guest may set it, or wipe it. What counts is kept here: which threads are *away*, in guest code, and owe a report. A report is
//! taken once, from a thread that is away and has posted; and before a worker sleeps it looks at those that are away, whatever the board says.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::area::SharedPages;
use super::layout::{AREA, board, ctx, state};
use crate::ContextId;

/// How many bits one look takes from the board at the most: a guest that sets bits without end does not keep a worker here.
const TRIES: u32 = 256;
/// The words of a board.
const WORDS: u64 = board::CONTEXTS / 64;
/// Contexts 0 and 1 are the board's own and the zygote's.
const FIRST: u64 = 2;

thread_local! {
    /// Where this worker goes on looking: behind the context that it took last, so that none is passed over for ever.
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// Which threads owe a report: a bit per context.
pub(crate) struct Board {
    away: Box<[AtomicU64]>,
    /// How often each context was given up.
    serials: Box<[AtomicU32]>,
}

impl Board {
    pub(crate) fn new() -> Board {
        Board {
            away: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            serials: (0..board::CONTEXTS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The context's name, as long as it is not given up.
    pub(crate) fn id(&self, context: u32) -> ContextId {
        ContextId {
            slot: context,
            serial: self.serials[context as usize].load(Ordering::SeqCst),
        }
    }

    fn word(&self, context: u64) -> (&AtomicU64, u64) {
        let word = usize::try_from(context / 64).expect("small");
        (&self.away[word], 1 << (context % 64))
    }

    /// The thread of this context is about to run guest code for the first time.
    pub(crate) fn send(&self, context: u32) {
        let (word, bit) = self.word(u64::from(context));
        word.fetch_or(bit, Ordering::SeqCst);
    }

    /// The thread was told to go on: to be called right after, since until then it still looks as if it had posted.
    pub(crate) fn sent(&self, areas: &SharedPages, context: u32) {
        self.send(context);
        // It may have posted again already, and a worker may have passed it over.
        if posted(areas, u64::from(context)) {
            put_up(areas, u64::from(context));
        }
    }

    /// The context's process has ended: it owes nothing, and what a worker has taken of it and not served yet is nobody's.
    pub(crate) fn forget(&self, context: u32) {
        let (word, bit) = self.word(u64::from(context));
        word.fetch_and(!bit, Ordering::SeqCst);
        self.serials[context as usize].fetch_add(1, Ordering::SeqCst);
    }

    /// Takes a report.
    pub(crate) fn take(&self, areas: &SharedPages) -> Option<ContextId> {
        let mut next = NEXT.get();
        let mut found = None;
        for _ in 0..TRIES {
            let summary = areas.load64(board::SUMMARY);
            if summary == 0 {
                break;
            }
            let mut word = set_from(summary, next / 64);
            let mut bits = areas.load64(board::WORDS + 8 * word);
            let mut chosen = bits;
            if word == next / 64 {
                chosen &= !0 << (next % 64);
                if chosen == 0 && bits != 0 {
                    // Others have their turn before those that come again.
                    word = set_from(summary, (word + 1) % WORDS);
                    bits = areas.load64(board::WORDS + 8 * word);
                    chosen = bits;
                }
            }
            let at = board::WORDS + 8 * word;
            if bits == 0 {
                areas.and64(board::SUMMARY, !(1 << word));
                if areas.load64(at) != 0 {
                    areas.or64(board::SUMMARY, 1 << word);
                }
                continue;
            }
            let bit = u64::from(chosen.trailing_zeros());
            let context = word * 64 + bit;
            next = (context + 1) % board::CONTEXTS;
            if areas.and64(at, !(1 << bit)) & (1 << bit) == 0 {
                continue;
            }
            if context < FIRST {
                continue;
            }
            // First the right to its report, then whether there is one: the other way round, another worker could serve it in between.
            let slot = u32::try_from(context).expect("below 4096");
            let id = self.id(slot);
            let (away, mask) = self.word(context);
            if away.fetch_and(!mask, Ordering::SeqCst) & mask == 0 {
                continue;
            }
            // The right is that of the name where the name is still the same.
            if posted(areas, context) && self.id(slot) == id {
                found = Some(id);
                break;
            }
            self.sent(areas, slot);
        }
        NEXT.set(next);
        found
    }

    /// Looks for reports whose bit was wiped, and puts them up again; whether there were any. A report that is just being made counts too.
    pub(crate) fn recover(&self, areas: &SharedPages) -> bool {
        let mut found = false;
        for (word, away) in (0..).zip(&self.away) {
            let mut bits = away.load(Ordering::SeqCst);
            while bits != 0 {
                let context = word * 64 + u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                if posted(areas, context) {
                    put_up(areas, context);
                    found = true;
                }
            }
        }
        found
    }
}

/// The first bit that is set from `from` on, round and round. There is one.
fn set_from(bits: u64, from: u64) -> u64 {
    let turn = u32::try_from(from % 64).expect("small");
    (from + u64::from(bits.rotate_right(turn).trailing_zeros())) % 64
}

fn posted(areas: &SharedPages, context: u64) -> bool {
    areas.load32(context * AREA + ctx::STATE) == state::POSTED
}

fn put_up(areas: &SharedPages, context: u64) {
    areas.or64(board::WORDS + 8 * (context / 64), 1 << (context % 64));
    areas.or64(board::SUMMARY, 1 << (context / 64));
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::{AREA, Board, SharedPages, TRIES, board, ctx, put_up, state};
    use crate::systrap::zygote;

    fn areas() -> SharedPages {
        let len = AREA * board::CONTEXTS;
        let file = zygote::memory_file(c"areas", len.cast_signed()).expect("a memory file");
        SharedPages::map(file.as_fd(), usize::try_from(len).expect("fits")).expect("a mapping")
    }

    fn set_state(areas: &SharedPages, context: u32, to: u32) {
        areas.swap32(u64::from(context) * AREA + ctx::STATE, to);
    }

    fn post(areas: &SharedPages, context: u32) {
        set_state(areas, context, state::POSTED);
        put_up(areas, u64::from(context));
    }

    #[test]
    fn a_report_is_taken_once() {
        let (areas, board) = (areas(), Board::new());
        board.send(5);
        assert!(board.take(&areas).is_none());
        post(&areas, 5);
        assert_eq!(board.take(&areas).map(|context| context.slot), Some(5));
        // The guest sets the bit again, and claims again to have posted.
        post(&areas, 5);
        assert!(board.take(&areas).is_none());
        set_state(&areas, 5, state::GO);
        board.sent(&areas, 5);
        assert!(board.take(&areas).is_none());
        post(&areas, 5);
        assert_eq!(board.take(&areas).map(|context| context.slot), Some(5));
    }

    #[test]
    fn a_report_that_comes_before_its_thread_counts_as_away_is_not_lost() {
        let (areas, board) = (areas(), Board::new());
        post(&areas, 7);
        assert!(board.take(&areas).is_none(), "not away yet");
        board.sent(&areas, 7);
        assert_eq!(board.take(&areas).map(|context| context.slot), Some(7));
    }

    #[test]
    fn a_wiped_board_loses_nothing() {
        let (areas, board) = (areas(), Board::new());
        for context in [2, 64, 4095] {
            board.send(context);
            post(&areas, context);
        }
        for at in (board::SUMMARY..board::WORDS + 512).step_by(8) {
            areas.set64(at, 0);
        }
        assert!(board.take(&areas).is_none());
        assert!(board.recover(&areas));
        let mut taken: Vec<u32> = std::iter::from_fn(|| board.take(&areas))
            .map(|context| context.slot)
            .collect();
        taken.sort_unstable();
        assert_eq!(taken, [2, 64, 4095]);
        assert!(!board.recover(&areas), "what was taken is not looked for");
    }

    #[test]
    fn forged_bits_delay_nobody_for_ever() {
        let (areas, board) = (areas(), Board::new());
        board.send(4000);
        post(&areas, 4000);
        let mut looks = 0;
        loop {
            // The guest sets every bit of the first words again and again.
            for word in 0..8 {
                areas.or64(board::WORDS + 8 * word, !0);
            }
            areas.or64(board::SUMMARY, 0xff);
            looks += 1;
            if let Some(context) = board.take(&areas) {
                assert_eq!(context.slot, 4000);
                break;
            }
            assert!(looks < 64 * 64 / TRIES + 2, "never found");
        }
    }

    /// Two workers, who look for lost reports too, and a guest that sets bits as it likes: each of its reports is taken once.
    #[test]
    fn reports_are_taken_once_by_whoever_looks() {
        const ROUNDS: u64 = 200_000;
        let (areas, board) = (areas(), Board::new());
        let (made, served, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        board.send(5);
        let work = || {
            while !over.load(Ordering::SeqCst) {
                if board.take(&areas).is_some() {
                    let report = made.load(Ordering::SeqCst);
                    assert_eq!(served.fetch_add(1, Ordering::SeqCst) + 1, report);
                    set_state(&areas, 5, state::GO);
                    board.sent(&areas, 5);
                } else {
                    board.recover(&areas);
                }
            }
        };
        std::thread::scope(|scope| {
            let workers = [scope.spawn(work), scope.spawn(work)];
            let mut forged = 0u64;
            for _ in 0..ROUNDS {
                made.fetch_add(1, Ordering::SeqCst);
                post(&areas, 5);
                while areas.load32(5 * AREA + ctx::STATE) == state::POSTED {
                    forged = forged
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    if forged >> 62 == 0 {
                        put_up(&areas, 5);
                    }
                    if workers
                        .iter()
                        .any(std::thread::ScopedJoinHandle::is_finished)
                    {
                        break;
                    }
                }
            }
            over.store(true, Ordering::SeqCst);
        });
        assert_eq!(served.into_inner(), ROUNDS);
    }

    #[test]
    fn who_ended_owes_nothing() {
        let (areas, board) = (areas(), Board::new());
        board.send(9);
        post(&areas, 9);
        board.forget(9);
        assert!(board.take(&areas).is_none());
        assert!(!board.recover(&areas));
    }
}
