//! Open regular host files.

use std::os::fd::AsFd;
use std::sync::Arc;

use abi::Errno;
use abi::fs::FallocFlags;

use super::HostFile;
use super::inode::HostInode;
use crate::io::{Sink, Source};
use crate::vfs::{FileOps, MmapSource, OpenFile};

/// An open regular host file. Reads and writes are the host's, at offsets.
pub(super) struct FileOpsOf {
    inode: Arc<HostInode>,
    file: Arc<HostFile>,
}

impl FileOpsOf {
    pub(super) fn new(inode: Arc<HostInode>, file: Arc<HostFile>) -> FileOpsOf {
        FileOpsOf { inode, file }
    }
}

impl FileOps for FileOpsOf {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _file: &OpenFile, to: &mut Sink<'_>, at: u64) -> Result<usize, Errno> {
        let mut most = to.remaining();
        if self.inode.assumed() {
            // Where it ends is known: the read that finds the end costs no call.
            let left = self.inode.known_size().saturating_sub(at);
            most = most.min(usize::try_from(left).unwrap_or(usize::MAX));
        }
        if most == 0 || at > i64::MAX as u64 {
            return Ok(0);
        }
        let fd = self.file.as_fd();
        to.fill(most, &mut |buffer, done| {
            host::fs::pread(fd, buffer, at.saturating_add(done as u64))
        })
    }

    fn write(
        &self,
        _file: &OpenFile,
        from: &mut Source<'_>,
        at: &mut u64,
        append: bool,
    ) -> Result<usize, Errno> {
        let fd = self.file.as_fd();
        let start = *at;
        self.inode.touched();
        let put = from.drain(usize::MAX, &mut |buffer, done| {
            if append {
                return host::fs::append(fd, buffer);
            }
            let at = start.saturating_add(done as u64);
            if at > i64::MAX as u64 {
                return Err(Errno::EFBIG);
            }
            host::fs::pwrite(fd, buffer, at)
        })?;
        *at = if append {
            host::fs::stat(fd)?.size
        } else {
            start.saturating_add(put as u64)
        };
        Ok(put)
    }

    fn seek_data(&self, _file: &OpenFile, at: u64, hole: bool) -> Result<u64, Errno> {
        host::fs::seek_data(self.file.as_fd(), at, hole)
    }

    fn sync(&self, _file: &OpenFile, data: bool) -> Result<(), Errno> {
        host::fs::sync(self.file.as_fd(), data)
    }

    fn truncate(&self, _file: &OpenFile, size: u64) -> Result<(), Errno> {
        self.inode.touched();
        host::fs::truncate(self.file.as_fd(), size)
    }

    fn fallocate(
        &self,
        _file: &OpenFile,
        mode: FallocFlags,
        at: u64,
        len: u64,
    ) -> Result<(), Errno> {
        self.inode.touched();
        host::fs::fallocate(self.file.as_fd(), mode, at, len)
    }

    fn mmap(&self, _file: &OpenFile) -> Result<MmapSource, Errno> {
        Ok(MmapSource::Host(Arc::clone(&self.file)))
    }
}
