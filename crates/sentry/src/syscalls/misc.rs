//! The machine: names, memory, processors, scheduling, randomness.

use std::sync::Arc;

use abi::{Errno, UserPtr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::task::Task;
use crate::time::Clock;
use abi::cap::Cap;

/// The release that programs are told of: that of the Linux whose ABI this follows.
pub(super) const RELEASE: &str = crate::fs::proc::RELEASE;
/// The version.
pub(super) const VERSION: &str = crate::fs::proc::VERSION;

pub(super) fn uname(task: &Arc<Task>, to: UserPtr<[u8; 390]>) -> Result<(), Errno> {
    let mut out = [0; 390];
    let names = task.namespaces().uts.names();
    for (field, text) in out.chunks_exact_mut(65).zip([
        "Linux",
        &names.host,
        RELEASE,
        VERSION,
        "x86_64",
        &names.domain,
    ]) {
        let len = text.len().min(64);
        field[..len].copy_from_slice(&text.as_bytes()[..len]);
    }
    task.mm().put(to, &out)
}

fn new_name(task: &Arc<Task>, from: u64, len: i32) -> Result<String, Errno> {
    if !task.creds().has(Cap::SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let len = usize::try_from(len)
        .ok()
        .filter(|len| *len <= 64)
        .ok_or(Errno::EINVAL)?;
    let name = task.mm().get_bytes(abi::UserSlice { addr: from, len })?;
    Ok(String::from_utf8_lossy(&name).into_owned())
}

pub(super) fn sethostname(task: &Arc<Task>, from: u64, len: i32) -> Result<(), Errno> {
    let name = new_name(task, from, len)?;
    task.namespaces().uts.change(|names| names.host = name);
    Ok(())
}

pub(super) fn setdomainname(task: &Arc<Task>, from: u64, len: i32) -> Result<(), Errno> {
    let name = new_name(task, from, len)?;
    task.namespaces().uts.change(|names| names.domain = name);
    Ok(())
}

/// `struct sysinfo`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Sysinfo {
    uptime: i64,
    loads: [u64; 3],
    total: u64,
    free: u64,
    shared: u64,
    buffer: u64,
    total_swap: u64,
    free_swap: u64,
    procs: u16,
    pad: [u16; 3],
    total_high: u64,
    free_high: u64,
    unit: u32,
    pad2: u32,
}

pub(super) fn sysinfo(task: &Arc<Task>, to: UserPtr<Sysinfo>) -> Result<(), Errno> {
    let kernel = &task.kernel;
    let up = kernel.clocks().now(Clock::Boottime);
    let procs = task.tree().lock().tasks.len();
    let total = task.container().limits().memory;
    let shared = task.container().mm().memory.used();
    let info = Sysinfo {
        // Rounded up to the second, as Linux does.
        uptime: (up + 999_999_999) / 1_000_000_000,
        total,
        free: total.saturating_sub(shared),
        shared,
        procs: u16::try_from(procs).unwrap_or(u16::MAX),
        unit: 1,
        ..Sysinfo::default()
    };
    task.mm().put(to, &info)
}

pub(super) fn getrandom(task: &Arc<Task>, to: u64, len: usize, flags: u32) -> Result<usize, Errno> {
    // GRND_NONBLOCK, GRND_RANDOM, GRND_INSECURE; the last two exclude each other.
    if flags & !7 != 0 || flags & 6 == 6 {
        return Err(Errno::EINVAL);
    }
    let mm = task.mm();
    let len = len.min(0x7fff_f000);
    let mut done = 0;
    let mut buffer = [0; 256];
    while done < len {
        let part = buffer.len().min(len - done);
        host::machine::fill_random(&mut buffer[..part])?;
        match crate::io::GuestMemory::copy_out(
            mm.as_ref(),
            to.wrapping_add(done as u64),
            &buffer[..part],
        ) {
            Ok(put) if put == part => done += put,
            Ok(put) => return Ok(done + put),
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

pub(super) fn getcpu(
    task: &Arc<Task>,
    cpu: UserPtr<u32>,
    node: UserPtr<u32>,
    _cache: u64,
) -> Result<(), Errno> {
    let mm = task.mm();
    mm.put_opt(cpu, &0)?;
    mm.put_opt(node, &0)
}

pub(super) fn sched_yield(_: &Arc<Task>) -> Result<(), Errno> {
    Ok(())
}

/// The task that a call means: 0 is the caller; ESRCH.
fn named(task: &Arc<Task>, pid: i32) -> Result<Arc<Task>, Errno> {
    if pid == 0 {
        return Ok(Arc::clone(task));
    }
    let pid = u32::try_from(pid).map_err(|_| Errno::EINVAL)?;
    task.tree()
        .lock()
        .tasks
        .get(&pid)
        .cloned()
        .ok_or(Errno::ESRCH)
}

pub(super) fn sched_getaffinity(
    task: &Arc<Task>,
    pid: i32,
    size: usize,
    to: UserPtr<u8>,
) -> Result<usize, Errno> {
    named(task, pid).map_err(|_| Errno::ESRCH)?;
    let cpus = task.container().limits().cpus.clamp(1, 1024);
    let need = (cpus as usize).div_ceil(64) * 8;
    if size < need || !size.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let mut mask = vec![0u8; need];
    for cpu in 0..cpus as usize {
        mask[cpu / 8] |= 1 << (cpu % 8);
    }
    task.mm().write(to.addr(), &mask)?;
    Ok(need)
}

pub(super) fn sched_setaffinity(
    task: &Arc<Task>,
    pid: i32,
    size: usize,
    from: UserPtr<u8>,
) -> Result<(), Errno> {
    named(task, pid).map_err(|_| Errno::ESRCH)?;
    let cpus = task.container().limits().cpus.clamp(1, 1024) as usize;
    let mask = task.mm().get_bytes(abi::UserSlice {
        addr: from.addr(),
        len: size.min(128),
    })?;
    let any = (0..cpus).any(|cpu| {
        mask.get(cpu / 8)
            .is_some_and(|byte| byte & (1 << (cpu % 8)) != 0)
    });
    if any { Ok(()) } else { Err(Errno::EINVAL) }
}

pub(super) fn sched_getscheduler(task: &Arc<Task>, pid: i32) -> Result<usize, Errno> {
    named(task, pid)?;
    Ok(0)
}

pub(super) fn sched_setscheduler(
    task: &Arc<Task>,
    pid: i32,
    policy: i32,
    param: UserPtr<i32>,
) -> Result<(), Errno> {
    named(task, pid)?;
    let priority = task.mm().get(param)?;
    match policy & !0x4000_0000 {
        0 | 3 | 5 if priority == 0 => Ok(()),
        1 | 2 if (1..=99).contains(&priority) => Err(Errno::EPERM),
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn sched_getparam(task: &Arc<Task>, pid: i32, to: UserPtr<i32>) -> Result<(), Errno> {
    named(task, pid)?;
    task.mm().put(to, &0)
}

pub(super) fn sched_setparam(task: &Arc<Task>, pid: i32, from: UserPtr<i32>) -> Result<(), Errno> {
    named(task, pid)?;
    if task.mm().get(from)? == 0 {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

pub(super) fn sched_get_priority_max(_: &Arc<Task>, policy: i32) -> Result<usize, Errno> {
    match policy {
        0 | 3 | 5 | 6 => Ok(0),
        1 | 2 => Ok(99),
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn sched_get_priority_min(_: &Arc<Task>, policy: i32) -> Result<usize, Errno> {
    match policy {
        0 | 3 | 5 | 6 => Ok(0),
        1 | 2 => Ok(1),
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn getpriority(_: &Arc<Task>, which: u32, _who: i32) -> Result<usize, Errno> {
    // The kernel's form: 20 minus the nice value.
    if which > 2 {
        Err(Errno::EINVAL)
    } else {
        Ok(20)
    }
}

pub(super) fn setpriority(task: &Arc<Task>, which: u32, _who: i32, nice: i32) -> Result<(), Errno> {
    if which > 2 {
        return Err(Errno::EINVAL);
    }
    if nice < 0 && !task.creds().has(Cap::SYS_NICE) {
        Err(Errno::EACCES)
    } else {
        Ok(())
    }
}

pub(super) fn personality(_: &Arc<Task>, to: u32) -> Result<usize, Errno> {
    const QUERY: u32 = u32::MAX;
    const ADDR_NO_RANDOMIZE: u32 = 0x0004_0000;
    match to {
        QUERY | 0 | ADDR_NO_RANDOMIZE => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}
