//! Memory that the sentry shares with stubs.
//!
//! Invariant: a [`SharedPages`] is a mapping of `len` bytes that stays until it is dropped; every access is a bounded, volatile or atomic access through a raw pointer, and no
//! Rust reference to the memory is ever made, since a guest may write it at any moment.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use abi::Errno;

/// A shared mapping of part of a memory file.
pub(crate) struct SharedPages {
    base: *mut u8,
    len: usize,
}

// SAFETY: the memory is shared with other processes anyway; every access is atomic or volatile.
unsafe impl Send for SharedPages {}
// SAFETY: as above.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    /// Maps `len` bytes of the file from its start.
    pub(crate) fn map(file: BorrowedFd<'_>, len: usize) -> Result<SharedPages, Errno> {
        use std::os::fd::AsRawFd;
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Errno::ENOMEM);
        }
        Ok(SharedPages {
            base: base.cast(),
            len,
        })
    }

    fn at(&self, offset: u64, len: usize, align: usize) -> *mut u8 {
        let offset = usize::try_from(offset).expect("offsets are those of the layout");
        assert!(
            offset.is_multiple_of(align)
                && offset.checked_add(len).is_some_and(|end| end <= self.len),
            "offset {offset:#x} outside"
        );
        // SAFETY: the offset was just found to be inside the mapping.
        unsafe { self.base.add(offset) }
    }

    fn atomic32(&self, offset: u64) -> &AtomicU32 {
        let at = self.at(offset, 4, 4);
        // SAFETY: four aligned bytes inside the mapping, which outlives `self`; atomics may be shared with other processes.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    fn atomic64(&self, offset: u64) -> &AtomicU64 {
        let at = self.at(offset, 8, 8);
        // SAFETY: eight aligned bytes inside the mapping, which outlives `self`; atomics may be shared with other processes.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    pub(crate) fn get32(&self, offset: u64) -> u32 {
        self.atomic32(offset).load(Ordering::Relaxed)
    }

    pub(crate) fn load32(&self, offset: u64) -> u32 {
        self.atomic32(offset).load(Ordering::SeqCst)
    }

    pub(crate) fn set32(&self, offset: u64, value: u32) {
        self.atomic32(offset).store(value, Ordering::Relaxed);
    }

    /// A store that is ordered with every load and store of this thread before and after it.
    pub(crate) fn swap32(&self, offset: u64, value: u32) -> u32 {
        self.atomic32(offset).swap(value, Ordering::SeqCst)
    }

    pub(crate) fn add32(&self, offset: u64, value: u32) -> u32 {
        self.atomic32(offset).fetch_add(value, Ordering::SeqCst)
    }

    pub(crate) fn sub32(&self, offset: u64, value: u32) -> u32 {
        self.atomic32(offset).fetch_sub(value, Ordering::SeqCst)
    }

    pub(crate) fn get64(&self, offset: u64) -> u64 {
        self.atomic64(offset).load(Ordering::Relaxed)
    }

    pub(crate) fn set64(&self, offset: u64, value: u64) {
        self.atomic64(offset).store(value, Ordering::Relaxed);
    }

    pub(crate) fn load64(&self, offset: u64) -> u64 {
        self.atomic64(offset).load(Ordering::SeqCst)
    }

    pub(crate) fn or64(&self, offset: u64, value: u64) -> u64 {
        self.atomic64(offset).fetch_or(value, Ordering::SeqCst)
    }

    pub(crate) fn and64(&self, offset: u64, value: u64) -> u64 {
        self.atomic64(offset).fetch_and(value, Ordering::SeqCst)
    }

    /// Copies out of the memory. A guest that writes meanwhile gives a mixture, which is the guest's own affair.
    pub(crate) fn copy_from(&self, offset: u64, to: &mut [u8]) {
        let from = self.at(offset, to.len(), 1);
        // SAFETY: the source is inside the mapping, the target is the caller's own; they can't overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies into the memory.
    pub(crate) fn copy_to(&self, offset: u64, from: &[u8]) {
        let to = self.at(offset, from.len(), 1);
        // SAFETY: the target is inside the mapping, the source is the caller's own; they can't overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// Waits while the word has this value, for `nanos` nanoseconds at most (`None`: for ever). May return early.
    pub(crate) fn futex_wait(&self, offset: u64, value: u32, nanos: Option<u64>) {
        let word = self.at(offset, 4, 4);
        let timeout = nanos.map(|nanos| libc::timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
        });
        let timeout = timeout
            .as_ref()
            .map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the word is inside the mapping and the timeout lives until the call returns.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, value, timeout) };
    }

    /// Wakes up to `most` who wait on the word; says how many.
    pub(crate) fn futex_wake(&self, offset: u64, most: i32) -> i64 {
        let word = self.at(offset, 4, 4);
        // SAFETY: the word is inside the mapping.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, most) }
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
