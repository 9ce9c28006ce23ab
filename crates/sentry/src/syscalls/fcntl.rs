//! fcntl(2) and flock(2).

use std::sync::Arc;

use abi::cap::Cap;
use abi::fs::OpenFlags;
use abi::{Errno, UserPtr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::decode::{Fd, IntoStep};
use super::io::get;
use super::table::rows;
use crate::fs::pipe;
use crate::fs::tmpfs::{self, MemfdSeals};
use crate::sync::EventMask;
use crate::task::{CallState, Resource, Step, Task, Wait};
use crate::vfs::locks::{self, LockOwner, RecordLock, Refused};
use crate::vfs::{AsyncOwner, OpenFile, Seek};

rows! {
    fcntl => partial (self::fcntl) ("no leases, no F_NOTIFY; SIGIO is not sent");
    flock => full (self::flock);
}

const DUPFD: u32 = 0;
const GETFD: u32 = 1;
const SETFD: u32 = 2;
const GETFL: u32 = 3;
const SETFL: u32 = 4;
const GETLK: u32 = 5;
const SETLK: u32 = 6;
const SETLKW: u32 = 7;
const SETOWN: u32 = 8;
const GETOWN: u32 = 9;
const SETSIG: u32 = 10;
const GETSIG: u32 = 11;
const SETOWN_EX: u32 = 15;
const GETOWN_EX: u32 = 16;
const OFD_GETLK: u32 = 36;
const OFD_SETLK: u32 = 37;
const OFD_SETLKW: u32 = 38;
const GETLEASE: u32 = 1025;
const DUPFD_QUERY: u32 = 1027;
const DUPFD_CLOEXEC: u32 = 1030;
const SETPIPE_SZ: u32 = 1031;
const GETPIPE_SZ: u32 = 1032;
const ADD_SEALS: u32 = 1033;
const GET_SEALS: u32 = 1034;
const FD_CLOEXEC: u64 = 1;

const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

/// `struct flock` of x86-64.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    pad: u32,
    start: i64,
    len: i64,
    pid: i32,
    pad2: u32,
}

fn fcntl(task: &Arc<Task>, fd: Fd, command: u32, arg: u64, state: &mut CallState) -> Step {
    let files = task.files();
    let file = match files.get(fd.0) {
        Ok(file) => file,
        Err(error) => return Step::Done(Err(error)),
    };
    if file.is_path()
        && !matches!(
            command,
            DUPFD | DUPFD_CLOEXEC | DUPFD_QUERY | GETFD | SETFD | GETFL
        )
    {
        return Step::Done(Err(Errno::EBADF));
    }
    match command {
        DUPFD | DUPFD_CLOEXEC => {
            let limit = task.limit(Resource::Nofile);
            let least = u32::try_from(arg & 0xffff_ffff)
                .ok()
                .filter(|least| u64::from(*least) < limit)
                .ok_or(Errno::EINVAL);
            least
                .and_then(|least| files.insert(file, command == DUPFD_CLOEXEC, least, limit))
                .into_step()
        }
        GETFD => files.cloexec(fd.0).map(usize::from).into_step(),
        SETFD => files.set_cloexec(fd.0, arg & FD_CLOEXEC != 0).into_step(),
        GETFL => Ok(file.flags().bits()).into_step(),
        SETFL => file
            .set_flags(OpenFlags::from_bits_retain((arg & 0xffff_ffff) as u32))
            .into_step(),
        GETLK | OFD_GETLK => {
            get_lock(task, &file, command == OFD_GETLK, UserPtr::new(arg)).into_step()
        }
        SETLK | OFD_SETLK => set_lock(task, &file, command == OFD_SETLK, UserPtr::new(arg), None),
        SETLKW | OFD_SETLKW => set_lock(
            task,
            &file,
            command == OFD_SETLKW,
            UserPtr::new(arg),
            Some(state),
        ),
        DUPFD_QUERY => {
            let other = i32::try_from(arg & 0x7fff_ffff)
                .map_err(|_| Errno::EBADF)
                .and_then(|fd| files.get(fd));
            other
                .map(|other| usize::from(Arc::ptr_eq(&other, &file)))
                .into_step()
        }
        GETLEASE => Ok(usize::from(F_UNLCK.unsigned_abs())).into_step(),
        SETPIPE_SZ | GETPIPE_SZ => {
            let pipe = pipe::of(&file).ok_or(Errno::EBADF);
            let size = usize::try_from(arg & 0xffff_ffff).unwrap_or(usize::MAX);
            let privileged = task.creds().has(Cap::SYS_RESOURCE);
            pipe.and_then(|pipe| {
                if command == SETPIPE_SZ {
                    pipe.set_capacity(size, privileged)
                } else {
                    Ok(pipe.capacity())
                }
            })
            .into_step()
        }
        ADD_SEALS => {
            let seals = u32::try_from(arg)
                .ok()
                .and_then(MemfdSeals::from_bits)
                .ok_or(Errno::EINVAL);
            seals
                .and_then(|seals| tmpfs::add_seals(&file, seals, false))
                .into_step()
        }
        GET_SEALS => tmpfs::seals(&file).map(|seals| seals.bits()).into_step(),
        _ => ownership(task, &file, command, arg).into_step(),
    }
}

/// `F_SETOWN`, `F_SETSIG` and kin: kept, and told.
fn ownership(task: &Arc<Task>, file: &OpenFile, command: u32, arg: u64) -> Result<usize, Errno> {
    const TID: i32 = 0;
    const PID: i32 = 1;
    const PGRP: i32 = 2;
    let owner = file.owner();
    let number = (arg & 0xffff_ffff) as u32 as i32;
    match command {
        SETOWN => {
            let kind = if number < 0 { PGRP } else { PID };
            let pid = number.checked_abs().ok_or(Errno::EINVAL)?;
            file.set_owner(AsyncOwner { kind, pid, ..owner });
            Ok(0)
        }
        GETOWN => {
            let pid = if owner.kind == PGRP {
                -i64::from(owner.pid)
            } else {
                i64::from(owner.pid)
            };
            Ok(pid.cast_unsigned() as usize)
        }
        SETSIG => {
            let signal = i32::try_from(arg)
                .ok()
                .filter(|signal| (0..=64).contains(signal))
                .ok_or(Errno::EINVAL)?;
            file.set_owner(AsyncOwner { signal, ..owner });
            Ok(0)
        }
        GETSIG => Ok(owner.signal.unsigned_abs() as usize),
        SETOWN_EX => {
            let [kind, pid] = task.mm().get(UserPtr::<[i32; 2]>::new(arg))?;
            if !matches!(kind, TID | PID | PGRP) {
                return Err(Errno::EINVAL);
            }
            file.set_owner(AsyncOwner { kind, pid, ..owner });
            Ok(0)
        }
        GETOWN_EX => {
            let kind = if owner.pid == 0 { PID } else { owner.kind };
            task.mm()
                .put(UserPtr::new(arg), &[kind, owner.pid])
                .map(|()| 0)
        }
        // Leases, directory notification, write hints.
        _ => Err(Errno::EINVAL),
    }
}

/// The range that a lock is about: first byte, and past the last (`u64::MAX` for "to the end"). EINVAL before the start, EOVERFLOW past all offsets.
fn range(file: &OpenFile, lock: &Flock) -> Result<(u64, u64), Errno> {
    let base = match Seek::from_raw(i32::from(lock.whence))? {
        Seek::Set => 0,
        Seek::Current => file.position(),
        Seek::End => file.attrs()?.size,
        Seek::Data | Seek::Hole => return Err(Errno::EINVAL),
    };
    let start = i128::from(base) + i128::from(lock.start);
    let (start, end) = match lock.len {
        0 => (start, None),
        len if len > 0 => (start, Some(start + i128::from(len))),
        len => (start + i128::from(len), Some(start)),
    };
    if start < 0 {
        return Err(Errno::EINVAL);
    }
    let offset = |at: i128| {
        i64::try_from(at)
            .map(i64::cast_unsigned)
            .map_err(|_| Errno::EOVERFLOW)
    };
    // The last byte counts, which may be the last of all.
    let end = match end {
        None => u64::MAX,
        Some(end) => match offset(end - 1)? {
            last if last == i64::MAX.cast_unsigned() => u64::MAX,
            last => last + 1,
        },
    };
    Ok((offset(start)?, end))
}

/// Reads a lock that is asked for: who asks, and for what.
fn read_lock(
    task: &Arc<Task>,
    file: &OpenFile,
    by_description: bool,
    from: UserPtr<Flock>,
) -> Result<(Flock, RecordLock), Errno> {
    let lock = task.mm().get(from)?;
    let (start, end) = range(file, &lock)?;
    let (owner, pid) = if by_description {
        if lock.pid != 0 {
            return Err(Errno::EINVAL);
        }
        (LockOwner::Description(file.id()), -1)
    } else {
        (
            LockOwner::Process(task.files().id()),
            i32::try_from(task.process.pid).unwrap_or(0),
        )
    };
    Ok((
        lock,
        RecordLock {
            owner,
            pid,
            write: lock.kind == F_WRLCK,
            start,
            end,
        },
    ))
}

fn get_lock(
    task: &Arc<Task>,
    file: &OpenFile,
    by_description: bool,
    at: UserPtr<Flock>,
) -> Result<(), Errno> {
    let (mut lock, asked) = read_lock(task, file, by_description, at)?;
    if !matches!(lock.kind, F_RDLCK | F_WRLCK) {
        return Err(Errno::EINVAL);
    }
    match locks::conflicting(file.inode().key(), &asked) {
        None => lock.kind = F_UNLCK,
        Some(held) => {
            lock.kind = if held.write { F_WRLCK } else { F_RDLCK };
            lock.whence = 0;
            lock.start = i64::try_from(held.start).unwrap_or(i64::MAX);
            lock.len = if held.end == u64::MAX {
                0
            } else {
                i64::try_from(held.end - held.start).unwrap_or(0)
            };
            lock.pid = held.pid;
        }
    }
    task.mm().put(at, &lock)
}

fn set_lock(
    task: &Arc<Task>,
    file: &OpenFile,
    by_description: bool,
    from: UserPtr<Flock>,
    waits: Option<&mut CallState>,
) -> Step {
    let (lock, asked) = match read_lock(task, file, by_description, from) {
        Ok(read) => read,
        Err(error) => return Step::Done(Err(error)),
    };
    let key = file.inode().key();
    let allowed = match lock.kind {
        F_RDLCK => file.readable(),
        F_WRLCK => file.writable(),
        F_UNLCK => {
            locks::unlock_record(key, asked.owner, asked.start, asked.end);
            return Step::Done(Ok(0));
        }
        _ => return Step::Done(Err(Errno::EINVAL)),
    };
    if !allowed {
        return Step::Done(Err(Errno::EBADF));
    }
    match (locks::lock_record(key, asked, waits.is_some()), waits) {
        (Ok(()), _) => Step::Done(Ok(0)),
        (Err(Refused::Failed(error)), _) => {
            locks::stop_waiting(asked.owner);
            Step::Done(Err(error))
        }
        (Err(Refused::Busy(_)), None) => Step::Done(Err(Errno::EAGAIN)),
        (Err(Refused::Busy(queue)), Some(state)) => {
            *state = CallState::Locking(asked.owner);
            Step::Wait(Wait::on(&queue, EventMask::IN))
        }
    }
}

fn flock(task: &Arc<Task>, fd: Fd, operation: u32) -> Step {
    const SHARED: u32 = 1;
    const EXCLUSIVE: u32 = 2;
    const NONBLOCK: u32 = 4;
    const UNLOCK: u32 = 8;
    let file = match get(task, fd) {
        Ok(file) => file,
        Err(error) => return Step::Done(Err(error)),
    };
    let key = file.inode().key();
    let exclusive = match operation & !NONBLOCK {
        SHARED => false,
        EXCLUSIVE => true,
        UNLOCK => {
            locks::funlock(key, file.id());
            return Step::Done(Ok(0));
        }
        _ => return Step::Done(Err(Errno::EINVAL)),
    };
    match locks::flock(key, file.id(), exclusive) {
        Ok(()) => Step::Done(Ok(0)),
        Err(Refused::Failed(error)) => Step::Done(Err(error)),
        Err(Refused::Busy(_)) if operation & NONBLOCK != 0 => Step::Done(Err(Errno::EAGAIN)),
        Err(Refused::Busy(queue)) => Step::Wait(Wait::on(&queue, EventMask::IN)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Errno, Flock, OpenFile, range};
    use crate::vfs::FileOps;
    use crate::vfs::anon::AnonInode;
    use std::sync::Arc;

    struct Nothing;
    impl FileOps for Nothing {}

    fn range_of(whence: i16, start: i64, len: i64) -> Result<(u64, u64), Errno> {
        let file = OpenFile::anonymous(
            AnonInode::new("[test]"),
            Arc::new(Nothing),
            abi::fs::OpenFlags::RDWR,
        );
        file.set_position(100);
        range(
            &file,
            &Flock {
                whence,
                start,
                len,
                ..Flock::default()
            },
        )
    }

    #[test]
    fn ranges_of_locks() {
        assert_eq!(range_of(0, 5, 0), Ok((5, u64::MAX)));
        assert_eq!(range_of(0, 5, 10), Ok((5, 15)));
        assert_eq!(range_of(1, 0, -10), Ok((90, 100)));
        assert_eq!(range_of(1, -101, 1), Err(Errno::EINVAL));
        assert_eq!(range_of(0, 5, -6), Err(Errno::EINVAL));
        assert_eq!(
            range_of(0, i64::MAX, 1),
            Ok((i64::MAX.unsigned_abs(), u64::MAX))
        );
        assert_eq!(range_of(0, i64::MAX, 2), Err(Errno::EOVERFLOW));
        assert_eq!(range_of(3, 0, 1), Err(Errno::EINVAL));
    }
}
