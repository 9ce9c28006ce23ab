//! [`Mutex`] and [`RwLock`] over parking_lot's, each with its class.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use super::order::Class;

/// A mutual-exclusion lock of class `C`.
pub struct Mutex<T: ?Sized, C: Class> {
    class: PhantomData<fn() -> C>,
    inner: parking_lot::Mutex<T>,
}

/// The guard of a [`Mutex`].
pub struct MutexGuard<'a, T: ?Sized, C: Class> {
    held: Held<C>,
    inner: parking_lot::MutexGuard<'a, T>,
}

/// A reader-writer lock of class `C`.
pub struct RwLock<T: ?Sized, C: Class> {
    class: PhantomData<fn() -> C>,
    inner: parking_lot::RwLock<T>,
}

/// The shared guard of an [`RwLock`].
pub struct RwLockReadGuard<'a, T: ?Sized, C: Class> {
    held: Held<C>,
    inner: parking_lot::RwLockReadGuard<'a, T>,
}

/// The exclusive guard of an [`RwLock`].
pub struct RwLockWriteGuard<'a, T: ?Sized, C: Class> {
    held: Held<C>,
    inner: parking_lot::RwLockWriteGuard<'a, T>,
}

impl<T, C: Class> Mutex<T, C> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        Mutex {
            class: PhantomData,
            inner: parking_lot::const_mutex(value),
        }
    }

    /// The value, the lock taken apart.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized, C: Class> Mutex<T, C> {
    /// Takes the lock, waiting for it.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T, C> {
        let held = Held::take();
        MutexGuard {
            held,
            inner: self.inner.lock(),
        }
    }

    /// The value, which nobody else can have locked.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// Takes the lock where it is free. Allowed against the order, since it does not wait.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, C>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard {
            held: Held::take_unordered(),
            inner,
        })
    }

    /// Takes two locks of this class, the one at the lower address first; `None` for the second where both are one.
    #[track_caller]
    pub fn lock_pair<'a>(
        a: &'a Self,
        b: &'a Self,
    ) -> (MutexGuard<'a, T, C>, Option<MutexGuard<'a, T, C>>) {
        let (pa, pb) = (core::ptr::from_ref(a).addr(), core::ptr::from_ref(b).addr());
        if pa == pb {
            return (a.lock(), None);
        }
        if pa < pb {
            let first = a.lock();
            let second = MutexGuard {
                held: Held::take_unordered(),
                inner: b.inner.lock(),
            };
            (first, Some(second))
        } else {
            let second = b.lock();
            let first = MutexGuard {
                held: Held::take_unordered(),
                inner: a.inner.lock(),
            };
            (first, Some(second))
        }
    }
}

impl<T, C: Class> RwLock<T, C> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        RwLock {
            class: PhantomData,
            inner: parking_lot::const_rwlock(value),
        }
    }
}

impl<T: ?Sized, C: Class> RwLock<T, C> {
    /// Takes the lock, shared.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T, C> {
        let held = Held::take();
        RwLockReadGuard {
            held,
            inner: self.inner.read(),
        }
    }

    /// Takes the lock for itself.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T, C> {
        let held = Held::take();
        RwLockWriteGuard {
            held,
            inner: self.inner.write(),
        }
    }
}

macro_rules! guard {
    ($guard:ident) => {
        impl<T: ?Sized, C: Class> Deref for $guard<'_, T, C> {
            type Target = T;
            fn deref(&self) -> &T {
                let _ = &self.held;
                &self.inner
            }
        }
    };
    ($guard:ident mut) => {
        guard!($guard);
        impl<T: ?Sized, C: Class> DerefMut for $guard<'_, T, C> {
            fn deref_mut(&mut self) -> &mut T {
                &mut self.inner
            }
        }
    };
}
guard!(MutexGuard mut);
guard!(RwLockReadGuard);
guard!(RwLockWriteGuard mut);

impl<T: ?Sized, C: Class> core::fmt::Debug for Mutex<T, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Not its contents: who prints need not be allowed to take the lock.
        write!(f, "Mutex<{}>", C::NAME)
    }
}

impl<T: Default, C: Class> Default for Mutex<T, C> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

/// That this thread holds a lock of class `C`; nothing at all in release builds.
struct Held<C: Class> {
    class: PhantomData<fn() -> C>,
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: core::cell::RefCell<Vec<(u8, &'static str)>> = const { core::cell::RefCell::new(Vec::new()) };
}

impl<C: Class> Held<C> {
    #[track_caller]
    fn take() -> Self {
        #[cfg(debug_assertions)]
        HELD.with_borrow_mut(|held| {
            if let Some((_, name)) = held.iter().find(|(rank, _)| *rank >= C::RANK) {
                panic!("lock order: {} is taken while {} is held", C::NAME, name);
            }
            held.push((C::RANK, C::NAME));
        });
        Held { class: PhantomData }
    }

    fn take_unordered() -> Self {
        #[cfg(debug_assertions)]
        HELD.with_borrow_mut(|held| held.push((C::RANK, C::NAME)));
        Held { class: PhantomData }
    }
}

#[cfg(debug_assertions)]
impl<C: Class> Drop for Held<C> {
    fn drop(&mut self) {
        let _ = self.class;
        HELD.with_borrow_mut(|held| {
            if let Some(at) = held.iter().rposition(|(rank, _)| *rank == C::RANK) {
                held.remove(at);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::{FdTable, Leaf, TaskState};
    use super::Mutex;

    #[test]
    fn in_order() {
        let outer: Mutex<u8, FdTable> = Mutex::new(1);
        let inner: Mutex<u8, Leaf> = Mutex::new(2);
        let a = outer.lock();
        let b = inner.lock();
        assert_eq!(*a + *b, 3);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn against_the_order() {
        // The profile aborts on panics, so the check itself is looked at, not its panic.
        let ranks = [
            <FdTable as super::Class>::RANK,
            <TaskState as super::Class>::RANK,
            <Leaf as super::Class>::RANK,
        ];
        assert!(ranks.is_sorted());
    }
}
