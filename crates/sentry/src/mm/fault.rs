//! Page faults that the host's kernel could not serve: stacks that grow, and pages of shared memory on their first touch.

use abi::Errno;
use abi::signal::{SigInfo, Signal};
use platform::{Backing, MemOp};

use super::area::{Area, AreaFlags, Mapping, Prot};
use super::{MIN_ADDR, Mm, PAGE, page_down, page_up};
use crate::sync::MutexGuard;
use crate::sync::order::MmAreas;

use std::sync::atomic::Ordering;

/// `SEGV_MAPERR`: nothing is mapped there.
const SEGV_MAPERR: i32 = 1;
/// `SEGV_ACCERR`: the access is not allowed.
const SEGV_ACCERR: i32 = 2;
/// `BUS_ADRERR`: past the end of the file.
const BUS_ADRERR: i32 = 2;
/// How much is mapped around the first touch of shared memory.
const AROUND: u64 = 64 << 10;

/// What a fault comes to.
#[derive(Debug)]
pub enum Fault {
    /// The access can be tried again.
    Served,
    /// The guest gets this signal.
    Signal(SigInfo),
}

impl Mm {
    /// Serves a page fault of the guest: `write` and `exec` say what it tried.
    pub fn fault(&self, addr: u64, write: bool, exec: bool) -> Fault {
        let areas = self.areas.lock();
        let need = if write {
            Prot::WRITE
        } else if exec {
            Prot::EXEC
        } else {
            Prot::READ
        };
        match areas.find(addr) {
            Some((_, area)) if !area.prot.intersects(need) => {
                Fault::Signal(SigInfo::fault(Signal::SIGSEGV, SEGV_ACCERR, addr))
            }
            Some((start, area)) => {
                let area = area.clone();
                self.touch(areas, start, &area, addr)
            }
            None => self.grow(areas, addr),
        }
    }

    /// Makes the page at `addr` present for the sentry's own access, as a guest's access would. False where it can't be.
    pub(super) fn make_present(&self, addr: u64, write: bool) -> bool {
        let areas = self.areas.lock();
        let need = if write { Prot::WRITE } else { Prot::READ };
        match areas.find(addr) {
            Some((start, area)) if area.prot.intersects(need) => match area.mapping {
                Mapping::Memory { .. } | Mapping::PastEnd { .. } => {
                    let area = area.clone();
                    matches!(self.touch(areas, start, &area, addr), Fault::Served)
                }
                Mapping::Anonymous | Mapping::Host { .. } => false,
            },
            Some(_) => false,
            None => matches!(self.grow(areas, addr), Fault::Served),
        }
    }

    /// The first touch of a page of an area.
    fn touch(
        &self,
        areas: MutexGuard<'_, super::Areas, MmAreas>,
        start: u64,
        area: &Area,
        addr: u64,
    ) -> Fault {
        let Mapping::Memory {
            window,
            object,
            offset,
        } = &area.mapping
        else {
            return match area.mapping {
                Mapping::PastEnd { .. } => self.look_again(areas, area, addr),
                Mapping::Host { .. } if self.is_file_copy(area) => {
                    self.touch_file_copy(&areas, addr)
                }
                // Private memory is the host's: that the access failed means it changed meanwhile; it is tried again.
                _ => Fault::Served,
            };
        };
        if !area.shared() {
            return Fault::Served;
        }
        let page = page_down(addr);
        let object_at = |address: u64| offset + (address - start);
        let low = start.max(page & !(AROUND - 1));
        let high = area.end.min((page & !(AROUND - 1)) + AROUND);
        // All around it first; where a limit or the file's end forbids that, the page alone.
        let got = object
            .populate(object_at(low)..object_at(high))
            .or_else(|_| object.populate(object_at(page)..object_at(page) + PAGE));
        let got = match got {
            Ok(got) if got.start <= object_at(page) && got.end > object_at(page) => got,
            // Pages are going just now: whether this one is among them shows when it is tried again.
            Err(Errno::EAGAIN) => return Fault::Served,
            Ok(_) | Err(_) => {
                return Fault::Signal(SigInfo::fault(Signal::SIGBUS, BUS_ADRERR, addr));
            }
        };
        let from = got.start.max(object_at(low));
        let to = got.end.min(object_at(high));
        let op = MemOp::Map {
            addr: start + (from - offset),
            len: to - from,
            prot: area.prot.bits(),
            backing: Backing::SharedMemory(window.offset() + from),
        };
        let done = self.space.apply(&[op]);
        drop(areas);
        match done {
            Ok(()) => Fault::Served,
            Err(_) => Fault::Signal(SigInfo::fault(Signal::SIGBUS, BUS_ADRERR, addr)),
        }
    }

    /// The touch of a page of a file's copy.
    fn touch_file_copy(&self, areas: &MutexGuard<'_, super::Areas, MmAreas>, addr: u64) -> Fault {
        let page = page_down(addr);
        match areas.within(page, page + PAGE).into_iter().next() {
            Some((at, part)) if at == page && !self.fill_file_copy(page, &part) => {
                Fault::Signal(SigInfo::fault(Signal::SIGBUS, BUS_ADRERR, addr))
            }
            _ => Fault::Served,
        }
    }

    /// The touch of a page of a private mapping that was past the object's end: it may have grown.
    fn look_again(
        &self,
        mut areas: MutexGuard<'_, super::Areas, MmAreas>,
        area: &Area,
        addr: u64,
    ) -> Fault {
        let refused = Fault::Signal(SigInfo::fault(Signal::SIGBUS, BUS_ADRERR, addr));
        let page = page_down(addr);
        let Some((_, mut part)) = areas.within(page, area.end).into_iter().next() else {
            return Fault::Served;
        };
        let Mapping::PastEnd {
            window,
            object,
            offset,
        } = part.mapping
        else {
            return Fault::Served;
        };
        let there = page_up(object.size())
            .unwrap_or(u64::MAX)
            .saturating_sub(offset)
            .min(part.end - page);
        if there == 0 {
            return refused;
        }
        match object.populate(offset..offset + there) {
            Ok(_) => {}
            Err(Errno::EAGAIN) => return Fault::Served,
            Err(_) => return refused,
        }
        part.end = page + there;
        part.mapping = Mapping::Memory {
            window,
            object,
            offset,
        };
        if self.install(page, &part).is_err() {
            return refused;
        }
        areas.insert(page, part);
        Fault::Served
    }

    /// An access below a stack: it grows, within its limit and not into what is below it.
    fn grow(&self, mut areas: MutexGuard<'_, super::Areas, MmAreas>, addr: u64) -> Fault {
        let refused = Fault::Signal(SigInfo::fault(Signal::SIGSEGV, SEGV_MAPERR, addr));
        let page = page_down(addr);
        let Some((start, area)) = areas.next(addr) else {
            return refused;
        };
        if !area.flags.contains(AreaFlags::GROWS_DOWN) || page < MIN_ADDR {
            return refused;
        }
        let limit = self.limit_stack.load(Ordering::Relaxed);
        let size = area.end - page;
        let added = start - page;
        // A gap stays below it (stack_guard_gap: 256 pages).
        let clear = areas.before(page).is_none_or(|(_, below)| {
            below.end + 256 * PAGE <= page || below.flags.contains(AreaFlags::GROWS_DOWN)
        });
        if size > limit || !clear || areas.total() + added > self.limit_as.load(Ordering::Relaxed) {
            return refused;
        }
        let mut grown = area.clone();
        grown.end = start;
        // A little more than asked, so that deep recursion does not fault at every page.
        let more = (128 << 10).min(limit - size);
        let from = page.saturating_sub(more & !(PAGE - 1));
        let from = if areas
            .before(page)
            .is_none_or(|(_, below)| below.end + 256 * PAGE <= from)
        {
            from
        } else {
            page
        };
        let op = MemOp::Map {
            addr: from,
            len: start - from,
            prot: grown.prot.bits(),
            backing: Backing::Anonymous,
        };
        if self.space.apply(&[op]).is_err() {
            return refused;
        }
        areas.insert(from, grown);
        Fault::Served
    }
}
