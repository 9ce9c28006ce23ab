//! Claims on guest memory. They say where something is said to be; only the sentry's `mm` reads and writes them.

use core::marker::PhantomData;

/// The address of a `T` in guest memory, as the guest gave it: unchecked, perhaps null.
pub struct UserPtr<T> {
    addr: u64,
    of: PhantomData<fn() -> T>,
}

impl<T> UserPtr<T> {
    /// A claim that a `T` is at `addr`.
    pub const fn new(addr: u64) -> Self {
        UserPtr {
            addr,
            of: PhantomData,
        }
    }

    /// The address.
    pub const fn addr(self) -> u64 {
        self.addr
    }

    /// Whether the guest gave a null pointer.
    pub const fn is_null(self) -> bool {
        self.addr == 0
    }

    /// `None` where the guest gave a null pointer, which many calls take as "absent".
    pub const fn non_null(self) -> Option<Self> {
        if self.addr == 0 { None } else { Some(self) }
    }

    /// The same address, as a pointer to something else.
    pub const fn cast<U>(self) -> UserPtr<U> {
        UserPtr::new(self.addr)
    }
}

impl<T> Clone for UserPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for UserPtr<T> {}

impl<T> core::fmt::Debug for UserPtr<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}", self.addr)
    }
}

/// A run of bytes in guest memory, as the guest gave it: unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserSlice {
    /// Where it begins.
    pub addr: u64,
    /// How many bytes.
    pub len: usize,
}

/// The address of a NUL-terminated string in guest memory: unchecked, perhaps null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserCStr(pub u64);
