//! Open host directories: the host's entries, streamed, nothing asked of each.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use abi::Errno;
use abi::fs::FileType;

use super::inode::HostInode;
use crate::sync::Mutex;
use crate::sync::order::InodeData;
use crate::vfs::{DirEntry, FileOps, OpenFile};

/// How many bytes of entries are read at a time.
const BUFFER: usize = 32 << 10;

/// An open host directory. The cursor is the host's own.
pub(super) struct DirOps {
    inode: Arc<HostInode>,
    stream: Mutex<Stream, InodeData>,
}

#[derive(Default)]
struct Stream {
    fd: Option<OwnedFd>,
    /// What was read and not told yet: these bytes, the first of which are at this cursor.
    buffer: Vec<u8>,
    from: usize,
    until: usize,
    cursor: u64,
}

impl DirOps {
    pub(super) fn new(inode: Arc<HostInode>) -> DirOps {
        DirOps {
            inode,
            stream: Mutex::default(),
        }
    }
}

impl FileOps for DirOps {
    fn seekable(&self) -> bool {
        true
    }

    fn readdir(
        &self,
        _file: &OpenFile,
        at: &mut u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let mut stream = self.stream.lock();
        let stream = &mut *stream;
        let fd = match stream.fd.take() {
            Some(fd) => fd,
            None => host::fs::open_entries(self.inode.handle()?.as_fd())?,
        };
        let fd = stream.fd.insert(fd);
        if *at != stream.cursor || *at == 0 {
            host::fs::seek_entries(fd.as_fd(), *at)?;
            (stream.from, stream.until, stream.cursor) = (0, 0, *at);
        }
        loop {
            if stream.from >= stream.until {
                stream.buffer.resize(BUFFER, 0);
                stream.from = 0;
                stream.until = host::fs::getdents(fd.as_fd(), &mut stream.buffer)?;
                if stream.until == 0 {
                    // Most who come to the end are done.
                    stream.buffer = Vec::new();
                    return Ok(());
                }
            }
            let Some(entry) = host::fs::entry(&stream.buffer[stream.from..stream.until]) else {
                return Err(Errno::EIO);
            };
            let told = emit(&DirEntry {
                ino: entry.ino,
                next: entry.next,
                kind: FileType::from_dirent(entry.kind),
                name: entry.name,
            });
            if !told {
                return Ok(());
            }
            *at = entry.next;
            stream.cursor = entry.next;
            stream.from += entry.len;
        }
    }

    fn sync(&self, _file: &OpenFile, data: bool) -> Result<(), Errno> {
        let fd = host::fs::open_entries(self.inode.handle()?.as_fd())?;
        host::fs::sync(fd.as_fd(), data)
    }
}
