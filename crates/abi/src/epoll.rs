//! epoll as the ABI writes it (epoll_ctl(2)).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct epoll_event` of x86-64: packed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, packed)]
pub struct EpollEvent {
    /// `EPOLL*`.
    pub events: u32,
    /// The watcher's own.
    pub data: u64,
}

/// `EPOLLEXCLUSIVE`
pub const EPOLLEXCLUSIVE: u32 = 1 << 28;
/// `EPOLLWAKEUP`
pub const EPOLLWAKEUP: u32 = 1 << 29;
/// `EPOLLONESHOT`
pub const EPOLLONESHOT: u32 = 1 << 30;
/// `EPOLLET`
pub const EPOLLET: u32 = 1 << 31;
/// `EPOLL_CTL_ADD`
pub const EPOLL_CTL_ADD: i32 = 1;
/// `EPOLL_CTL_DEL`
pub const EPOLL_CTL_DEL: i32 = 2;
/// `EPOLL_CTL_MOD`
pub const EPOLL_CTL_MOD: i32 = 3;
