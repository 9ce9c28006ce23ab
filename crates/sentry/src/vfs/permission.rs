//! Who may do what to a file: the mode's bits and the capabilities that override them (path_resolution(7), inode(7)).

use abi::Errno;
use abi::cap::Cap;
use abi::fs::{S_IFDIR, S_IFMT, S_ISGID, S_ISUID, S_ISVTX};

use super::inode::{Inode, Owner};
use crate::task::credentials::Credentials;

/// Reading.
pub(super) const READ: u32 = 4;
/// Writing.
pub(super) const WRITE: u32 = 2;
/// Running a file, searching a directory.
pub(super) const EXEC: u32 = 1;

/// EACCES unless all of `want` is allowed.
pub(super) fn check(owner: Owner, creds: &Credentials, want: u32) -> Result<(), Errno> {
    let bits = if creds.uid.fs == owner.uid {
        owner.mode >> 6
    } else if creds.in_group(owner.gid) {
        owner.mode >> 3
    } else {
        owner.mode
    };
    if want & !bits & 7 == 0 {
        return Ok(());
    }
    let directory = owner.mode & S_IFMT == S_IFDIR;
    let searches = if directory { READ | EXEC } else { READ };
    if creds.has(Cap::DAC_READ_SEARCH) && want & !searches == 0 {
        return Ok(());
    }
    // Running needs an execute bit somewhere, whoever runs it.
    if creds.has(Cap::DAC_OVERRIDE) && (directory || want & EXEC == 0 || owner.mode & 0o111 != 0) {
        return Ok(());
    }
    Err(Errno::EACCES)
}

/// EACCES unless the directory may be searched.
pub(super) fn search(dir: &dyn Inode, creds: &Credentials) -> Result<(), Errno> {
    if creds.has(Cap::DAC_OVERRIDE) {
        return Ok(());
    }
    check(dir.owner()?, creds, EXEC)
}

/// Whether the caller is the owner, or as good as.
pub(super) fn owns(owner: Owner, creds: &Credentials) -> bool {
    creds.uid.fs == owner.uid || creds.has(Cap::FOWNER)
}

/// Whether an entry may be taken out of the directory: EACCES, or EPERM where it is sticky and neither it nor the entry is the caller's.
pub(super) fn check_delete(dir: Owner, child: Owner, creds: &Credentials) -> Result<(), Errno> {
    check(dir, creds, WRITE | EXEC)?;
    if dir.mode & S_ISVTX != 0
        && creds.uid.fs != child.uid
        && creds.uid.fs != dir.uid
        && !creds.has(Cap::FOWNER)
    {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// The permissions and group of a file that is made in this directory.
pub(super) fn inherit(dir: Owner, creds: &Credentials, directory: bool, perm: u32) -> (u32, u32) {
    if dir.mode & S_ISGID == 0 {
        return (perm, creds.gid.fs);
    }
    if directory {
        return (perm | S_ISGID, dir.gid);
    }
    let setgid = perm & (S_ISGID | 0o010) == S_ISGID | 0o010;
    if setgid && !creds.in_group(dir.gid) && !creds.has(Cap::FSETID) {
        return (perm & !S_ISGID, dir.gid);
    }
    (perm, dir.gid)
}

/// The permissions without what a change of contents or owner takes away; `None` where nothing is.
pub(super) fn without_setid(mode: u32) -> Option<u32> {
    let mut perm = mode & 0o7777 & !S_ISUID;
    if perm & 0o010 != 0 {
        perm &= !S_ISGID;
    }
    (perm != mode & 0o7777).then_some(perm)
}

#[cfg(test)]
mod tests {
    use super::{Credentials, EXEC, Errno, Owner, READ, WRITE, check, check_delete};
    use abi::cap::CapSet;

    const fn owner(mode: u32, uid: u32, gid: u32) -> Owner {
        Owner { mode, uid, gid }
    }

    #[test]
    fn classes_do_not_add_up() {
        let user = Credentials::user(1000, 100);
        assert_eq!(
            check(owner(0o100077, 1000, 5), &user, READ),
            Err(Errno::EACCES)
        );
        assert_eq!(
            check(owner(0o100707, 0, 100), &user, READ),
            Err(Errno::EACCES)
        );
        assert_eq!(check(owner(0o100704, 0, 5), &user, READ), Ok(()));
        assert_eq!(
            check(owner(0o100704, 0, 5), &user, READ | WRITE),
            Err(Errno::EACCES)
        );
    }

    #[test]
    fn root_runs_only_what_someone_may() {
        let root = Credentials::root(CapSet::FULL);
        assert_eq!(
            check(owner(0o100600, 7, 7), &root, EXEC),
            Err(Errno::EACCES)
        );
        assert_eq!(check(owner(0o100601, 7, 7), &root, EXEC), Ok(()));
        assert_eq!(check(owner(0o040000, 7, 7), &root, EXEC | WRITE), Ok(()));
    }

    #[test]
    fn sticky_directories_protect() {
        let user = Credentials::user(1000, 100);
        let dir = owner(0o041777, 0, 0);
        assert_eq!(
            check_delete(dir, owner(0o100666, 7, 7), &user),
            Err(Errno::EPERM)
        );
        assert_eq!(check_delete(dir, owner(0o100666, 1000, 7), &user), Ok(()));
    }
}
