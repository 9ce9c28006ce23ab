//! Memory that is shared with guests: [`SharedMapping`], a mapping of a piece of a memory file.
//!
//! Invariant: the mapping is private to its [`SharedMapping`], stays until that is dropped, and is never unmapped or moved before. Guests may
//! write to the same pages at any time, so no reference to them is ever made: bytes are only copied, each once, by raw pointers, within the
//! mapping's bounds. The file behind it is never shorter than the mapping (it is sized before it is mapped, and sealed against
//! shrinking), so that no access past its end raises SIGBUS.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use abi::Errno;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::fs::errno;

/// How large a memory file is made: nearly all offsets there are.
pub const MEMORY_FILE_LEN: u64 = 1 << 62;

/// Makes a memory file: sparse, closed at exec, never to be executable, its size fixed at [`MEMORY_FILE_LEN`].
pub fn memory_file(name: &str) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name, flags).map_err(errno)?;
    rustix::fs::ftruncate(&fd, MEMORY_FILE_LEN).map_err(errno)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(errno)?;
    Ok(fd)
}

/// Gives the pages of a range back; they read as zeros afterwards.
pub fn punch_hole(fd: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, flags, at, len).map_err(errno)
}

/// A mapping of a piece of a file, shared, for copying to and from.
pub struct SharedMapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: the pointer is to a mapping that no thread owns: any may copy from and to it.
unsafe impl Send for SharedMapping {}
// SAFETY: as above; concurrent copies race only as those of guests do, on bytes to which there are no references.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `len` bytes at offset `at` of a file that is at least that long. Both are multiples of the page size.
    pub fn new(fd: impl AsFd, at: u64, len: usize) -> Result<SharedMapping, Errno> {
        // SAFETY: a new mapping at an address that the host chooses touches no memory in use.
        let base = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                at,
            )
        }
        .map_err(errno)?;
        Ok(SharedMapping {
            base: base.cast(),
            len,
        })
    }

    /// How many bytes are mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies from the mapping; as many bytes as there are from `at` on.
    pub fn read(&self, at: usize, to: &mut [u8]) -> usize {
        let count = to.len().min(self.len.saturating_sub(at));
        if count == 0 {
            return 0;
        }
        // SAFETY: `at` is below `len`, so the address is inside the mapping.
        let from = unsafe { self.base.add(at) };
        // SAFETY: `count` bytes from there are inside the mapping, and `to` is the sentry's own memory, so the two can't overlap.
        unsafe { core::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), count) };
        count
    }

    /// Copies to the mapping; as many bytes as fit from `at` on.
    pub fn write(&self, at: usize, from: &[u8]) -> usize {
        let count = from.len().min(self.len.saturating_sub(at));
        if count == 0 {
            return 0;
        }
        // SAFETY: `at` is below `len`, so the address is inside the mapping.
        let to = unsafe { self.base.add(at) };
        // SAFETY: `count` bytes from there are inside the mapping, and `from` is the sentry's own memory, so the two can't overlap.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to, count) };
        count
    }

    /// A 32-bit word at `at`, a multiple of 4 inside the mapping, for a compare-and-exchange of a futex word.
    /// The old value; the exchange happened where it is `old`.
    pub fn compare_exchange_u32(&self, at: usize, old: u32, new: u32) -> Option<u32> {
        if !at.is_multiple_of(4) || at.checked_add(4)? > self.len {
            return None;
        }
        // SAFETY: `at` is inside the mapping.
        let word = unsafe { self.base.add(at) }.cast::<u32>();
        // SAFETY: four bytes from there are inside the mapping, aligned, alive as long as `self`; atomic accesses may race with guests'.
        let word = unsafe { core::sync::atomic::AtomicU32::from_ptr(word) };
        use core::sync::atomic::Ordering::SeqCst;
        Some(match word.compare_exchange(old, new, SeqCst, SeqCst) {
            Ok(seen) | Err(seen) => seen,
        })
    }

    /// The 32-bit word at `at`, a multiple of 4 inside the mapping.
    pub fn load_u32(&self, at: usize) -> Option<u32> {
        self.compare_exchange_u32(at, 0, 0)
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made, to which nothing refers any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping what was mapped can't fail");
    }
}
