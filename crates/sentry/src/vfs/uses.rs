//! Which regular files are open for writing and which are being run, that the one refuses the other (ETXTBSY: open(2), truncate(2), execve(2)).
//!
//! Files are told apart by inode as it is seen through their mount: a file of an overlay is the same before and after it is copied up.
//! Lock class: `Leaf`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use abi::Errno;

use super::inode::InodeKey;
use crate::sync::Mutex;
use crate::sync::order::Leaf;

/// The files of a namespace that are in use: how many descriptions write each, or, below zero, how many address spaces run it.
#[derive(Default)]
pub struct Uses(Mutex<HashMap<InodeKey, i64>, Leaf>);

/// A use of a file, until it is dropped.
pub struct Use {
    of: Arc<Uses>,
    key: InodeKey,
    step: i64,
}

impl Uses {
    /// The file is open for writing; ETXTBSY where it is being run.
    pub fn write(self: &Arc<Self>, key: InodeKey) -> Result<Use, Errno> {
        self.enter(key, 1)
    }

    /// The file is being run; ETXTBSY where it is open for writing.
    pub fn run(self: &Arc<Self>, key: InodeKey) -> Result<Use, Errno> {
        self.enter(key, -1)
    }

    fn enter(self: &Arc<Self>, key: InodeKey, step: i64) -> Result<Use, Errno> {
        let mut counts = self.0.lock();
        let count = counts.entry(key).or_insert(0);
        if *count * step < 0 {
            return Err(Errno::ETXTBSY);
        }
        *count += step;
        drop(counts);
        Ok(Use {
            of: Arc::clone(self),
            key,
            step,
        })
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut counts = self.of.0.lock();
        if let Entry::Occupied(mut count) = counts.entry(self.key) {
            *count.get_mut() -= self.step;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Errno, InodeKey, Uses};
    use std::sync::Arc;

    #[test]
    fn writers_and_runners_exclude_each_other() {
        let uses = Arc::new(Uses::default());
        let (a, b) = (InodeKey { dev: 1, ino: 1 }, InodeKey { dev: 1, ino: 2 });
        let first = uses.write(a).expect("free");
        let second = uses.write(a).expect("shared");
        let other = uses.run(b).expect("another file");
        assert_eq!(uses.run(a).map(drop), Err(Errno::ETXTBSY));
        drop(first);
        assert_eq!(uses.run(a).map(drop), Err(Errno::ETXTBSY));
        drop(second);
        let runs = (uses.run(a), uses.run(a));
        assert_eq!(uses.write(a).map(drop), Err(Errno::ETXTBSY));
        drop((runs, other));
        assert!(uses.0.lock().is_empty());
    }
}
