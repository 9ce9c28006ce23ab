//! Messages: the calls that send to and receive from sockets, with what goes along (cmsg(3)).

use std::sync::Arc;

use abi::cap::Cap;
use abi::fs::Iovec;
use abi::net::{
    CMSG_HEAD, CONTROL_MAX, Cmsghdr, Mmsghdr, MsgFlags, Msghdr, SCM_CREDENTIALS, SCM_MAX_FD,
    SCM_RIGHTS, SOL_SOCKET, Ucred,
};
use abi::signal::{SI_USER, SigInfo, Signal};
use abi::time::Timespec;
use abi::{Errno, UserPtr, UserSlice};
use zerocopy::{FromBytes, IntoBytes};

use super::decode::Fd;
use super::io::{segments, skip};
use super::socket::{find, get, get_address, identity, until};
use crate::io::{Sink, Source};
use crate::net::unix::{Address, Kind, Parcel, Received, Rights, UnixSocket};
use crate::sync::EventMask;
use crate::task::{CallState, OnSignal, Resource, Step, Task, Wait};
use crate::time::{Clock, Deadline};
use crate::vfs::OpenFile;

/// The most messages of one call (`UIO_MAXIOV`).
const MESSAGES_MAX: u32 = 1024;
/// The most that one call moves (`MAX_RW_COUNT`).
const MAX_MOVE: usize = 0x7fff_f000;

/// What a call of this family works with.
struct Transfer<'a> {
    task: &'a Arc<Task>,
    file: &'a OpenFile,
    flags: MsgFlags,
    until: Option<Deadline>,
}

/// What one message came to.
enum Outcome {
    Done(usize),
    /// It waits, after this many bytes.
    Waits(usize),
}

impl Transfer<'_> {
    fn socket(&self) -> Result<&UnixSocket, Errno> {
        crate::net::of(self.file)
    }

    /// Whether it gives up rather than wait.
    fn is_over(&self) -> bool {
        !self.file.blocking()
            || self.flags.contains(MsgFlags::DONTWAIT)
            || self
                .until
                .is_some_and(|until| self.task.kernel.clocks().passed(until))
    }

    /// Waits, with what a signal makes of it: `partial` where something was moved, else it begins again.
    fn wait(&self, events: EventMask, partial: usize) -> Step {
        let Some(queue) = self.file.queue() else {
            return Step::Done(Err(Errno::EAGAIN));
        };
        let rule = match (partial, self.until) {
            (0, None) => OnSignal::Restart,
            (0, Some(_)) => OnSignal::Interrupt,
            (partial, _) => OnSignal::Partial(partial),
        };
        Step::Wait(Wait::on(queue, events).deadline(self.until).on_signal(rule))
    }

    /// Sends one message, of which `done` bytes are gone already. A stream's goes on until all of it is sent.
    fn send(&self, header: &Msghdr, segments: &[Iovec], mut done: usize) -> Result<Outcome, Errno> {
        let socket = self.socket()?;
        let result = self.prepare(socket, header).and_then(|(mut parcel, to)| {
            // What goes along went with the first bytes.
            if done > 0 {
                parcel.rights = None;
            }
            loop {
                let rest = skip(segments, done);
                let mm = self.task.mm();
                let mut source = Source::guest(mm.as_ref(), &rest);
                let left = source.remaining();
                let sent = socket.send(&mut source, &mut parcel, to.as_ref())?;
                done += sent;
                if sent >= left || sent == 0 || socket.kind() != Kind::Stream {
                    return Ok(Outcome::Done(done));
                }
            }
        });
        match result {
            Err(Errno::EAGAIN) if !self.is_over() => Ok(Outcome::Waits(done)),
            Err(_) if done > 0 => Ok(Outcome::Done(done)),
            Err(Errno::EPIPE) => {
                if !self.flags.contains(MsgFlags::NOSIGNAL) && socket.kind() != Kind::Datagram {
                    let sender = self.task.creds().uid.real;
                    // The thread itself is alive to take it.
                    let _ = self.task.send(SigInfo::sent_by(
                        Signal::SIGPIPE,
                        SI_USER,
                        self.task.process.pid,
                        sender,
                    ));
                }
                Err(Errno::EPIPE)
            }
            result => result,
        }
    }

    /// What goes along with a message, and where it goes.
    fn prepare(
        &self,
        socket: &UnixSocket,
        header: &Msghdr,
    ) -> Result<(Parcel, Option<Arc<UnixSocket>>), Errno> {
        if self.flags.contains(MsgFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut parcel = Parcel::new(identity(self.task).creds);
        if header.control != 0 && header.control_len > 0 {
            self.control(socket, header, &mut parcel)?;
        }
        let mut to = None;
        if header.name != 0 && header.name_len > 0 {
            match socket.kind() {
                Kind::Stream => {
                    return Err(if socket.peer_name().is_ok() {
                        Errno::EISCONN
                    } else {
                        Errno::EOPNOTSUPP
                    });
                }
                Kind::SeqPacket => {}
                Kind::Datagram => {
                    let len = i32::try_from(header.name_len).map_err(|_| Errno::EINVAL)?;
                    to = Some(find(
                        self.task,
                        socket,
                        &get_address(self.task, header.name, len)?,
                    )?);
                }
            }
        }
        if socket.kind() == Kind::Datagram && socket.options.passes_credentials() {
            socket.bind_any()?;
        }
        Ok((parcel, to))
    }

    /// Reads ancillary data: EINVAL where it is malformed, EPERM for somebody else's credentials, EBADF, ETOOMANYREFS.
    fn control(
        &self,
        socket: &UnixSocket,
        header: &Msghdr,
        parcel: &mut Parcel,
    ) -> Result<(), Errno> {
        let len = usize::try_from(header.control_len)
            .ok()
            .filter(|len| *len <= CONTROL_MAX)
            .ok_or(Errno::ENOBUFS)?;
        let bytes = self.task.mm().get_bytes(UserSlice {
            addr: header.control,
            len,
        })?;
        let mut rest = &bytes[..];
        let mut files = Vec::new();
        while let Ok((head, _)) = Cmsghdr::read_from_prefix(rest) {
            let len = usize::try_from(head.len)
                .ok()
                .filter(|len| (CMSG_HEAD..=rest.len()).contains(len))
                .ok_or(Errno::EINVAL)?;
            let data = &rest[CMSG_HEAD..len];
            rest = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
            if head.level != SOL_SOCKET {
                continue;
            }
            match head.kind {
                SCM_RIGHTS => {
                    let table = self.task.files();
                    for number in data.as_chunks::<4>().0 {
                        // The place alone (O_PATH) can be sent as well.
                        files.push(table.get(i32::from_ne_bytes(*number))?);
                    }
                    if files.len() > SCM_MAX_FD {
                        return Err(Errno::EINVAL);
                    }
                }
                SCM_CREDENTIALS => {
                    let creds = Ucred::read_from_bytes(data).map_err(|_| Errno::EINVAL)?;
                    self.may_claim(creds)?;
                    parcel.creds = creds;
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        if !files.is_empty() {
            let creds = self.task.creds();
            let unlimited = creds.has(Cap::SYS_RESOURCE) || creds.has(Cap::SYS_ADMIN);
            let limit = if unlimited {
                u64::MAX
            } else {
                self.task.limit(Resource::Nofile)
            };
            parcel.rights = Some(Rights::new(socket.space(), files, creds.uid.real, limit)?);
        }
        Ok(())
    }

    /// Whether the task may send these credentials (unix(7)): EPERM, ESRCH.
    fn may_claim(&self, claimed: Ucred) -> Result<(), Errno> {
        let creds = self.task.creds();
        let own = i32::try_from(self.task.process.pid) == Ok(claimed.pid);
        if !own && !creds.has(Cap::SYS_ADMIN)
            || !creds.uid.has(claimed.uid) && !creds.has(Cap::SETUID)
            || !creds.gid.has(claimed.gid) && !creds.has(Cap::SETGID)
        {
            return Err(Errno::EPERM);
        }
        let pid = u32::try_from(claimed.pid).map_err(|_| Errno::ESRCH)?;
        if own || self.task.tree().lock().tasks.contains_key(&pid) {
            Ok(())
        } else {
            Err(Errno::ESRCH)
        }
    }

    /// Receives one message, of which `done` bytes are there already.
    fn receive(
        &self,
        header: &mut Msghdr,
        segments: &[Iovec],
        done: usize,
    ) -> Result<Outcome, Errno> {
        let socket = self.socket()?;
        if self.flags.contains(MsgFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let rest = skip(segments, done);
        let mm = self.task.mm();
        let mut sink = Sink::guest(mm.as_ref(), &rest);
        let room = sink.remaining();
        let mut received = Received::default();
        let result = socket.receive(
            &mut sink,
            self.flags.contains(MsgFlags::PEEK),
            &mut received,
        );
        let got = match result {
            Ok(got) => got,
            Err(Errno::EAGAIN) if !self.is_over() => return Ok(Outcome::Waits(done)),
            Err(_) if done > 0 => 0,
            Err(error) => return Err(error),
        };
        let all = self.flags.contains(MsgFlags::WAITALL)
            && !self.flags.contains(MsgFlags::PEEK)
            && socket.kind() == Kind::Stream;
        if all && got > 0 && got < room && !received.stop && !self.is_over() {
            return Ok(Outcome::Waits(done + got));
        }
        let mut told = done + got;
        header.flags = (self.flags & MsgFlags::CMSG_CLOEXEC).bits();
        if socket.kind() != Kind::Stream && received.whole > room {
            header.flags |= MsgFlags::TRUNC.bits();
            if self.flags.contains(MsgFlags::TRUNC) {
                told = received.whole;
            }
        }
        if header.name != 0 {
            self.put_name(header, received.from.as_ref().and_then(|name| name.get()))?;
        }
        self.put_control(socket, header, received)?;
        Ok(Outcome::Done(told))
    }

    /// Writes the sender's address; without one its length is 0.
    fn put_name(&self, header: &mut Msghdr, name: Option<&Address>) -> Result<(), Errno> {
        let address = if name.is_some() {
            Address::to_bytes(name)
        } else {
            Vec::new()
        };
        if i32::try_from(header.name_len).is_err() {
            return Err(Errno::EINVAL);
        }
        let count = address.len().min(header.name_len as usize);
        self.task.mm().write(header.name, &address[..count])?;
        header.name_len = u32::try_from(address.len()).unwrap_or(u32::MAX);
        Ok(())
    }

    /// Writes what came along; what does not fit is dropped, and `MSG_CTRUNC` says so.
    fn put_control(
        &self,
        socket: &UnixSocket,
        header: &mut Msghdr,
        received: Received,
    ) -> Result<(), Errno> {
        let room = if header.control == 0 {
            0
        } else {
            usize::try_from(header.control_len)
                .unwrap_or(usize::MAX)
                .min(CONTROL_MAX)
        };
        let mut control: Vec<u8> = Vec::new();
        if let Some(creds) = received
            .creds
            .filter(|_| socket.options.passes_credentials())
        {
            put_piece(
                &mut control,
                room,
                SCM_CREDENTIALS,
                creds.as_bytes(),
                &mut header.flags,
            );
        }
        if let Some(rights) = received.rights {
            let files = rights.receive();
            let fit = room.saturating_sub(control.len() + CMSG_HEAD) / size_of::<i32>();
            let table = self.task.files();
            let cloexec = self.flags.contains(MsgFlags::CMSG_CLOEXEC);
            let limit = self.task.limit(Resource::Nofile);
            let mut numbers: Vec<u8> = Vec::new();
            let count = files.len();
            for file in files.into_iter().take(fit) {
                let Ok(fd) = table.insert(file, cloexec, 0, limit) else {
                    break;
                };
                numbers.extend(fd.to_ne_bytes());
            }
            if numbers.len() < count * size_of::<i32>() {
                header.flags |= MsgFlags::CTRUNC.bits();
            }
            if !numbers.is_empty() {
                put_piece(&mut control, room, SCM_RIGHTS, &numbers, &mut header.flags);
            }
        }
        if !control.is_empty() {
            self.task.mm().write(header.control, &control)?;
        }
        header.control_len = control.len() as u64;
        Ok(())
    }
}

/// Adds a piece of ancillary data, cut where there is no room for all of it.
fn put_piece(control: &mut Vec<u8>, room: usize, kind: i32, data: &[u8], flags: &mut u32) {
    let left = room.saturating_sub(control.len());
    if left < CMSG_HEAD {
        *flags |= MsgFlags::CTRUNC.bits();
        return;
    }
    let len = CMSG_HEAD + data.len();
    let cut = len.min(left);
    if cut < len {
        *flags |= MsgFlags::CTRUNC.bits();
    }
    control.extend_from_slice(
        Cmsghdr {
            len: cut as u64,
            level: SOL_SOCKET,
            kind,
        }
        .as_bytes(),
    );
    control.extend_from_slice(&data[..cut - CMSG_HEAD]);
    let padded = control.len().next_multiple_of(8).min(room);
    control.resize(padded.max(control.len()), 0);
}

/// Where a call that was here before goes on: messages and bytes that are done.
fn progress(state: &CallState) -> (usize, usize) {
    match state {
        CallState::Transfer {
            messages, bytes, ..
        } => (*messages, *bytes),
        _ => (0, 0),
    }
}

fn send_one(
    task: &Arc<Task>,
    fd: Fd,
    header: &Msghdr,
    segments: &[Iovec],
    flags: u32,
    state: &mut CallState,
) -> Result<Step, Errno> {
    let file = get(task, fd)?;
    let until = until(task, state, crate::net::of(&file)?.options.send_timeout());
    let transfer = Transfer {
        task,
        file: &file,
        flags: MsgFlags::from_bits_retain(flags),
        until,
    };
    Ok(match transfer.send(header, segments, progress(state).1)? {
        Outcome::Done(done) => Step::Done(Ok(done)),
        Outcome::Waits(bytes) => {
            *state = CallState::Transfer {
                messages: 0,
                bytes,
                until,
            };
            transfer.wait(EventMask::OUT, bytes)
        }
    })
}

/// Receives one message; `finish` writes back what the call's header is to say.
fn receive_one(
    task: &Arc<Task>,
    fd: Fd,
    header: &mut Msghdr,
    segments: &[Iovec],
    flags: u32,
    state: &mut CallState,
    finish: &dyn Fn(&Msghdr) -> Result<(), Errno>,
) -> Result<Step, Errno> {
    let file = get(task, fd)?;
    let until = until(
        task,
        state,
        crate::net::of(&file)?.options.receive_timeout(),
    );
    let transfer = Transfer {
        task,
        file: &file,
        flags: MsgFlags::from_bits_retain(flags),
        until,
    };
    Ok(
        match transfer.receive(header, segments, progress(state).1)? {
            Outcome::Done(done) => {
                finish(header)?;
                Step::Done(Ok(done))
            }
            Outcome::Waits(bytes) => {
                *state = CallState::Transfer {
                    messages: 0,
                    bytes,
                    until,
                };
                transfer.wait(EventMask::IN, bytes)
            }
        },
    )
}

fn or_error(step: Result<Step, Errno>) -> Step {
    step.unwrap_or_else(|error| Step::Done(Err(error)))
}

fn buffer(addr: u64, len: usize) -> [Iovec; 1] {
    [Iovec {
        base: addr,
        len: len.min(MAX_MOVE) as u64,
    }]
}

/// read(2) and its kin of a socket: as recvmsg(2) of the bytes alone. `waits` says whether it may.
pub(super) fn read(
    task: &Arc<Task>,
    fd: Fd,
    segments: &[Iovec],
    waits: bool,
    state: &mut CallState,
) -> Step {
    let flags = plain(waits);
    let header = &mut Msghdr::default();
    or_error(receive_one(
        task,
        fd,
        header,
        segments,
        flags,
        state,
        &|_| Ok(()),
    ))
}

/// write(2) and its kin of a socket: as sendmsg(2) of the bytes alone. `waits` says whether it may.
pub(super) fn write(
    task: &Arc<Task>,
    fd: Fd,
    segments: &[Iovec],
    waits: bool,
    state: &mut CallState,
) -> Step {
    let flags = plain(waits);
    or_error(send_one(
        task,
        fd,
        &Msghdr::default(),
        segments,
        flags,
        state,
    ))
}

fn plain(waits: bool) -> u32 {
    if waits { 0 } else { MsgFlags::DONTWAIT.bits() }
}

pub(super) fn sendto(
    task: &Arc<Task>,
    fd: Fd,
    from: u64,
    len: usize,
    flags: u32,
    address: u64,
    address_len: i32,
    state: &mut CallState,
) -> Step {
    let name_len = if address == 0 { 0 } else { address_len };
    let Ok(name_len) = u32::try_from(name_len) else {
        return Step::Done(Err(Errno::EINVAL));
    };
    let header = Msghdr {
        name: address,
        name_len,
        ..Msghdr::default()
    };
    or_error(send_one(
        task,
        fd,
        &header,
        &buffer(from, len),
        flags,
        state,
    ))
}

pub(super) fn recvfrom(
    task: &Arc<Task>,
    fd: Fd,
    to: u64,
    len: usize,
    flags: u32,
    address: u64,
    address_len: UserPtr<i32>,
    state: &mut CallState,
) -> Step {
    let mm = task.mm();
    let name_len = if address == 0 {
        Ok(0)
    } else {
        mm.get(address_len)
            .and_then(|len| u32::try_from(len).map_err(|_| Errno::EINVAL))
    };
    let name_len = match name_len {
        Ok(len) => len,
        Err(error) => return Step::Done(Err(error)),
    };
    let mut header = Msghdr {
        name: address,
        name_len,
        ..Msghdr::default()
    };
    or_error(receive_one(
        task,
        fd,
        &mut header,
        &buffer(to, len),
        flags,
        state,
        &|header| {
            if address == 0 {
                Ok(())
            } else {
                mm.put(address_len, &header.name_len.cast_signed())
            }
        },
    ))
}

/// A message's header, checked, with its segments.
fn get_header(task: &Task, at: UserPtr<Msghdr>) -> Result<(Msghdr, Vec<Iovec>), Errno> {
    let mm = task.mm();
    let mut header: Msghdr = mm.get(at)?;
    if header.name == 0 {
        header.name_len = 0;
    }
    if i32::try_from(header.name_len).is_err() {
        return Err(Errno::EINVAL);
    }
    let count = usize::try_from(header.iov_len).map_err(|_| Errno::EMSGSIZE)?;
    if count > MESSAGES_MAX as usize {
        return Err(Errno::EMSGSIZE);
    }
    let segments = segments(&mm, UserPtr::new(header.iov), count)?;
    Ok((header, segments))
}

/// Writes back what recvmsg(2) changes of a header.
fn put_header(task: &Task, at: UserPtr<Msghdr>, header: &Msghdr) -> Result<(), Errno> {
    task.mm().put(at, header)
}

pub(super) fn sendmsg(
    task: &Arc<Task>,
    fd: Fd,
    at: UserPtr<Msghdr>,
    flags: u32,
    state: &mut CallState,
) -> Step {
    or_error(
        get_header(task, at)
            .and_then(|(header, segments)| send_one(task, fd, &header, &segments, flags, state)),
    )
}

pub(super) fn recvmsg(
    task: &Arc<Task>,
    fd: Fd,
    at: UserPtr<Msghdr>,
    flags: u32,
    state: &mut CallState,
) -> Step {
    or_error(get_header(task, at).and_then(|(mut header, segments)| {
        let name = header.name;
        receive_one(task, fd, &mut header, &segments, flags, state, &|header| {
            let mut header = *header;
            if name == 0 {
                header.name_len = 0;
            }
            put_header(task, at, &header)
        })
    }))
}

/// The place of message `index` of a vector.
fn message_at(vector: UserPtr<Mmsghdr>, index: usize) -> UserPtr<Mmsghdr> {
    UserPtr::new(
        vector
            .addr()
            .wrapping_add((index * size_of::<Mmsghdr>()) as u64),
    )
}

fn put_len(task: &Task, at: UserPtr<Mmsghdr>, len: usize) -> Result<(), Errno> {
    let addr = at.addr().wrapping_add(size_of::<Msghdr>() as u64);
    task.mm()
        .put(UserPtr::new(addr), &u32::try_from(len).unwrap_or(u32::MAX))
}

/// Moves messages one after another: what was done counts, and an error only where nothing was.
fn each(
    count: u32,
    state: &mut CallState,
    until: Option<Deadline>,
    mut one: impl FnMut(usize, usize) -> Result<Outcome, Errno>,
    wait: impl FnOnce(usize) -> Step,
    first_only: bool,
) -> Step {
    let (mut messages, mut bytes) = progress(state);
    while messages < count.min(MESSAGES_MAX) as usize {
        match one(messages, bytes) {
            Ok(Outcome::Done(_)) => {
                messages += 1;
                bytes = 0;
            }
            Ok(Outcome::Waits(_)) if first_only && messages > 0 => break,
            Ok(Outcome::Waits(done)) => {
                *state = CallState::Transfer {
                    messages,
                    bytes: done,
                    until,
                };
                return wait(messages);
            }
            Err(_) if messages > 0 => break,
            Err(error) => return Step::Done(Err(error)),
        }
    }
    Step::Done(Ok(messages))
}

pub(super) fn sendmmsg(
    task: &Arc<Task>,
    fd: Fd,
    vector: UserPtr<Mmsghdr>,
    count: u32,
    flags: u32,
    state: &mut CallState,
) -> Step {
    or_error(get(task, fd).and_then(|file| {
        let until = until(task, state, crate::net::of(&file)?.options.send_timeout());
        let transfer = Transfer {
            task,
            file: &file,
            flags: MsgFlags::from_bits_retain(flags),
            until,
        };
        let one = |index, done| {
            let at = message_at(vector, index);
            let (header, segments) = get_header(task, at.cast())?;
            let outcome = transfer.send(&header, &segments, done)?;
            if let Outcome::Done(len) = outcome {
                put_len(task, at, len)?;
            }
            Ok(outcome)
        };
        Ok(each(
            count,
            state,
            until,
            one,
            |done| transfer.wait(EventMask::OUT, done),
            false,
        ))
    }))
}

pub(super) fn recvmmsg(
    task: &Arc<Task>,
    fd: Fd,
    vector: UserPtr<Mmsghdr>,
    count: u32,
    flags: u32,
    timeout: UserPtr<Timespec>,
    state: &mut CallState,
) -> Step {
    or_error(get(task, fd).and_then(|file| {
        let socket = crate::net::of(&file)?;
        let limit = match timeout.non_null() {
            Some(timeout) => Some(task.mm().get(timeout)?.to_nanos().ok_or(Errno::EINVAL)?),
            None => None,
        };
        let until = match (state.is_new(), limit) {
            // The call's own limit is looked at between messages only (recvmmsg(2)); here it also ends a wait.
            (true, Some(nanos)) => Some(task.kernel.clocks().after(Clock::Monotonic, nanos)),
            _ => until(task, state, socket.options.receive_timeout()),
        };
        let flags = MsgFlags::from_bits_retain(flags);
        let transfer = Transfer {
            task,
            file: &file,
            flags,
            until,
        };
        let one = |index, done| {
            let at = message_at(vector, index);
            let (mut header, segments) = get_header(task, at.cast())?;
            let outcome = transfer.receive(&mut header, &segments, done)?;
            if let Outcome::Done(len) = outcome {
                put_header(task, at.cast(), &header)?;
                put_len(task, at, len)?;
            }
            Ok(outcome)
        };
        Ok(each(
            count,
            state,
            until,
            one,
            |done| transfer.wait(EventMask::IN, done),
            flags.contains(MsgFlags::WAITFORONE),
        ))
    }))
}
