//! Lines on standard error.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// Standard error for this process's own lines; `None` inside where there was none.
static KEPT: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// Keeps standard error for this process's own lines from now on, whatever becomes of descriptor 2: for who gives that to somebody else, who may close it.
pub fn keep_stderr() {
    KEPT.get_or_init(|| crate::fd::duplicate(rustix::stdio::stderr()).ok());
}

/// Writes a line to standard error, at once; where that is gone, nowhere.
pub fn line(text: &str) {
    let to = match KEPT.get() {
        Some(Some(kept)) => kept.as_fd(),
        Some(None) => return,
        None => rustix::stdio::stderr(),
    };
    let mut bytes = Vec::with_capacity(text.len() + 1);
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(b'\n');
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::write(to, &bytes[done..]) {
            Ok(0) => break,
            Ok(wrote) => done += wrote,
            // A reader that is slow is waited for a while; one that does not read at all loses the line.
            Err(rustix::io::Errno::AGAIN) if wait_writable(to) => {}
            Err(_) => break,
        }
    }
}

/// Whether it takes more within a second.
fn wait_writable(to: BorrowedFd<'_>) -> bool {
    let mut fds = [rustix::event::PollFd::new(
        &to,
        rustix::event::PollFlags::OUT,
    )];
    let second = rustix::event::Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut fds, Some(&second)), Ok(1))
}
