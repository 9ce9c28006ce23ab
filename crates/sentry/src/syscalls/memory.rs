//! Memory: mmap(2) and its family.

use std::sync::Arc;

use abi::Errno;
use abi::UserPtr;
use abi::cap::Cap;

use super::decode::Fd;
use crate::mm::{MapFlags, MapRequest, PAGE, Prot, Remap, page_down, page_up};
use crate::task::Task;
use crate::task::limits::Resource;

/// `PROT_*` that are known; SEM, and the GROWS bits that only mprotect(2) knows, are left out.
fn prot(raw: u32) -> Prot {
    Prot::from_bits_truncate(raw)
}

pub(super) fn mmap(
    task: &Arc<Task>,
    addr: u64,
    len: u64,
    protection: u32,
    flags: u32,
    fd: Fd,
    offset: u64,
) -> Result<u64, Errno> {
    let flags = MapFlags::from_bits_retain(flags);
    if !offset.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    // MAP_SHARED_VALIDATE is both.
    let kind = flags.bits() & 0xf;
    if !matches!(kind, 1..=3) {
        return Err(Errno::EINVAL);
    }
    if flags.contains(MapFlags::HUGETLB) {
        return Err(Errno::ENOMEM);
    }
    let file = if flags.contains(MapFlags::ANONYMOUS) {
        None
    } else {
        Some((task.files().get_file(fd.0)?, offset))
    };
    let mut flags = flags;
    if kind == 3 {
        if flags.contains(MapFlags::SYNC) {
            return Err(Errno::EOPNOTSUPP);
        }
        flags.remove(MapFlags::PRIVATE);
    }
    if file.as_ref().is_some_and(|(file, _)| {
        file.location()
            .is_some_and(|at| at.mount.flags().contains(abi::fs::MountFlags::NOEXEC))
    }) && prot(protection).contains(Prot::EXEC)
    {
        return Err(Errno::EPERM);
    }
    task.mm().map(&MapRequest {
        addr,
        len,
        prot: prot(protection),
        flags,
        file,
        name: None,
    })
}

pub(super) fn munmap(task: &Arc<Task>, addr: u64, len: u64) -> Result<(), Errno> {
    task.mm().unmap(addr, len)
}

pub(super) fn mprotect(
    task: &Arc<Task>,
    addr: u64,
    len: u64,
    protection: u32,
) -> Result<(), Errno> {
    if protection & !0xf != 0 {
        return Err(Errno::EINVAL);
    }
    task.mm().protect(addr, len, prot(protection))
}

pub(super) fn mremap(
    task: &Arc<Task>,
    old: u64,
    old_len: u64,
    new_len: u64,
    flags: u32,
    to: u64,
) -> Result<u64, Errno> {
    const MAYMOVE: u32 = 1;
    const FIXED: u32 = 2;
    const DONTUNMAP: u32 = 4;
    if flags & !(MAYMOVE | FIXED | DONTUNMAP) != 0 {
        return Err(Errno::EINVAL);
    }
    task.mm().remap(&Remap {
        old,
        old_len,
        new_len,
        may_move: flags & MAYMOVE != 0,
        to: (flags & FIXED != 0).then_some(to),
        keep: flags & DONTUNMAP != 0,
    })
}

pub(super) fn brk(task: &Arc<Task>, to: u64) -> Result<u64, Errno> {
    Ok(task.mm().brk(to))
}

pub(super) fn madvise(task: &Arc<Task>, addr: u64, len: u64, advice: u32) -> Result<(), Errno> {
    task.mm().advise(addr, len, advice)
}

pub(super) fn mincore(task: &Arc<Task>, addr: u64, len: u64, to: UserPtr<u8>) -> Result<(), Errno> {
    let mm = task.mm();
    let pages = mm.residency(addr, len)?;
    mm.write(to.addr(), &pages)
}

pub(super) fn msync(task: &Arc<Task>, addr: u64, len: u64, flags: u32) -> Result<(), Errno> {
    // MS_ASYNC, MS_INVALIDATE, MS_SYNC; the first and the last exclude each other.
    if flags & !7 != 0 || flags & 5 == 5 || !addr.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let end = page_up(len)
        .and_then(|len| addr.checked_add(len))
        .ok_or(Errno::ENOMEM)?;
    task.mm().sync(addr, end, flags & 4 != 0)
}

fn lock(task: &Arc<Task>, addr: u64, len: u64, on: bool) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    if on {
        let limit = task.limit(Resource::Memlock);
        let size = page_up(len + addr - page_down(addr)).ok_or(Errno::EINVAL)?;
        let privileged = task.creds().has(Cap::IPC_LOCK);
        if size > limit && !privileged {
            return Err(if limit == 0 {
                Errno::EPERM
            } else {
                Errno::ENOMEM
            });
        }
    }
    task.mm().lock_range(addr, len, on)
}

pub(super) fn mlock(task: &Arc<Task>, addr: u64, len: u64) -> Result<(), Errno> {
    addr.checked_add(len).ok_or(Errno::EINVAL)?;
    lock(task, addr, len, true)
}

pub(super) fn mlock2(task: &Arc<Task>, addr: u64, len: u64, flags: u32) -> Result<(), Errno> {
    if flags > 1 {
        return Err(Errno::EINVAL);
    }
    mlock(task, addr, len)
}

pub(super) fn munlock(task: &Arc<Task>, addr: u64, len: u64) -> Result<(), Errno> {
    addr.checked_add(len).ok_or(Errno::EINVAL)?;
    lock(task, addr, len, false)
}

pub(super) fn mlockall(_: &Arc<Task>, flags: u32) -> Result<(), Errno> {
    if flags == 0 || flags & !7 != 0 {
        Err(Errno::EINVAL)
    } else {
        Ok(())
    }
}

pub(super) fn munlockall(_: &Arc<Task>) -> Result<(), Errno> {
    Ok(())
}

pub(super) fn membarrier(
    _: &Arc<Task>,
    command: u32,
    _flags: u32,
    _cpu: i32,
) -> Result<usize, Errno> {
    // MEMBARRIER_CMD_QUERY: none is offered.
    if command == 0 {
        Ok(0)
    } else {
        Err(Errno::EINVAL)
    }
}
