//! `/proc/PID/stat`, `status` and the other small texts about a process.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use abi::Errno;

use super::maps::resident;
use super::process::Subject;
use super::ticks;
use crate::io::GuestMemory;
use crate::mm::{AreaFlags, Mapping, Mm, Prot};
use crate::task::limits::INFINITY;
use crate::task::{ExitStatus, Resource, Task};

/// Where it stands among its relatives.
#[derive(Clone, Copy, Default)]
struct Relatives {
    parent: u32,
    group: u32,
    session: u32,
    exit: Option<ExitStatus>,
    ids: (u32, u32),
}

fn relatives(subject: &Subject) -> Result<Relatives, Errno> {
    let container = subject.container()?;
    let tree = container.namespaces().pid.tree().lock();
    let node = tree.process(subject.pid)?;
    Ok(Relatives {
        parent: node.parent,
        group: node.group,
        session: node.session,
        exit: node.exit,
        ids: node.ids,
    })
}

/// The task, `None` where the process has ended and waits to be reaped; ESRCH once it is gone.
fn living(subject: &Subject) -> Result<Option<Arc<Task>>, Errno> {
    match subject.task() {
        Ok(task) => Ok(Some(task)),
        Err(_) if subject.thread.is_none() && subject.process().is_ok() => Ok(None),
        Err(error) => Err(error),
    }
}

fn name_of(subject: &Subject, task: Option<&Arc<Task>>) -> Vec<u8> {
    match task {
        Some(task) => task.comm(),
        None => {
            let container = subject.container();
            container
                .ok()
                .and_then(|container| {
                    container
                        .namespaces()
                        .pid
                        .tree()
                        .lock()
                        .process(subject.pid)
                        .map(|node| node.comm.clone())
                        .ok()
                })
                .unwrap_or_default()
        }
    }
}

pub(super) fn comm(subject: &Subject) -> Result<Vec<u8>, Errno> {
    super::line(name_of(subject, living(subject)?.as_ref()))
}

pub(super) fn set_comm(subject: &Subject, name: &[u8]) -> Result<(), Errno> {
    let task = subject.task()?;
    task.set_name(name.strip_suffix(b"\n").unwrap_or(name));
    Ok(())
}

/// Bytes of a program's own memory: what can't be read any more is left out.
fn own_memory(mm: &Mm, (from, to): (u64, u64)) -> Result<Vec<u8>, Errno> {
    // What exec takes is at most a few megabytes (ARG_MAX).
    let len = usize::try_from(to.saturating_sub(from))
        .unwrap_or(0)
        .min(8 << 20);
    let mut bytes = vec![0; len];
    let got = if len == 0 {
        0
    } else {
        mm.copy_in(from, &mut bytes).unwrap_or(0)
    };
    bytes.truncate(got);
    Ok(bytes)
}

pub(super) fn cmdline(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let Some(task) = living(subject)? else {
        return Ok(Vec::new());
    };
    let mm = task.mm();
    let layout = mm.layout();
    let mut bytes = own_memory(&mm, layout.args)?;
    // A program that wrote a longer title over its arguments has it go on in what was its environment (setproctitle).
    if bytes.last().is_some_and(|byte| *byte != 0) {
        let more = own_memory(&mm, layout.env)?;
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            bytes.truncate(end + 1);
        } else {
            let end = more
                .iter()
                .position(|byte| *byte == 0)
                .map_or(more.len(), |end| end + 1);
            bytes.extend_from_slice(&more[..end]);
        }
    }
    Ok(bytes)
}

pub(super) fn environ(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let mm = subject.guarded()?.mm();
    own_memory(&mm, mm.layout().env)
}

/// What kinds of areas an address space has, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    total: u64,
    locked: u64,
    data: u64,
    stack: u64,
    exe: u64,
    lib: u64,
}

fn sizes(mm: &Mm) -> Sizes {
    let layout = mm.layout();
    let mut sizes = Sizes::default();
    for (start, area) in mm.snapshot() {
        let len = area.end - start;
        sizes.total += len;
        if area.flags.contains(AreaFlags::LOCKED) {
            sizes.locked += len;
        }
        if area.flags.contains(AreaFlags::GROWS_DOWN) {
            sizes.stack += len;
        } else if area.prot.contains(Prot::EXEC)
            && matches!(area.mapping, Mapping::Host { .. } | Mapping::Memory { .. })
        {
            let own = start < layout.code.1 && layout.code.0 < area.end;
            *(if own { &mut sizes.exe } else { &mut sizes.lib }) += len;
        } else if area.prot.contains(Prot::WRITE) && !area.shared() {
            sizes.data += len;
        }
    }
    sizes
}

fn letter(task: Option<&Arc<Task>>) -> char {
    task.map_or('Z', |task| task.state_letter())
}

pub(super) fn stat(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let task = living(subject)?;
    let process = subject.process()?;
    let relatives = relatives(subject)?;
    let mut text = format!("{} (", subject.number()).into_bytes();
    text.extend_from_slice(&name_of(subject, task.as_ref()));
    text.extend_from_slice(
        format!(
            ") {} {} {} {} 0 -1 ",
            letter(task.as_ref()),
            relatives.parent,
            relatives.group,
            relatives.session
        )
        .as_bytes(),
    );
    let cpu = match (&task, subject.thread) {
        (Some(task), Some(_)) => task.thread().map_or(0, |thread| thread.cpu_time()),
        _ => process.cpu_time(),
    };
    let children = process.children_cpu.load(Ordering::Relaxed);
    let mm = task.as_ref().map(|task| task.mm());
    let (total, rss) = mm
        .as_ref()
        .map_or((0, 0), |mm| (mm.mapped(), resident(mm).total()));
    let layout = mm.as_ref().map(|mm| mm.layout()).unwrap_or_default();
    let limit = process.limits.lock().get(Resource::Rss).0;
    let started = ticks(u64::try_from(process.started).unwrap_or(0));
    let (ignored, caught) = process.handlers().lock().sets();
    let (pending, blocked) = task
        .as_ref()
        .map_or((0, 0), |task| (task.own_pending_set().0, task.mask().0));
    let exit_signal = if subject.thread.is_some() {
        255
    } else {
        process.exit_signal.load(Ordering::Relaxed)
    };
    // Nobody learns addresses who could not look for himself.
    let seen = subject.guarded().is_ok();
    let place = |address: u64| if seen { address } else { 0 };
    text.extend_from_slice(
        format!(
            "0 0 0 0 0 {} 0 {} 0 20 0 {} 0 {started} {total} {rss} {limit} {} {} {} 0 0 {pending} {blocked} {} {} {} 0 0 {} 0 0 0 0 0 0 ",
            ticks(cpu),
            ticks(children),
            process.threads().len().max(1),
            place(layout.code.0),
            place(layout.code.1),
            place(layout.stack),
            ignored.0,
            caught.0,
            u8::from(letter(task.as_ref()) == 'S'),
            if exit_signal == 255 { -1 } else { i32::from(exit_signal) },
        )
        .as_bytes(),
    );
    let places = [
        layout.data.0,
        layout.data.1,
        layout.brk.0,
        layout.args.0,
        layout.args.1,
        layout.env.0,
        layout.env.1,
    ];
    for address in places {
        text.extend_from_slice(format!("{} ", place(address)).as_bytes());
    }
    let status = relatives
        .exit
        .filter(|_| seen)
        .map_or(0, ExitStatus::to_wait);
    text.extend_from_slice(format!("{status}\n").as_bytes());
    Ok(text)
}

pub(super) fn statm(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let Some(task) = living(subject)? else {
        return Ok(b"0 0 0 0 0 0 0\n".to_vec());
    };
    let mm = task.mm();
    let (sizes, resident) = (sizes(&mm), resident(&mm));
    let shared = resident.file + resident.shared;
    let text = format!(
        "{} {} {shared} {} 0 {} 0\n",
        sizes.total / 4096,
        resident.total(),
        sizes.exe / 4096,
        (sizes.data + sizes.stack) / 4096
    );
    Ok(text.into_bytes())
}

/// A mask of CPUs as the kernel writes it, and the list.
fn cpus(count: u32) -> (String, String) {
    let mut words = Vec::new();
    let mut left = count.max(1);
    while left > 0 {
        let here = left.min(32);
        words.push(format!("{:x}", u32::MAX >> (32 - here)));
        left -= here;
    }
    words.reverse();
    let list = if count <= 1 {
        "0".to_owned()
    } else {
        format!("0-{}", count - 1)
    };
    (words.join(","), list)
}

pub(super) fn status(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let container = subject.container()?;
    let process = subject.process()?;
    let task = living(subject)?;
    let relatives = relatives(subject)?;
    let state = match letter(task.as_ref()) {
        'R' => "R (running)",
        'T' => "T (stopped)",
        'Z' => "Z (zombie)",
        _ => "S (sleeping)",
    };
    let mut text = b"Name:\t".to_vec();
    for byte in name_of(subject, task.as_ref()) {
        match byte {
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\\' => text.extend_from_slice(b"\\\\"),
            _ => text.push(byte),
        }
    }
    let number = subject.number();
    let mut more = String::from("\n");
    if let Some(task) = &task {
        more.push_str(&format!("Umask:\t{:04o}\n", task.fs().umask()));
    }
    more.push_str(&format!(
        "State:\t{state}\nTgid:\t{}\nNgid:\t0\nPid:\t{number}\nPPid:\t{}\nTracerPid:\t0\n",
        subject.pid, relatives.parent
    ));
    let creds = task.as_ref().map(|task| task.creds());
    for (name, of) in [("Uid", 0), ("Gid", 1)] {
        let ids = match &creds {
            Some(creds) => {
                if of == 0 {
                    creds.uid
                } else {
                    creds.gid
                }
            }
            None => crate::task::credentials::Ids::all(if of == 0 {
                relatives.ids.0
            } else {
                relatives.ids.1
            }),
        };
        more.push_str(&format!(
            "{name}:\t{}\t{}\t{}\t{}\n",
            ids.real, ids.effective, ids.saved, ids.fs
        ));
    }
    more.push_str(&format!(
        "FDSize:\t{}\nGroups:\t",
        task.as_ref().map_or(0, |task| task.files().size())
    ));
    for group in creds.iter().flat_map(|creds| creds.groups.iter()) {
        more.push_str(&format!("{group} "));
    }
    more.push_str(&format!(
        "\nNStgid:\t{}\nNSpid:\t{number}\nNSpgid:\t{}\nNSsid:\t{}\nKthread:\t0\n",
        subject.pid, relatives.group, relatives.session
    ));
    if let Some(task) = &task {
        memory(&task.mm(), &mut more);
    }
    let pending = process.pending_set();
    let (ignored, caught) = process.handlers().lock().sets();
    let limit = process.limits.lock().get(Resource::Sigpending).0;
    more.push_str(&format!(
        "Threads:\t{}\nSigQ:\t0/{limit}\nSigPnd:\t{:016x}\nShdPnd:\t{:016x}\nSigBlk:\t{:016x}\nSigIgn:\t{:016x}\nSigCgt:\t{:016x}\n",
        process.threads().len().max(1),
        task.as_ref().map_or(0, |task| task.own_pending_set().0),
        pending.0,
        task.as_ref().map_or(0, |task| task.mask().0),
        ignored.0,
        caught.0
    ));
    if let Some(creds) = &creds {
        for (name, set) in [
            ("CapInh", creds.inheritable),
            ("CapPrm", creds.permitted),
            ("CapEff", creds.effective),
            ("CapBnd", creds.bounding),
            ("CapAmb", creds.ambient),
        ] {
            more.push_str(&format!("{name}:\t{:016x}\n", set.0));
        }
    }
    let no_new = task
        .as_ref()
        .is_some_and(|task| task.no_new_privs.load(Ordering::Relaxed));
    let (mask, list) = cpus(container.limits().cpus);
    more.push_str(&format!(
        "NoNewPrivs:\t{}\nSeccomp:\t0\nSeccomp_filters:\t0\nCpus_allowed:\t{mask}\nCpus_allowed_list:\t{list}\n\
         Mems_allowed:\t00000000,00000001\nMems_allowed_list:\t0\nvoluntary_ctxt_switches:\t0\nnonvoluntary_ctxt_switches:\t0\n",
        u8::from(no_new)
    ));
    text.extend_from_slice(more.as_bytes());
    Ok(text)
}

fn memory(mm: &Mm, text: &mut String) {
    let (sizes, resident) = (sizes(mm), resident(mm));
    let rss = resident.total() * 4;
    for (name, kilobytes) in [
        ("VmPeak", sizes.total / 1024),
        ("VmSize", sizes.total / 1024),
        ("VmLck", sizes.locked / 1024),
        ("VmPin", 0),
        ("VmHWM", rss),
        ("VmRSS", rss),
        ("RssAnon", resident.anonymous * 4),
        ("RssFile", resident.file * 4),
        ("RssShmem", resident.shared * 4),
        ("VmData", sizes.data / 1024),
        ("VmStk", sizes.stack / 1024),
        ("VmExe", sizes.exe / 1024),
        ("VmLib", sizes.lib / 1024),
        ("VmPTE", resident.total() * 8 / 1024 + 4),
        ("VmSwap", 0),
    ] {
        text.push_str(&format!("{name}:\t{kilobytes:>8} kB\n"));
    }
    text.push_str("HugetlbPages:\t       0 kB\nCoreDumping:\t0\nTHP_enabled:\t1\nuntag_mask:\t0xffffffffffffffff\n");
}

pub(super) fn limits(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let limits = *subject.process()?.limits.lock();
    let mut text = format!(
        "{:<25} {:<20} {:<20} {:<10}\n",
        "Limit", "Soft Limit", "Hard Limit", "Units"
    );
    for (resource, name, unit) in Resource::ALL {
        let (soft, hard) = limits.get(resource);
        let shown = |limit: u64| {
            if limit == INFINITY {
                "unlimited".to_owned()
            } else {
                limit.to_string()
            }
        };
        text.push_str(&format!(
            "{name:<25} {:<20} {:<20} ",
            shown(soft),
            shown(hard)
        ));
        if !unit.is_empty() {
            text.push_str(&format!("{unit:<10}"));
        }
        text.push('\n');
    }
    Ok(text.into_bytes())
}

pub(super) fn io(subject: &Subject) -> Result<Vec<u8>, Errno> {
    subject.guarded()?;
    let names = [
        "rchar",
        "wchar",
        "syscr",
        "syscw",
        "read_bytes",
        "write_bytes",
        "cancelled_write_bytes",
    ];
    Ok(names
        .map(|name| format!("{name}: 0\n"))
        .concat()
        .into_bytes())
}

pub(super) fn schedstat(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let cpu = subject
        .task()?
        .thread()
        .map_or(0, |thread| thread.cpu_time());
    Ok(format!("{cpu} 0 0\n").into_bytes())
}

/// The share of the sandbox's memory that it uses, in thousandths, and what it was told to add (proc_pid_oom_score(5)).
pub(super) fn oom_score(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let process = subject.process()?;
    let used = living(subject)?.map_or(0, |task| resident(&task.mm()).total() * 4096);
    let total = subject.container()?.limits().memory.max(1);
    let share = i64::try_from(used.saturating_mul(1000) / total).unwrap_or(1000);
    let adjusted =
        (share + i64::from(process.oom_score_adj.load(Ordering::Relaxed))).clamp(-1000, 1000);
    // Linux shows two thirds of it, shifted so that nothing is negative.
    Ok(format!("{}\n", (1000 + adjusted) * 2 / 3).into_bytes())
}

pub(super) fn oom_score_adj(subject: &Subject) -> Result<Vec<u8>, Errno> {
    Ok(format!(
        "{}\n",
        subject.process()?.oom_score_adj.load(Ordering::Relaxed)
    )
    .into_bytes())
}

pub(super) fn set_oom_score_adj(subject: &Subject, text: &[u8]) -> Result<(), Errno> {
    let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    let value: i32 = text.trim().parse().map_err(|_| Errno::EINVAL)?;
    if !(-1000..=1000).contains(&value) {
        return Err(Errno::EINVAL);
    }
    subject
        .process()?
        .oom_score_adj
        .store(value, Ordering::Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::cpus;

    #[test]
    fn masks_of_cpus() {
        assert_eq!(cpus(1), ("1".to_owned(), "0".to_owned()));
        assert_eq!(cpus(2), ("3".to_owned(), "0-1".to_owned()));
        assert_eq!(cpus(33), ("1,ffffffff".to_owned(), "0-32".to_owned()));
    }
}
