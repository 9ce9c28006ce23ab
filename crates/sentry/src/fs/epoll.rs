//! epoll(7): instances, interests, and what is ready.
//!
//! An interest waits in the watched file's queue and puts itself on the instance's ready list when it is woken; readiness itself is asked of the file
//! when events are taken. Lock classes: `EpollNesting` (all changes that could nest instances), `EpollInterests`, `EpollReady`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};

use abi::Errno;
use abi::epoll::{EPOLLET, EPOLLEXCLUSIVE, EPOLLONESHOT, EPOLLWAKEUP, EpollEvent};
use abi::fs::OpenFlags;

use crate::sync::order::{EpollInterests, EpollNesting, EpollReady};
use crate::sync::{EventMask, Mutex, WaitQueue, WaiterId, Wake};
use crate::vfs::anon::AnonInode;
use crate::vfs::{CloseHook, FileOps, OpenFile};

/// How deep instances may watch instances.
const NESTING_MAX: usize = 4;
/// The most interests of an instance (`max_user_watches` bounds them on Linux).
const INTERESTS_MAX: usize = 1 << 18;

/// An epoll instance.
pub struct Epoll {
    this: Weak<Epoll>,
    interests: Mutex<BTreeMap<(u64, i32), Arc<Interest>>, EpollInterests>,
    ready: Mutex<VecDeque<Arc<Interest>>, EpollReady>,
    queue: Arc<WaitQueue>,
}

/// What an instance watches: a descriptor's number together with the description behind it.
struct Interest {
    this: Weak<Interest>,
    epoll: Weak<Epoll>,
    file: Weak<OpenFile>,
    fd: i32,
    state: Mutex<State, EpollReady>,
    registration: OnceLock<(Arc<WaitQueue>, WaiterId)>,
}

#[derive(Clone, Copy)]
struct State {
    /// `EPOLL*`, flags included.
    events: u32,
    data: u64,
    /// On the ready list.
    queued: bool,
    /// Switched off until it is set again (`EPOLLONESHOT`).
    off: bool,
    /// Taken out of the instance.
    gone: bool,
}

const FLAGS: u32 = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP;
const ALWAYS: EventMask = EventMask::ERR.union(EventMask::HUP);

fn mask(events: u32) -> EventMask {
    EventMask::from_bits_truncate(events & !FLAGS) | ALWAYS
}

/// epoll_create1(2).
pub fn epoll() -> Arc<OpenFile> {
    let ops = Arc::new_cyclic(|this| Epoll {
        this: Weak::clone(this),
        interests: Mutex::new(BTreeMap::new()),
        ready: Mutex::new(VecDeque::new()),
        queue: Arc::new(WaitQueue::new()),
    });
    OpenFile::anonymous(AnonInode::new("[eventpoll]"), ops, OpenFlags::RDWR)
}

/// The instance behind an open file; EINVAL where it is none.
pub fn of(file: &OpenFile) -> Result<&Epoll, Errno> {
    file.ops_as().ok_or(Errno::EINVAL)
}

fn nesting() -> &'static Mutex<(), EpollNesting> {
    static NESTING: Mutex<(), EpollNesting> = Mutex::new(());
    &NESTING
}

impl Epoll {
    /// `EPOLL_CTL_ADD`: EEXIST, EPERM for files that have no readiness, EINVAL for the instance itself, ELOOP for circles and too deep nesting.
    pub fn add(&self, fd: i32, file: &Arc<OpenFile>, event: EpollEvent) -> Result<(), Errno> {
        let events = event.events;
        if !file.ops().pollable() {
            return Err(Errno::EPERM);
        }
        let watched: Option<&Epoll> = file.ops_as();
        if watched.is_some_and(|other| core::ptr::eq(other, self)) {
            return Err(Errno::EINVAL);
        }
        if events & EPOLLEXCLUSIVE != 0 {
            let allowed = (EventMask::IN | EventMask::OUT | ALWAYS).bits()
                | EPOLLEXCLUSIVE
                | EPOLLET
                | EPOLLWAKEUP;
            if events & !allowed != 0 || watched.is_some() {
                return Err(Errno::EINVAL);
            }
        }
        let _nesting = watched.is_some().then(|| nesting().lock());
        if let Some(other) = watched {
            other.check_nesting(self, 1)?;
        }
        let interest = Interest::new(self, fd, file, event);
        let mut interests = self.interests.lock();
        if interests.contains_key(&(file.id(), fd)) {
            return Err(Errno::EEXIST);
        }
        if interests.len() >= INTERESTS_MAX {
            return Err(Errno::ENOSPC);
        }
        interests.insert((file.id(), fd), Arc::clone(&interest));
        drop(interests);
        let hook: Weak<Epoll> = Weak::clone(&self.this);
        file.on_close(hook);
        interest.register(file, events);
        interest.look(file);
        Ok(())
    }

    /// `EPOLL_CTL_MOD`: ENOENT.
    pub fn modify(&self, fd: i32, file: &Arc<OpenFile>, event: EpollEvent) -> Result<(), Errno> {
        let events = event.events;
        let old = self
            .interests
            .lock()
            .get(&(file.id(), fd))
            .cloned()
            .ok_or(Errno::ENOENT)?;
        let before = old.state.lock().events;
        if (events | before) & EPOLLEXCLUSIVE != 0 {
            return Err(Errno::EINVAL);
        }
        // A new interest, since what it waits for is fixed when it starts to wait.
        let new = Interest::new(self, fd, file, event);
        self.interests
            .lock()
            .insert((file.id(), fd), Arc::clone(&new));
        self.retire(&old);
        new.register(file, events);
        new.look(file);
        Ok(())
    }

    /// `EPOLL_CTL_DEL`: ENOENT.
    pub fn remove(&self, fd: i32, file: &OpenFile) -> Result<(), Errno> {
        let old = self
            .interests
            .lock()
            .remove(&(file.id(), fd))
            .ok_or(Errno::ENOENT)?;
        self.retire(&old);
        Ok(())
    }

    /// Takes up to `most` events that are ready now; none where nothing is. [`FileOps::queue`] tells when there may be some.
    pub fn take(&self, most: usize) -> Vec<EpollEvent> {
        let mut taken = Vec::new();
        let mut again = Vec::new();
        let mut left = self.ready.lock().len();
        while taken.len() < most && left > 0 {
            left -= 1;
            let Some(interest) = self.ready.lock().pop_front() else {
                break;
            };
            let mut state = interest.state.lock();
            // Before the file is looked at: what happens from now on puts it on the list again.
            state.queued = false;
            let now = *state;
            drop(state);
            if now.off || now.gone {
                continue;
            }
            let Some(file) = interest.file.upgrade() else {
                continue;
            };
            let events = file.poll() & mask(now.events);
            if events.is_empty() {
                continue;
            }
            taken.push(EpollEvent {
                events: events.bits(),
                data: now.data,
            });
            if now.events & EPOLLONESHOT != 0 {
                interest.state.lock().off = true;
            } else if now.events & EPOLLET == 0 {
                again.push(interest);
            }
        }
        // Level-triggered ones stay, behind the others.
        for interest in again {
            interest.queue_up(self);
        }
        taken
    }

    /// Who tells when there may be events to take.
    pub fn queue(&self) -> &Arc<WaitQueue> {
        &self.queue
    }

    /// Whether any event could be taken.
    pub fn any_ready(&self) -> bool {
        loop {
            let Some(interest) = self.ready.lock().front().cloned() else {
                return false;
            };
            let state = *interest.state.lock();
            if !state.off
                && !state.gone
                && let Some(file) = interest.file.upgrade()
                && file.poll().intersects(mask(state.events))
            {
                return true;
            }
            // It is not: off the list with it, unless something happens meanwhile.
            let mut ready = self.ready.lock();
            if ready
                .front()
                .is_some_and(|front| Arc::ptr_eq(front, &interest))
            {
                ready.pop_front();
            }
            drop(ready);
            interest.state.lock().queued = false;
            if let Some(file) = interest.file.upgrade()
                && !state.off
                && !state.gone
                && file.poll().intersects(mask(state.events))
            {
                interest.queue_up(self);
            }
        }
    }

    /// What the instance watches: descriptor, events, data.
    pub fn interests(&self) -> Vec<(i32, u32, u64)> {
        let interests: Vec<Arc<Interest>> = self.interests.lock().values().cloned().collect();
        (interests.iter())
            .map(|interest| {
                let state = interest.state.lock();
                (interest.fd, state.events, state.data)
            })
            .collect()
    }

    fn retire(&self, interest: &Arc<Interest>) {
        interest.state.lock().gone = true;
        interest.unregister();
        self.ready
            .lock()
            .retain(|known| !Arc::ptr_eq(known, interest));
    }

    /// ELOOP where this instance watches `other` by any way, or where the nesting gets too deep.
    fn check_nesting(&self, other: &Epoll, depth: usize) -> Result<(), Errno> {
        if depth > NESTING_MAX || core::ptr::eq(self, other) {
            return Err(Errno::ELOOP);
        }
        let files: Vec<Arc<OpenFile>> = (self.interests.lock().values())
            .filter_map(|interest| interest.file.upgrade())
            .collect();
        for file in files {
            if let Some(inner) = file.ops_as::<Epoll>() {
                inner.check_nesting(other, depth + 1)?;
            }
        }
        Ok(())
    }
}

impl Interest {
    fn new(epoll: &Epoll, fd: i32, file: &Arc<OpenFile>, event: EpollEvent) -> Arc<Interest> {
        Arc::new_cyclic(|this| Interest {
            this: Weak::clone(this),
            epoll: Weak::clone(&epoll.this),
            file: Arc::downgrade(file),
            fd,
            state: Mutex::new(State {
                events: event.events,
                data: event.data,
                queued: false,
                off: false,
                gone: false,
            }),
            registration: OnceLock::new(),
        })
    }

    fn register(self: &Arc<Self>, file: &OpenFile, events: u32) {
        if let Some(queue) = file.queue() {
            let exclusive = events & EPOLLEXCLUSIVE != 0;
            let id = queue.register(Arc::clone(self) as _, mask(events), exclusive);
            // Set once: an interest is registered as it is made.
            let _ = self.registration.set((Arc::clone(queue), id));
        }
    }

    fn unregister(&self) {
        if let Some((queue, id)) = self.registration.get() {
            queue.unregister(*id);
        }
    }

    /// Puts it on the ready list where the file is ready already.
    fn look(self: &Arc<Self>, file: &OpenFile) {
        let events = self.state.lock().events;
        if let Some(epoll) = self.epoll.upgrade()
            && file.poll().intersects(mask(events))
        {
            self.queue_up(&epoll);
            epoll.queue.notify_one(EventMask::IN | EventMask::RDNORM);
        }
    }

    /// Puts it on the ready list; says whether it was not there.
    fn queue_up(self: &Arc<Self>, epoll: &Epoll) -> bool {
        let mut state = self.state.lock();
        if state.queued || state.off || state.gone {
            return false;
        }
        state.queued = true;
        drop(state);
        epoll.ready.lock().push_back(Arc::clone(self));
        true
    }
}

/// What is registered in the watched file's queue.
impl Wake for Interest {
    fn wake(&self, events: EventMask) -> bool {
        let Some(epoll) = self.epoll.upgrade() else {
            return false;
        };
        let wanted = mask(self.state.lock().events);
        if !events.intersects(wanted) {
            return false;
        }
        let Some(this) = self.this.upgrade() else {
            return false;
        };
        this.queue_up(&epoll);
        epoll.queue.notify_one(EventMask::IN | EventMask::RDNORM);
        true
    }
}

impl CloseHook for Epoll {
    fn closed(&self, file: u64) {
        let mut interests = self.interests.lock();
        let keys: Vec<(u64, i32)> = interests
            .range((file, i32::MIN)..=(file, i32::MAX))
            .map(|(key, _)| *key)
            .collect();
        let gone: Vec<Arc<Interest>> = keys
            .iter()
            .filter_map(|key| interests.remove(key))
            .collect();
        drop(interests);
        for interest in &gone {
            self.retire(interest);
        }
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        for interest in self.interests.get_mut().values() {
            interest.unregister();
        }
    }
}

impl FileOps for Epoll {
    fn poll(&self, _file: &OpenFile) -> EventMask {
        if self.any_ready() {
            EventMask::IN | EventMask::RDNORM
        } else {
            EventMask::empty()
        }
    }

    fn queue(&self) -> Option<&Arc<WaitQueue>> {
        Some(&self.queue)
    }

    fn fdinfo(&self, _file: &OpenFile) -> String {
        let mut lines = String::new();
        for (fd, events, data) in self.interests() {
            lines.push_str(&format!(
                "tfd: {fd:8} events: {events:8x} data: {data:16x}\n"
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests;
