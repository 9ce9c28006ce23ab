//! Open lower files: they go on to the upper file once there is one.

use std::sync::{Arc, OnceLock};

use abi::Errno;
use abi::fs::OpenFlags;

use super::inode::OverlayInode;
use crate::io::Sink;
use crate::task::credentials::Credentials;
use crate::vfs::{FileOps, Inode, MmapSource, OpenFile};

/// A file that was opened for reading while it was not copied up.
pub(super) struct FileOpsOf {
    inode: Arc<OverlayInode>,
    lower: Arc<dyn FileOps>,
    upper: OnceLock<Arc<dyn FileOps>>,
}

impl FileOpsOf {
    pub(super) fn new(inode: Arc<OverlayInode>, lower: Arc<dyn FileOps>) -> FileOpsOf {
        FileOpsOf {
            inode,
            lower,
            upper: OnceLock::new(),
        }
    }

    fn ops(&self) -> Result<&dyn FileOps, Errno> {
        let Some(upper) = self.inode.upper() else {
            return Ok(&*self.lower);
        };
        if let Some(ops) = self.upper.get() {
            return Ok(&**ops);
        }
        let creds = Credentials::root(abi::cap::CapSet::FULL);
        let ops = Arc::clone(upper).open(OpenFlags::empty(), &creds)?;
        Ok(&**self.upper.get_or_init(|| ops))
    }
}

impl FileOps for FileOpsOf {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, file: &OpenFile, to: &mut Sink<'_>, at: u64) -> Result<usize, Errno> {
        self.ops()?.read(file, to, at)
    }

    fn seek_data(&self, file: &OpenFile, at: u64, hole: bool) -> Result<u64, Errno> {
        self.ops()?.seek_data(file, at, hole)
    }

    fn sync(&self, _file: &OpenFile, _data: bool) -> Result<(), Errno> {
        // Nothing was written through this, and what others wrote is in memory.
        Ok(())
    }

    fn mmap(&self, file: &OpenFile) -> Result<MmapSource, Errno> {
        self.ops()?.mmap(file)
    }
}
