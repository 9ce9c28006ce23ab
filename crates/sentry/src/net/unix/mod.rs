//! UNIX sockets (unix(7)): streams, datagrams and sequenced packets between the tasks of a sandbox.
//!
//! A [`UnixSocket`] has an inbox, into which its peers put what they send, and one wait queue. Streams and sequenced packets are linked to one peer for
//! good; each direction is shut where its reader's inbox is. What is sent takes the inbox's lock alone.
//!
//! Lock classes: `SocketsInFlight`, `SocketState`, `SocketInbox`, `Leaf` for addresses. Not done: `SO_PEEK_OFF`, `SO_PEERSEC`, `MSG_OOB`, `SO_TIMESTAMP`.

mod address;
mod inbox;
mod options;
mod rights;

use core::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

use abi::Errno;
use abi::fs::OpenFlags;
use abi::net::{Ucred, sock};

pub use address::{Address, Given, Name};
pub use inbox::{Parcel, Received};
pub use options::Options;
pub use rights::Rights;

use crate::io::{GuestMemory, Sink, Source};
use crate::sync::order::{Leaf, SocketState, SocketsInFlight};
use crate::sync::{EventMask, Mutex, WaitQueue};
use crate::task::credentials::Credentials;
use crate::vfs::anon::AnonInode;
use crate::vfs::{FileOps, InodeKey, OpenFile, new_id};
use address::{Key, Names};
use inbox::{Inbox, Putting};
use rights::InFlight;

/// How much may wait in an inbox (`net.core.wmem_default`).
const BUFFER: usize = 212_992;
/// What of a sender's buffer a packet can't use.
const PACKET_HEAD: usize = 32;
/// Small transfers go through the caller's stack.
const SMALL: usize = 512;
/// `FIONREAD`, `SIOCOUTQ`.
const FIONREAD: u32 = 0x541b;
const SIOCOUTQ: u32 = 0x5411;
/// The most connections that wait to be accepted (`net.core.somaxconn`).
const BACKLOG_MAX: u32 = 4096;

/// What UNIX sockets of a network namespace share.
#[derive(Default)]
pub struct Space {
    names: Mutex<Names, Leaf>,
    in_flight: Mutex<InFlight, SocketsInFlight>,
}

/// A socket's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `SOCK_STREAM`
    Stream,
    /// `SOCK_DGRAM`
    Datagram,
    /// `SOCK_SEQPACKET`
    SeqPacket,
}

impl Kind {
    /// The type that socket(2) is asked for; ESOCKTNOSUPPORT.
    pub fn from_raw(raw: i32) -> Result<Kind, Errno> {
        match raw & sock::TYPE_MASK {
            sock::STREAM => Ok(Kind::Stream),
            sock::DGRAM | sock::RAW => Ok(Kind::Datagram),
            sock::SEQPACKET => Ok(Kind::SeqPacket),
            _ => Err(Errno::ESOCKTNOSUPPORT),
        }
    }

    /// Its number.
    pub const fn raw(self) -> i32 {
        match self {
            Kind::Stream => sock::STREAM,
            Kind::Datagram => sock::DGRAM,
            Kind::SeqPacket => sock::SEQPACKET,
        }
    }
}

/// Who a peer is (`SO_PEERCRED`, `SO_PEERGROUPS`).
#[derive(Clone, Debug)]
pub struct Identity {
    /// Process, user, group.
    pub creds: Ucred,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
}

impl Identity {
    /// A process that acts as this.
    pub fn new(pid: u32, creds: &Credentials) -> Identity {
        let creds_of = Ucred {
            pid: i32::try_from(pid).unwrap_or(0),
            uid: creds.uid.effective,
            gid: creds.gid.effective,
        };
        Identity {
            creds: creds_of,
            groups: Arc::clone(&creds.groups),
        }
    }
}

/// Which directions shutdown(2) ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Receiving.
    pub read: bool,
    /// Sending.
    pub write: bool,
}

/// What connect(2) came to.
pub enum Connecting {
    /// It is connected.
    Done,
    /// The backlog is full; this queue tells of room in it.
    Full(Arc<WaitQueue>),
}

/// A UNIX socket.
pub struct UnixSocket {
    id: u64,
    this: Weak<UnixSocket>,
    space: Arc<Space>,
    kind: Kind,
    owner: Identity,
    queue: Arc<WaitQueue>,
    inbox: Arc<Inbox>,
    name: Name,
    link: OnceLock<Link>,
    state: Mutex<State, SocketState>,
    /// The error that the next call is told of.
    error: AtomicU16,
    /// A datagram socket that sends no more.
    write_shut: AtomicBool,
    closed: AtomicBool,
    /// What setsockopt(2) has set.
    pub options: Options,
}

/// The other side of a stream.
struct Link {
    peer: Weak<UnixSocket>,
    inbox: Arc<Inbox>,
    name: Name,
    identity: Identity,
}

#[derive(Default)]
struct State {
    listening: Option<Listening>,
    /// Where a datagram socket sends to by default, and who that is where a pair was made.
    peer: Option<(Weak<UnixSocket>, Option<Identity>)>,
    key: Option<Key>,
    closed: bool,
}

struct Listening {
    backlog: usize,
    pending: VecDeque<Arc<UnixSocket>>,
    identity: Identity,
}

impl UnixSocket {
    /// socket(2).
    pub fn new(space: &Arc<Space>, kind: Kind, owner: Identity) -> Arc<UnixSocket> {
        UnixSocket::make(space, kind, owner, Name::default())
    }

    fn make(space: &Arc<Space>, kind: Kind, owner: Identity, name: Name) -> Arc<UnixSocket> {
        let queue = Arc::new(WaitQueue::new());
        Arc::new_cyclic(|this| UnixSocket {
            id: new_id(),
            this: Weak::clone(this),
            space: Arc::clone(space),
            kind,
            owner,
            inbox: Inbox::new(&queue),
            queue,
            name,
            link: OnceLock::new(),
            state: Mutex::new(State::default()),
            error: AtomicU16::new(0),
            write_shut: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            options: Options::default(),
        })
    }

    /// socketpair(2).
    pub fn pair(
        space: &Arc<Space>,
        kind: Kind,
        owner: &Identity,
    ) -> (Arc<UnixSocket>, Arc<UnixSocket>) {
        let a = UnixSocket::new(space, kind, owner.clone());
        let b = UnixSocket::new(space, kind, owner.clone());
        for (from, to) in [(&a, &b), (&b, &a)] {
            if kind == Kind::Datagram {
                from.state.lock().peer = Some((Arc::downgrade(to), Some(owner.clone())));
            } else {
                let _ = from.link.set(to.link_to(owner.clone()));
            }
        }
        (a, b)
    }

    /// As an open file. `flags` may have `O_NONBLOCK`.
    pub fn open(self: &Arc<Self>, creds: &Credentials, flags: OpenFlags) -> Arc<OpenFile> {
        let inode = AnonInode::socket(creds.uid.fs, creds.gid.fs);
        OpenFile::anonymous(
            inode,
            Arc::clone(self) as _,
            flags & OpenFlags::NONBLOCK | OpenFlags::RDWR,
        )
    }

    fn link_to(&self, identity: Identity) -> Link {
        Link {
            peer: Weak::clone(&self.this),
            inbox: Arc::clone(&self.inbox),
            name: Arc::clone(&self.name),
            identity,
        }
    }

    /// Its identity.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its type.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What it shares with others.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Its address.
    pub fn address(&self) -> Option<&Address> {
        self.name.get()
    }

    /// Its peer's address; ENOTCONN.
    pub fn peer_name(&self) -> Result<Name, Errno> {
        if let Some(link) = self.link.get() {
            return Ok(Arc::clone(&link.name));
        }
        let peer = self
            .state
            .lock()
            .peer
            .as_ref()
            .map(|peer| Weak::clone(&peer.0))
            .ok_or(Errno::ENOTCONN)?;
        Ok(peer
            .upgrade()
            .map(|peer| Arc::clone(&peer.name))
            .unwrap_or_default())
    }

    /// Who its peer is.
    pub fn peer(&self) -> Option<Identity> {
        if let Some(link) = self.link.get() {
            return Some(link.identity.clone());
        }
        let state = self.state.lock();
        match &state.listening {
            Some(listening) => Some(listening.identity.clone()),
            None => state.peer.as_ref().and_then(|peer| peer.1.clone()),
        }
    }

    /// Whether it listens.
    pub fn is_listening(&self) -> bool {
        self.state.lock().listening.is_some()
    }

    /// The error that is pending, once (`SO_ERROR`).
    pub fn take_error(&self) -> Result<(), Errno> {
        if self.error.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        match self.error.swap(0, Ordering::Relaxed) {
            0 => Ok(()),
            code => Err(Errno::from_raw(i32::from(code)).unwrap_or(Errno::EIO)),
        }
    }

    fn fail(&self, error: Errno) {
        self.error
            .store(u16::try_from(error.raw()).unwrap_or(0), Ordering::Relaxed);
    }

    /// bind(2) to an inode that was made for it: EINVAL where it has an address.
    pub fn bind_file(&self, inode: InodeKey, path: &[u8]) -> Result<(), Errno> {
        self.bind(Key::File(inode), Address::path(path))
    }

    /// bind(2) to an abstract name: EADDRINUSE, EINVAL where it has an address.
    pub fn bind_abstract(&self, name: &[u8]) -> Result<(), Errno> {
        self.bind(
            Key::Abstract(self.kind, name.to_vec()),
            Address::abstract_name(name),
        )
    }

    /// bind(2) to any abstract name, unless it has an address.
    pub fn bind_any(&self) -> Result<(), Errno> {
        while self.name.get().is_none() {
            let name = self.space.names.lock().unused(self.kind)?;
            match self.bind_abstract(&name) {
                Err(Errno::EADDRINUSE) => {}
                Err(Errno::EINVAL) => break,
                result => return result,
            }
        }
        Ok(())
    }

    fn bind(&self, key: Key, address: Address) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if self.name.get().is_some() {
            return Err(Errno::EINVAL);
        }
        let mut names = self.space.names.lock();
        if !names.insert(key.clone(), &self.this) {
            return Err(Errno::EADDRINUSE);
        }
        drop(names);
        state.key = Some(key);
        let _ = self.name.set(address);
        Ok(())
    }

    /// listen(2): EOPNOTSUPP for datagrams, EINVAL without an address or with a peer.
    pub fn listen(&self, backlog: i32, identity: Identity) -> Result<(), Errno> {
        if self.kind == Kind::Datagram {
            return Err(Errno::EOPNOTSUPP);
        }
        // A negative backlog is a large one.
        let backlog = backlog.cast_unsigned().min(BACKLOG_MAX) as usize;
        let mut state = self.state.lock();
        if self.name.get().is_none() || self.link.get().is_some() {
            return Err(Errno::EINVAL);
        }
        match &mut state.listening {
            Some(listening) => {
                listening.backlog = backlog;
                listening.identity = identity;
            }
            None => {
                state.listening = Some(Listening {
                    backlog,
                    pending: VecDeque::new(),
                    identity,
                })
            }
        }
        drop(state);
        self.queue.notify(EventMask::OUT);
        Ok(())
    }

    /// accept(2): EINVAL where it does not listen, EAGAIN.
    pub fn accept(&self) -> Result<Arc<UnixSocket>, Errno> {
        let mut state = self.state.lock();
        if self.kind == Kind::Datagram {
            return Err(Errno::EOPNOTSUPP);
        }
        let listening = state.listening.as_mut().ok_or(Errno::EINVAL)?;
        if let Some(socket) = listening.pending.pop_front() {
            drop(state);
            self.queue.notify(EventMask::OUT);
            return Ok(socket);
        }
        if self.inbox.is_shut() {
            Err(Errno::EINVAL)
        } else {
            Err(Errno::EAGAIN)
        }
    }

    /// connect(2) of a stream: ECONNREFUSED where the other does not listen, EISCONN, EPROTOTYPE.
    pub fn connect(&self, to: &Arc<UnixSocket>, identity: &Identity) -> Result<Connecting, Errno> {
        if to.kind != self.kind {
            return Err(Errno::EPROTOTYPE);
        }
        if self.is_listening() {
            return Err(Errno::EINVAL);
        }
        if self.link.get().is_some() {
            return Err(Errno::EISCONN);
        }
        let accepted = UnixSocket::make(
            &self.space,
            self.kind,
            to.owner.clone(),
            Arc::clone(&to.name),
        );
        accepted.options.inherit(&to.options);
        let _ = accepted.link.set(self.link_to(identity.clone()));
        let mut state = to.state.lock();
        let shut = to.inbox.is_shut();
        let Some(listening) = state.listening.as_mut().filter(|_| !shut) else {
            drop(state);
            accepted.forget();
            return Err(Errno::ECONNREFUSED);
        };
        if listening.pending.len() > listening.backlog {
            drop(state);
            accepted.forget();
            return Ok(Connecting::Full(Arc::clone(&to.queue)));
        }
        if self
            .link
            .set(accepted.link_to(listening.identity.clone()))
            .is_err()
        {
            drop(state);
            accepted.forget();
            return Err(Errno::EISCONN);
        }
        listening.pending.push_back(accepted);
        drop(state);
        to.queue.notify(EventMask::IN | EventMask::RDNORM);
        self.queue.notify(EventMask::OUT | EventMask::WRNORM);
        Ok(Connecting::Done)
    }

    /// Nobody will ever have it: its end means nothing to whom it was linked to.
    fn forget(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// connect(2) of a datagram socket: whom it sends to by default and alone receives from; `None` ends that. EPERM where the other
    /// has another peer.
    pub fn connect_datagram(&self, to: Option<&Arc<UnixSocket>>) -> Result<(), Errno> {
        if let Some(to) = to {
            if to.kind != self.kind {
                return Err(Errno::EPROTOTYPE);
            }
            if !to.takes_from(self) {
                return Err(Errno::EPERM);
            }
        }
        let new = to.map(|to| (Arc::downgrade(to), None));
        let old = core::mem::replace(&mut self.state.lock().peer, new);
        drop(old);
        self.queue.notify(EventMask::OUT | EventMask::WRNORM);
        Ok(())
    }

    /// Whether a datagram socket receives from this one.
    fn takes_from(&self, from: &UnixSocket) -> bool {
        match &self.state.lock().peer {
            Some((peer, _)) => peer.ptr_eq(&from.this),
            None => true,
        }
    }

    /// The socket of the same type that an abstract name leads to; ECONNREFUSED.
    pub fn find_abstract(&self, name: &[u8]) -> Result<Arc<UnixSocket>, Errno> {
        self.space
            .names
            .lock()
            .get(&Key::Abstract(self.kind, name.to_vec()))
            .ok_or(Errno::ECONNREFUSED)
    }

    /// The socket that a socket's inode leads to; ECONNREFUSED.
    pub fn find_file(&self, inode: InodeKey) -> Result<Arc<UnixSocket>, Errno> {
        self.space
            .names
            .lock()
            .get(&Key::File(inode))
            .ok_or(Errno::ECONNREFUSED)
    }

    fn putting(&self) -> Putting {
        Putting {
            packet: self.kind != Kind::Stream,
            datagram: self.kind == Kind::Datagram,
            limit: self.options.send_buffer(),
        }
    }

    /// Sends: to its peer, or for a datagram to `to`. Of a stream, as much as there is room for. EAGAIN, EPIPE, ENOTCONN, EMSGSIZE and others.
    pub fn send(
        &self,
        from: &mut Source<'_>,
        parcel: &mut Parcel,
        to: Option<&Arc<UnixSocket>>,
    ) -> Result<usize, Errno> {
        let most = from.remaining();
        let how = self.putting();
        if how.packet && most > how.limit - PACKET_HEAD {
            return Err(Errno::EMSGSIZE);
        }
        if self.kind == Kind::Datagram {
            return self.send_datagram(from, parcel, to);
        }
        let Some(link) = self.link.get() else {
            return Err(Errno::ENOTCONN);
        };
        if most == 0 && !how.packet {
            return if link.inbox.is_shut() {
                Err(Errno::EPIPE)
            } else {
                Ok(0)
            };
        }
        self.put_into(&link.inbox, from, parcel, how)
    }

    fn send_datagram(
        &self,
        from: &mut Source<'_>,
        parcel: &mut Parcel,
        to: Option<&Arc<UnixSocket>>,
    ) -> Result<usize, Errno> {
        if self.write_shut.load(Ordering::Relaxed) {
            return Err(Errno::EPIPE);
        }
        self.take_error()?;
        let peer = match to {
            Some(to) => Arc::clone(to),
            None => {
                let peer = self
                    .state
                    .lock()
                    .peer
                    .as_ref()
                    .map(|peer| Weak::clone(&peer.0))
                    .ok_or(Errno::ENOTCONN)?;
                peer.upgrade()
                    .filter(|peer| !peer.closed.load(Ordering::Acquire))
                    .ok_or(Errno::ECONNREFUSED)?
            }
        };
        if peer.kind != self.kind {
            return Err(Errno::EPROTOTYPE);
        }
        if !peer.takes_from(self) {
            return Err(Errno::EPERM);
        }
        parcel.from = Some(Arc::clone(&self.name));
        match self.put_into(&peer.inbox, from, parcel, self.putting()) {
            Err(Errno::EPIPE) if peer.closed.load(Ordering::Acquire) => Err(Errno::ECONNREFUSED),
            result => result,
        }
    }

    fn put_into(
        &self,
        inbox: &Inbox,
        from: &mut Source<'_>,
        parcel: &mut Parcel,
        how: Putting,
    ) -> Result<usize, Errno> {
        let most = from.remaining();
        if most <= SMALL {
            let mut buffer = [0; SMALL];
            let got = from.read(&mut buffer[..most])?;
            if how.packet && got < most {
                return Err(Errno::EFAULT);
            }
            return inbox.put(&buffer[..got], parcel, how, &self.queue);
        }
        // Room is looked for before bytes are copied: a sender that waits would copy them each time it is woken.
        let room = inbox.room(how, &self.queue)?;
        if room == 0 {
            return Err(Errno::EAGAIN);
        }
        if how.packet {
            let mut packet = vec![0; most];
            if from.read(&mut packet)? < most {
                return Err(Errno::EFAULT);
            }
            return inbox.put(&packet, parcel, how, &self.queue);
        }
        from.drain(most, &mut |buffer, _| {
            inbox.put(buffer, parcel, how, &self.queue)
        })
    }

    /// Receives: of a stream what is there, of others one message. With `peek` it stays there. EAGAIN, ENOTCONN, ECONNRESET.
    pub fn receive(
        &self,
        to: &mut Sink<'_>,
        peek: bool,
        received: &mut Received,
    ) -> Result<usize, Errno> {
        if self.kind != Kind::Datagram && self.link.get().is_none() {
            return Err(if self.kind == Kind::Stream {
                Errno::EINVAL
            } else {
                Errno::ENOTCONN
            });
        }
        let most = to.remaining();
        if self.kind != Kind::Stream {
            let packet = match self.inbox.take_packet(most, peek, received) {
                Ok(packet) => packet,
                Err(error) => return Err(self.take_error().err().unwrap_or(error)),
            };
            return match packet {
                Some(packet) => to.write(&packet),
                None => self.take_error().map(|()| 0),
            };
        }
        if most == 0 {
            return Ok(0);
        }
        let by_sender = self.options.passes_credentials();
        let mut ended = false;
        let result = if most <= SMALL {
            let mut buffer = [0; SMALL];
            match self
                .inbox
                .take(&mut buffer[..most], peek.then_some(0), by_sender, received)
            {
                Ok(got) if got > 0 => return to.write(&buffer[..got]),
                result => result,
            }
        } else {
            to.fill(most, &mut |buffer, done| {
                let got = self
                    .inbox
                    .take(buffer, peek.then_some(done), by_sender, received)?;
                ended |= got == 0;
                Ok(got)
            })
        };
        match result {
            Ok(0) | Err(Errno::EAGAIN) => {
                self.take_error()?;
                if let Some(link) = self.link.get() {
                    received.from.get_or_insert_with(|| Arc::clone(&link.name));
                }
                result
            }
            result => result,
        }
    }

    /// shutdown(2); ENOTCONN is for other families.
    pub fn shutdown(&self, how: Shutdown) {
        if how.read {
            self.inbox.shut();
        }
        if how.write {
            match self.link.get() {
                Some(link) => link.inbox.shut(),
                None => self.write_shut.store(true, Ordering::Relaxed),
            }
        }
        let events =
            EventMask::IN | EventMask::OUT | EventMask::RDNORM | EventMask::RDHUP | EventMask::HUP;
        self.queue.notify(events);
        if let Some(peer) = self.link.get().and_then(|link| link.peer.upgrade()) {
            peer.queue.notify(events);
        }
    }

    /// Nobody has it any more: its peer finds the end.
    fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut state = self.state.lock();
        state.closed = true;
        let listening = state.listening.take();
        let peer = state.peer.take();
        let key = state.key.take();
        drop(state);
        drop(peer);
        if let Some(key) = key {
            self.space.names.lock().remove(&key);
        }
        let unread = self.inbox.close();
        if let Some(link) = self.link.get() {
            link.inbox.shut();
            if let Some(peer) = link.peer.upgrade() {
                if unread {
                    peer.fail(Errno::ECONNRESET);
                }
                peer.queue.notify(EventMask::all());
            }
        }
        for waiting in listening
            .into_iter()
            .flat_map(|listening| listening.pending)
        {
            if let Some(client) = waiting.link.get().and_then(|link| link.peer.upgrade()) {
                client.fail(Errno::ECONNRESET);
            }
            waiting.close();
        }
        self.queue.notify(EventMask::all());
    }

    /// Tells of its inbox, and of those of sockets that wait to be accepted.
    fn each_inbox(&self, tell: &mut dyn FnMut(&Inbox)) {
        tell(&self.inbox);
        let pending: Vec<Arc<Inbox>> = match &self.state.lock().listening {
            Some(listening) => listening
                .pending
                .iter()
                .map(|socket| Arc::clone(&socket.inbox))
                .collect(),
            None => Vec::new(),
        };
        for inbox in pending {
            tell(&inbox);
        }
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        self.close();
    }
}

impl FileOps for UnixSocket {
    fn read(&self, _file: &OpenFile, to: &mut Sink<'_>, _at: u64) -> Result<usize, Errno> {
        // What came along is let go.
        self.receive(to, false, &mut Received::default())
    }

    fn write(
        &self,
        _file: &OpenFile,
        from: &mut Source<'_>,
        _at: &mut u64,
        _append: bool,
    ) -> Result<usize, Errno> {
        self.send(from, &mut Parcel::new(self.owner.creds), None)
    }

    fn ioctl(
        &self,
        _file: &OpenFile,
        request: u32,
        arg: u64,
        memory: &dyn GuestMemory,
    ) -> Result<u64, Errno> {
        let count = match request {
            FIONREAD if self.kind == Kind::Datagram => self.inbox.first(),
            FIONREAD if self.is_listening() => return Err(Errno::EINVAL),
            FIONREAD => self.inbox.waiting().0,
            SIOCOUTQ => self.link.get().map_or(0, |link| link.inbox.waiting().0),
            _ => return Err(Errno::ENOTTY),
        };
        crate::fs::put(memory, arg, &i32::try_from(count).unwrap_or(i32::MAX))?;
        Ok(0)
    }

    fn poll(&self, _file: &OpenFile) -> EventMask {
        const READABLE: EventMask = EventMask::IN.union(EventMask::RDNORM);
        const WRITABLE: EventMask = EventMask::OUT
            .union(EventMask::WRNORM)
            .union(EventMask::WRBAND);
        let mut events = EventMask::empty();
        if self.error.load(Ordering::Relaxed) != 0 {
            events |= EventMask::ERR;
        }
        let ended = self.inbox.is_shut();
        if ended {
            events |= EventMask::RDHUP | READABLE;
        }
        if self.inbox.waiting().1 > 0 {
            events |= READABLE;
        }
        if let Some(link) = self.link.get() {
            if link.inbox.is_shut() {
                events |= WRITABLE;
                if ended {
                    events |= EventMask::HUP;
                }
            } else if link.inbox.writable(self.putting(), &self.queue) {
                events |= WRITABLE;
            }
            return events;
        }
        let state = self.state.lock();
        if let Some(listening) = &state.listening {
            if !listening.pending.is_empty() {
                events |= READABLE;
            }
            return events;
        }
        let peer = state.peer.as_ref().map(|peer| Weak::clone(&peer.0));
        drop(state);
        if self.kind != Kind::Datagram {
            // Never connected.
            return events | EventMask::HUP | WRITABLE;
        }
        if ended && self.write_shut.load(Ordering::Relaxed) {
            events |= EventMask::HUP;
        }
        match peer.and_then(|peer| peer.upgrade()) {
            Some(peer)
                if !peer.inbox.writable(self.putting(), &self.queue) && !peer.inbox.is_shut() =>
            {
                events
            }
            _ => events | WRITABLE,
        }
    }

    fn queue(&self) -> Option<&Arc<WaitQueue>> {
        Some(&self.queue)
    }

    fn release(&self, _file: &OpenFile) {
        self.close();
    }

    fn flush(&self, _file: &OpenFile) -> Result<(), Errno> {
        self.space.collect();
        Ok(())
    }
}

impl core::fmt::Debug for UnixSocket {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "UnixSocket({}, {:?})", self.id, self.kind)
    }
}
