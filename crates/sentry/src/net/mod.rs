//! Sockets, a folder for each family.

pub mod unix;

use abi::Errno;

use crate::vfs::OpenFile;
use unix::UnixSocket;

/// The socket behind an open file; ENOTSOCK.
pub fn of(file: &OpenFile) -> Result<&UnixSocket, Errno> {
    file.ops_as().ok_or(Errno::ENOTSOCK)
}
