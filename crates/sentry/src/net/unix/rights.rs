//! Descriptors in flight (`SCM_RIGHTS`): how many there are, and those that nobody can receive any more.
//!
//! A socket can be in flight in its own inbox, or two in each other's: closed everywhere, they would keep each other for ever. [`Space::collect`]
//! finds them: sockets of which every reference is in flight, and in the inbox of another such socket. Lock class: `SocketsInFlight`.

use core::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use abi::Errno;

use super::{Space, UnixSocket};
use crate::vfs::OpenFile;

/// The most descriptors in flight in a sandbox, whoever sends.
const IN_FLIGHT_MAX: usize = 1 << 18;

/// Descriptors in flight.
pub struct Rights {
    files: Vec<Arc<OpenFile>>,
    space: Arc<Space>,
    /// Whose count they are in; `None` for copies.
    uid: Option<u32>,
}

/// What is in flight.
#[derive(Default)]
pub(super) struct InFlight {
    total: usize,
    by_user: HashMap<u32, usize>,
    /// UNIX sockets by their description's identity: how often each is in flight.
    sockets: HashMap<u64, (Weak<OpenFile>, usize)>,
}

thread_local! {
    /// Files that are being let go: one after another, since the end of a socket lets go of what was in flight to it, and so on.
    static LEAVING: RefCell<Option<Vec<Arc<OpenFile>>>> = const { RefCell::new(None) };
}

impl Rights {
    /// Sends these files. ETOOMANYREFS where the sender has more than `limit` in flight.
    pub fn new(
        space: &Arc<Space>,
        files: Vec<Arc<OpenFile>>,
        uid: u32,
        limit: u64,
    ) -> Result<Rights, Errno> {
        let mut flight = space.in_flight.lock();
        let count = flight.by_user.entry(uid).or_default();
        if *count as u64 > limit {
            return Err(Errno::ETOOMANYREFS);
        }
        *count += files.len();
        if flight.total > IN_FLIGHT_MAX {
            let count = flight.by_user.entry(uid).or_default();
            *count -= files.len();
            return Err(Errno::ETOOMANYREFS);
        }
        flight.enter(&files);
        drop(flight);
        Ok(Rights {
            files,
            space: Arc::clone(space),
            uid: Some(uid),
        })
    }

    /// The same files once more, for who only looks.
    pub(super) fn duplicate(&self) -> Rights {
        // Not counted, which the inbox's lock would not allow: files of a copy look like files that somebody has open.
        Rights {
            files: self.files.clone(),
            space: Arc::clone(&self.space),
            uid: None,
        }
    }

    /// The files.
    pub(super) fn files(&self) -> &[Arc<OpenFile>] {
        &self.files
    }

    /// Takes the files out of flight.
    pub fn receive(mut self) -> Vec<Arc<OpenFile>> {
        let files = core::mem::take(&mut self.files);
        self.space.land(&files, self.uid);
        files
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        if self.files.is_empty() {
            return;
        }
        let files = core::mem::take(&mut self.files);
        self.space.land(&files, self.uid);
        let first = LEAVING.with_borrow_mut(|leaving| match leaving {
            Some(leaving) => {
                leaving.extend(files);
                None
            }
            None => {
                *leaving = Some(Vec::new());
                Some(files)
            }
        });
        let Some(mut files) = first else { return };
        while !files.is_empty() {
            drop(files);
            files = LEAVING
                .with_borrow_mut(|leaving| leaving.as_mut().map(core::mem::take))
                .unwrap_or_default();
        }
        LEAVING.set(None);
    }
}

impl InFlight {
    fn enter(&mut self, files: &[Arc<OpenFile>]) {
        self.total += files.len();
        for file in files {
            if file.ops_as::<UnixSocket>().is_some() {
                self.sockets
                    .entry(file.id())
                    .or_insert_with(|| (Arc::downgrade(file), 0))
                    .1 += 1;
            }
        }
    }

    fn leave(&mut self, files: &[Arc<OpenFile>], uid: u32) {
        self.total -= files.len();
        if let Some(count) = self.by_user.get_mut(&uid) {
            *count -= files.len();
            if *count == 0 {
                self.by_user.remove(&uid);
            }
        }
        for file in files {
            if let Some((_, count)) = self.sockets.get_mut(&file.id()) {
                *count -= 1;
                if *count == 0 {
                    self.sockets.remove(&file.id());
                }
            }
        }
    }
}

impl Space {
    fn land(&self, files: &[Arc<OpenFile>], uid: Option<u32>) {
        if let Some(uid) = uid {
            self.in_flight.lock().leave(files, uid);
        }
    }

    /// Lets go of sockets that nobody can receive any more. Called where a descriptor of a socket was closed.
    pub(super) fn collect(&self) {
        let flight = self.in_flight.lock();
        if flight.sockets.is_empty() {
            return;
        }
        // All references in flight: nobody has it open. A reference that a call holds counts as open.
        let mut closed: HashMap<u64, (Arc<OpenFile>, usize)> = HashMap::new();
        for (id, (file, count)) in &flight.sockets {
            if file.strong_count() == *count
                && let Some(file) = file.upgrade()
            {
                closed.insert(*id, (file, *count));
            }
        }
        // Those in flight to somebody who can be received from are not lost, nor is what is in flight to them.
        let mut within: HashMap<u64, usize> = HashMap::new();
        for (file, _) in closed.values() {
            each_file(file, &mut |inner| {
                *within.entry(inner.id()).or_default() += 1
            });
        }
        let mut reachable: Vec<u64> = closed
            .iter()
            .filter(|(id, (_, count))| within.get(*id).copied().unwrap_or(0) < *count)
            .map(|(id, _)| *id)
            .collect();
        let mut live: HashSet<u64> = reachable.iter().copied().collect();
        while let Some(id) = reachable.pop() {
            if let Some((file, _)) = closed.get(&id) {
                each_file(file, &mut |inner| {
                    if live.insert(inner.id()) {
                        reachable.push(inner.id());
                    }
                });
            }
        }
        let mut lost = Vec::new();
        for (id, (file, _)) in &closed {
            if !live.contains(id)
                && let Some(socket) = file.ops_as::<UnixSocket>()
            {
                socket.each_inbox(&mut |inbox| lost.extend(inbox.strip()));
            }
        }
        drop(flight);
        drop(lost);
        drop(closed);
    }
}

/// Tells of each file that is in flight to this socket, or to one that waits to be accepted from it.
fn each_file(file: &OpenFile, tell: &mut dyn FnMut(&Arc<OpenFile>)) {
    if let Some(socket) = file.ops_as::<UnixSocket>() {
        socket.each_inbox(&mut |inbox| inbox.each_file(tell));
    }
}
