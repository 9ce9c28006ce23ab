//! [`Recent`]: a bounded map of what was used of late.

use hashbrown::HashMap;

/// A map by identity that keeps at most so many values: when it is full, the half that was not used for longest goes.
pub(super) struct Recent<V> {
    values: HashMap<u64, (V, u64)>,
    capacity: usize,
    tick: u64,
}

impl<V: Clone> Recent<V> {
    pub(super) fn new(capacity: usize) -> Recent<V> {
        Recent {
            values: HashMap::new(),
            capacity,
            tick: 0,
        }
    }

    pub(super) fn get(&mut self, id: u64) -> Option<V> {
        self.tick += 1;
        let (value, used) = self.values.get_mut(&id)?;
        *used = self.tick;
        Some(value.clone())
    }

    /// Adds a value, and gives back those that had to go, to be dropped without the lock.
    #[must_use]
    pub(super) fn insert(&mut self, id: u64, value: V) -> Vec<V> {
        let mut gone = Vec::new();
        if self.values.len() >= self.capacity {
            let mut ticks: Vec<u64> = self.values.values().map(|(_, used)| *used).collect();
            let middle = ticks.len() / 2;
            let (_, limit, _) = ticks.select_nth_unstable(middle);
            let limit = *limit;
            let old: Vec<u64> = (self.values.iter())
                .filter(|(_, (_, used))| *used < limit)
                .map(|(id, _)| *id)
                .collect();
            gone.extend(
                old.iter()
                    .filter_map(|id| self.values.remove(id))
                    .map(|(value, _)| value),
            );
        }
        self.tick += 1;
        gone.extend(
            self.values
                .insert(id, (value, self.tick))
                .map(|(value, _)| value),
        );
        gone
    }

    #[must_use]
    pub(super) fn remove(&mut self, id: u64) -> Option<V> {
        self.values.remove(&id).map(|(value, _)| value)
    }
}
