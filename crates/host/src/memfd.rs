//! Memory files.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;

use abi::Errno;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::error::errno;

/// A memory file with these contents, sealed against every change, at offset 0 and close-on-exec.
pub fn sealed(name: &str, contents: &[u8]) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::memfd_create(
        name,
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL,
    )
    .map_err(errno)?;
    let mut file = File::from(fd);
    file.write_all(contents).map_err(|_| Errno::ENOMEM)?;
    file.rewind().map_err(|_| Errno::EIO)?;
    let fd = OwnedFd::from(file);
    rustix::fs::fcntl_add_seals(
        &fd,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )
    .map_err(errno)?;
    Ok(fd)
}
