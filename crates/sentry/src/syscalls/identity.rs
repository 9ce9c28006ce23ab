//! Users, groups and capabilities (credentials(7), capabilities(7)).

use std::sync::Arc;

use abi::cap::CapSet;
use abi::{Errno, UserPtr};

use crate::task::Task;
use crate::task::credentials::Credentials;

pub(super) fn getuid(task: &Arc<Task>) -> Result<u32, Errno> {
    Ok(task.creds().uid.real)
}

pub(super) fn geteuid(task: &Arc<Task>) -> Result<u32, Errno> {
    Ok(task.creds().uid.effective)
}

pub(super) fn getgid(task: &Arc<Task>) -> Result<u32, Errno> {
    Ok(task.creds().gid.real)
}

pub(super) fn getegid(task: &Arc<Task>) -> Result<u32, Errno> {
    Ok(task.creds().gid.effective)
}

pub(super) fn getresuid(
    task: &Arc<Task>,
    real: UserPtr<u32>,
    effective: UserPtr<u32>,
    saved: UserPtr<u32>,
) -> Result<(), Errno> {
    let (mm, ids) = (task.mm(), task.creds().uid);
    mm.put(real, &ids.real)?;
    mm.put(effective, &ids.effective)?;
    mm.put(saved, &ids.saved)
}

pub(super) fn getresgid(
    task: &Arc<Task>,
    real: UserPtr<u32>,
    effective: UserPtr<u32>,
    saved: UserPtr<u32>,
) -> Result<(), Errno> {
    let (mm, ids) = (task.mm(), task.creds().gid);
    mm.put(real, &ids.real)?;
    mm.put(effective, &ids.effective)?;
    mm.put(saved, &ids.saved)
}

pub(super) fn getgroups(task: &Arc<Task>, size: i32, to: UserPtr<u32>) -> Result<usize, Errno> {
    let creds = task.creds();
    let groups = &creds.groups;
    let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
    if size == 0 {
        return Ok(groups.len());
    }
    if size < groups.len() {
        return Err(Errno::EINVAL);
    }
    let bytes: Vec<u8> = groups
        .iter()
        .flat_map(|group| group.to_ne_bytes())
        .collect();
    task.mm().write(to.addr(), &bytes)?;
    Ok(groups.len())
}

pub(super) fn setgroups(task: &Arc<Task>, size: i32, from: UserPtr<u32>) -> Result<(), Errno> {
    let size = usize::try_from(size)
        .ok()
        .filter(|size| *size <= 65_536)
        .ok_or(Errno::EINVAL)?;
    let groups = task.mm().get_array(from, size)?;
    change(task, |creds| creds.setgroups(groups))
}

fn change(
    task: &Arc<Task>,
    change: impl FnOnce(&Credentials) -> Result<Credentials, Errno>,
) -> Result<(), Errno> {
    let old = task.creds();
    let new = change(&old)?;
    if new.uid.effective != old.uid.effective || new.gid.effective != old.gid.effective {
        task.process
            .dumpable
            .store(0, std::sync::atomic::Ordering::Relaxed);
    }
    task.set_creds(new);
    Ok(())
}

pub(super) fn setuid(task: &Arc<Task>, uid: u32) -> Result<(), Errno> {
    change(task, |creds| creds.setuid(uid))
}

pub(super) fn setgid(task: &Arc<Task>, gid: u32) -> Result<(), Errno> {
    change(task, |creds| creds.setgid(gid))
}

pub(super) fn setreuid(task: &Arc<Task>, real: u32, effective: u32) -> Result<(), Errno> {
    change(task, |creds| creds.setreuid(real, effective))
}

pub(super) fn setregid(task: &Arc<Task>, real: u32, effective: u32) -> Result<(), Errno> {
    change(task, |creds| creds.setregid(real, effective))
}

pub(super) fn setresuid(
    task: &Arc<Task>,
    real: u32,
    effective: u32,
    saved: u32,
) -> Result<(), Errno> {
    change(task, |creds| creds.setresuid(real, effective, saved))
}

pub(super) fn setresgid(
    task: &Arc<Task>,
    real: u32,
    effective: u32,
    saved: u32,
) -> Result<(), Errno> {
    change(task, |creds| creds.setresgid(real, effective, saved))
}

pub(super) fn setfsuid(task: &Arc<Task>, uid: u32) -> Result<u32, Errno> {
    let old = task.creds();
    task.set_creds(old.setfsuid(uid));
    Ok(old.uid.fs)
}

pub(super) fn setfsgid(task: &Arc<Task>, gid: u32) -> Result<u32, Errno> {
    let old = task.creds();
    task.set_creds(old.setfsgid(gid));
    Ok(old.gid.fs)
}

const VERSION_1: u32 = 0x1998_0330;
const VERSION_2: u32 = 0x2007_1026;
const VERSION_3: u32 = 0x2008_0522;

/// How many words each set has in this version of the header; EINVAL, after telling the version that is known.
fn words(task: &Task, header: UserPtr<[u32; 2]>) -> Result<(usize, i32), Errno> {
    let mm = task.mm();
    let [version, pid] = mm.get(header)?;
    match version {
        VERSION_1 => Ok((1, pid.cast_signed())),
        VERSION_2 | VERSION_3 => Ok((2, pid.cast_signed())),
        _ => {
            mm.put(header.cast(), &VERSION_3)?;
            Err(Errno::EINVAL)
        }
    }
}

pub(super) fn capget(
    task: &Arc<Task>,
    header: UserPtr<[u32; 2]>,
    data: UserPtr<u32>,
) -> Result<(), Errno> {
    let (words, pid) = match words(task, header) {
        Err(Errno::EINVAL) if data.is_null() => return Ok(()),
        words => words?,
    };
    let pid = u32::try_from(pid).map_err(|_| Errno::EINVAL)?;
    let creds = if pid == 0 {
        task.creds()
    } else {
        task.tree()
            .lock()
            .tasks
            .get(&pid)
            .ok_or(Errno::ESRCH)?
            .creds()
    };
    if data.is_null() {
        return Ok(());
    }
    let mut bytes = Vec::new();
    for word in 0..words {
        for set in [creds.effective, creds.permitted, creds.inheritable] {
            let part = (set.0 >> (32 * word)) & 0xffff_ffff;
            bytes.extend_from_slice(&(part as u32).to_ne_bytes());
        }
    }
    task.mm().write(data.addr(), &bytes)
}

pub(super) fn capset(
    task: &Arc<Task>,
    header: UserPtr<[u32; 2]>,
    data: UserPtr<u32>,
) -> Result<(), Errno> {
    let (words, pid) = words(task, header)?;
    if pid != 0 && pid != task.tid().cast_signed() {
        return Err(Errno::EPERM);
    }
    let values = task.mm().get_array(data, words * 3)?;
    let set = |kind: usize| {
        let bits = (0..words).fold(0, |bits, word| {
            bits | u64::from(values[word * 3 + kind]) << (32 * word)
        });
        CapSet(bits).intersection(CapSet::FULL)
    };
    change(task, |creds| creds.capset(set(0), set(1), set(2)))
}
