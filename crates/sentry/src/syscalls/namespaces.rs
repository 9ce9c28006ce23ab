//! Leaving and entering namespaces: unshare(2), setns(2).

use std::sync::Arc;

use abi::Errno;
use abi::cap::Cap;

use super::decode::Fd;
use crate::fs::nsfs::Namespace;
use crate::namespace::Kind;
use crate::task::{CloneFlags, Task};

/// unshare(2): EPERM for the kinds of namespaces that are not offered.
pub(super) fn unshare(task: &Arc<Task>, flags: u64) -> Result<(), Errno> {
    let flags = CloneFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
    let here = CloneFlags::FILES | CloneFlags::FS | CloneFlags::SYSVSEM | CloneFlags::NEWUTS;
    if !here.contains(flags) {
        return Err(Errno::EPERM);
    }
    let namespaces = task.namespaces_for(flags)?;
    if flags.contains(CloneFlags::FILES) {
        task.set_files(task.files().fork());
    }
    if flags.contains(CloneFlags::FS) {
        task.set_fs(task.fs().fork());
    }
    if flags.contains(CloneFlags::NEWUTS) {
        task.set_namespaces(namespaces);
    }
    Ok(())
}

/// setns(2): into any UTS namespace; into one of another kind only where the task is in it already, which changes nothing.
pub(super) fn setns(task: &Arc<Task>, fd: Fd, kind: i32) -> Result<(), Errno> {
    let file = task.files().get(fd.0)?;
    let wanted = file.ops_as::<Namespace>().ok_or(Errno::EINVAL)?;
    let kind = u64::from(kind.cast_unsigned());
    if kind != 0 && kind != wanted.kind.flag() {
        return Err(Errno::EINVAL);
    }
    if wanted.kind == Kind::User {
        // One that it is in already, as all are.
        return Err(Errno::EINVAL);
    }
    if !task.creds().has(Cap::SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let own = task.namespaces();
    if wanted.kind == Kind::Uts {
        task.set_namespaces(own.with_uts(Arc::clone(&wanted.among.uts)));
        return Ok(());
    }
    let same = own.id(wanted.kind) == wanted.among.id(wanted.kind);
    // A mount namespace would change the root and the working directory, too.
    if same && wanted.kind != Kind::Mount {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}
