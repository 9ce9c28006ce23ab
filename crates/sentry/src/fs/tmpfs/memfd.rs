//! memfd_create(2): files in memory without a name, and their seals.

use std::sync::Arc;

use abi::Errno;
use abi::fs::OpenFlags;

use super::TmpFs;
use super::file::FileOpsOf;
use crate::vfs::{Dentry, FileSystem, Inode, Location, Mount, OpenFile};

bitflags::bitflags! {
    /// `F_SEAL_*` of fcntl(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MemfdSeals: u32 {
        /// No more seals.
        const SEAL = 1;
        /// No shrinking.
        const SHRINK = 2;
        /// No growing.
        const GROW = 4;
        /// No writing.
        const WRITE = 8;
        /// No writing but through mappings that are there.
        const FUTURE_WRITE = 16;
        /// No change of execute permission.
        const EXEC = 32;
    }
}

/// memfd_create(2): a file in this mount of a tmpfs that nobody sees. `sealable` is `MFD_ALLOW_SEALING`.
pub fn memfd(
    mount: &Arc<Mount>,
    fs: &TmpFs,
    name: &[u8],
    sealable: bool,
    owner: (u32, u32),
) -> Result<Arc<OpenFile>, Errno> {
    let inode = fs.unnamed(0o777, owner.0, owner.1)?;
    if sealable {
        inode.contents()?.write().seals = MemfdSeals::empty();
    }
    debug_assert_eq!(mount.fs().dev(), fs.dev());
    let mut full = b"memfd:".to_vec();
    full.extend_from_slice(name);
    let dentry = Dentry::detached(mount.root(), &full, Arc::clone(&inode) as Arc<dyn Inode>);
    dentry.mark_dead();
    let place = Location {
        mount: Arc::clone(mount),
        dentry,
    };
    let ops = Arc::new(FileOpsOf(Arc::clone(&inode)));
    Ok(OpenFile::new(
        place,
        inode,
        ops,
        OpenFlags::RDWR | OpenFlags::LARGEFILE,
    ))
}

/// `F_GET_SEALS`; EINVAL for what can't have any.
pub fn seals(file: &OpenFile) -> Result<MemfdSeals, Errno> {
    let ops = file.ops_as::<FileOpsOf>().ok_or(Errno::EINVAL)?;
    Ok(ops.0.contents()?.read().seals)
}

/// `F_ADD_SEALS`: EPERM where sealed against it or not open for writing; EBUSY for `F_SEAL_WRITE` while `mapped` for writing.
pub fn add_seals(file: &OpenFile, seals: MemfdSeals, mapped: bool) -> Result<(), Errno> {
    let ops = file.ops_as::<FileOpsOf>().ok_or(Errno::EINVAL)?;
    if !file.writable() {
        return Err(Errno::EPERM);
    }
    let mut held = ops.0.contents()?.write();
    if held.seals.contains(MemfdSeals::SEAL) {
        return Err(Errno::EPERM);
    }
    if seals.contains(MemfdSeals::WRITE) && !held.seals.contains(MemfdSeals::WRITE) && mapped {
        return Err(Errno::EBUSY);
    }
    held.seals |= seals;
    Ok(())
}
