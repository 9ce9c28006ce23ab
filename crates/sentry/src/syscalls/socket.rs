//! Sockets: making them, names and connections, options. Messages are in [`super::message`].

use std::sync::Arc;

use abi::fs::OpenFlags;
use abi::net::{AF_MAX, AF_UNIX, Ucred, so, sock};
use abi::time::Timeval;
use abi::{Errno, UserPtr, UserSlice};

use super::decode::Fd;
use super::message;
use super::table::rows;
use crate::net::unix::{Address, Connecting, Given, Identity, Kind, Shutdown, UnixSocket};
use crate::sync::EventMask;
use crate::task::{CallState, OnSignal, Resource, Step, Task, Wait};
use crate::time::{Clock, Deadline};
use crate::vfs::{OpenFile, PathCx};

rows! {
    socket => partial (self::socket) ("AF_UNIX alone");
    socketpair => partial (self::socketpair) ("AF_UNIX alone");
    bind => full (self::bind);
    listen => full (self::listen);
    accept => full (self::accept);
    accept4 => full (self::accept4);
    connect => full (self::connect);
    shutdown => full (self::shutdown);
    getsockname => full (self::getsockname);
    getpeername => full (self::getpeername);
    getsockopt => partial (self::getsockopt) ("SOL_SOCKET, without SO_PEERSEC, SO_PEERPIDFD, SO_PEEK_OFF");
    setsockopt => partial (self::setsockopt) ("SOL_SOCKET; no packet filters");
    sendto => full (message::sendto);
    recvfrom => full (message::recvfrom);
    sendmsg => full (message::sendmsg);
    recvmsg => full (message::recvmsg);
    sendmmsg => full (message::sendmmsg);
    recvmmsg => full (message::recvmmsg);
}

/// The longest address (`sizeof(struct sockaddr_storage)`).
const ADDRESS_MAX: i32 = 128;

/// The file of a socket's descriptor: EBADF, ENOTSOCK.
pub(super) fn get(task: &Arc<Task>, fd: Fd) -> Result<Arc<OpenFile>, Errno> {
    let file = task.files().get_file(fd.0)?;
    crate::net::of(&file)?;
    Ok(file)
}

/// Who a task is to its peers.
pub(super) fn identity(task: &Task) -> Identity {
    Identity::new(task.process.pid, &task.creds())
}

/// Copies an address in: EINVAL for an impossible length.
pub(super) fn get_address(task: &Task, from: u64, len: i32) -> Result<Vec<u8>, Errno> {
    if !(0..=ADDRESS_MAX).contains(&len) {
        return Err(Errno::EINVAL);
    }
    task.mm().get_bytes(UserSlice {
        addr: from,
        len: len.unsigned_abs() as usize,
    })
}

/// Copies an address out as far as there is room, and says how long it is (accept(2)).
fn put_address(task: &Task, to: u64, len: UserPtr<i32>, address: &[u8]) -> Result<(), Errno> {
    let mm = task.mm();
    let room = usize::try_from(mm.get(len)?).map_err(|_| Errno::EINVAL)?;
    mm.write(to, &address[..address.len().min(room)])?;
    mm.put(len, &i32::try_from(address.len()).unwrap_or(i32::MAX))
}

/// When a call on a socket that has a timeout gives up; kept in the call's state.
pub(super) fn until(task: &Task, state: &CallState, timeout: Option<i64>) -> Option<Deadline> {
    match state {
        CallState::Transfer { until, .. } => *until,
        _ => timeout.map(|nanos| task.kernel.clocks().after(Clock::Monotonic, nanos)),
    }
}

/// A wait for a socket: EAGAIN once its time is over.
pub(super) fn wait(task: &Task, wait: Wait, until: Option<Deadline>) -> Step {
    if until.is_some_and(|until| task.kernel.clocks().passed(until)) {
        return Step::Done(Err(Errno::EAGAIN));
    }
    // A call with a time limit is not begun again (signal(7)).
    let rule = if until.is_some() {
        OnSignal::Interrupt
    } else {
        OnSignal::Restart
    };
    Step::Wait(wait.deadline(until).on_signal(rule))
}

/// The type and flags that a call is asked for: EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT, EINVAL.
fn asked(
    task: &Task,
    family: i32,
    kind: i32,
    protocol: i32,
) -> Result<(Kind, OpenFlags, bool), Errno> {
    if kind & !(sock::TYPE_MASK | sock::NONBLOCK | sock::CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    if family != i32::from(AF_UNIX) {
        if (0..AF_MAX).contains(&family) {
            task.kernel.log_family(family);
        }
        return Err(Errno::EAFNOSUPPORT);
    }
    if protocol != 0 && protocol != i32::from(AF_UNIX) {
        return Err(Errno::EPROTONOSUPPORT);
    }
    let flags = if kind & sock::NONBLOCK != 0 {
        OpenFlags::NONBLOCK
    } else {
        OpenFlags::empty()
    };
    Ok((Kind::from_raw(kind)?, flags, kind & sock::CLOEXEC != 0))
}

fn socket(task: &Arc<Task>, family: i32, kind: i32, protocol: i32) -> Result<i32, Errno> {
    let (kind, flags, cloexec) = asked(task, family, kind, protocol)?;
    let file = UnixSocket::new(task.namespaces().net.unix(), kind, identity(task))
        .open(&task.creds(), flags);
    task.files()
        .insert(file, cloexec, 0, task.limit(Resource::Nofile))
}

fn socketpair(
    task: &Arc<Task>,
    family: i32,
    kind: i32,
    protocol: i32,
    to: UserPtr<[i32; 2]>,
) -> Result<(), Errno> {
    let (kind, flags, cloexec) = asked(task, family, kind, protocol)?;
    let files = task.files();
    let limit = task.limit(Resource::Nofile);
    let (first, second) = (files.reserve(limit)?, files.reserve(limit)?);
    task.mm().put(to, &[first.fd(), second.fd()])?;
    let creds = task.creds();
    let (a, b) = UnixSocket::pair(task.namespaces().net.unix(), kind, &identity(task));
    first.fill(a.open(&creds, flags), cloexec);
    second.fill(b.open(&creds, flags), cloexec);
    Ok(())
}

/// Runs `with` with the context that an address's path is walked in.
fn at_path<R>(task: &Task, with: impl FnOnce(&PathCx<'_>) -> Result<R, Errno>) -> Result<R, Errno> {
    let (fs, creds) = (task.fs(), task.creds());
    with(&PathCx {
        fs: &fs,
        creds: &creds,
        dirfd: None,
    })
}

fn bind(task: &Arc<Task>, fd: Fd, address: u64, len: i32) -> Result<(), Errno> {
    let file = get(task, fd)?;
    let socket = crate::net::of(&file)?;
    match Given::parse(&get_address(task, address, len)?)? {
        Given::Unnamed => socket.bind_any(),
        Given::Abstract(name) => socket.bind_abstract(&name),
        Given::Path(path) => {
            let made = at_path(task, |cx| task.vfs().bind_socket(cx, &path, 0o777))?;
            let bound = socket.bind_file(made.key(), &path);
            if bound.is_err() {
                // The file comes first (bind(2) says EADDRINUSE rather than EINVAL), and goes again where the socket had an address.
                let _ = at_path(task, |cx| task.vfs().unlink(cx, &path));
            }
            bound
        }
    }
}

fn listen(task: &Arc<Task>, fd: Fd, backlog: i32) -> Result<(), Errno> {
    let file = get(task, fd)?;
    crate::net::of(&file)?.listen(backlog, identity(task))
}

fn accept(task: &Arc<Task>, fd: Fd, to: u64, len: UserPtr<i32>, state: &mut CallState) -> Step {
    accept4(task, fd, to, len, 0, state)
}

fn accept4(
    task: &Arc<Task>,
    fd: Fd,
    to: u64,
    len: UserPtr<i32>,
    flags: i32,
    state: &mut CallState,
) -> Step {
    if flags & !(sock::NONBLOCK | sock::CLOEXEC) != 0 {
        return Step::Done(Err(Errno::EINVAL));
    }
    let file = match get(task, fd) {
        Ok(file) => file,
        Err(error) => return Step::Done(Err(error)),
    };
    Step::Done(match accept_one(task, &file, to, len, flags) {
        Err(Errno::EAGAIN) if file.blocking() => {
            let Some((queue, timeout)) = file.queue().zip(
                crate::net::of(&file)
                    .ok()
                    .map(|socket| socket.options.receive_timeout()),
            ) else {
                return Step::Done(Err(Errno::EAGAIN));
            };
            let until = until(task, state, timeout);
            *state = CallState::Transfer {
                messages: 0,
                bytes: 0,
                until,
            };
            return wait(task, Wait::on(queue, EventMask::IN), until);
        }
        result => result,
    })
}

fn accept_one(
    task: &Arc<Task>,
    file: &OpenFile,
    to: u64,
    len: UserPtr<i32>,
    flags: i32,
) -> Result<usize, Errno> {
    let files = task.files();
    // First the number, so that no connection is lost for want of one.
    let fd = files.reserve(task.limit(Resource::Nofile))?;
    let accepted = crate::net::of(file)?.accept()?;
    let open_flags = if flags & sock::NONBLOCK != 0 {
        OpenFlags::NONBLOCK
    } else {
        OpenFlags::empty()
    };
    let opened = accepted.open(&task.creds(), open_flags);
    if to != 0 {
        let name = accepted.peer_name().unwrap_or_default();
        put_address(task, to, len, &Address::to_bytes(name.get()))?;
    }
    Ok(fd.fill(opened, flags & sock::CLOEXEC != 0).unsigned_abs() as usize)
}

/// The socket that an address leads to: ECONNREFUSED where nobody is there, and what path lookup says.
pub(super) fn find(
    task: &Arc<Task>,
    socket: &UnixSocket,
    address: &[u8],
) -> Result<Arc<UnixSocket>, Errno> {
    match Given::parse(address)? {
        Given::Unnamed => Err(Errno::EINVAL),
        Given::Abstract(name) => socket.find_abstract(&name),
        Given::Path(path) => {
            let key = at_path(task, |cx| task.vfs().find_socket(cx, &path))?;
            socket.find_file(key)
        }
    }
}

fn connect(task: &Arc<Task>, fd: Fd, address: u64, len: i32, state: &mut CallState) -> Step {
    let file = match get(task, fd) {
        Ok(file) => file,
        Err(error) => return Step::Done(Err(error)),
    };
    let result = crate::net::of(&file).and_then(|socket| {
        let address = get_address(task, address, len)?;
        if socket.options.passes_credentials() {
            socket.bind_any()?;
        }
        if socket.kind() == Kind::Datagram {
            // AF_UNSPEC takes the peer away.
            let to = if address.starts_with(&[0, 0]) {
                None
            } else {
                Some(find(task, socket, &address)?)
            };
            return socket
                .connect_datagram(to.as_ref())
                .map(|()| (Connecting::Done, None));
        }
        let to = find(task, socket, &address)?;
        Ok((
            socket.connect(&to, &identity(task))?,
            socket.options.send_timeout(),
        ))
    });
    match result {
        Ok((Connecting::Done, _)) => Step::Done(Ok(0)),
        Ok((Connecting::Full(queue), timeout)) if file.blocking() => {
            let until = until(task, state, timeout);
            *state = CallState::Transfer {
                messages: 0,
                bytes: 0,
                until,
            };
            wait(task, Wait::on(&queue, EventMask::OUT), until)
        }
        Ok((Connecting::Full(_), _)) => Step::Done(Err(Errno::EAGAIN)),
        Err(error) => Step::Done(Err(error)),
    }
}

fn shutdown(task: &Arc<Task>, fd: Fd, how: i32) -> Result<(), Errno> {
    let file = get(task, fd)?;
    let how = match how {
        0 => Shutdown {
            read: true,
            write: false,
        },
        1 => Shutdown {
            read: false,
            write: true,
        },
        2 => Shutdown {
            read: true,
            write: true,
        },
        _ => return Err(Errno::EINVAL),
    };
    crate::net::of(&file)?.shutdown(how);
    Ok(())
}

fn getsockname(task: &Arc<Task>, fd: Fd, to: u64, len: UserPtr<i32>) -> Result<(), Errno> {
    let file = get(task, fd)?;
    let address = Address::to_bytes(crate::net::of(&file)?.address());
    put_address(task, to, len, &address)
}

fn getpeername(task: &Arc<Task>, fd: Fd, to: u64, len: UserPtr<i32>) -> Result<(), Errno> {
    let file = get(task, fd)?;
    let name = crate::net::of(&file)?.peer_name()?;
    put_address(task, to, len, &Address::to_bytes(name.get()))
}

fn getsockopt(
    task: &Arc<Task>,
    fd: Fd,
    level: i32,
    option: i32,
    to: u64,
    len: UserPtr<i32>,
) -> Result<(), Errno> {
    let file = get(task, fd)?;
    let socket = crate::net::of(&file)?;
    let mm = task.mm();
    let room = usize::try_from(mm.get(len)?).map_err(|_| Errno::EINVAL)?;
    if level != abi::net::SOL_SOCKET {
        return Err(Errno::EOPNOTSUPP);
    }
    let value = value_of(socket, option)?;
    if option == so::PEERGROUPS && room < value.len() {
        mm.put(len, &i32::try_from(value.len()).unwrap_or(i32::MAX))?;
        return Err(Errno::ERANGE);
    }
    if option == so::PEERNAME && room < value.len() {
        return Err(Errno::EINVAL);
    }
    let count = value.len().min(room);
    mm.write(to, &value[..count])?;
    mm.put(len, &i32::try_from(count).unwrap_or(i32::MAX))
}

/// An option's value, as bytes: ENOPROTOOPT.
fn value_of(socket: &UnixSocket, option: i32) -> Result<Vec<u8>, Errno> {
    let options = &socket.options;
    let number = |value: i32| Ok(value.to_ne_bytes().to_vec());
    let size = |value: usize| number(i32::try_from(value).unwrap_or(i32::MAX));
    let pair = |a: i64, b: i64| Ok([a.to_ne_bytes(), b.to_ne_bytes()].concat());
    let time = |nanos: Option<i64>| {
        let time = Timeval::from_nanos(nanos.unwrap_or(0));
        pair(time.sec, time.usec)
    };
    match option {
        so::TYPE => number(socket.kind().raw()),
        so::DOMAIN => number(i32::from(AF_UNIX)),
        so::PROTOCOL => number(0),
        so::ERROR => number(socket.take_error().err().map_or(0, Errno::raw)),
        so::SNDBUF => size(options.send_buffer()),
        so::RCVBUF => size(options.receive_buffer()),
        so::ACCEPTCONN => number(i32::from(socket.is_listening())),
        so::PASSCRED => number(i32::from(options.passes_credentials())),
        so::RCVTIMEO | so::RCVTIMEO_NEW => time(options.receive_timeout()),
        so::SNDTIMEO | so::SNDTIMEO_NEW => time(options.send_timeout()),
        so::LINGER => Ok(options.linger().map(i32::to_ne_bytes).concat()),
        so::PEERCRED => {
            let creds = socket.peer().map_or(
                Ucred {
                    pid: 0,
                    uid: u32::MAX,
                    gid: u32::MAX,
                },
                |peer| peer.creds,
            );
            Ok([
                creds.pid.to_ne_bytes(),
                creds.uid.to_ne_bytes(),
                creds.gid.to_ne_bytes(),
            ]
            .concat())
        }
        so::PEERGROUPS => {
            let peer = socket.peer().ok_or(Errno::ENODATA)?;
            Ok(peer
                .groups
                .iter()
                .flat_map(|group| group.to_ne_bytes())
                .collect())
        }
        so::PEERNAME => Ok(Address::to_bytes(socket.peer_name()?.get())),
        _ => number(options.number(option).ok_or(Errno::ENOPROTOOPT)?),
    }
}

fn setsockopt(
    task: &Arc<Task>,
    fd: Fd,
    level: i32,
    option: i32,
    from: u64,
    len: i32,
) -> Result<(), Errno> {
    let file = get(task, fd)?;
    let socket = crate::net::of(&file)?;
    if level != abi::net::SOL_SOCKET {
        return Err(Errno::EOPNOTSUPP);
    }
    let mm = task.mm();
    let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
    if len < size_of::<i32>() {
        return Err(Errno::EINVAL);
    }
    let value: i32 = mm.get(UserPtr::new(from))?;
    let options = &socket.options;
    match option {
        so::SNDBUF | so::SNDBUFFORCE => options.set_send_buffer(value),
        so::RCVBUF | so::RCVBUFFORCE => options.set_receive_buffer(value),
        so::PASSCRED => options.pass_credentials(value != 0),
        so::LINGER => {
            if len < size_of::<[i32; 2]>() {
                return Err(Errno::EINVAL);
            }
            options.set_linger(mm.get(UserPtr::new(from))?);
        }
        so::RCVTIMEO | so::SNDTIMEO | so::RCVTIMEO_NEW | so::SNDTIMEO_NEW => {
            if len < size_of::<Timeval>() {
                return Err(Errno::EINVAL);
            }
            let time: Timeval = mm.get(UserPtr::new(from))?;
            if !(0..1_000_000).contains(&time.usec) {
                return Err(Errno::EDOM);
            }
            // A negative time is none at all: the call gives up at once.
            let nanos = if time.sec < 0 {
                1
            } else {
                time.to_nanos().unwrap_or(0)
            };
            options.set_timeout(matches!(option, so::SNDTIMEO | so::SNDTIMEO_NEW), nanos);
        }
        so::TYPE | so::PROTOCOL | so::DOMAIN | so::ERROR | so::ACCEPTCONN => {
            return Err(Errno::ENOPROTOOPT);
        }
        _ if options.set_number(option, value) => {}
        _ => return Err(Errno::ENOPROTOOPT),
    }
    Ok(())
}
