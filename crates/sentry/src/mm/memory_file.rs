//! The memory file: where shared memory, tmpfs and overlay files have their pages.
//!
//! [`MemoryFile`] hands out [`Window`]s, runs of offsets each of which belongs to one shared object, so that a mapping of the object is one host
//! mapping. Pages are charged against a limit before they are touched, by the object that has the window, which knows which of its pages are
//! allocated ([`PageSet`]). A window is used again only once its last holder let go of it: mappings hold their window, so its
//! offsets can't come to mean something else under them.
//!
//! Small files have small windows, and move to a larger one as they grow, unless they are mapped. Lock class: `MemoryFile`.

use core::ops::Range;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use abi::Errno;
use host::shared::{MEMORY_FILE_LEN, SharedMapping, punch_hole};
use smallvec::SmallVec;

use crate::sync::Mutex;
use crate::sync::order;
use crate::vfs::new_id;

/// A page.
pub const PAGE: u64 = 4096;
/// A chunk: what the sentry maps of the file at a time.
const CHUNK: u64 = 2 << 20;
/// The smallest window.
const WINDOW_MIN: u64 = 64 << 10;
/// What an object that is mapped, or no longer small, has as a window.
pub const WINDOW: u64 = 64 << 30;
/// From how many bytes on a write to fresh pages is the host's to do.
const BULK: usize = 16 << 10;
/// How many chunks stay mapped.
const CHUNKS_KEPT: usize = 256;

/// A memory file.
pub struct MemoryFile {
    id: u64,
    fd: OwnedFd,
    limit: AtomicU64,
    used: AtomicU64,
    inner: Mutex<Inner, order::MemoryFile>,
}

#[derive(Default)]
struct Inner {
    /// Offsets from here on were never given out.
    next: u64,
    /// Windows to be used again, by the logarithm of their size.
    free: HashMap<u32, Vec<u64>>,
    chunks: HashMap<u64, (Arc<SharedMapping>, u64)>,
    tick: u64,
}

/// A run of the memory file's offsets that belongs to one shared object.
pub struct Window {
    file: Arc<MemoryFile>,
    offset: u64,
    len: u64,
}

impl MemoryFile {
    /// Takes charge of a memory file that `host` made, `limit` bytes of which may be used.
    pub fn new(fd: OwnedFd, limit: u64) -> Arc<MemoryFile> {
        Arc::new(MemoryFile {
            id: new_id(),
            fd,
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            inner: Mutex::default(),
        })
    }

    /// Its identity.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How many bytes of pages are allocated.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// How many bytes may be.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes how many bytes may be used; what is used already stays.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// A window of at least `len` bytes; ENOMEM where there are no offsets left.
    pub fn window(self: &Arc<Self>, len: u64) -> Result<Arc<Window>, Errno> {
        let len = len
            .max(WINDOW_MIN)
            .checked_next_power_of_two()
            .ok_or(Errno::ENOMEM)?;
        let mut inner = self.inner.lock();
        let offset = match inner.free.get_mut(&len.trailing_zeros()).and_then(Vec::pop) {
            Some(offset) => offset,
            None => {
                // Large ones begin at a multiple of what huge pages want; small ones never straddle a chunk.
                let align = len.min(CHUNK);
                let offset = inner
                    .next
                    .checked_next_multiple_of(align)
                    .ok_or(Errno::ENOMEM)?;
                let end = offset
                    .checked_add(len)
                    .filter(|end| *end <= MEMORY_FILE_LEN)
                    .ok_or(Errno::ENOMEM)?;
                inner.next = end;
                offset
            }
        };
        drop(inner);
        Ok(Arc::new(Window {
            file: Arc::clone(self),
            offset,
            len,
        }))
    }

    /// Charges bytes of pages that are about to be touched; ENOSPC past the limit.
    pub fn charge(&self, bytes: u64) -> Result<(), Errno> {
        let limit = self.limit();
        let change = |used: u64| used.checked_add(bytes).filter(|used| *used <= limit);
        match self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, change)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(Errno::ENOSPC),
        }
    }

    fn uncharge(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The sentry's own mapping of a chunk.
    fn chunk(&self, number: u64) -> Result<Arc<SharedMapping>, Errno> {
        let mut inner = self.inner.lock();
        inner.tick += 1;
        let tick = inner.tick;
        if let Some((mapping, used)) = inner.chunks.get_mut(&number) {
            *used = tick;
            return Ok(Arc::clone(mapping));
        }
        drop(inner);
        let len = usize::try_from(CHUNK).map_err(|_| Errno::ENOMEM)?;
        let mapping = Arc::new(SharedMapping::new(&self.fd, number * CHUNK, len)?);
        let mut gone: Vec<Arc<SharedMapping>> = Vec::new();
        let mut inner = self.inner.lock();
        if inner.chunks.len() >= CHUNKS_KEPT {
            // Half of them at a time, the ones that were not used for longest, so that finding them is rare.
            let mut ticks: Vec<u64> = inner.chunks.values().map(|(_, used)| *used).collect();
            let middle = ticks.len() / 2;
            let (_, limit, _) = ticks.select_nth_unstable(middle);
            let limit = *limit;
            inner.chunks.retain(|_, (mapping, used)| {
                let keep = *used >= limit;
                if !keep {
                    gone.push(Arc::clone(mapping));
                }
                keep
            });
        }
        inner.chunks.insert(number, (Arc::clone(&mapping), tick));
        drop(inner);
        drop(gone);
        Ok(mapping)
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl core::fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "MemoryFile({}, {} of {} bytes)",
            self.id,
            self.used(),
            self.limit()
        )
    }
}

impl Window {
    /// Where it begins in the memory file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes of offsets it has.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file.
    pub fn file(&self) -> &Arc<MemoryFile> {
        &self.file
    }

    /// Copies from pages of the window that are allocated.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < to.len() {
            let (chunk, within) = self.place(at, done, to.len() - done)?;
            done += chunk.read(within, &mut to[done..]);
        }
        Ok(())
    }

    /// Copies to pages of the window that are allocated.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < from.len() {
            let (chunk, within) = self.place(at, done, from.len() - done)?;
            done += chunk.write(within, &from[done..]);
        }
        Ok(())
    }

    /// Copies to pages of the window that are allocated, by way of the file.
    fn write_through(&self, at: u64, from: &[u8]) -> Result<(), Errno> {
        if at
            .checked_add(from.len() as u64)
            .is_none_or(|end| end > self.len)
        {
            return Err(Errno::EFAULT);
        }
        let mut done = 0;
        while done < from.len() {
            done += host::fs::pwrite(
                self.file.as_fd(),
                &from[done..],
                self.offset + at + done as u64,
            )?;
        }
        Ok(())
    }

    /// Compares and exchanges the futex word at `at`: what was there. EFAULT where that is no place for one.
    pub fn compare_exchange_u32(&self, at: u64, old: u32, new: u32) -> Result<u32, Errno> {
        let (chunk, within) = self.place(at, 0, 4)?;
        chunk
            .compare_exchange_u32(within, old, new)
            .ok_or(Errno::EFAULT)
    }

    /// Gives the pages of a range (whole pages) back to the host: they read as zeros.
    fn punch(&self, range: Range<u64>) -> Result<(), Errno> {
        let end = range.end.min(self.len);
        if range.start >= end {
            return Ok(());
        }
        punch_hole(
            self.file.as_fd(),
            self.offset + range.start,
            end - range.start,
        )
    }

    fn place(
        &self,
        at: u64,
        done: usize,
        left: usize,
    ) -> Result<(Arc<SharedMapping>, usize), Errno> {
        let at = at.checked_add(done as u64).ok_or(Errno::EFAULT)?;
        if at.checked_add(left as u64).is_none_or(|end| end > self.len) {
            return Err(Errno::EFAULT);
        }
        let offset = self.offset + at;
        let chunk = self.file.chunk(offset / CHUNK)?;
        Ok((chunk, usize::try_from(offset % CHUNK).unwrap_or(0)))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // Whoever let go of its pages punched them; this makes sure, for what a mapping touched past what it was told.
        if self.punch(0..self.len).is_err() {
            return;
        }
        let mut inner = self.file.inner.lock();
        inner
            .free
            .entry(self.len.trailing_zeros())
            .or_default()
            .push(self.offset);
    }
}

impl core::fmt::Debug for Window {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Window({:#x}, {:#x})", self.offset, self.len)
    }
}

/// A shared object whose pages are in the memory file.
pub trait SharedObject: Send + Sync {
    /// How many bytes it has: pages past the last byte's are SIGBUS.
    fn size(&self) -> u64;

    /// Allocates, charged and zeroed, the pages of the range (offsets in the object), for reading or writing through a mapping. Says which range
    /// around it is allocated now, whole pages, and can be mapped. ENXIO past the end of the object (SIGBUS), ENOSPC at a limit, EAGAIN while
    /// pages of the range are going (the fault is to be taken again).
    fn populate(&self, range: Range<u64>) -> Result<Range<u64>, Errno>;

    /// Asks to be told of pages that go away.
    fn watch(&self, mapper: Weak<dyn Mapper>);
}

/// Told when pages of a shared object go away (truncation, punched holes): mappings of them must go.
pub trait Mapper: Send + Sync {
    /// The pages in this range of offsets of the window are going; up to `u64::MAX` where the object is cut off. On return no stub may have
    /// them mapped; private copies of them go only with the object's end, as Linux has it.
    fn unmap(&self, window: &Window, range: Range<u64>);
}

/// Which pages of an object are allocated: ranges of page numbers, sorted, apart from each other.
#[derive(Debug, Default)]
pub struct PageSet {
    ranges: SmallVec<[(u64, u64); 1]>,
}

impl PageSet {
    /// How many pages.
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// The first range that ends past `page`.
    fn find(&self, page: u64) -> usize {
        self.ranges.partition_point(|(_, end)| *end <= page)
    }

    /// The run of allocated pages that `page` is in.
    pub fn run(&self, page: u64) -> Option<Range<u64>> {
        let (start, end) = *self.ranges.get(self.find(page))?;
        (start <= page).then_some(start..end)
    }

    /// The first allocated page from `page` on.
    pub fn next(&self, page: u64) -> Option<u64> {
        let (start, _) = *self.ranges.get(self.find(page))?;
        Some(start.max(page))
    }

    /// How many pages of the range are missing.
    pub fn missing(&self, range: Range<u64>) -> u64 {
        let mut missing = range.end.saturating_sub(range.start);
        for (start, end) in &self.ranges[self.find(range.start)..] {
            if *start >= range.end {
                break;
            }
            missing -= range.end.min(*end) - range.start.max(*start);
        }
        missing
    }

    /// Adds a range.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Ranges that touch it become one with it.
        let first = self.ranges.partition_point(|(_, end)| *end < range.start);
        let last = self
            .ranges
            .partition_point(|(start, _)| *start <= range.end);
        if first >= last {
            self.ranges.insert(first, (range.start, range.end));
            return;
        }
        let start = range.start.min(self.ranges[first].0);
        let end = range.end.max(self.ranges[last - 1].1);
        self.ranges[first] = (start, end);
        self.ranges.drain(first + 1..last);
    }

    /// Takes a range out; says how many pages of it were allocated.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let mut gone = 0;
        let mut at = self.find(range.start);
        while let Some((start, end)) = self.ranges.get(at).copied() {
            if start >= range.end {
                break;
            }
            gone += range.end.min(end) - range.start.max(start);
            match (start < range.start, end > range.end) {
                (true, true) => {
                    self.ranges[at].1 = range.start;
                    self.ranges.insert(at + 1, (range.end, end));
                    break;
                }
                (true, false) => {
                    self.ranges[at].1 = range.start;
                    at += 1;
                }
                (false, true) => {
                    self.ranges[at].0 = range.end;
                    break;
                }
                (false, false) => {
                    self.ranges.remove(at);
                }
            }
        }
        gone
    }

    /// All ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }
}

/// What a file system in memory may use, below the memory file's own limit; several may share one.
#[derive(Debug)]
pub struct Quota {
    /// Bytes of pages.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
    bytes_used: AtomicU64,
    inodes_used: AtomicU64,
}

impl Quota {
    /// So many bytes and inodes.
    pub fn new(bytes: u64, inodes: u64) -> Arc<Quota> {
        Arc::new(Quota {
            bytes,
            inodes,
            bytes_used: AtomicU64::new(0),
            inodes_used: AtomicU64::new(0),
        })
    }

    /// Bytes that are used.
    pub fn bytes_used(&self) -> u64 {
        self.bytes_used.load(Ordering::Relaxed)
    }

    /// Inodes that are used.
    pub fn inodes_used(&self) -> u64 {
        self.inodes_used.load(Ordering::Relaxed)
    }

    /// Takes an inode; ENOSPC.
    pub fn take_inode(&self) -> Result<(), Errno> {
        let change = |used: u64| used.checked_add(1).filter(|used| *used <= self.inodes);
        match self
            .inodes_used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, change)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(Errno::ENOSPC),
        }
    }

    /// Gives an inode back.
    pub fn give_inode(&self) {
        self.inodes_used.fetch_sub(1, Ordering::Relaxed);
    }

    fn take_bytes(&self, bytes: u64) -> Result<(), Errno> {
        let change = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.bytes);
        match self
            .bytes_used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, change)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(Errno::ENOSPC),
        }
    }
}

/// A run of bytes in the memory file that grows: a window, and which of its pages are allocated and charged. What tmpfs files, shared
/// anonymous memory and System V segments have their contents in.
pub struct Pages {
    file: Arc<MemoryFile>,
    quota: Option<Arc<Quota>>,
    window: Option<Arc<Window>>,
    set: PageSet,
    /// Whether the window may be mapped somewhere: it then has its full size, and stays.
    pinned: bool,
}

impl Pages {
    /// No pages yet, and no window. Pages are charged to the quota too, where there is one.
    pub fn new(file: Arc<MemoryFile>, quota: Option<Arc<Quota>>) -> Pages {
        Pages {
            file,
            quota,
            window: None,
            set: PageSet::default(),
            pinned: false,
        }
    }

    /// Which pages are allocated.
    pub fn set(&self) -> &PageSet {
        &self.set
    }

    /// How many bytes of pages are allocated.
    pub fn allocated(&self) -> u64 {
        self.set.count() * PAGE
    }

    /// The window for a mapping of an object that may grow to `len` bytes: it stays the same from now on, as long as `len` fits.
    /// EFBIG where the object outgrew a window that is mapped.
    pub fn pin(&mut self, len: u64) -> Result<Arc<Window>, Errno> {
        let window = self.grow(len.max(WINDOW))?;
        self.pinned = true;
        Ok(window)
    }

    /// A window of at least `len` bytes, with the pages of the old one.
    fn grow(&mut self, len: u64) -> Result<Arc<Window>, Errno> {
        if let Some(window) = &self.window
            && window.len() >= len
        {
            return Ok(Arc::clone(window));
        }
        // Mapped at its old place: it can't move.
        if let Some(window) = &self.window
            && self.pinned
            && Arc::strong_count(window) > 1
        {
            return Err(Errno::EFBIG);
        }
        if len > MEMORY_FILE_LEN / 2 {
            return Err(Errno::EFBIG);
        }
        let new = self
            .file
            .window(if len > CHUNK { len.max(WINDOW) } else { len })?;
        if let Some(old) = self.window.take() {
            let mut buffer = vec![0; 256 << 10];
            for range in self.set.iter() {
                let (mut at, end) = (range.start * PAGE, range.end * PAGE);
                while at < end {
                    let len = buffer
                        .len()
                        .min(usize::try_from(end - at).unwrap_or(usize::MAX));
                    let moved = old
                        .read(at, &mut buffer[..len])
                        .and_then(|()| new.write(at, &buffer[..len]));
                    if let Err(error) = moved {
                        self.window = Some(old);
                        return Err(error);
                    }
                    at += len as u64;
                }
            }
        }
        self.window = Some(Arc::clone(&new));
        Ok(new)
    }

    /// Allocates the pages of a range of bytes, charged; they are zero where they are new. ENOSPC.
    pub fn allocate(&mut self, range: Range<u64>) -> Result<Arc<Window>, Errno> {
        let end = range
            .end
            .checked_next_multiple_of(PAGE)
            .ok_or(Errno::EFBIG)?;
        let window = self.grow(end)?;
        let pages = range.start / PAGE..end / PAGE;
        let missing = self.set.missing(pages.clone());
        if missing > 0 {
            self.charge(missing * PAGE)?;
            self.set.insert(pages);
        }
        Ok(window)
    }

    /// Copies bytes out; zeros where no page is allocated.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < to.len() {
            let here = at.saturating_add(done as u64);
            let left = (to.len() - done) as u64;
            let (end, data) = match self.set.run(here / PAGE) {
                Some(run) => (run.end * PAGE, true),
                None => (
                    self.set
                        .next(here / PAGE)
                        .map_or(u64::MAX, |page| page * PAGE),
                    false,
                ),
            };
            let count = usize::try_from(left.min(end - here)).unwrap_or(to.len() - done);
            let part = &mut to[done..done + count];
            match &self.window {
                Some(window) if data => window.read(here, part)?,
                _ => part.fill(0),
            }
            done += count;
        }
        Ok(())
    }

    /// Copies bytes in, allocating pages for them. ENOSPC.
    pub fn write(&mut self, at: u64, from: &[u8]) -> Result<(), Errno> {
        if from.is_empty() {
            return Ok(());
        }
        let end = at.checked_add(from.len() as u64).ok_or(Errno::EFBIG)?;
        let before = self.set.count();
        let window = self.allocate(at..end)?;
        if from.len() >= BULK && self.set.count() > before {
            // Fresh pages are filled by the host, without a fault for each and without being zeroed first.
            return window.write_through(at, from);
        }
        window.write(at, from)
    }

    /// Gives back the pages that are whole in a range of bytes, and zeroes the rest of it. `u64::MAX` as the end is the end of everything.
    pub fn clear(&mut self, range: Range<u64>) -> Result<(), Errno> {
        let Some(window) = self.window.clone() else {
            return Ok(());
        };
        let first = range.start.div_ceil(PAGE);
        let last = if range.end == u64::MAX {
            u64::MAX / PAGE
        } else {
            range.end / PAGE
        };
        let zero = [0; PAGE as usize];
        for part in [
            range.start..range.end.min(first.saturating_mul(PAGE)),
            range.start.max(last.saturating_mul(PAGE))..range.end,
        ] {
            let page = part.start / PAGE;
            let len = part.end.saturating_sub(part.start);
            if len > 0 && len < PAGE && self.set.run(page).is_some() {
                window.write(part.start, &zero[..usize::try_from(len).unwrap_or(0)])?;
            }
        }
        if first < last {
            let gone = self.set.remove(first..last);
            if gone > 0 {
                window.punch(first * PAGE..last.saturating_mul(PAGE))?;
                self.uncharge(gone * PAGE);
            }
        }
        Ok(())
    }

    fn charge(&self, bytes: u64) -> Result<(), Errno> {
        if let Some(quota) = &self.quota {
            quota.take_bytes(bytes)?;
        }
        self.file.charge(bytes).inspect_err(|_| {
            if let Some(quota) = &self.quota {
                quota.bytes_used.fetch_sub(bytes, Ordering::Relaxed);
            }
        })
    }

    fn uncharge(&self, bytes: u64) {
        if let Some(quota) = &self.quota {
            quota.bytes_used.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.file.uncharge(bytes);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // The window punches itself once its last mapping is gone.
        self.uncharge(self.allocated());
    }
}

#[cfg(test)]
mod tests {
    use super::{Errno, MemoryFile, PAGE, PageSet, Pages, WINDOW};
    use std::sync::Arc;

    fn file(pages: u64) -> Arc<MemoryFile> {
        MemoryFile::new(
            host::shared::memory_file("test").expect("a memory file"),
            pages * PAGE,
        )
    }

    #[test]
    fn page_sets_split_and_join() {
        let mut set = PageSet::default();
        set.insert(10..20);
        set.insert(30..40);
        set.insert(20..30);
        assert_eq!(set.run(15), Some(10..40));
        assert_eq!(set.remove(15..35), 20);
        assert_eq!(set.missing(0..50), 40);
        assert_eq!(
            (set.next(0), set.next(15), set.next(40)),
            (Some(10), Some(35), None)
        );
        assert_eq!(set.run(15), None);
        assert_eq!(set.remove(0..u64::MAX), 10);
    }

    #[test]
    fn bytes_survive_growth_and_holes_are_zero() {
        let file = file(1000);
        let mut pages = Pages::new(Arc::clone(&file), None);
        pages.write(5, b"hello").expect("room");
        assert_eq!(file.used(), PAGE);
        pages.write(3 << 20, b"far").expect("room");
        let mut back = [1; 10];
        pages.read(0, &mut back).expect("reads");
        assert_eq!(&back, b"\0\0\0\0\0hello");
        let window = pages.pin(4 << 20).expect("offsets");
        assert_eq!(window.len(), WINDOW);
        pages.clear(0..7).expect("clears");
        pages.read(0, &mut back).expect("reads");
        assert_eq!(&back, b"\0\0\0\0\0\0\0llo");
        pages.clear(0..u64::MAX).expect("clears");
        assert_eq!(file.used(), 0);
        pages.read(3 << 20, &mut back).expect("reads");
        assert_eq!(back, [0; 10]);
    }

    #[test]
    fn limits_hold_and_memory_comes_back() {
        let file = file(4);
        let mut pages = Pages::new(Arc::clone(&file), None);
        assert_eq!(pages.write(0, &[1; 5 * 4096]), Err(Errno::ENOSPC));
        pages.write(0, &[1; 4 * 4096]).expect("just fits");
        assert_eq!(pages.write(1 << 40, &[1]), Err(Errno::ENOSPC));
        assert_eq!(pages.write(u64::MAX - 2, &[1; 4]), Err(Errno::EFBIG));
        drop(pages);
        assert_eq!(file.used(), 0);
        let mut again = Pages::new(file, None);
        again.allocate(0..4 * 4096).expect("freed");
        let mut back = [1; 4096];
        again.read(0, &mut back).expect("reads");
        assert_eq!(back, [0; 4096]);
    }
}
