//! The sandbox's standard input, output and error.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::Context;

/// The caller's three, for the sentry.
///
/// Pipes and terminals are opened once more, so that the flags which the sentry needs (O_NONBLOCK) never show in the
/// caller. The rest is shared as it is: regular files because their offset must be, sockets because they cannot be
/// reopened.
pub(super) fn for_sentry() -> anyhow::Result<[OwnedFd; 3]> {
    Ok([
        open(std::io::stdin().as_fd(), "standard input")?,
        open(std::io::stdout().as_fd(), "standard output")?,
        open(std::io::stderr().as_fd(), "standard error")?,
    ])
}

fn open(fd: BorrowedFd<'_>, name: &'static str) -> anyhow::Result<OwnedFd> {
    match host::fd::reopen(fd) {
        Some(fd) => host::fd::duplicate(fd.as_fd()).context(name),
        None => host::fd::duplicate(fd).context(name),
    }
}
