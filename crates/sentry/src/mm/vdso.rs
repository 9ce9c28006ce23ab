//! The vDSO as guests have it (vdso(7)): a private mapping, `[vdso]`, whose text is one page of the memory file.
//!
//! All processes of the sandbox share that page, so a process pays for the mapping alone; who patches or overwrites it (mprotect(2) lets a program do
//! that, as Linux does) gets a copy of his own. No descriptor leads to it, so nobody can change it for the others.

use core::ops::Range;
use std::sync::{Arc, Weak};

use abi::Errno;
use platform::systrap::VDSO;

use super::area::{Mapping, Prot};
use super::memory_file::{Mapper, MemoryFile, Pages, SharedObject, Window};
use super::{MapFlags, MapRequest, Mm, PAGE, page_up};

/// What `/proc/PID/maps` calls it.
const NAME: &str = "[vdso]";
/// What a page table's page covers: the vDSO lies with the stack's top in one, as on Linux.
const TABLE: u64 = 2 << 20;

/// The vDSO's text, in memory.
pub struct Vdso {
    window: Arc<Window>,
    object: Arc<dyn SharedObject>,
    len: u64,
}

/// The text's page, which stays as it is.
struct Text {
    _pages: Pages,
    len: u64,
}

impl SharedObject for Text {
    fn size(&self) -> u64 {
        self.len
    }

    fn populate(&self, range: Range<u64>) -> Result<Range<u64>, Errno> {
        let end = range.end.min(self.len);
        if range.start >= end {
            return Err(Errno::ENXIO);
        }
        Ok(range.start..end)
    }

    fn watch(&self, _: Weak<dyn Mapper>) {
        // Its pages never go.
    }
}

impl Vdso {
    /// Puts the text into the memory file; ENOSPC.
    pub fn new(file: &Arc<MemoryFile>) -> Result<Vdso, Errno> {
        let len = page_up(VDSO.len() as u64).ok_or(Errno::ENOMEM)?;
        let mut pages = Pages::new(Arc::clone(file), None);
        let window = pages.allocate(0..len)?;
        pages.write(0, VDSO)?;
        Ok(Vdso {
            window,
            object: Arc::new(Text { _pages: pages, len }),
            len,
        })
    }

    /// Maps it for a new program, at random above the stack's top where there is room; its address, for `AT_SYSINFO_EHDR`.
    pub(super) fn map(&self, mm: &Mm, stack_top: u64, random: u64) -> Result<u64, Errno> {
        let lowest = page_up(stack_top).ok_or(Errno::ENOMEM)?;
        let table_end = (stack_top + self.len).next_multiple_of(TABLE);
        let highest = table_end.min(platform::USER_TOP).saturating_sub(self.len);
        let places = highest.saturating_sub(lowest) / PAGE + 1;
        let request = MapRequest {
            addr: lowest + random % places * PAGE,
            len: self.len,
            prot: Prot::READ | Prot::EXEC,
            flags: MapFlags::PRIVATE,
            file: None,
            name: Some(NAME),
        };
        let mapping = Mapping::Memory {
            window: Arc::clone(&self.window),
            object: Arc::clone(&self.object),
            offset: 0,
        };
        mm.map_as(&request, mapping)
    }
}

#[cfg(test)]
mod tests {
    use super::{MemoryFile, PAGE, VDSO, Vdso};

    #[test]
    fn the_text_is_one_page_of_the_memory_file() {
        let file = host::shared::memory_file("test").expect("a memory file");
        let file = MemoryFile::new(file, 1 << 20);
        let vdso = Vdso::new(&file).expect("room");
        assert_eq!((vdso.len, file.used()), (PAGE, PAGE));
        let mut text = vec![0; VDSO.len()];
        vdso.window.read(0, &mut text).expect("reads");
        assert_eq!(text, VDSO);
        assert!(vdso.object.populate(0..PAGE).is_ok());
        assert!(vdso.object.populate(PAGE..2 * PAGE).is_err());
    }
}
