//! Device nodes, and `/dev` (null(4), random(4)): a small tmpfs with the nodes that programs expect.

use std::sync::Arc;

use abi::Errno;
use abi::fs::{OpenFlags, makedev};

use crate::io::{Sink, Source};
use crate::mm::memory_file::{MemoryFile, Quota};
use crate::task::credentials::Credentials;
use crate::vfs::{CharDevice, FileOps, Inode, MmapSource, NewKind, NewNode, OpenFile, Vfs};

use super::tmpfs::TmpFs;

/// A device that is nothing but memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Null,
    Zero,
    Full,
    Random,
}

/// Each: name, minor number (of major 1), what it is.
const MEMORY: [(&[u8], u32, Memory); 5] = [
    (b"null", 3, Memory::Null),
    (b"zero", 5, Memory::Zero),
    (b"full", 7, Memory::Full),
    (b"random", 8, Memory::Random),
    (b"urandom", 9, Memory::Random),
];

/// The controlling terminal's number: nobody opens it (ENXIO) until there are terminals.
const TTY: (u32, u32) = (5, 0);

/// Says what opens the devices of this module.
pub fn register(vfs: &Vfs) {
    for (_, minor, device) in MEMORY {
        vfs.register_device(makedev(1, minor), Arc::new(device));
    }
}

/// A file system for `/dev`, with its nodes and links.
pub fn devtmpfs(memory: Arc<MemoryFile>, quota: Arc<Quota>) -> Result<Arc<TmpFs>, Errno> {
    let fs = TmpFs::of_kind("devtmpfs", memory, quota, 0o755)?;
    let root = Arc::clone(fs.root_inode());
    let make = |name: &[u8], kind: NewKind<'_>, perm: u32| {
        root.create(
            name,
            &NewNode {
                kind,
                perm,
                uid: 0,
                gid: 0,
            },
        )
    };
    for (name, minor, _) in MEMORY {
        make(name, NewKind::CharDevice(makedev(1, minor)), 0o666)?;
    }
    make(b"tty", NewKind::CharDevice(makedev(TTY.0, TTY.1)), 0o666)?;
    for (name, target) in [
        (&b"fd"[..], &b"/proc/self/fd"[..]),
        (b"stdin", b"/proc/self/fd/0"),
        (b"stdout", b"/proc/self/fd/1"),
        (b"stderr", b"/proc/self/fd/2"),
    ] {
        make(name, NewKind::Symlink(target), 0o777)?;
    }
    make(b"shm", NewKind::Directory, 0o755)?;
    Ok(fs)
}

impl CharDevice for Memory {
    fn open(
        &self,
        _inode: &Arc<dyn Inode>,
        _flags: OpenFlags,
        _creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno> {
        Ok(Arc::new(*self))
    }
}

impl FileOps for Memory {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _file: &OpenFile, to: &mut Sink<'_>, _at: u64) -> Result<usize, Errno> {
        let most = to.remaining();
        match self {
            Memory::Null => Ok(0),
            Memory::Zero | Memory::Full => to.fill(most, &mut |buffer, _| {
                buffer.fill(0);
                Ok(buffer.len())
            }),
            Memory::Random => to.fill(most, &mut |buffer, _| {
                host::fs::random(buffer)?;
                Ok(buffer.len())
            }),
        }
    }

    fn write(
        &self,
        _file: &OpenFile,
        from: &mut Source<'_>,
        _at: &mut u64,
        _append: bool,
    ) -> Result<usize, Errno> {
        match self {
            Memory::Full => Err(Errno::ENOSPC),
            _ => Ok(from.discard()),
        }
    }

    fn seek_data(&self, _file: &OpenFile, _at: u64, _hole: bool) -> Result<u64, Errno> {
        Err(Errno::EINVAL)
    }

    fn mmap(&self, _file: &OpenFile) -> Result<MmapSource, Errno> {
        match self {
            Memory::Zero => Ok(MmapSource::AnonymousZero),
            _ => Err(Errno::ENODEV),
        }
    }
}
