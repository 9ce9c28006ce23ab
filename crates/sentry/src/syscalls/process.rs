//! Processes: clone(2), execve(2), exit(2), wait4(2), process groups, prctl(2), limits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::fs::AtFlags;
use abi::signal::Signal;
use abi::time::Timeval;
use abi::{Errno, UserCStr, UserPtr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::decode::Fd;
use crate::io::GuestMemory;
use crate::mm::Mm;
use crate::task::{
    CallState, CloneArgs, CloneFlags, ExecRequest, ExitStatus, Resource, Step, Task, WaitFor,
    WaitOptions,
};
use crate::time::Clock;
use abi::cap::Cap;

/// The most strings that exec takes in each vector.
const MAX_ARG_STRINGS: usize = 0x7fff_ffff;
/// The longest string (`MAX_ARG_STRLEN`).
const MAX_ARG_STRLEN: usize = 128 << 10;
/// The most bytes in all.
const MAX_ARGS: usize = 6 << 20;

pub(super) fn clone(
    task: &Arc<Task>,
    flags: u64,
    stack: u64,
    parent_tid: UserPtr<u32>,
    child_tid: UserPtr<u32>,
    tls: u64,
    state: &mut CallState,
) -> Step {
    let args = CloneArgs {
        flags: CloneFlags::from_bits_truncate(flags & 0xffff_ff00),
        exit_signal: (flags & 0xff) as u8,
        stack,
        tls,
        parent_tid,
        child_tid,
    };
    task.clone_task(&args, state)
}

/// `struct clone_args` (clone3(2)).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Clone3 {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

pub(super) fn clone3(
    task: &Arc<Task>,
    from: UserPtr<u8>,
    size: usize,
    state: &mut CallState,
) -> Step {
    match read_clone3(task, from, size) {
        Ok(args) => task.clone_task(&args, state),
        Err(error) => Step::Done(Err(error)),
    }
}

fn read_clone3(task: &Arc<Task>, from: UserPtr<u8>, size: usize) -> Result<CloneArgs, Errno> {
    let known = size_of::<Clone3>();
    if size < 64 {
        return Err(Errno::EINVAL);
    }
    if size > 4096 {
        return Err(Errno::E2BIG);
    }
    let mut bytes = task.mm().get_bytes(abi::UserSlice {
        addr: from.addr(),
        len: size,
    })?;
    if bytes.iter().skip(known).any(|byte| *byte != 0) {
        return Err(Errno::E2BIG);
    }
    bytes.resize(known, 0);
    let args = Clone3::read_from_bytes(&bytes).map_err(|_| Errno::EINVAL)?;
    let flags = CloneFlags::from_bits(args.flags).ok_or(Errno::EINVAL)?;
    if args.exit_signal > u64::from(Signal::MAX)
        || args.set_tid_size != 0
        || flags.contains(CloneFlags::DETACHED)
    {
        return Err(Errno::EINVAL);
    }
    if (args.stack == 0) != (args.stack_size == 0) {
        return Err(Errno::EINVAL);
    }
    Ok(CloneArgs {
        flags,
        exit_signal: u8::try_from(args.exit_signal).map_err(|_| Errno::EINVAL)?,
        stack: args.stack.wrapping_add(args.stack_size),
        tls: args.tls,
        parent_tid: UserPtr::new(args.parent_tid),
        child_tid: UserPtr::new(args.child_tid),
    })
}

fn plain_clone(flags: CloneFlags) -> CloneArgs {
    CloneArgs {
        flags,
        exit_signal: Signal::SIGCHLD.raw(),
        stack: 0,
        tls: 0,
        parent_tid: UserPtr::new(0),
        child_tid: UserPtr::new(0),
    }
}

pub(super) fn fork(task: &Arc<Task>, state: &mut CallState) -> Step {
    task.clone_task(&plain_clone(CloneFlags::empty()), state)
}

pub(super) fn vfork(task: &Arc<Task>, state: &mut CallState) -> Step {
    task.clone_task(&plain_clone(CloneFlags::VM | CloneFlags::VFORK), state)
}

/// Guest memory that is read in order, a page at a time.
struct InOrder<'a> {
    mm: &'a Mm,
    at: u64,
    bytes: Vec<u8>,
}

impl<'a> InOrder<'a> {
    fn new(mm: &'a Mm) -> InOrder<'a> {
        InOrder {
            mm,
            at: 0,
            bytes: Vec::new(),
        }
    }

    /// What is known from this address on, at least a byte.
    fn from(&mut self, addr: u64) -> Result<&[u8], Errno> {
        let known = |this: &Self| {
            addr.checked_sub(this.at)
                .and_then(|offset| usize::try_from(offset).ok())
                .filter(|offset| *offset < this.bytes.len())
        };
        if known(self).is_none() {
            let rest = platform::PAGE - addr % platform::PAGE;
            self.bytes.resize(usize::try_from(rest).unwrap_or(1), 0);
            let got = self.mm.copy_in(addr, &mut self.bytes)?;
            self.bytes.truncate(got);
            self.at = addr;
        }
        known(self)
            .map(|offset| &self.bytes[offset..])
            .ok_or(Errno::EFAULT)
    }

    fn word(&mut self, addr: u64) -> Result<u64, Errno> {
        let mut word = [0; 8];
        let mut done = 0;
        while done < word.len() {
            let at = addr.checked_add(done as u64).ok_or(Errno::EFAULT)?;
            let bytes = self.from(at)?;
            let some = bytes.len().min(word.len() - done);
            word[done..done + some].copy_from_slice(&bytes[..some]);
            done += some;
        }
        Ok(u64::from_ne_bytes(word))
    }

    /// E2BIG for a string of [`MAX_ARG_STRLEN`] bytes or more, its NUL included.
    fn string(&mut self, addr: u64) -> Result<Vec<u8>, Errno> {
        let mut string = Vec::new();
        loop {
            let at = addr.checked_add(string.len() as u64).ok_or(Errno::EFAULT)?;
            let bytes = self.from(at)?;
            let end = bytes.iter().position(|byte| *byte == 0);
            string.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
            if string.len() >= MAX_ARG_STRLEN {
                return Err(Errno::E2BIG);
            }
            if end.is_some() {
                return Ok(string);
            }
        }
    }
}

/// A vector of strings, ended by a null pointer.
fn strings(task: &Arc<Task>, from: UserPtr<u64>, total: &mut usize) -> Result<Vec<Vec<u8>>, Errno> {
    let mm = task.mm();
    let mut strings = Vec::new();
    if from.is_null() {
        return Ok(strings);
    }
    let (mut pointers, mut bytes) = (InOrder::new(&mm), InOrder::new(&mm));
    let mut at = from.addr();
    loop {
        let pointer = pointers.word(at)?;
        if pointer == 0 {
            return Ok(strings);
        }
        let string = bytes.string(pointer)?;
        *total += string.len() + 9;
        if *total > MAX_ARGS || strings.len() >= MAX_ARG_STRINGS {
            return Err(Errno::E2BIG);
        }
        strings.push(string);
        at = at.checked_add(8).ok_or(Errno::EFAULT)?;
    }
}

pub(super) fn execve(
    task: &Arc<Task>,
    path: UserCStr,
    args: UserPtr<u64>,
    env: UserPtr<u64>,
) -> Step {
    execveat(task, Fd(abi::fs::AT_FDCWD), path, args, env, 0)
}

pub(super) fn execveat(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    args: UserPtr<u64>,
    env: UserPtr<u64>,
    flags: u32,
) -> Step {
    match exec_request(task, dirfd, path, args, env, flags) {
        Ok(request) => task.exec(request),
        Err(error) => Step::Done(Err(error)),
    }
}

fn exec_request(
    task: &Arc<Task>,
    dirfd: Fd,
    path: UserCStr,
    args: UserPtr<u64>,
    env: UserPtr<u64>,
    flags: u32,
) -> Result<ExecRequest, Errno> {
    let flags = AtFlags::from_bits(flags)
        .filter(|flags| (AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW).contains(*flags))
        .ok_or(Errno::EINVAL)?;
    let path = task.mm().get_path(path)?;
    let mut total = 0;
    let mut args = strings(task, args, &mut total)?;
    let env = strings(task, env, &mut total)?;
    if args.is_empty() {
        // As Linux does since 5.18.
        args.push(Vec::new());
    }
    let fs = task.fs();
    let creds = task.creds();
    let dir = if dirfd.0 == abi::fs::AT_FDCWD || path.starts_with(b"/") {
        None
    } else {
        Some(task.files().get(dirfd.0)?)
    };
    let name = match &dir {
        None => path.clone(),
        Some(_) if path.is_empty() => format!("/dev/fd/{}", dirfd.0).into_bytes(),
        Some(_) => [format!("/dev/fd/{}/", dirfd.0).as_bytes(), &path].concat(),
    };
    let context = crate::vfs::PathCx {
        fs: &fs,
        creds: &creds,
        dirfd: dir,
    };
    let file = task.vfs().open_exec(&context, &path, flags)?;
    Ok(ExecRequest {
        path: name,
        file: Some(file),
        args,
        env,
    })
}

pub(super) fn exit(task: &Arc<Task>, code: i32, state: &mut CallState) -> Step {
    if let Some(step) = crate::ipc::futex::release_own_robust(task, state) {
        return step;
    }
    task.exit((code & 0xff) as u8);
    Step::Gone
}

pub(super) fn exit_group(task: &Arc<Task>, code: i32) -> Step {
    task.process.end(ExitStatus::Code((code & 0xff) as u8));
    Step::NoReturn
}

/// `struct rusage`: two times, then fourteen counters.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Rusage {
    utime: Timeval,
    stime: Timeval,
    counters: [i64; 14],
}

impl Rusage {
    fn of(nanos: u64) -> Rusage {
        Rusage {
            utime: Timeval::from_nanos(i64::try_from(nanos).unwrap_or(i64::MAX)),
            ..Rusage::default()
        }
    }
}

pub(super) fn wait4(
    task: &Arc<Task>,
    pid: i32,
    status: UserPtr<u32>,
    options: u32,
    rusage: UserPtr<Rusage>,
) -> Step {
    let allowed = WaitOptions::NOHANG
        | WaitOptions::STOPPED
        | WaitOptions::CONTINUED
        | WaitOptions::NOTHREAD
        | WaitOptions::ALL
        | WaitOptions::CLONE;
    let Some(options) =
        WaitOptions::from_bits(options).filter(|options| allowed.contains(*options))
    else {
        return Step::Done(Err(Errno::EINVAL));
    };
    let which = match pid {
        i32::MIN => return Step::Done(Err(Errno::ESRCH)),
        -1 => WaitFor::Any,
        0 => WaitFor::Group(0),
        pid if pid > 0 => WaitFor::Process(pid.unsigned_abs()),
        group => WaitFor::Group(group.unsigned_abs()),
    };
    let found = match task.wait_for(which, options | WaitOptions::EXITED) {
        Ok(found) => found,
        Err(step) => return step,
    };
    let mm = task.mm();
    let stored = mm
        .put_opt(status, &found.status)
        .and_then(|()| mm.put_opt(rusage, &Rusage::of(found.cpu)));
    Step::Done(stored.map(|()| found.pid as usize))
}

pub(super) fn waitid(
    task: &Arc<Task>,
    kind: u32,
    id: u32,
    info: UserPtr<abi::signal::SigInfo>,
    options: u32,
    rusage: UserPtr<Rusage>,
) -> Step {
    let allowed = WaitOptions::all();
    let Some(options) =
        WaitOptions::from_bits(options).filter(|options| allowed.contains(*options))
    else {
        return Step::Done(Err(Errno::EINVAL));
    };
    if !options.intersects(WaitOptions::EXITED | WaitOptions::STOPPED | WaitOptions::CONTINUED) {
        return Step::Done(Err(Errno::EINVAL));
    }
    let which = match (kind, id) {
        (0, _) => WaitFor::Any,
        (1, 1..) => WaitFor::Process(id),
        (2, _) => WaitFor::Group(id),
        _ => return Step::Done(Err(Errno::EINVAL)),
    };
    let mm = task.mm();
    let found = match task.wait_for(which, options) {
        Ok(found) => found,
        Err(Step::Done(Ok(_))) => {
            // Nothing yet: the caller sees a zero in si_pid and si_signo.
            let empty = abi::signal::SigInfo {
                signo: 0,
                errno: 0,
                code: 0,
                pad: 0,
                fields: [0; 14],
            };
            return Step::Done(mm.put_opt(info, &empty).map(|()| 0));
        }
        Err(step) => return step,
    };
    let (code, status) = found.info;
    let filled = abi::signal::SigInfo::child(code, found.pid, found.uid, status);
    let stored = mm
        .put_opt(info, &filled)
        .and_then(|()| mm.put_opt(rusage, &Rusage::of(found.cpu)));
    Step::Done(stored.map(|()| 0))
}

pub(super) fn getpid(task: &Arc<Task>) -> Result<u32, Errno> {
    Ok(task.process.pid)
}

pub(super) fn gettid(task: &Arc<Task>) -> Result<u32, Errno> {
    Ok(task.tid())
}

pub(super) fn getppid(task: &Arc<Task>) -> Result<u32, Errno> {
    Ok(task
        .tree()
        .lock()
        .process(task.process.pid)
        .map_or(0, |node| node.parent))
}

/// The process that a call means: 0 is the caller.
fn target(task: &Arc<Task>, pid: i32) -> Result<u32, Errno> {
    if pid == 0 {
        Ok(task.process.pid)
    } else {
        u32::try_from(pid).map_err(|_| Errno::EINVAL)
    }
}

pub(super) fn getpgid(task: &Arc<Task>, pid: i32) -> Result<u32, Errno> {
    let pid = target(task, pid).map_err(|_| Errno::ESRCH)?;
    Ok(task.tree().lock().process(pid)?.group)
}

pub(super) fn getpgrp(task: &Arc<Task>) -> Result<u32, Errno> {
    getpgid(task, 0)
}

pub(super) fn getsid(task: &Arc<Task>, pid: i32) -> Result<u32, Errno> {
    let pid = target(task, pid).map_err(|_| Errno::ESRCH)?;
    Ok(task.tree().lock().process(pid)?.session)
}

pub(super) fn setpgid(task: &Arc<Task>, pid: i32, group: i32) -> Result<(), Errno> {
    let me = task.process.pid;
    let pid = target(task, pid)?;
    let group = if group == 0 {
        pid
    } else {
        u32::try_from(group).map_err(|_| Errno::EINVAL)?
    };
    let mut tree = task.tree().lock();
    let my_session = tree.process(me)?.session;
    let node = tree.process(pid)?;
    if pid != me {
        if node.parent != me {
            return Err(Errno::ESRCH);
        }
        if node.session != my_session {
            return Err(Errno::EPERM);
        }
        if node.process.execed.load(Ordering::Relaxed) {
            return Err(Errno::EACCES);
        }
    }
    if node.session == pid || (group != pid && !tree.group_exists(group, my_session)) {
        return Err(Errno::EPERM);
    }
    if let Some(node) = tree.nodes.get_mut(&pid) {
        node.group = group;
    }
    Ok(())
}

pub(super) fn setsid(task: &Arc<Task>) -> Result<u32, Errno> {
    let me = task.process.pid;
    let mut tree = task.tree().lock();
    if tree.nodes.values().any(|node| node.group == me) {
        return Err(Errno::EPERM);
    }
    if let Some(node) = tree.nodes.get_mut(&me) {
        node.group = me;
        node.session = me;
    }
    Ok(me)
}

pub(super) fn set_tid_address(task: &Arc<Task>, word: UserPtr<u32>) -> Result<u32, Errno> {
    *task.clear_tid.lock() = word;
    Ok(task.tid())
}

pub(super) fn set_robust_list(task: &Arc<Task>, head: u64, len: usize) -> Result<(), Errno> {
    if len != 24 {
        return Err(Errno::EINVAL);
    }
    task.robust_list.store(head, Ordering::Relaxed);
    Ok(())
}

pub(super) fn get_robust_list(
    task: &Arc<Task>,
    tid: i32,
    head: UserPtr<u64>,
    len: UserPtr<u64>,
) -> Result<(), Errno> {
    let of = if tid == 0 {
        Arc::clone(task)
    } else {
        let tid = u32::try_from(tid).map_err(|_| Errno::ESRCH)?;
        task.tree()
            .lock()
            .tasks
            .get(&tid)
            .cloned()
            .ok_or(Errno::ESRCH)?
    };
    let mm = task.mm();
    mm.put(len, &24)?;
    mm.put(head, &of.robust_list.load(Ordering::Relaxed))
}

pub(super) fn prctl(
    task: &Arc<Task>,
    option: u32,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
) -> Result<usize, Errno> {
    let mm = task.mm();
    let signal = |raw: u64| {
        u8::try_from(raw)
            .ok()
            .filter(|raw| *raw <= Signal::MAX)
            .ok_or(Errno::EINVAL)
    };
    match option {
        // PR_SET_PDEATHSIG, PR_GET_PDEATHSIG
        1 => task.death_signal.store(signal(a)?, Ordering::Relaxed),
        2 => mm.put(
            UserPtr::new(a),
            &i32::from(task.death_signal.load(Ordering::Relaxed)),
        )?,
        // PR_GET_DUMPABLE, PR_SET_DUMPABLE
        3 => return Ok(usize::from(task.process.dumpable.load(Ordering::Relaxed))),
        4 if a <= 1 => task
            .process
            .dumpable
            .store(u8::from(a == 1), Ordering::Relaxed),
        // PR_SET_NAME, PR_GET_NAME
        15 => {
            let mut name = [0; 16];
            let at = abi::UserCStr(a);
            let text = mm.get_cstr(at, 15)?;
            match text {
                Some(text) => task.set_name(&text),
                None => {
                    mm.read(a, &mut name)?;
                    task.set_name(&name[..15]);
                }
            }
        }
        16 => {
            let name = *task.name.lock();
            mm.write(a, &name)?;
        }
        // PR_GET_SECCOMP
        21 => return Ok(0),
        // PR_CAPBSET_READ, PR_CAPBSET_DROP
        23 => {
            let bit = u32::try_from(a)
                .ok()
                .filter(|bit| *bit <= 40)
                .ok_or(Errno::EINVAL)?;
            return Ok(usize::from(task.creds().bounding.0 >> bit & 1 != 0));
        }
        24 => {
            let bit = u32::try_from(a)
                .ok()
                .filter(|bit| *bit <= 40)
                .ok_or(Errno::EINVAL)?;
            let mut creds = (*task.creds()).clone();
            if !creds.has(Cap::SETPCAP) {
                return Err(Errno::EPERM);
            }
            creds.bounding.0 &= !(1 << bit);
            task.set_creds(creds);
        }
        // PR_GET_SECUREBITS
        27 => return Ok(0),
        // PR_SET_TIMERSLACK, PR_GET_TIMERSLACK
        29 => task
            .timer_slack
            .store(if a == 0 { 50_000 } else { a }, Ordering::Relaxed),
        30 => {
            return usize::try_from(task.timer_slack.load(Ordering::Relaxed))
                .map_err(|_| Errno::EOVERFLOW);
        }
        // PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER
        36 => task.process.subreaper.store(a != 0, Ordering::Relaxed),
        37 => mm.put(
            UserPtr::new(a),
            &i32::from(task.process.subreaper.load(Ordering::Relaxed)),
        )?,
        // PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS
        38 if a == 1 && b == 0 && c == 0 && d == 0 => {
            task.no_new_privs.store(true, Ordering::Relaxed)
        }
        39 => return Ok(usize::from(task.no_new_privs.load(Ordering::Relaxed))),
        // PR_SET_THP_DISABLE, PR_GET_THP_DISABLE: a hint
        41 => {}
        42 => return Ok(0),
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

pub(super) fn arch_prctl(task: &Arc<Task>, code: u32, addr: u64) -> Result<(), Errno> {
    let thread = task.thread()?;
    let mut regs = thread.regs();
    match code {
        // ARCH_SET_GS, ARCH_SET_FS, ARCH_GET_FS, ARCH_GET_GS
        0x1001 | 0x1002 if addr >= platform::USER_TOP => return Err(Errno::EPERM),
        0x1001 => regs.gs_base = addr,
        0x1002 => regs.fs_base = addr,
        0x1003 => return task.mm().put(UserPtr::new(addr), &regs.fs_base),
        0x1004 => return task.mm().put(UserPtr::new(addr), &regs.gs_base),
        _ => return Err(Errno::EINVAL),
    }
    thread.set_regs(&regs);
    Ok(())
}

fn limit_target(task: &Arc<Task>, pid: i32) -> Result<Arc<crate::task::Process>, Errno> {
    if pid == 0 {
        return Ok(Arc::clone(&task.process));
    }
    let pid = u32::try_from(pid).map_err(|_| Errno::ESRCH)?;
    let process = Arc::clone(&task.tree().lock().process(pid)?.process);
    let other = process.any_thread().ok_or(Errno::ESRCH)?.creds();
    let mine = task.creds();
    if mine.uid.real != other.uid.real && !mine.has(Cap::SYS_RESOURCE) {
        return Err(Errno::EPERM);
    }
    Ok(process)
}

pub(super) fn prlimit64(
    task: &Arc<Task>,
    pid: i32,
    resource: u32,
    new: UserPtr<[u64; 2]>,
    old: UserPtr<[u64; 2]>,
) -> Result<(), Errno> {
    let resource = Resource::from_raw(resource)?;
    let mm = task.mm();
    let new = new.non_null().map(|new| mm.get(new)).transpose()?;
    let process = limit_target(task, pid)?;
    let before = process.limits.lock().get(resource);
    if let Some([soft, hard]) = new {
        if soft > hard {
            return Err(Errno::EINVAL);
        }
        let privileged = task.creds().has(Cap::SYS_RESOURCE);
        if (hard > before.1 && !privileged)
            || (resource == Resource::Nofile && hard > u64::from(crate::vfs::NR_OPEN))
        {
            return Err(Errno::EPERM);
        }
        process.limits.lock().set(resource, (soft, hard));
        if let Some(thread) = process.any_thread() {
            let of = thread.mm();
            match resource {
                Resource::As => of.limit_as.store(soft, Ordering::Relaxed),
                Resource::Data => of.limit_data.store(soft, Ordering::Relaxed),
                Resource::Stack => of.limit_stack.store(soft, Ordering::Relaxed),
                _ => {}
            }
        }
    }
    mm.put_opt(old, &[before.0, before.1])
}

pub(super) fn getrlimit(
    task: &Arc<Task>,
    resource: u32,
    old: UserPtr<[u64; 2]>,
) -> Result<(), Errno> {
    let (soft, hard) = task
        .process
        .limits
        .lock()
        .get(Resource::from_raw(resource)?);
    task.mm().put(old, &[soft, hard])
}

pub(super) fn setrlimit(
    task: &Arc<Task>,
    resource: u32,
    new: UserPtr<[u64; 2]>,
) -> Result<(), Errno> {
    if new.is_null() {
        return Err(Errno::EFAULT);
    }
    prlimit64(task, 0, resource, new, UserPtr::new(0))
}

pub(super) fn getrusage(task: &Arc<Task>, who: i32, to: UserPtr<Rusage>) -> Result<(), Errno> {
    let nanos = match who {
        0 => task.process.cpu_time(),
        1 => task.thread()?.cpu_time(),
        -1 => task.process.children_cpu.load(Ordering::Relaxed),
        _ => return Err(Errno::EINVAL),
    };
    task.mm().put(to, &Rusage::of(nanos))
}

pub(super) fn times(task: &Arc<Task>, to: UserPtr<[i64; 4]>) -> Result<usize, Errno> {
    const TICK: u64 = 10_000_000;
    let ticks = |nanos: u64| i64::try_from(nanos / TICK).unwrap_or(i64::MAX);
    let own = ticks(task.process.cpu_time());
    let children = ticks(task.process.children_cpu.load(Ordering::Relaxed));
    task.mm().put_opt(to, &[own, 0, children, 0])?;
    let now = task.kernel.clocks().now(Clock::Boottime);
    usize::try_from(now / 10_000_000).map_err(|_| Errno::EOVERFLOW)
}
