//! Shared anonymous memory (`MAP_SHARED|MAP_ANONYMOUS`): an object of the memory file that only its mappings hold.

use core::ops::Range;
use std::sync::{Arc, Weak};

use abi::Errno;

use super::memory_file::{Mapper, MemoryFile, Pages, SharedObject, Window};
use crate::sync::Mutex;
use crate::sync::order::InodeData;

/// The object.
pub(super) struct AnonShared {
    pages: Mutex<Pages, InodeData>,
    size: u64,
}

impl AnonShared {
    /// A new one of `len` bytes, and its window.
    pub(super) fn create(
        file: &Arc<MemoryFile>,
        len: u64,
    ) -> Result<(Arc<Window>, Arc<dyn SharedObject>), Errno> {
        let mut pages = Pages::new(Arc::clone(file), None);
        let window = pages.pin(len)?;
        Ok((
            window,
            Arc::new(AnonShared {
                pages: Mutex::new(pages),
                size: len,
            }),
        ))
    }
}

impl SharedObject for AnonShared {
    fn size(&self) -> u64 {
        self.size
    }

    fn populate(&self, range: Range<u64>) -> Result<Range<u64>, Errno> {
        // mremap may let a mapping outgrow the object: Linux raises SIGBUS there.
        let end = range.end.min(self.size);
        if range.start >= end {
            return Err(Errno::ENXIO);
        }
        self.pages.lock().allocate(range.start..end)?;
        Ok(range.start..end)
    }

    fn watch(&self, _: Weak<dyn Mapper>) {
        // Its pages go away with its last mapping, never before.
    }
}
