//! Locks with an order, and the queues on which tasks wait.
//!
//! [`Mutex`] and [`RwLock`] name the class that they belong to; all classes stand in [`order`], outermost first. Debug builds keep
//! the list of classes that a thread holds and panic, naming both, where a lock is taken against the order. Hold no guard across a copy to or from
//! guest memory, an answer of a stub's helper, a host call that may block, or a wake-up.

mod mutex;
pub mod order;
mod wait;

pub use mutex::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use wait::{EventMask, WaitQueue, WaiterId, Wake};
