//! What was sent to a UNIX socket and waits to be received: bytes, and marks that say which bytes came together and with what.
//!
//! Lock class: `SocketInbox`, never held across a copy to or from guest memory, a wake-up, or the end of a file.

use std::collections::VecDeque;
use std::sync::Arc;

use abi::Errno;
use abi::net::Ucred;
use smallvec::SmallVec;

use super::address::Name;
use super::rights::Rights;
use crate::sync::order::SocketInbox;
use crate::sync::{EventMask, Mutex, WaitQueue};
use crate::vfs::OpenFile;

/// How many datagrams wait at the most (`net.unix.max_dgram_qlen`).
const DATAGRAMS_MAX: usize = 10;
/// Memory above this is given back once all is received.
const KEPT: usize = 16 << 10;

/// What goes along with a message's bytes.
pub struct Parcel {
    /// Who sends it.
    pub creds: Ucred,
    /// Descriptors.
    pub rights: Option<Rights>,
    /// The sender's address.
    pub(super) from: Option<Name>,
}

impl Parcel {
    /// Nothing but who sends it.
    pub fn new(creds: Ucred) -> Parcel {
        Parcel {
            creds,
            rights: None,
            from: None,
        }
    }
}

/// How bytes are put in.
#[derive(Clone, Copy)]
pub(super) struct Putting {
    /// All of them or none, with their end kept.
    pub(super) packet: bool,
    /// Whether the number of messages is bounded, too.
    pub(super) datagram: bool,
    /// How many bytes may wait.
    pub(super) limit: usize,
}

/// What came along with received bytes.
#[derive(Default)]
pub struct Received {
    /// Who sent the first of them.
    pub creds: Option<Ucred>,
    /// Who that is by address.
    pub from: Option<Name>,
    /// Descriptors.
    pub rights: Option<Rights>,
    /// A packet's real length.
    pub whole: usize,
    /// Nothing may be added to what was received: what follows came with something else.
    pub stop: bool,
}

/// A socket's inbox.
pub(super) struct Inbox {
    queue: Arc<WaitQueue>,
    state: Mutex<State, SocketInbox>,
}

#[derive(Default)]
struct State {
    bytes: VecDeque<u8>,
    marks: VecDeque<Mark>,
    /// Senders who found no room.
    starved: SmallVec<[Arc<WaitQueue>; 1]>,
    /// What there is room for, as the last of them saw it.
    limit: usize,
    datagrams: bool,
    shut: bool,
}

struct Mark {
    left: usize,
    parcel: Parcel,
}

impl State {
    fn full(&self, how: Putting) -> bool {
        self.bytes.len() >= how.limit || how.datagram && self.marks.len() > DATAGRAMS_MAX
    }

    fn starve(&mut self, how: Putting, sender: &Arc<WaitQueue>) {
        self.limit = how.limit;
        self.datagrams = how.datagram;
        if !self.starved.iter().any(|known| Arc::ptr_eq(known, sender)) {
            self.starved.push(Arc::clone(sender));
        }
    }

    /// Those who are to be told that there is room.
    fn fed(&mut self) -> SmallVec<[Arc<WaitQueue>; 1]> {
        if !self.starved.is_empty()
            && self.bytes.len() * 4 <= self.limit
            && (!self.datagrams || self.marks.len() <= DATAGRAMS_MAX)
        {
            core::mem::take(&mut self.starved)
        } else {
            SmallVec::new()
        }
    }

    /// Bytes from offset `at` on.
    fn copy(&self, at: usize, to: &mut [u8]) {
        let (front, back) = self.bytes.as_slices();
        let first = front.len().saturating_sub(at).min(to.len());
        if first > 0 {
            to[..first].copy_from_slice(&front[at..at + first]);
        }
        let rest = to.len() - first;
        if rest > 0 {
            let at = (at + first) - front.len();
            to[first..].copy_from_slice(&back[at..at + rest]);
        }
    }

    fn drop_front(&mut self, count: usize) {
        self.bytes.drain(..count);
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT {
            self.bytes = VecDeque::new();
        }
    }
}

impl Inbox {
    pub(super) fn new(queue: &Arc<WaitQueue>) -> Arc<Inbox> {
        Arc::new(Inbox {
            queue: Arc::clone(queue),
            state: Mutex::new(State {
                limit: super::BUFFER,
                ..State::default()
            }),
        })
    }

    /// Nothing more can be put in.
    pub(super) fn is_shut(&self) -> bool {
        self.state.lock().shut
    }

    /// How many bytes wait, and how many messages.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.bytes.len(), state.marks.len())
    }

    /// The length of the first message.
    pub(super) fn first(&self) -> usize {
        self.state.lock().marks.front().map_or(0, |mark| mark.left)
    }

    /// Whether there is room to send, as poll(2) tells it: some way before the last byte. A `sender` who finds none will be told.
    pub(super) fn writable(&self, how: Putting, sender: &Arc<WaitQueue>) -> bool {
        let mut state = self.state.lock();
        let room = state.bytes.len() * 4 <= how.limit && !state.full(how);
        if !room && !state.shut {
            state.starve(how, sender);
        }
        room
    }

    /// How many bytes can be put in at once; 0 is where a sender waits, and will be told. EPIPE.
    pub(super) fn room(&self, how: Putting, sender: &Arc<WaitQueue>) -> Result<usize, Errno> {
        let mut state = self.state.lock();
        if state.shut {
            return Err(Errno::EPIPE);
        }
        if state.full(how) {
            state.starve(how, sender);
            return Ok(0);
        }
        Ok(if how.packet {
            usize::MAX
        } else {
            how.limit - state.bytes.len()
        })
    }

    /// Puts bytes in, with what goes along (of which the descriptors are taken): EPIPE, EAGAIN where there is no room.
    pub(super) fn put(
        &self,
        from: &[u8],
        parcel: &mut Parcel,
        how: Putting,
        sender: &Arc<WaitQueue>,
    ) -> Result<usize, Errno> {
        let mut state = self.state.lock();
        if state.shut {
            return Err(Errno::EPIPE);
        }
        if state.full(how) {
            state.starve(how, sender);
            return Err(Errno::EAGAIN);
        }
        let count = if how.packet {
            from.len()
        } else {
            from.len().min(how.limit - state.bytes.len())
        };
        if count < from.len() {
            state.starve(how, sender);
        }
        state.bytes.extend(&from[..count]);
        let rights = parcel.rights.take();
        match state.marks.back_mut() {
            Some(last)
                if !how.packet
                    && rights.is_none()
                    && last.parcel.rights.is_none()
                    && last.parcel.creds == parcel.creds =>
            {
                last.left += count
            }
            _ => state.marks.push_back(Mark {
                left: count,
                parcel: Parcel {
                    creds: parcel.creds,
                    rights,
                    from: parcel.from.clone(),
                },
            }),
        }
        drop(state);
        self.queue.notify(EventMask::IN | EventMask::RDNORM);
        Ok(count)
    }

    /// Takes bytes of a stream out, or with `peek` only looks at those from that offset on. With `by_sender`, what it takes is from one
    /// sender. EAGAIN; 0 at the end.
    pub(super) fn take(
        &self,
        to: &mut [u8],
        peek: Option<usize>,
        by_sender: bool,
        received: &mut Received,
    ) -> Result<usize, Errno> {
        if received.stop {
            return Ok(0);
        }
        let mut state = self.state.lock();
        let mut skip = peek.unwrap_or(0);
        let mut done = 0;
        let mut at = 0;
        while done < to.len() {
            let Some(mark) = state.marks.get_mut(at) else {
                break;
            };
            if skip >= mark.left {
                skip -= mark.left;
                at += 1;
                continue;
            }
            if by_sender
                && received
                    .creds
                    .is_some_and(|creds| creds != mark.parcel.creds)
            {
                received.stop = true;
                break;
            }
            if received.creds.is_none() {
                received.creds = Some(mark.parcel.creds);
                received.from.clone_from(&mark.parcel.from);
            }
            let count = (mark.left - skip).min(to.len() - done);
            if mark.parcel.rights.is_some() {
                received.stop = true;
                received.rights = if peek.is_some() {
                    mark.parcel.rights.as_ref().map(Rights::duplicate)
                } else {
                    mark.parcel.rights.take()
                };
            }
            if peek.is_some() {
                let from = peek.unwrap_or(0) + done;
                state.copy(from, &mut to[done..done + count]);
                at += 1;
                skip = 0;
            } else {
                mark.left -= count;
                let empty = mark.left == 0;
                if empty {
                    state.marks.pop_front();
                }
                state.copy(0, &mut to[done..done + count]);
                state.drop_front(count);
            }
            done += count;
            if received.stop {
                break;
            }
        }
        if done == 0 {
            return if received.stop || state.shut {
                Ok(0)
            } else {
                Err(Errno::EAGAIN)
            };
        }
        let fed = state.fed();
        drop(state);
        tell(&fed);
        Ok(done)
    }

    /// Takes a packet out, or looks at it, up to `most` bytes of it; the rest of one that is taken is lost. EAGAIN; `None` at the end.
    pub(super) fn take_packet(
        &self,
        most: usize,
        peek: bool,
        received: &mut Received,
    ) -> Result<Option<SmallVec<[u8; 512]>>, Errno> {
        let mut state = self.state.lock();
        let Some(mark) = state.marks.front_mut() else {
            return if state.shut {
                Ok(None)
            } else {
                Err(Errno::EAGAIN)
            };
        };
        let whole = mark.left;
        received.whole = whole;
        received.creds = Some(mark.parcel.creds);
        received.from.clone_from(&mark.parcel.from);
        received.stop = true;
        received.rights = if peek {
            mark.parcel.rights.as_ref().map(Rights::duplicate)
        } else {
            mark.parcel.rights.take()
        };
        let mut packet = SmallVec::from_elem(0, whole.min(most));
        state.copy(0, &mut packet);
        let mut fed = SmallVec::new();
        if !peek {
            state.marks.pop_front();
            state.drop_front(whole);
            fed = state.fed();
        }
        drop(state);
        tell(&fed);
        Ok(Some(packet))
    }

    /// No more will be put in; who reads finds the end once all is received.
    pub(super) fn shut(&self) {
        let mut state = self.state.lock();
        state.shut = true;
        let fed = core::mem::take(&mut state.starved);
        drop(state);
        tell(&fed);
    }

    /// Drops all that waits, and lets nothing more in. Says whether there was anything.
    pub(super) fn close(&self) -> bool {
        let mut state = self.state.lock();
        state.shut = true;
        let fed = core::mem::take(&mut state.starved);
        let marks = core::mem::take(&mut state.marks);
        state.bytes = VecDeque::new();
        drop(state);
        tell(&fed);
        !marks.is_empty()
    }

    /// Tells of each file in flight here.
    pub(super) fn each_file(&self, tell: &mut dyn FnMut(&Arc<OpenFile>)) {
        let state = self.state.lock();
        for rights in state
            .marks
            .iter()
            .filter_map(|mark| mark.parcel.rights.as_ref())
        {
            rights.files().iter().for_each(&mut *tell);
        }
    }

    /// Takes all descriptors out, for them to be dropped.
    pub(super) fn strip(&self) -> Vec<Rights> {
        let mut state = self.state.lock();
        state
            .marks
            .iter_mut()
            .filter_map(|mark| mark.parcel.rights.take())
            .collect()
    }
}

fn tell(fed: &[Arc<WaitQueue>]) {
    for queue in fed {
        queue.notify(EventMask::OUT | EventMask::WRNORM | EventMask::WRBAND);
    }
}
