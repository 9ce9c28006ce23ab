//! The memory file.

use core::ops::Range;
use std::sync::{Arc, Weak};

use abi::Errno;

/// A run of the memory file's offsets that belongs to one shared object.
#[derive(Debug)]
pub struct Window {
    offset: u64,
    len: u64,
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
}

/// A shared object whose pages are in the memory file.
pub trait SharedObject: Send + Sync {
    /// How many bytes it has: pages past the last byte's are SIGBUS.
    fn size(&self) -> u64;

    /// Allocates, charged and zeroed, the pages of the range (offsets in the object), for reading or writing through a mapping. Says which range
    /// around it is allocated now, whole pages, and can be mapped. ENXIO past the end of the object (SIGBUS), ENOSPC or ENOMEM at a limit.
    fn populate(&self, range: Range<u64>) -> Result<Range<u64>, Errno>;

    /// Asks to be told of pages that go away.
    fn watch(&self, mapper: Weak<dyn Mapper>);
}

/// Told when pages of a shared object go away (truncation, punched holes): mappings of them must go.
pub trait Mapper: Send + Sync {
    /// The pages in this range of offsets of the object are going. On return no stub may have them mapped.
    fn unmap(&self, object: &Arc<dyn SharedObject>, range: Range<u64>);
}
