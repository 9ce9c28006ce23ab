//! Terminals that the launcher handed over: the few ioctl(2) requests that the sentry makes.
//!
//! Invariant: each request is paired with the size of the struct that the kernel reads or writes for it, and the buffer is of that size.

use std::os::fd::{AsRawFd, BorrowedFd};

use abi::Errno;

/// `struct termios` of the kernel: 36 bytes.
pub const TERMIOS_LEN: usize = 36;
/// `struct winsize`: 8 bytes.
pub const WINSIZE_LEN: usize = 8;

fn check(result: i32) -> Result<(), Errno> {
    if result >= 0 {
        return Ok(());
    }
    let raw = std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO);
    Err(Errno::from_raw(raw).unwrap_or(Errno::EIO))
}

/// `TCGETS`; ENOTTY where it is no terminal.
pub fn attributes(fd: BorrowedFd<'_>) -> Result<[u8; TERMIOS_LEN], Errno> {
    let mut termios = [0; TERMIOS_LEN];
    // SAFETY: TCGETS writes one `struct termios`, 36 bytes, which is what the buffer has.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TCGETS, termios.as_mut_ptr()) })?;
    Ok(termios)
}

/// `TCSETS`; with `when` 1 `TCSETSW`, 2 `TCSETSF`.
pub fn set_attributes(
    fd: BorrowedFd<'_>,
    when: u32,
    termios: &[u8; TERMIOS_LEN],
) -> Result<(), Errno> {
    let request = match when {
        0 => libc::TCSETS,
        1 => libc::TCSETSW,
        _ => libc::TCSETSF,
    };
    // SAFETY: the TCSETS family reads one `struct termios`, 36 bytes, which is what the buffer has.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, termios.as_ptr()) })
}

/// `TIOCGWINSZ`
pub fn window_size(fd: BorrowedFd<'_>) -> Result<[u8; WINSIZE_LEN], Errno> {
    let mut size = [0; WINSIZE_LEN];
    // SAFETY: TIOCGWINSZ writes one `struct winsize`, 8 bytes, which is what the buffer has.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, size.as_mut_ptr()) })?;
    Ok(size)
}

/// `TIOCSWINSZ`
pub fn set_window_size(fd: BorrowedFd<'_>, size: &[u8; WINSIZE_LEN]) -> Result<(), Errno> {
    // SAFETY: TIOCSWINSZ reads one `struct winsize`, 8 bytes, which is what the buffer has.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSWINSZ, size.as_ptr()) })
}

/// `FIONREAD`
pub fn unread(fd: BorrowedFd<'_>) -> Result<i32, Errno> {
    let mut count: i32 = 0;
    // SAFETY: FIONREAD writes one `int`, which is what it is given.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut count) })?;
    Ok(count)
}
