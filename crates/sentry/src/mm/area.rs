//! What is mapped: [`Area`]s, and the list of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bitflags::bitflags;
use platform::MemOp;

use super::memory_file::{SharedObject, Window};
use crate::fs::host::HostFile;
use crate::vfs::OpenFile;

bitflags! {
    /// Protection (mmap(2)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Prot: u32 {
        /// `PROT_READ`
        const READ = 1;
        /// `PROT_WRITE`
        const WRITE = 2;
        /// `PROT_EXEC`
        const EXEC = 4;
    }

    /// What is special about an area.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AreaFlags: u32 {
        /// Shared (`MAP_SHARED`).
        const SHARED = 1;
        /// Grows downwards when touched below its start.
        const GROWS_DOWN = 2;
        /// Not inherited by fork (`MADV_DONTFORK`).
        const DONT_FORK = 4;
        /// Zeroed by fork (`MADV_WIPEONFORK`).
        const WIPE_ON_FORK = 8;
        /// Not in core dumps (`MADV_DONTDUMP`).
        const DONT_DUMP = 16;
        /// Locked (mlock(2)).
        const LOCKED = 32;
        /// A shared mapping of a file that was opened without writing: it can't be made writable.
        const NO_WRITE = 64;
        /// Private memory that was never accessible: it has no pages.
        const BLANK = 128;
    }
}

/// What an area's pages are.
#[derive(Clone)]
pub enum Mapping {
    /// Private zeroed memory.
    Anonymous,
    /// A host file, from this offset.
    Host {
        /// The file.
        file: Arc<HostFile>,
        /// The offset of the area's first byte.
        offset: u64,
    },
    /// A shared object in the memory file, from this offset.
    Memory {
        /// The object's window.
        window: Arc<Window>,
        /// Who allocates its pages.
        object: Arc<dyn SharedObject>,
        /// The offset of the area's first byte.
        offset: u64,
    },
    /// Pages of a shared object, mapped privately, that were past its end when they were last looked for. Touching them is SIGBUS, or
    /// makes them [`Mapping::Memory`] where it has grown.
    PastEnd {
        /// The object's window.
        window: Arc<Window>,
        /// Who allocates its pages.
        object: Arc<dyn SharedObject>,
        /// The offset of the area's first byte.
        offset: u64,
    },
}

/// A run of addresses with the same properties.
#[derive(Clone)]
pub struct Area {
    /// Where it ends.
    pub end: u64,
    /// What may be done with it.
    pub prot: Prot,
    /// What is special about it.
    pub flags: AreaFlags,
    /// What its pages are.
    pub mapping: Mapping,
    /// The file behind it, for `/proc/PID/maps`, with the offset of the area's first byte.
    pub file: Option<(Arc<OpenFile>, u64)>,
    /// What `/proc/PID/maps` calls it, where there is no file.
    pub name: Option<&'static str>,
}

impl Area {
    /// Whether it is shared.
    pub fn shared(&self) -> bool {
        self.flags.contains(AreaFlags::SHARED)
    }

    /// Whether all of it is mapped in the stub: not so for shared memory, whose pages come with their first touch, and past a file's end.
    pub fn in_host(&self) -> bool {
        match self.mapping {
            Mapping::Anonymous | Mapping::Host { .. } => true,
            Mapping::Memory { .. } => !self.shared(),
            Mapping::PastEnd { .. } => false,
        }
    }

    /// Whether it counts as data (`RLIMIT_DATA`): what its process alone can write, but for stacks.
    pub fn is_data(&self) -> bool {
        self.prot.contains(Prot::WRITE)
            && !self
                .flags
                .intersects(AreaFlags::SHARED | AreaFlags::GROWS_DOWN)
    }

    /// The same, with the pages that it has of a shared object gone: they are looked for again when they are touched.
    pub(super) fn without_pages(mut self) -> Area {
        if let Mapping::Memory {
            window,
            object,
            offset,
        } = self.mapping
        {
            self.mapping = Mapping::PastEnd {
                window,
                object,
                offset,
            };
        }
        self
    }

    /// The same, beginning `by` bytes later.
    pub(super) fn advance(&mut self, by: u64) {
        match &mut self.mapping {
            Mapping::Host { offset, .. }
            | Mapping::Memory { offset, .. }
            | Mapping::PastEnd { offset, .. } => *offset += by,
            Mapping::Anonymous => {}
        }
        if let Some((_, offset)) = &mut self.file {
            *offset += by;
        }
    }

    /// Whether `next`, which begins where this ends, can be one with it.
    fn joins(&self, len: u64, next: &Area) -> bool {
        self.prot == next.prot
            && self.flags == next.flags
            && self.file.is_none()
            && next.file.is_none()
            && self.name == next.name
            && match (&self.mapping, &next.mapping) {
                (Mapping::Anonymous, Mapping::Anonymous) => true,
                (
                    Mapping::Memory { window, offset, .. },
                    Mapping::Memory {
                        window: other,
                        offset: then,
                        ..
                    },
                ) => Arc::ptr_eq(window, other) && offset + len == *then,
                _ => false,
            }
    }
}

/// The list of areas, by start.
#[derive(Default)]
pub(super) struct Areas {
    list: BTreeMap<u64, Area>,
    total: u64,
    data: u64,
}

impl Areas {
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Area)> {
        self.list.iter().map(|(start, area)| (*start, area))
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// How many bytes count as data ([`Area::is_data`]).
    pub(super) fn data(&self) -> u64 {
        self.data
    }

    fn enter(&mut self, start: u64, area: &Area) {
        self.total += area.end - start;
        if area.is_data() {
            self.data += area.end - start;
        }
    }

    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    /// The area that holds `addr`, and where it begins.
    pub(super) fn find(&self, addr: u64) -> Option<(u64, &Area)> {
        let (start, area) = self.list.range(..=addr).next_back()?;
        (addr < area.end).then_some((*start, area))
    }

    /// The first area that begins at `addr` or later.
    pub(super) fn next(&self, addr: u64) -> Option<(u64, &Area)> {
        self.list
            .range(addr..)
            .next()
            .map(|(start, area)| (*start, area))
    }

    /// The last area that begins before `addr`.
    pub(super) fn before(&self, addr: u64) -> Option<(u64, &Area)> {
        self.list
            .range(..addr)
            .next_back()
            .map(|(start, area)| (*start, area))
    }

    /// Whether nothing lies in the range.
    pub(super) fn is_free(&self, start: u64, end: u64) -> bool {
        self.before(end).is_none_or(|(_, area)| area.end <= start)
    }

    /// The areas within the range, each cut to it.
    pub(super) fn within(&self, start: u64, end: u64) -> Vec<(u64, Area)> {
        let mut found = Vec::new();
        if start >= end {
            return found;
        }
        let first = self.find(start).map_or(start, |(at, _)| at);
        for (at, area) in self.list.range(first..end) {
            let mut part = area.clone();
            let from = (*at).max(start);
            part.advance(from - at);
            part.end = area.end.min(end);
            if from < part.end {
                found.push((from, part));
            }
        }
        found
    }

    /// Whether the areas cover the range without a gap.
    pub(super) fn covers(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            match self.find(at) {
                Some((_, area)) => at = area.end,
                None => return false,
            }
        }
        true
    }

    /// Cuts the area that holds `at` in two there.
    fn split(&mut self, at: u64) {
        let Some((start, area)) = self.find(at) else {
            return;
        };
        if start == at {
            return;
        }
        let mut tail = area.clone();
        tail.advance(at - start);
        if let Some(head) = self.list.get_mut(&start) {
            head.end = at;
        }
        self.list.insert(at, tail);
    }

    /// Takes everything out of the range.
    pub(super) fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.split(start);
        self.split(end);
        while let Some((&at, area)) = self.list.range(start..end).next() {
            self.total -= area.end - at;
            if area.is_data() {
                self.data -= area.end - at;
            }
            self.list.remove(&at);
        }
    }

    /// Puts an area in place of whatever is there, as one with its neighbours where they are alike.
    pub(super) fn insert(&mut self, mut start: u64, mut area: Area) {
        self.remove(start, area.end);
        self.enter(start, &area);
        if let Some((before, left)) = self.before(start)
            && left.end == start
            && left.joins(start - before, &area)
        {
            let mut joined = left.clone();
            joined.end = area.end;
            area = joined;
            self.list.remove(&before);
            start = before;
        }
        if let Some(right) = self.list.get(&area.end)
            && area.joins(area.end - start, right)
        {
            let end = right.end;
            self.list.remove(&area.end);
            area.end = end;
        }
        self.list.insert(start, area);
    }

    /// Changes the areas within the range.
    pub(super) fn change(&mut self, start: u64, end: u64, change: &mut dyn FnMut(&mut Area)) {
        for (at, mut area) in self.within(start, end) {
            change(&mut area);
            self.insert(at, area);
        }
    }

    /// A copy for a forked process, and what has to be done to its address space to fit.
    pub(super) fn fork(&self) -> (Areas, Vec<MemOp>) {
        let mut copy = Areas::default();
        let mut ops = Vec::new();
        for (&start, area) in &self.list {
            let len = area.end - start;
            if area.flags.contains(AreaFlags::DONT_FORK) {
                ops.push(MemOp::Unmap { addr: start, len });
                continue;
            }
            let mut area = area.clone();
            // Locks are not inherited (mlock(2)).
            area.flags.remove(AreaFlags::LOCKED);
            if area.flags.contains(AreaFlags::WIPE_ON_FORK) {
                let backing = platform::Backing::Anonymous;
                ops.push(MemOp::Map {
                    addr: start,
                    len,
                    prot: area.prot.bits(),
                    backing,
                });
            }
            copy.enter(start, &area);
            copy.list.insert(start, area);
        }
        (copy, ops)
    }

    /// A free range of `len` bytes that ends at `below` or lower, as high as can be; `align` is a power of two.
    pub(super) fn gap_below(&self, len: u64, below: u64, align: u64, lowest: u64) -> Option<u64> {
        let mut top = below;
        loop {
            let start = top.checked_sub(len)? & !(align - 1);
            if start < lowest {
                return None;
            }
            match self.before(start + len) {
                Some((at, area)) if area.end > start => top = at,
                _ => return Some(start),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Area, AreaFlags, Areas, Mapping, Prot};

    fn area(end: u64, prot: Prot) -> Area {
        Area {
            end,
            prot,
            flags: AreaFlags::empty(),
            mapping: Mapping::Anonymous,
            file: None,
            name: None,
        }
    }

    #[test]
    fn neighbours_join_and_split() {
        let mut areas = Areas::default();
        areas.insert(0x1000, area(0x3000, Prot::READ));
        areas.insert(0x3000, area(0x4000, Prot::READ));
        assert_eq!((areas.count(), areas.total()), (1, 0x3000));
        areas.change(0x2000, 0x3000, &mut |area| area.prot = Prot::WRITE);
        assert_eq!(areas.data(), 0x1000);
        assert_eq!((areas.count(), areas.total()), (3, 0x3000));
        assert!(areas.covers(0x1000, 0x4000) && !areas.covers(0x1000, 0x5000));
        areas.change(0x1000, 0x4000, &mut |area| area.prot = Prot::READ);
        assert_eq!((areas.count(), areas.data()), (1, 0));
        areas.remove(0x1800, 0x2000);
        assert_eq!((areas.count(), areas.total()), (2, 0x2800));
        assert_eq!(areas.gap_below(0x800, 0x4000, 0x800, 0x1000), Some(0x1800));
        assert_eq!(areas.gap_below(0x1000, 0x4000, 0x1000, 0x1000), None);
    }
}
