//! mmap(2) and its family.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::Errno;
use bitflags::bitflags;
use platform::{Backing, MemOp, USER_TOP};

use super::anon_shared::AnonShared;
use super::area::{Area, AreaFlags, Mapping, Prot};
use super::{MIN_ADDR, Mm, PAGE, page_up};
use crate::vfs::{MmapSource, OpenFile};

/// How many areas a process may have (`vm.max_map_count`).
const MAX_AREAS: usize = 65_530;

bitflags! {
    /// `MAP_*` flags (mmap(2)).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MapFlags: u32 {
        /// `MAP_SHARED`
        const SHARED = 0x1;
        /// `MAP_PRIVATE`
        const PRIVATE = 0x2;
        /// `MAP_FIXED`
        const FIXED = 0x10;
        /// `MAP_ANONYMOUS`
        const ANONYMOUS = 0x20;
        /// `MAP_32BIT`
        const LOW = 0x40;
        /// `MAP_GROWSDOWN`
        const GROWSDOWN = 0x100;
        /// `MAP_DENYWRITE`, ignored as Linux does.
        const DENYWRITE = 0x800;
        /// `MAP_EXECUTABLE`, ignored as Linux does.
        const EXECUTABLE = 0x1000;
        /// `MAP_LOCKED`
        const LOCKED = 0x2000;
        /// `MAP_NORESERVE`
        const NORESERVE = 0x4000;
        /// `MAP_POPULATE`
        const POPULATE = 0x8000;
        /// `MAP_NONBLOCK`
        const NONBLOCK = 0x1_0000;
        /// `MAP_STACK`
        const STACK = 0x2_0000;
        /// `MAP_HUGETLB`
        const HUGETLB = 0x4_0000;
        /// `MAP_SYNC`
        const SYNC = 0x8_0000;
        /// `MAP_FIXED_NOREPLACE`
        const FIXED_NOREPLACE = 0x10_0000;
        const _ = !0;
    }
}

/// A request to map something.
#[derive(Clone)]
pub struct MapRequest {
    /// Where, or a hint, or 0.
    pub addr: u64,
    /// How many bytes.
    pub len: u64,
    /// Protection.
    pub prot: Prot,
    /// Flags.
    pub flags: MapFlags,
    /// The file and its offset; `None` for anonymous memory.
    pub file: Option<(Arc<OpenFile>, u64)>,
    /// What `/proc/PID/maps` is to call it.
    pub name: Option<&'static str>,
}

/// A request of mremap(2).
#[derive(Clone, Copy, Debug)]
pub struct Remap {
    /// Where it is.
    pub old: u64,
    /// How many bytes of it.
    pub old_len: u64,
    /// How many it is to have.
    pub new_len: u64,
    /// Whether it may move (`MREMAP_MAYMOVE`).
    pub may_move: bool,
    /// Where to (`MREMAP_FIXED`).
    pub to: Option<u64>,
    /// Whether the old range stays, empty (`MREMAP_DONTUNMAP`).
    pub keep: bool,
}

impl Mm {
    /// mmap(2): maps, and says where.
    pub fn map(&self, request: &MapRequest) -> Result<u64, Errno> {
        let flags = request.flags;
        let len = page_up(request.len)
            .filter(|len| *len != 0)
            .ok_or(if request.len == 0 {
                Errno::EINVAL
            } else {
                Errno::ENOMEM
            })?;
        if len > USER_TOP {
            return Err(Errno::ENOMEM);
        }
        let shared = flags.contains(MapFlags::SHARED);
        let mut area_flags = if shared {
            AreaFlags::SHARED
        } else {
            AreaFlags::empty()
        };
        if flags.contains(MapFlags::GROWSDOWN) {
            area_flags |= AreaFlags::GROWS_DOWN;
        }
        if flags.contains(MapFlags::LOCKED) {
            area_flags |= AreaFlags::LOCKED;
        }
        let mapping = match &request.file {
            None if shared => {
                let (window, object) = AnonShared::create(&self.host.memory, len)?;
                Mapping::Memory {
                    window,
                    object,
                    offset: 0,
                }
            }
            None => Mapping::Anonymous,
            Some((file, offset)) => {
                if !file.readable() {
                    return Err(Errno::EACCES);
                }
                if shared && !file.writable() {
                    if request.prot.contains(Prot::WRITE) {
                        return Err(Errno::EACCES);
                    }
                    area_flags |= AreaFlags::NO_WRITE;
                }
                offset
                    .checked_add(len)
                    .filter(|end| i64::try_from(*end).is_ok())
                    .ok_or(Errno::EOVERFLOW)?;
                match file.mmap_source()? {
                    MmapSource::Host(host) => Mapping::Host {
                        file: host,
                        offset: *offset,
                    },
                    MmapSource::Memory { window, object } => Mapping::Memory {
                        window,
                        object,
                        offset: *offset,
                    },
                    MmapSource::AnonymousZero if shared => {
                        let (window, object) = AnonShared::create(&self.host.memory, len)?;
                        Mapping::Memory {
                            window,
                            object,
                            offset: 0,
                        }
                    }
                    MmapSource::AnonymousZero => Mapping::Anonymous,
                }
            }
        };
        self.enter_area(request, len, area_flags, mapping)
    }

    /// Maps privately what no file stands for.
    pub(super) fn map_as(&self, request: &MapRequest, mapping: Mapping) -> Result<u64, Errno> {
        let len = page_up(request.len).ok_or(Errno::ENOMEM)?;
        self.enter_area(request, len, AreaFlags::empty(), mapping)
    }

    /// Finds a place for a mapping, and maps it.
    fn enter_area(
        &self,
        request: &MapRequest,
        len: u64,
        area_flags: AreaFlags,
        mapping: Mapping,
    ) -> Result<u64, Errno> {
        let flags = request.flags;
        let mut areas = self.areas.lock();
        let fixed = flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE);
        let addr = if fixed {
            if !request.addr.is_multiple_of(PAGE) {
                return Err(Errno::EINVAL);
            }
            let end = request
                .addr
                .checked_add(len)
                .filter(|end| *end <= USER_TOP)
                .ok_or(Errno::ENOMEM)?;
            if request.addr < MIN_ADDR {
                return Err(Errno::EPERM);
            }
            if flags.contains(MapFlags::FIXED_NOREPLACE) && !areas.is_free(request.addr, end) {
                return Err(Errno::EEXIST);
            }
            request.addr
        } else {
            self.place(&areas, request.addr, len, flags.contains(MapFlags::LOW))
                .ok_or(Errno::ENOMEM)?
        };
        let mut area_flags = area_flags;
        if request.prot.is_empty() && matches!(mapping, Mapping::Anonymous) {
            area_flags |= AreaFlags::BLANK;
        }
        let end = addr + len;
        let (mut replaced, mut replaced_data) = (0, 0);
        for (start, area) in areas.within(addr, end) {
            replaced += area.end - start;
            if area.is_data() {
                replaced_data += area.end - start;
            }
        }
        let area = Area {
            end,
            prot: request.prot,
            flags: area_flags,
            mapping,
            file: request.file.clone(),
            name: request.name,
        };
        if areas.total() - replaced + len > self.limit_as.load(Ordering::Relaxed)
            || area.is_data()
                && areas.data() - replaced_data + len > self.limit_data.load(Ordering::Relaxed)
            || areas.count() + 2 > MAX_AREAS
        {
            return Err(Errno::ENOMEM);
        }
        self.unpatch(addr, end, false)?;
        if let Mapping::Memory { object, .. } = &area.mapping {
            // Before any page of it can be touched.
            self.watch(object.as_ref());
        }
        for (start, part) in self.pieces(addr, area)? {
            self.install(start, &part)?;
            areas.insert(start, part);
        }
        Ok(addr)
    }

    /// An area as it is entered in the list: a private mapping of a file in memory in two, up to the file's end and past it.
    fn pieces(&self, start: u64, area: Area) -> Result<Vec<(u64, Area)>, Errno> {
        let Mapping::Memory { object, offset, .. } = &area.mapping else {
            return Ok(vec![(start, area)]);
        };
        if area.shared() {
            return Ok(vec![(start, area)]);
        }
        let size = page_up(object.size()).ok_or(Errno::EOVERFLOW)?;
        let there = size.saturating_sub(*offset).min(area.end - start);
        let mut pieces = Vec::new();
        let there = match object.populate(*offset..offset + there) {
            _ if there == 0 => 0,
            Ok(_) => there,
            // Pages are going just now: they are looked for when they are touched.
            Err(Errno::EAGAIN | Errno::ENXIO) => 0,
            Err(_) => return Err(Errno::ENOMEM),
        };
        if there > 0 {
            pieces.push((
                start,
                Area {
                    end: start + there,
                    ..area.clone()
                },
            ));
        }
        if start + there < area.end {
            let mut past = area.clone().without_pages();
            past.advance(there);
            pieces.push((start + there, past));
        }
        Ok(pieces)
    }

    /// Tells the host of a new area.
    pub(super) fn install(&self, start: u64, area: &Area) -> Result<(), Errno> {
        if self.is_file_copy(area) {
            return self.install_file_copy(start, area);
        }
        let len = area.end - start;
        let prot = area.prot.bits();
        let held;
        let op = match &area.mapping {
            Mapping::Anonymous => MemOp::Map {
                addr: start,
                len,
                prot,
                backing: Backing::Anonymous,
            },
            Mapping::Host { file, offset } => {
                held = self.host.files.hold(&self.host.platform, file)?;
                let backing = if area.shared() {
                    Backing::SharedFile(held.number(), *offset)
                } else {
                    Backing::PrivateFile(held.number(), *offset)
                };
                MemOp::Map {
                    addr: start,
                    len,
                    prot,
                    backing,
                }
            }
            Mapping::Memory { window, offset, .. } if !area.shared() => MemOp::Map {
                addr: start,
                len,
                prot,
                backing: Backing::PrivateMemory(window.offset() + offset),
            },
            Mapping::Memory { .. } | Mapping::PastEnd { .. } => MemOp::Unmap { addr: start, len },
        };
        self.space.apply(&[op]).map_err(|(_, error)| {
            if error == Errno::ESRCH {
                Errno::ENOMEM
            } else {
                error
            }
        })
    }

    /// Where a mapping without a fixed address goes.
    fn place(&self, areas: &super::Areas, hint: u64, len: u64, low: bool) -> Option<u64> {
        let hint = hint & !(PAGE - 1);
        if hint >= MIN_ADDR
            && let Some(end) = hint.checked_add(len)
            && end <= USER_TOP
            && areas.is_free(hint, end)
        {
            return Some(hint);
        }
        if low {
            return areas.gap_below(len, 1 << 31, PAGE, 0x4000_0000);
        }
        let base = self.layout.lock().mmap_base;
        areas
            .gap_below(len, base, PAGE, MIN_ADDR)
            .or_else(|| areas.gap_below(len, USER_TOP, PAGE, MIN_ADDR))
    }

    /// munmap(2).
    pub fn unmap(&self, addr: u64, len: u64) -> Result<(), Errno> {
        let end = range(addr, len)?;
        let mut areas = self.areas.lock();
        if areas.is_free(addr, end) {
            return Ok(());
        }
        if areas.count() + 1 > MAX_AREAS {
            return Err(Errno::ENOMEM);
        }
        let gone = areas.within(addr, end);
        self.unpatch(addr, end, false)?;
        let done = self
            .space
            .apply(&[MemOp::Unmap {
                addr,
                len: end - addr,
            }])
            .map_err(|(_, error)| error);
        if done.is_ok() {
            areas.remove(addr, end);
        }
        drop(areas);
        drop(gone);
        done
    }

    /// mprotect(2).
    pub fn protect(&self, addr: u64, len: u64, prot: Prot) -> Result<(), Errno> {
        if !addr.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        if len == 0 {
            return Ok(());
        }
        let end = page_up(len)
            .and_then(|len| addr.checked_add(len))
            .ok_or(Errno::ENOMEM)?;
        let mut areas = self.areas.lock();
        let parts = areas.within(addr, end.min(USER_TOP));
        // What lies before a gap is changed, then it is ENOMEM, as Linux does.
        let mut covered = addr;
        for (start, area) in parts {
            if start != covered {
                return Err(Errno::ENOMEM);
            }
            if area.flags.contains(AreaFlags::NO_WRITE) && prot.contains(Prot::WRITE) {
                return Err(Errno::EACCES);
            }
            if areas.count() + 2 > MAX_AREAS {
                return Err(Errno::ENOMEM);
            }
            let len = area.end - start;
            let becomes_data = Area {
                prot,
                ..area.clone()
            }
            .is_data()
                && !area.is_data();
            if becomes_data && areas.data() + len > self.limit_data.load(Ordering::Relaxed) {
                return Err(Errno::ENOMEM);
            }
            if prot != area.prot {
                self.unpatch(start, area.end, true)?;
            }
            let op = match &area.mapping {
                Mapping::Memory { .. } if area.shared() => MemOp::Unmap { addr: start, len },
                Mapping::PastEnd { .. } => MemOp::Unmap { addr: start, len },
                _ => MemOp::Protect {
                    addr: start,
                    len,
                    prot: prot.bits(),
                },
            };
            match self.space.apply(&[op]) {
                // A copy of a file has no pages past the file's end.
                Err((_, Errno::ENOMEM)) if self.is_file_copy(&area) => {}
                done => done.map_err(|(_, error)| error)?,
            }
            areas.change(start, area.end, &mut |area| {
                area.prot = prot;
                if !prot.is_empty() {
                    area.flags.remove(AreaFlags::BLANK);
                }
            });
            covered = area.end;
        }
        if covered < end {
            Err(Errno::ENOMEM)
        } else {
            Ok(())
        }
    }

    /// brk(2): moves the program's break where that is possible, and says where it is then.
    pub fn brk(&self, to: u64) -> u64 {
        let (begin, now) = self.layout.lock().brk;
        if to < begin || begin == 0 {
            return now;
        }
        let (Some(old), Some(new)) = (page_up(now), page_up(to)) else {
            return now;
        };
        if to - begin > self.limit_data.load(Ordering::Relaxed) {
            return now;
        }
        if new > old {
            let mut areas = self.areas.lock();
            let len = new - old;
            if new > USER_TOP
                || !areas.is_free(old, new)
                || areas.total() + len > self.limit_as.load(Ordering::Relaxed)
                || areas.data() + len > self.limit_data.load(Ordering::Relaxed)
            {
                return now;
            }
            let prot = Prot::READ | Prot::WRITE;
            let area = Area {
                end: new,
                prot,
                flags: AreaFlags::empty(),
                mapping: Mapping::Anonymous,
                file: None,
                name: Some("[heap]"),
            };
            if self.install(old, &area).is_err() {
                return now;
            }
            areas.insert(old, area);
        } else if new < old && self.unmap(new, old - new).is_err() {
            return now;
        }
        self.layout.lock().brk.1 = to;
        to
    }

    /// mremap(2): where it is now.
    pub fn remap(&self, request: &Remap) -> Result<u64, Errno> {
        let old = request.old;
        if !old.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        let old_len = page_up(request.old_len).ok_or(Errno::EINVAL)?;
        let new_len = page_up(request.new_len)
            .filter(|len| *len != 0)
            .ok_or(Errno::EINVAL)?;
        if let Some(to) = request.to {
            let end = to
                .checked_add(new_len)
                .filter(|end| *end <= USER_TOP)
                .ok_or(Errno::EINVAL)?;
            let old_end = old.checked_add(old_len).ok_or(Errno::EINVAL)?;
            if !to.is_multiple_of(PAGE) || !request.may_move || (to < old_end && old < end) {
                return Err(Errno::EINVAL);
            }
        }
        if request.keep && (old_len != new_len || !request.may_move) {
            return Err(Errno::EINVAL);
        }
        let mut areas = self.areas.lock();
        let (_, area) = areas.find(old).ok_or(Errno::EFAULT)?;
        let area = area.clone();
        if old_len == 0 && !area.shared() {
            return Err(Errno::EINVAL);
        }
        let old_end = old.checked_add(old_len).ok_or(Errno::EINVAL)?;
        if old_end > area.end {
            return Err(Errno::EFAULT);
        }
        if request.to.is_none() && !request.keep && new_len <= old_len {
            drop(areas);
            if new_len < old_len {
                self.unmap(old + new_len, old_len - new_len)?;
            }
            return Ok(old);
        }
        let added = if request.keep {
            new_len
        } else {
            new_len.saturating_sub(old_len)
        };
        if areas.total() + added > self.limit_as.load(Ordering::Relaxed)
            || area.is_data() && areas.data() + added > self.limit_data.load(Ordering::Relaxed)
            || areas.count() + 2 > MAX_AREAS
        {
            return Err(Errno::ENOMEM);
        }
        let mut moved = areas
            .within(old, old_end.max(old + PAGE))
            .into_iter()
            .next()
            .ok_or(Errno::EFAULT)?
            .1;
        // In place, where there is room behind it.
        if request.to.is_none()
            && !request.keep
            && area.end == old_end
            && old
                .checked_add(new_len)
                .is_some_and(|end| end <= USER_TOP && areas.is_free(old_end, end))
        {
            let mut tail = moved.clone();
            tail.end = old + new_len;
            let op = match &tail.mapping {
                Mapping::Memory { .. } if !tail.shared() => {
                    // What is new has no pages yet.
                    let mut rest = tail.clone().without_pages();
                    rest.advance(old_len);
                    areas.insert(old_end, rest);
                    return Ok(old);
                }
                Mapping::Memory { .. } | Mapping::PastEnd { .. } => None,
                Mapping::Anonymous => Some(MemOp::Map {
                    addr: old_end,
                    len: new_len - old_len,
                    prot: tail.prot.bits(),
                    backing: Backing::Anonymous,
                }),
                Mapping::Host { .. } => Some(MemOp::Move {
                    old,
                    old_len,
                    new: old,
                    new_len,
                }),
            };
            match op {
                Some(MemOp::Move { .. }) => {
                    // A file's tail is a mapping of its own: moving in place is not expressible.
                    let mut rest = moved.clone();
                    if let Mapping::Host { offset, .. } = &mut rest.mapping {
                        *offset += old_len;
                    }
                    if let Some((_, offset)) = &mut rest.file {
                        *offset += old_len;
                    }
                    rest.end = old + new_len;
                    self.install(old_end, &rest)?;
                    areas.insert(old_end, rest);
                }
                Some(op) => {
                    self.space.apply(&[op]).map_err(|(_, error)| error)?;
                    areas.insert(old, tail);
                }
                None => areas.insert(old, tail),
            }
            return Ok(old);
        }
        if !request.may_move {
            return Err(Errno::ENOMEM);
        }
        let to = match request.to {
            Some(to) if to < MIN_ADDR => return Err(Errno::EPERM),
            Some(to) => to,
            None => self.place(&areas, 0, new_len, false).ok_or(Errno::ENOMEM)?,
        };
        let moves_host = moved.in_host();
        // What is new of a private mapping of a shared object has no pages yet: it may lie past the object's end.
        let kept_len = if matches!(moved.mapping, Mapping::Memory { .. }) && moves_host {
            new_len.min(old_len)
        } else {
            new_len
        };
        self.unpatch(old, old_end, true)?;
        self.unpatch(to, to + new_len, false)?;
        let ops = if moves_host {
            let mut ops = Vec::new();
            if self.moves_by_copy(&moved) {
                self.move_by_copy(old, old_len, &moved, to, kept_len)?;
            } else {
                ops.push(MemOp::Move {
                    old,
                    old_len,
                    new: to,
                    new_len: kept_len,
                });
            }
            if kept_len < new_len {
                ops.push(MemOp::Unmap {
                    addr: to + kept_len,
                    len: new_len - kept_len,
                });
            }
            ops
        } else {
            // Pages come with their first touch, at the new place too. Nothing is taken from the old one where it is to be had twice.
            let mut ops = vec![MemOp::Unmap {
                addr: to,
                len: new_len,
            }];
            if old_len > 0 {
                ops.push(MemOp::Unmap {
                    addr: old,
                    len: old_len,
                });
            }
            ops
        };
        self.space.apply(&ops).map_err(|(_, error)| error)?;
        if request.keep {
            // The old range stays, as if nothing of it had been touched.
            self.install(
                old,
                &Area {
                    end: old_end,
                    ..moved.clone()
                },
            )?;
        } else if old_len > 0 {
            areas.remove(old, old_end);
        }
        if kept_len < new_len {
            let mut rest = moved.clone().without_pages();
            rest.advance(kept_len);
            rest.end = to + new_len;
            areas.insert(to + kept_len, rest);
        }
        moved.end = to + kept_len;
        areas.insert(to, moved);
        Ok(to)
    }

    /// madvise(2).
    pub fn advise(&self, addr: u64, len: u64, advice: u32) -> Result<(), Errno> {
        const DONTNEED: u32 = 4;
        const FREE: u32 = 8;
        const REMOVE: u32 = 9;
        if !addr.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        let len = page_up(len).ok_or(Errno::EINVAL)?;
        let end = addr.checked_add(len).ok_or(Errno::EINVAL)?;
        if !matches!(advice, 0..=4 | 8..=11 | 14..=21) {
            return Err(Errno::EINVAL);
        }
        if len == 0 {
            return Ok(());
        }
        if advice == REMOVE {
            return self.remove_pages(addr, end);
        }
        let mut areas = self.areas.lock();
        let covered = areas.covers(addr, end);
        for (start, area) in areas.within(addr, end) {
            let len = area.end - start;
            let in_host = area.in_host();
            let mut flag = |set: AreaFlags, on: bool| {
                areas.change(start, area.end, &mut |area| area.flags.set(set, on));
            };
            match advice {
                DONTNEED if area.flags.contains(AreaFlags::LOCKED) => return Err(Errno::EINVAL),
                FREE if !matches!(area.mapping, Mapping::Anonymous) => return Err(Errno::EINVAL),
                DONTNEED if self.is_file_copy(&area) => self.renew(start, &area)?,
                DONTNEED | FREE if in_host => {
                    self.space
                        .apply(&[MemOp::Advise {
                            addr: start,
                            len,
                            advice,
                        }])
                        .map_err(|(_, error)| error)?;
                }
                // MADV_HUGEPAGE, MADV_NOHUGEPAGE: a hint, whatever the host makes of it.
                14 if !self.host.platform.host_mm().huge_pages => {}
                14 | 15 if in_host => {
                    let _ = self.space.apply(&[MemOp::Advise {
                        addr: start,
                        len,
                        advice,
                    }]);
                }
                10 => flag(AreaFlags::DONT_FORK, true),
                11 => flag(AreaFlags::DONT_FORK, false),
                16 => flag(AreaFlags::DONT_DUMP, true),
                17 => flag(AreaFlags::DONT_DUMP, false),
                18 if !matches!(area.mapping, Mapping::Anonymous) => return Err(Errno::EINVAL),
                18 => flag(AreaFlags::WIPE_ON_FORK, true),
                19 => flag(AreaFlags::WIPE_ON_FORK, false),
                _ => {}
            }
        }
        if covered { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// `MADV_REMOVE`: punches holes into what is mapped. EINVAL where that is no file or locked, EACCES where it can't be written that way, EOPNOTSUPP where
    /// the file has no holes, as shared anonymous memory has none here.
    fn remove_pages(&self, addr: u64, end: u64) -> Result<(), Errno> {
        const PUNCH_HOLE_KEEP_SIZE: u32 = 3;
        let areas = self.areas.lock();
        let covered = areas.covers(addr, end);
        let within = areas.within(addr, end);
        // The file has its mappings taken away, for which this lock is wanted.
        drop(areas);
        for (start, area) in within {
            if area.flags.contains(AreaFlags::LOCKED) {
                return Err(Errno::EINVAL);
            }
            let Some((file, at)) = &area.file else {
                return Err(if area.shared() {
                    Errno::EOPNOTSUPP
                } else {
                    Errno::EINVAL
                });
            };
            if !area.shared() || area.flags.contains(AreaFlags::NO_WRITE) {
                return Err(Errno::EACCES);
            }
            let signed = |value: u64| i64::try_from(value).map_err(|_| Errno::EINVAL);
            file.fallocate(
                PUNCH_HOLE_KEEP_SIZE,
                signed(*at)?,
                signed(area.end - start)?,
            )?;
        }
        if covered { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Fills a copy of a file anew.
    fn renew(&self, start: u64, area: &Area) -> Result<(), Errno> {
        self.unpatch(start, area.end, false)?;
        if let Mapping::Memory { object, offset, .. } = &area.mapping {
            // Pages that can't be had read as zeros.
            let _ = object.populate(*offset..offset + (area.end - start));
        }
        self.install(start, area)
    }

    /// mlock(2) and munlock(2), as far as the guest can see: nothing is ever paged out by the sentry.
    pub fn lock_range(&self, addr: u64, len: u64, on: bool) -> Result<(), Errno> {
        let start = super::page_down(addr);
        let end = addr
            .checked_add(len)
            .and_then(page_up)
            .ok_or(Errno::EINVAL)?;
        let mut areas = self.areas.lock();
        if !areas.covers(start, end) {
            return Err(Errno::ENOMEM);
        }
        areas.change(start, end, &mut |area| {
            area.flags.set(AreaFlags::LOCKED, on)
        });
        Ok(())
    }

    /// mincore(2): a byte a page. ENOMEM where part of the range is not mapped.
    pub fn residency(&self, addr: u64, len: u64) -> Result<Vec<u8>, Errno> {
        if !addr.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        let len = page_up(len).ok_or(Errno::ENOMEM)?;
        let end = addr.checked_add(len).ok_or(Errno::ENOMEM)?;
        let areas = self.areas.lock();
        if !areas.covers(addr, end) {
            return Err(Errno::ENOMEM);
        }
        let mut bytes = Vec::new();
        for (start, area) in areas.within(addr, end) {
            let pages = usize::try_from((area.end - start) / PAGE).map_err(|_| Errno::ENOMEM)?;
            match self.space.residency(start, area.end - start) {
                Ok(part) => bytes.extend_from_slice(&part),
                // Shared memory whose pages nobody has touched is not mapped.
                Err(_) => bytes.resize(bytes.len() + pages, 0),
            }
        }
        Ok(bytes)
    }

    /// msync(2): ENOMEM where part of the range is not mapped. The stub's own shared mappings of host files are the host's pages, so
    /// with `wait` the files are written out.
    pub fn sync(&self, addr: u64, end: u64, wait: bool) -> Result<(), Errno> {
        let areas = self.areas.lock();
        let covered = areas.covers(addr, end);
        let parts = areas.within(addr, end);
        drop(areas);
        for (_, area) in parts {
            if let (true, true, Some((file, _))) = (wait, area.shared(), &area.file) {
                file.sync(true)?;
            }
        }
        if covered { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// What shared object, and which offset of it, is mapped at `addr`: a futex's name.
    pub fn shared_at(&self, addr: u64) -> Option<(u64, u64)> {
        let areas = self.areas.lock();
        let (start, area) = areas.find(addr)?;
        if !area.shared() {
            return None;
        }
        match &area.mapping {
            Mapping::Memory { window, offset, .. } => {
                Some((u64::MAX, window.offset() + offset + (addr - start)))
            }
            Mapping::Host { file, offset } => Some((
                file.key.0 ^ file.key.1.rotate_left(20),
                offset + (addr - start),
            )),
            Mapping::Anonymous | Mapping::PastEnd { .. } => None,
        }
    }
}

/// The end of a range of munmap(2): EINVAL where it is not of whole pages below the end of addresses.
fn range(addr: u64, len: u64) -> Result<u64, Errno> {
    if !addr.is_multiple_of(PAGE) || len == 0 {
        return Err(Errno::EINVAL);
    }
    page_up(len)
        .and_then(|len| addr.checked_add(len))
        .filter(|end| *end <= USER_TOP)
        .ok_or(Errno::EINVAL)
}
