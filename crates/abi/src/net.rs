//! Sockets: families, types, options and message headers (socket(7), unix(7)).

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `AF_UNIX`.
pub const AF_UNIX: u16 = 1;
/// The number after the last address family that Linux knows (`AF_MAX`).
pub const AF_MAX: i32 = 46;

/// Types of sockets (`SOCK_*`).
pub mod sock {
    /// A stream of bytes.
    pub const STREAM: i32 = 1;
    /// Datagrams.
    pub const DGRAM: i32 = 2;
    /// What unix(7) takes for `DGRAM`.
    pub const RAW: i32 = 3;
    /// Packets in order.
    pub const SEQPACKET: i32 = 5;
    /// The bits that are the type.
    pub const TYPE_MASK: i32 = 0xf;
    /// `SOCK_NONBLOCK`.
    pub const NONBLOCK: i32 = 0o4000;
    /// `SOCK_CLOEXEC`.
    pub const CLOEXEC: i32 = 0o2_000_000;
}

bitflags! {
    /// Flags of the calls that send and receive (`MSG_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MsgFlags: u32 {
        /// Urgent data.
        const OOB = 0x1;
        /// Look, and leave it there.
        const PEEK = 0x2;
        /// Ancillary data did not fit.
        const CTRUNC = 0x8;
        /// The packet did not fit; asked for, its real length is told.
        const TRUNC = 0x20;
        /// This call does not wait.
        const DONTWAIT = 0x40;
        /// The end of a record.
        const EOR = 0x80;
        /// Wait for all that was asked for.
        const WAITALL = 0x100;
        /// No SIGPIPE.
        const NOSIGNAL = 0x4000;
        /// More is to come.
        const MORE = 0x8000;
        /// recvmmsg(2): wait for the first message only.
        const WAITFORONE = 0x1_0000;
        /// Descriptors that come are closed at execve(2).
        const CMSG_CLOEXEC = 0x4000_0000;
        /// All others are for other families.
        const _ = !0;
    }
}

/// `SOL_SOCKET`.
pub const SOL_SOCKET: i32 = 1;
/// `SCM_RIGHTS`.
pub const SCM_RIGHTS: i32 = 1;
/// `SCM_CREDENTIALS`.
pub const SCM_CREDENTIALS: i32 = 2;
/// The most descriptors in a message (`SCM_MAX_FD`).
pub const SCM_MAX_FD: usize = 253;
/// The most ancillary data that can be sent at once (`net.core.optmem_max`).
pub const CONTROL_MAX: usize = 131_072;

/// Who sent a message (`struct ucred`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Ucred {
    /// Process.
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// `struct msghdr`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Msghdr {
    /// Where an address is or goes.
    pub name: u64,
    /// Its length, or the room for it.
    pub name_len: u32,
    /// Padding.
    pub pad0: u32,
    /// Where the vector of segments is.
    pub iov: u64,
    /// How many segments.
    pub iov_len: u64,
    /// Where ancillary data is or goes.
    pub control: u64,
    /// Its length, or the room for it.
    pub control_len: u64,
    /// `MSG_*` of what was received.
    pub flags: u32,
    /// Padding.
    pub pad1: u32,
}

/// `struct mmsghdr`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Mmsghdr {
    /// The message.
    pub header: Msghdr,
    /// How many bytes were moved.
    pub len: u32,
    /// Padding.
    pub pad: u32,
}

/// The head of one piece of ancillary data (`struct cmsghdr`).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Cmsghdr {
    /// Its length with this head.
    pub len: u64,
    /// `SOL_*`.
    pub level: i32,
    /// `SCM_*`.
    pub kind: i32,
}

/// The size of [`Cmsghdr`].
pub const CMSG_HEAD: usize = size_of::<Cmsghdr>();

/// `SO_*` of `SOL_SOCKET`.
#[allow(missing_docs, reason = "the names are socket(7)'s")]
pub mod so {
    pub const DEBUG: i32 = 1;
    pub const REUSEADDR: i32 = 2;
    pub const TYPE: i32 = 3;
    pub const ERROR: i32 = 4;
    pub const DONTROUTE: i32 = 5;
    pub const BROADCAST: i32 = 6;
    pub const SNDBUF: i32 = 7;
    pub const RCVBUF: i32 = 8;
    pub const KEEPALIVE: i32 = 9;
    pub const OOBINLINE: i32 = 10;
    pub const PRIORITY: i32 = 12;
    pub const LINGER: i32 = 13;
    pub const REUSEPORT: i32 = 15;
    pub const PASSCRED: i32 = 16;
    pub const PEERCRED: i32 = 17;
    pub const RCVLOWAT: i32 = 18;
    pub const SNDLOWAT: i32 = 19;
    pub const RCVTIMEO: i32 = 20;
    pub const SNDTIMEO: i32 = 21;
    pub const PEERNAME: i32 = 28;
    pub const TIMESTAMP: i32 = 29;
    pub const ACCEPTCONN: i32 = 30;
    pub const SNDBUFFORCE: i32 = 32;
    pub const RCVBUFFORCE: i32 = 33;
    pub const PASSSEC: i32 = 34;
    pub const TIMESTAMPNS: i32 = 35;
    pub const PROTOCOL: i32 = 38;
    pub const DOMAIN: i32 = 39;
    pub const PEERGROUPS: i32 = 59;
    pub const RCVTIMEO_NEW: i32 = 66;
    pub const SNDTIMEO_NEW: i32 = 67;
}
