//! Regular files in memory.

use core::ops::Range;
use std::sync::{Arc, Weak};

use abi::Errno;
use abi::fs::FallocFlags;
use smallvec::SmallVec;

use super::Super;
use super::inode::TmpInode;
use super::memfd::MemfdSeals;
use crate::io::{Sink, Source};
use crate::mm::memory_file::{Mapper, PAGE, Pages, SharedObject};
use crate::vfs::{FileOps, MmapSource, OpenFile};

/// How many bytes a file keeps in its inode.
const INLINE: u64 = 512;
/// The largest file there can be.
const SIZE_MAX: u64 = i64::MAX as u64;

/// A file's bytes.
pub(super) struct Contents {
    size: u64,
    body: Body,
    pub(super) seals: MemfdSeals,
    mappers: SmallVec<[Weak<dyn Mapper>; 0]>,
    /// Ranges whose pages are being taken out of mappings.
    going: SmallVec<[Range<u64>; 0]>,
}

enum Body {
    /// All bytes up to the last one that was written; past those, zeros.
    Inline(Vec<u8>),
    Pages(Box<Pages>),
}

impl Contents {
    pub(super) fn new() -> Contents {
        Contents {
            size: 0,
            body: Body::Inline(Vec::new()),
            // Only what memfd_create(2) made can be sealed.
            seals: MemfdSeals::SEAL,
            mappers: SmallVec::new(),
            going: SmallVec::new(),
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn blocks(&self) -> u64 {
        match &self.body {
            Body::Inline(bytes) => u64::from(!bytes.is_empty()),
            Body::Pages(pages) => pages.allocated() / 512,
        }
    }

    /// Copies bytes out that are below the size.
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Errno> {
        match &self.body {
            Body::Inline(bytes) => {
                let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let count = to.len().min(bytes.len() - from);
                to[..count].copy_from_slice(&bytes[from..from + count]);
                to[count..].fill(0);
                Ok(())
            }
            Body::Pages(pages) => pages.read(at, to),
        }
    }

    /// Copies bytes in, and moves the size where they end past it.
    pub(super) fn write(&mut self, fs: &Super, at: u64, from: &[u8]) -> Result<(), Errno> {
        let end = at
            .checked_add(from.len() as u64)
            .filter(|end| *end <= SIZE_MAX)
            .ok_or(Errno::EFBIG)?;
        if self.seals.contains(MemfdSeals::WRITE)
            || self.seals.contains(MemfdSeals::FUTURE_WRITE)
            || self.seals.contains(MemfdSeals::GROW) && end > self.size
        {
            return Err(Errno::EPERM);
        }
        match &mut self.body {
            Body::Inline(bytes) if end <= INLINE => {
                let (start, stop) = (at as usize, end as usize);
                if bytes.len() < stop {
                    bytes.resize(stop, 0);
                }
                bytes[start..stop].copy_from_slice(from);
            }
            _ => self.pages(fs)?.write(at, from)?,
        }
        self.size = self.size.max(end);
        Ok(())
    }

    /// The bytes as pages from now on.
    fn pages(&mut self, fs: &Super) -> Result<&mut Pages, Errno> {
        if let Body::Inline(bytes) = &self.body {
            let mut pages = Box::new(Pages::new(
                Arc::clone(&fs.memory),
                Some(Arc::clone(&fs.quota)),
            ));
            pages.write(0, bytes)?;
            self.body = Body::Pages(pages);
        }
        match &mut self.body {
            Body::Pages(pages) => Ok(pages),
            Body::Inline(_) => Err(Errno::EIO),
        }
    }

    /// Makes a range zero, and gives its pages back.
    fn clear(&mut self, range: Range<u64>) -> Result<(), Errno> {
        match &mut self.body {
            Body::Inline(bytes) => {
                let len = bytes.len();
                let start = usize::try_from(range.start).unwrap_or(usize::MAX).min(len);
                let end = usize::try_from(range.end).unwrap_or(usize::MAX).min(len);
                if end == len {
                    bytes.truncate(start);
                    if start == 0 {
                        *bytes = Vec::new();
                    }
                } else if start < end {
                    bytes[start..end].fill(0);
                }
                Ok(())
            }
            Body::Pages(pages) => pages.clear(range),
        }
    }
}

impl TmpInode {
    /// Changes the size: what is past it goes, what comes is zero. EPERM where a seal forbids it.
    pub(super) fn set_size(&self, size: u64) -> Result<(), Errno> {
        if size > SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        let contents = self.contents()?;
        let mut held = contents.write();
        let sealed = if size < held.size {
            MemfdSeals::SHRINK
        } else {
            MemfdSeals::GROW
        };
        if size != held.size && held.seals.contains(sealed) {
            return Err(Errno::EPERM);
        }
        if size >= held.size {
            held.size = size;
            return Ok(());
        }
        drop(held);
        self.take_pages(size..u64::MAX, |contents| contents.size = size)
    }

    /// Makes a range zero and gives its pages back, once no mapping has them any more; then `change`s what else there is to change.
    fn take_pages(
        &self,
        range: Range<u64>,
        change: impl FnOnce(&mut Contents),
    ) -> Result<(), Errno> {
        let contents = self.contents()?;
        let mut held = contents.write();
        held.mappers.retain(|mapper| mapper.strong_count() > 0);
        if held.mappers.is_empty() {
            let cleared = held.clear(range);
            change(&mut held);
            return cleared;
        }
        let window = held.pages(&self.fs)?.pin(0)?;
        // Whole pages: those that the range has a part of stay, with that part zeroed.
        let end = match range.end {
            u64::MAX => u64::MAX,
            end => end / PAGE * PAGE,
        };
        let pages = range.start.div_ceil(PAGE).saturating_mul(PAGE)..end;
        held.going.push(pages.clone());
        let mut told: Vec<Weak<dyn Mapper>> = Vec::new();
        loop {
            let untold: Vec<Weak<dyn Mapper>> = held
                .mappers
                .iter()
                .filter(|mapper| !told.iter().any(|other| other.ptr_eq(mapper)))
                .cloned()
                .collect();
            if untold.is_empty() {
                break;
            }
            // Mappers take locks of their own that come before this one. Another may come meanwhile: a fork of one that had the pages still.
            drop(held);
            for mapper in &untold {
                if let Some(mapper) = mapper.upgrade() {
                    mapper.unmap(&window, pages.clone());
                }
            }
            told.extend(untold);
            held = contents.write();
        }
        if let Some(at) = held.going.iter().position(|going| *going == pages) {
            held.going.remove(at);
        }
        let cleared = held.clear(range);
        change(&mut held);
        cleared
    }
}

/// An open file.
pub(super) struct FileOpsOf(pub(super) Arc<TmpInode>);

impl FileOps for FileOpsOf {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, file: &OpenFile, to: &mut Sink<'_>, at: u64) -> Result<usize, Errno> {
        let contents = self.0.contents()?;
        let size = contents.read().size;
        let most = usize::try_from(size.saturating_sub(at))
            .unwrap_or(usize::MAX)
            .min(to.remaining());
        if most == 0 {
            return Ok(0);
        }
        let got = to.fill(most, &mut |buffer, done| {
            let held = contents.read();
            let at = at.saturating_add(done as u64);
            let left = usize::try_from(held.size.saturating_sub(at)).unwrap_or(usize::MAX);
            let count = buffer.len().min(left);
            held.read(at, &mut buffer[..count])?;
            Ok(count)
        })?;
        if !file.flags().contains(abi::fs::OpenFlags::NOATIME) {
            self.0.accessed();
        }
        Ok(got)
    }

    fn write(
        &self,
        _file: &OpenFile,
        from: &mut Source<'_>,
        at: &mut u64,
        append: bool,
    ) -> Result<usize, Errno> {
        let contents = self.0.contents()?;
        let start = *at;
        let mut end = start;
        let put = from.drain(usize::MAX, &mut |buffer, done| {
            let mut held = contents.write();
            let at = if append {
                held.size
            } else {
                start.checked_add(done as u64).ok_or(Errno::EFBIG)?
            };
            // What fits below the largest size is written, as Linux does it.
            let room = usize::try_from(SIZE_MAX.saturating_sub(at)).unwrap_or(usize::MAX);
            if room == 0 {
                return Err(Errno::EFBIG);
            }
            let count = buffer.len().min(room);
            match held.write(&self.0.fs, at, &buffer[..count]) {
                Ok(()) => {}
                // Out of room: page by page, so that what there is gets used.
                Err(Errno::ENOSPC) if count > PAGE as usize => {
                    let first = PAGE as usize - (at % PAGE) as usize;
                    let mut written = 0;
                    let mut step = first;
                    while written < count {
                        let stop = count.min(written + step);
                        if held
                            .write(&self.0.fs, at + written as u64, &buffer[written..stop])
                            .is_err()
                        {
                            break;
                        }
                        written = stop;
                        step = PAGE as usize;
                    }
                    if written == 0 {
                        return Err(Errno::ENOSPC);
                    }
                    end = at + written as u64;
                    return Ok(written);
                }
                Err(error) => return Err(error),
            }
            end = at + count as u64;
            Ok(count)
        })?;
        *at = end;
        if put > 0 {
            self.0.modified();
        }
        Ok(put)
    }

    fn seek_data(&self, _file: &OpenFile, at: u64, hole: bool) -> Result<u64, Errno> {
        let held = self.0.contents()?.read();
        if at >= held.size {
            return Err(Errno::ENXIO);
        }
        let Body::Pages(pages) = &held.body else {
            return Ok(if hole { held.size } else { at });
        };
        let set = pages.set();
        if hole {
            let end = set
                .run(at / PAGE)
                .map_or(at, |run| run.end.saturating_mul(PAGE));
            return Ok(end.min(held.size));
        }
        match set.next(at / PAGE) {
            Some(page) if page * PAGE < held.size => Ok(at.max(page * PAGE)),
            _ => Err(Errno::ENXIO),
        }
    }

    fn sync(&self, _file: &OpenFile, _data: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _file: &OpenFile, size: u64) -> Result<(), Errno> {
        self.0.set_size(size)?;
        self.0.modified();
        Ok(())
    }

    fn fallocate(
        &self,
        _file: &OpenFile,
        mode: FallocFlags,
        at: u64,
        len: u64,
    ) -> Result<(), Errno> {
        let end = at
            .checked_add(len)
            .filter(|end| *end <= SIZE_MAX)
            .ok_or(Errno::EFBIG)?;
        let contents = self.0.contents()?;
        let keep = mode.contains(FallocFlags::KEEP_SIZE);
        let what = mode.difference(FallocFlags::KEEP_SIZE);
        let mut held = contents.write();
        if held
            .seals
            .intersects(MemfdSeals::WRITE | MemfdSeals::FUTURE_WRITE)
            && !what.is_empty()
        {
            return Err(Errno::EPERM);
        }
        if !keep && end > held.size && held.seals.contains(MemfdSeals::GROW) {
            return Err(Errno::EPERM);
        }
        if what == FallocFlags::PUNCH_HOLE || what == FallocFlags::ZERO_RANGE {
            drop(held);
            self.0.take_pages(at..end, |_| ())?;
            held = contents.write();
        }
        if what != FallocFlags::PUNCH_HOLE {
            if !(what.is_empty() || what == FallocFlags::ZERO_RANGE) {
                return Err(Errno::EOPNOTSUPP);
            }
            held.pages(&self.0.fs)?.allocate(at..end)?;
            if !keep {
                held.size = held.size.max(end);
            }
        }
        drop(held);
        self.0.modified();
        Ok(())
    }

    fn mmap(&self, _file: &OpenFile) -> Result<MmapSource, Errno> {
        let mut held = self.0.contents()?.write();
        let size = held.size;
        let window = held.pages(&self.0.fs)?.pin(size)?;
        drop(held);
        Ok(MmapSource::Memory {
            window,
            object: Arc::clone(&self.0) as _,
        })
    }
}

impl SharedObject for TmpInode {
    fn size(&self) -> u64 {
        self.contents().map_or(0, |contents| contents.read().size)
    }

    fn populate(&self, range: Range<u64>) -> Result<Range<u64>, Errno> {
        let mut held = self.contents()?.write();
        let end = held.size.checked_next_multiple_of(PAGE).unwrap_or(SIZE_MAX);
        if range.start >= end || range.start >= range.end {
            return Err(Errno::ENXIO);
        }
        let range = range.start..range.end.min(end);
        if held
            .going
            .iter()
            .any(|going| going.start < range.end && range.start < going.end)
        {
            return Err(Errno::EAGAIN);
        }
        let pages = held.pages(&self.fs)?;
        pages.allocate(range.clone())?;
        let run = pages.set().run(range.start / PAGE).ok_or(Errno::EIO)?;
        Ok(run.start * PAGE..run.end.saturating_mul(PAGE).min(end))
    }

    fn watch(&self, mapper: Weak<dyn Mapper>) {
        if let Ok(contents) = self.contents() {
            let mut held = contents.write();
            held.mappers.retain(|known| known.strong_count() > 0);
            if !held.mappers.iter().any(|known| known.ptr_eq(&mapper)) {
                held.mappers.push(mapper);
            }
        }
    }
}
