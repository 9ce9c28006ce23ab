//! The window: what the stub copies for a call, so that small inputs and results cost no host call.
//!
//! While a worker serves a call, the thread's window stands for a part of its guest memory: inputs that the stub has copied already, and results that it is to copy when the
//! call is answered. Only [`Mm`]'s copies look here, and only for the address space of the call.

use std::cell::RefCell;
use std::sync::Arc;

use abi::Errno;
use platform::{SpaceId, Thread, WINDOW};

use super::Mm;

/// The window of the call that this worker serves.
struct Current {
    space: SpaceId,
    thread: Arc<dyn Thread>,
    from: u64,
    len: usize,
    out: Option<Results>,
    /// Whether results may wait for the answer.
    defer: bool,
}

/// Results that wait in a window to be copied out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Results {
    /// Where they go.
    pub addr: u64,
    /// How many bytes.
    pub len: usize,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// From here on copies of this space may use the thread's window; for results only with `defer`: where nobody else is to see them before
/// the call returns.
pub fn begin(mm: &Mm, thread: &Arc<dyn Thread>, defer: bool) {
    let (from, len) = thread.copied_in();
    // The stub could copy from its own pages, which are no guest memory.
    let below = from
        .checked_add(len as u64)
        .is_some_and(|end| end <= platform::USER_TOP);
    let len = if below { len } else { 0 };
    let current = Current {
        space: mm.space().id(),
        thread: Arc::clone(thread),
        from,
        len,
        out: None,
        defer,
    };
    CURRENT.set(Some(current));
}

/// From here on none may. The results that were put in the window.
pub fn end() -> Option<Results> {
    CURRENT.take().and_then(|current| current.out)
}

/// Writes results to guest memory after all: the call's thread will not copy them.
pub fn flush(mm: &Mm, thread: &dyn Thread, results: Results) -> Result<(), Errno> {
    let mut bytes = vec![0; results.len];
    thread.results_read(0, &mut bytes);
    // Not by way of the window, which is where they come from.
    if mm.copy_out_past_window(results.addr, &bytes)? == bytes.len() {
        Ok(())
    } else {
        Err(Errno::EFAULT)
    }
}

/// Reads from the window, where the whole range was copied.
pub(super) fn copy_in(space: SpaceId, addr: u64, to: &mut [u8]) -> bool {
    CURRENT.with_borrow(|current| {
        let Some(current) = current.as_ref().filter(|current| current.space == space) else {
            return false;
        };
        let at = addr.wrapping_sub(current.from);
        let inside = at < current.len as u64 && to.len() as u64 <= current.len as u64 - at;
        if inside {
            current
                .thread
                .window_read(usize::try_from(at).unwrap_or(WINDOW), to);
        }
        inside
    })
}

/// A string that was copied whole, without its NUL.
pub(super) fn string(space: SpaceId, addr: u64) -> Option<Vec<u8>> {
    CURRENT.with_borrow(|current| {
        let current = current
            .as_ref()
            .filter(|current| current.space == space && current.from == addr && current.len > 0)?;
        let mut bytes = vec![0; current.len];
        current.thread.window_read(0, &mut bytes);
        let end = bytes.iter().position(|byte| *byte == 0)?;
        bytes.truncate(end);
        Some(bytes)
    })
}

/// The sentry writes to this range: what was copied of it is no longer what is there.
pub(super) fn invalidate(space: SpaceId, addr: u64, len: usize) {
    CURRENT.with_borrow_mut(|current| {
        let Some(current) = current
            .as_mut()
            .filter(|current| current.space == space && current.len > 0)
        else {
            return;
        };
        let apart = addr >= current.from.wrapping_add(current.len as u64)
            || addr.wrapping_add(len as u64) <= current.from;
        if !apart {
            current.len = 0;
            current.thread.forget_input();
        }
    });
}

/// Puts results in the window, where they fit behind what is there already.
pub(super) fn copy_out(space: SpaceId, addr: u64, from: &[u8]) -> bool {
    CURRENT.with_borrow_mut(|current| {
        let Some(current) = current
            .as_mut()
            .filter(|current| current.space == space && current.defer)
        else {
            return false;
        };
        let at = match current.out {
            None => 0,
            Some(out) if out.addr.wrapping_add(out.len as u64) == addr => out.len,
            Some(_) => return false,
        };
        if at + from.len() > WINDOW {
            return false;
        }
        current.thread.results_write(at, from);
        let start = current.out.map_or(addr, |out| out.addr);
        current.out = Some(Results {
            addr: start,
            len: at + from.len(),
        });
        true
    })
}

/// What is in the window so far: it has to be written now.
pub(super) fn take_results(space: SpaceId) -> Option<(Arc<dyn Thread>, Results)> {
    CURRENT.with_borrow_mut(|current| {
        let current = current.as_mut().filter(|current| current.space == space)?;
        let out = current.out.take()?;
        Some((Arc::clone(&current.thread), out))
    })
}

/// What is in the window and would be overtaken by an access to this range: it has to be written first.
pub(super) fn take_overlap(
    space: SpaceId,
    addr: u64,
    len: usize,
) -> Option<(Arc<dyn Thread>, Results)> {
    CURRENT.with_borrow_mut(|current| {
        let current = current.as_mut().filter(|current| current.space == space)?;
        let out = current.out?;
        let apart = addr >= out.addr.wrapping_add(out.len as u64)
            || addr.wrapping_add(len as u64) <= out.addr;
        if apart {
            return None;
        }
        current.out = None;
        Some((Arc::clone(&current.thread), out))
    })
}
