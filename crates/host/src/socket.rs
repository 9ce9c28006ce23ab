//! Packet sockets between Coffer's own processes, and descriptors sent over them (unix(7), SCM_RIGHTS).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use abi::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::error::errno;

/// How many descriptors one packet carries at most.
pub const MAX_FDS: usize = 32;

/// A connected pair of SOCK_SEQPACKET sockets, close-on-exec.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(errno)
}

/// Sends one packet with these descriptors (at most [`MAX_FDS`]: else EINVAL). Never raises SIGPIPE.
///
/// EAGAIN where `wait` is false and the peer's queue is full; EPIPE where the peer is gone.
pub fn send(
    socket: BorrowedFd<'_>,
    packet: &[u8],
    fds: &[BorrowedFd<'_>],
    wait: bool,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::EINVAL);
    }
    let mut flags = SendFlags::NOSIGNAL;
    if !wait {
        flags |= SendFlags::DONTWAIT;
    }
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut ancillary, flags)
    })
    .map(|_| ())
    .map_err(errno)
}

/// A packet as it was received.
#[derive(Debug)]
pub struct Received {
    /// How many bytes of the buffer it filled.
    pub len: usize,
    /// The descriptors that came along, close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// Receives one packet; `None` where the peer is gone.
///
/// EAGAIN where `wait` is false and there is none; EMSGSIZE where the packet or its descriptors did not fit, in which
/// case the packet is lost.
pub fn recv(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    wait: bool,
) -> Result<Option<Received>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    if !wait {
        flags |= RecvFlags::DONTWAIT;
    }
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(buffer)],
            &mut ancillary,
            flags,
        )
    })
    .map_err(errno)?;
    let mut fds = Vec::new();
    for control in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = control {
            fds.extend(rights);
        }
    }
    if message
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(Errno::EMSGSIZE);
    }
    if message.bytes == 0 && fds.is_empty() {
        return Ok(None);
    }
    Ok(Some(Received {
        len: message.bytes,
        fds,
    }))
}

/// Whether the peer has closed its end (and nothing that it sent is left to read).
pub fn peer_is_gone(socket: BorrowedFd<'_>) -> bool {
    let mut byte = [0_u8];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(socket, &mut byte, flags) {
        Ok((_, 0)) => true,
        Ok(_) | Err(rustix::io::Errno::AGAIN) => false,
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use abi::Errno;

    #[test]
    fn packets_and_descriptors_arrive() {
        let (left, right) = super::pair().expect("a pair");
        super::send(left.as_fd(), b"hello", &[left.as_fd()], true).expect("sent");
        let mut buffer = [0; 16];
        let received = super::recv(right.as_fd(), &mut buffer, true)
            .expect("received")
            .expect("a packet");
        assert_eq!(&buffer[..received.len], b"hello");
        assert_eq!(received.fds.len(), 1);
        assert_eq!(
            super::recv(right.as_fd(), &mut buffer, false).err(),
            Some(Errno::EAGAIN)
        );
        super::send(left.as_fd(), &[1; 32], &[], true).expect("sent");
        let error = super::recv(right.as_fd(), &mut buffer, true).err();
        assert_eq!(error, Some(Errno::EMSGSIZE));
        assert!(!super::peer_is_gone(right.as_fd()));
        drop(received);
        drop(left);
        assert!(super::peer_is_gone(right.as_fd()));
        assert!(
            super::recv(right.as_fd(), &mut buffer, true)
                .expect("the end")
                .is_none()
        );
    }
}
