//! Waiting for files: poll(2), select(2), epoll(7), and the files that are there to be waited for: eventfd(2), timerfd_create(2), signalfd(2).

use std::sync::Arc;

use abi::epoll::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EpollEvent};
use abi::fs::OpenFlags;
use abi::signal::SigSet;
use abi::time::{Itimerspec, Timespec, Timeval};
use abi::{Errno, UserPtr};
use smallvec::SmallVec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::decode::Fd;
use super::io::get;
use super::table::rows;
use crate::fs::{epoll, eventfd, signalfd, timerfd};
use crate::sync::{EventMask, WaitQueue};
use crate::task::{CallState, OnSignal, Resource, Step, Task, Wait};
use crate::time::{Clock, Deadline};
use crate::vfs::OpenFile;

rows! {
    poll => full (self::poll);
    ppoll => full (self::ppoll);
    select => full (self::select);
    pselect6 => full (self::pselect6);
    epoll_create => full (self::epoll_create);
    epoll_create1 => full (self::epoll_create1);
    epoll_ctl => full (self::epoll_ctl);
    epoll_wait => full (self::epoll_wait);
    epoll_pwait => full (self::epoll_pwait);
    epoll_pwait2 => full (self::epoll_pwait2);
    eventfd => full (self::eventfd);
    eventfd2 => full (self::eventfd2);
    timerfd_create => full (self::timerfd_create);
    timerfd_settime => partial (self::timerfd_settime) ("TFD_TIMER_CANCEL_ON_SET never cancels: the clock is not set");
    timerfd_gettime => full (self::timerfd_gettime);
    signalfd => full (self::signalfd);
    signalfd4 => full (self::signalfd4);
}

/// The size of a signal mask.
const MASK: usize = 8;

/// Queues that tell of readiness, with the events that matter.
type Queues = SmallVec<[(Arc<WaitQueue>, EventMask); 2]>;

/// What a file is ready for, as this task sees it.
fn ready(task: &Task, file: &OpenFile) -> EventMask {
    match signalfd::of(file) {
        Some(signals) => signals.poll_for(task),
        None => file.poll(),
    }
}

/// Remembers who tells of a file.
fn watch(task: &Task, file: &OpenFile, events: EventMask, queues: &mut Queues) {
    if signalfd::of(file).is_some() {
        queues.push((Arc::clone(&task.process.signalled), events));
    } else if let Some(queue) = file.queue() {
        queues.push((Arc::clone(queue), events));
    }
}

/// The deadline of a call: what it remembers, or at its first look what `read` makes of its arguments. At the first look, the mask is replaced.
fn begin(
    task: &Arc<Task>,
    state: &mut CallState,
    mask: Option<(u64, usize)>,
    read: impl FnOnce() -> Result<Option<i64>, Errno>,
) -> Result<Option<Deadline>, Errno> {
    if let CallState::Until(deadline) = *state {
        return Ok(deadline);
    }
    let deadline = read()?.map(|nanos| task.kernel.clocks().after(Clock::Monotonic, nanos));
    if let Some((mask, size)) = mask.filter(|(mask, _)| *mask != 0) {
        if size != MASK {
            return Err(Errno::EINVAL);
        }
        task.set_temporary_mask(task.mm().get(UserPtr::<SigSet>::new(mask))?);
    }
    *state = CallState::Until(deadline);
    Ok(deadline)
}

/// A timeout in milliseconds, negative for none, as nanoseconds.
fn milliseconds(timeout: i32) -> Option<i64> {
    (timeout >= 0).then(|| i64::from(timeout) * 1_000_000)
}

fn timespec(task: &Arc<Task>, from: UserPtr<Timespec>) -> Result<Option<i64>, Errno> {
    match from.non_null() {
        Some(from) => task
            .mm()
            .get(from)?
            .to_nanos()
            .ok_or(Errno::EINVAL)
            .map(Some),
        None => Ok(None),
    }
}

fn timeval(task: &Arc<Task>, from: UserPtr<Timeval>) -> Result<Option<i64>, Errno> {
    let Some(from) = from.non_null() else {
        return Ok(None);
    };
    let time = task.mm().get(from)?;
    if time.sec < 0 || time.usec < 0 {
        return Err(Errno::EINVAL);
    }
    // More than a second's microseconds is what it says (select(2) normalizes).
    Ok(Some(
        time.sec
            .saturating_mul(1_000_000_000)
            .saturating_add(time.usec.saturating_mul(1000)),
    ))
}

/// Where the time that is left is to be written when the call ends.
#[derive(Clone, Copy)]
enum Left {
    Nowhere,
    Timespec(UserPtr<Timespec>),
    Timeval(UserPtr<Timeval>),
}

impl Left {
    /// Writes it; a place that can't be written keeps what it had, as on Linux.
    fn write(self, task: &Task, deadline: Option<Deadline>) {
        let Some(deadline) = deadline else { return };
        let nanos = task.kernel.clocks().until(deadline);
        let _ = match self {
            Left::Nowhere => Ok(()),
            Left::Timespec(to) => task.mm().put_opt(to, &Timespec::from_nanos(nanos)),
            Left::Timeval(to) => task.mm().put_opt(to, &Timeval::from_nanos(nanos)),
        };
    }
}

/// What a look comes to: how many are ready, and where none is, who tells.
enum Look {
    Ready(usize),
    None(Queues),
}

/// Ends a look: with the result, at the deadline with 0, or waits.
fn finish(task: &Task, look: Look, deadline: Option<Deadline>, left: Left) -> Step {
    match look {
        Look::Ready(count) => {
            left.write(task, deadline);
            Step::Done(Ok(count))
        }
        Look::None(_) if deadline.is_some_and(|deadline| task.kernel.clocks().passed(deadline)) => {
            left.write(task, deadline);
            Step::Done(Ok(0))
        }
        Look::None(queues) => {
            if task.interrupted() {
                // Written now, since an interruption does not come back here.
                left.write(task, deadline);
            }
            Step::Wait(Wait {
                queues,
                deadline,
                on_signal: OnSignal::RestartNoHandler,
                exclusive: false,
            })
        }
    }
}

/// `struct pollfd`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PollFd {
    fd: i32,
    events: u16,
    found: u16,
}

fn poll_files(task: &Arc<Task>, at: UserPtr<u8>, count: u32) -> Result<Look, Errno> {
    if u64::from(count) > task.limit(Resource::Nofile) {
        return Err(Errno::EINVAL);
    }
    let mm = task.mm();
    let files = task.files();
    let mut list = vec![
        PollFd {
            fd: -1,
            events: 0,
            found: 0
        };
        count as usize
    ];
    if count > 0 {
        mm.read(at.addr(), list.as_mut_bytes())?;
    }
    let mut queues = Queues::new();
    let mut found = 0;
    for one in &mut list {
        one.found = 0;
        if one.fd < 0 {
            continue;
        }
        let events =
            EventMask::from_bits_truncate(u32::from(one.events)) | EventMask::ERR | EventMask::HUP;
        let ready = match files.get_file(one.fd) {
            Ok(file) => {
                let ready = ready(task, &file) & events;
                if found == 0 && ready.is_empty() {
                    watch(task, &file, events, &mut queues);
                }
                ready
            }
            Err(_) => EventMask::NVAL,
        };
        if !ready.is_empty() {
            found += 1;
            one.found = u16::try_from(ready.bits() & 0xffff).unwrap_or(0);
        }
    }
    if found > 0 {
        answer(task, at, list.iter().map(|one| one.found))?;
    }
    Ok(if found > 0 {
        Look::Ready(found)
    } else {
        Look::None(queues)
    })
}

/// Writes the answers of poll(2), and them alone.
fn answer(
    task: &Arc<Task>,
    at: UserPtr<u8>,
    found: impl Iterator<Item = u16>,
) -> Result<(), Errno> {
    let mm = task.mm();
    for (index, found) in found.enumerate() {
        mm.put(
            UserPtr::new(at.addr().wrapping_add(8 * index as u64 + 6)),
            &found,
        )?;
    }
    Ok(())
}

fn poll_until(
    task: &Arc<Task>,
    at: UserPtr<u8>,
    count: u32,
    deadline: Result<Option<Deadline>, Errno>,
    left: Left,
) -> Step {
    let looked =
        deadline.and_then(|deadline| poll_files(task, at, count).map(|look| (deadline, look)));
    match looked {
        Ok((deadline, look)) => {
            let step = finish(task, look, deadline, left);
            if matches!(step, Step::Done(Ok(0)))
                && let Err(error) = answer(task, at, (0..count).map(|_| 0))
            {
                return Step::Done(Err(error));
            }
            step
        }
        Err(error) => Step::Done(Err(error)),
    }
}

fn poll(
    task: &Arc<Task>,
    at: UserPtr<u8>,
    count: u32,
    timeout: i32,
    state: &mut CallState,
) -> Step {
    let deadline = begin(task, state, None, || Ok(milliseconds(timeout)));
    poll_until(task, at, count, deadline, Left::Nowhere)
}

fn ppoll(
    task: &Arc<Task>,
    at: UserPtr<u8>,
    count: u32,
    timeout: UserPtr<Timespec>,
    mask: u64,
    size: usize,
    state: &mut CallState,
) -> Step {
    let deadline = begin(task, state, Some((mask, size)), || timespec(task, timeout));
    poll_until(task, at, count, deadline, Left::Timespec(timeout))
}

/// What the three sets of select(2) ask for.
const SETS: [EventMask; 3] = [
    EventMask::IN
        .union(EventMask::RDNORM)
        .union(EventMask::RDBAND)
        .union(EventMask::HUP)
        .union(EventMask::ERR),
    EventMask::OUT
        .union(EventMask::WRNORM)
        .union(EventMask::WRBAND)
        .union(EventMask::ERR),
    EventMask::PRI,
];

fn select_files(
    task: &Arc<Task>,
    count: i32,
    sets: [u64; 3],
) -> Result<(Look, [Vec<u64>; 3]), Errno> {
    let files = task.files();
    let count = usize::try_from(count)
        .map_err(|_| Errno::EINVAL)?
        .min(files.size());
    let words = count.div_ceil(64);
    let mm = task.mm();
    let mut asked = [vec![0u64; words], vec![0u64; words], vec![0u64; words]];
    for (set, at) in asked.iter_mut().zip(sets) {
        if at != 0 && words > 0 {
            mm.read(at, set.as_mut_slice().as_mut_bytes())?;
        }
    }
    let mut answers = [vec![0u64; words], vec![0u64; words], vec![0u64; words]];
    let mut queues = Queues::new();
    let mut found = 0;
    for fd in 0..count {
        let (word, bit) = (fd / 64, 1u64 << (fd % 64));
        let wanted = [0, 1, 2].map(|set| asked[set][word] & bit != 0);
        if !wanted.contains(&true) {
            continue;
        }
        let file = files.get_file(i32::try_from(fd).map_err(|_| Errno::EBADF)?)?;
        let ready = ready(task, &file);
        let mut events = EventMask::empty();
        for set in (0..3).filter(|set| wanted[*set]) {
            events |= SETS[set];
            if ready.intersects(SETS[set]) {
                answers[set][word] |= bit;
                found += 1;
            }
        }
        if found == 0 {
            watch(task, &file, events, &mut queues);
        }
    }
    Ok((
        if found > 0 {
            Look::Ready(found)
        } else {
            Look::None(queues)
        },
        answers,
    ))
}

fn select_until(
    task: &Arc<Task>,
    count: i32,
    sets: [u64; 3],
    deadline: Result<Option<Deadline>, Errno>,
    left: Left,
) -> Step {
    let looked = deadline
        .and_then(|deadline| select_files(task, count, sets).map(|looked| (deadline, looked)));
    let (deadline, (look, answers)) = match looked {
        Ok(looked) => looked,
        Err(error) => return Step::Done(Err(error)),
    };
    let step = finish(task, look, deadline, left);
    if matches!(step, Step::Done(_)) {
        let mm = task.mm();
        for (answer, at) in answers.iter().zip(sets) {
            if at != 0
                && !answer.is_empty()
                && let Err(error) = mm.write(at, answer.as_slice().as_bytes())
            {
                return Step::Done(Err(error));
            }
        }
    }
    step
}

fn select(
    task: &Arc<Task>,
    count: i32,
    reads: u64,
    writes: u64,
    others: u64,
    timeout: UserPtr<Timeval>,
    state: &mut CallState,
) -> Step {
    let deadline = begin(task, state, None, || timeval(task, timeout));
    select_until(
        task,
        count,
        [reads, writes, others],
        deadline,
        Left::Timeval(timeout),
    )
}

#[allow(clippy::too_many_arguments, reason = "the call has six")]
fn pselect6(
    task: &Arc<Task>,
    count: i32,
    reads: u64,
    writes: u64,
    others: u64,
    timeout: UserPtr<Timespec>,
    mask: UserPtr<[u64; 2]>,
    state: &mut CallState,
) -> Step {
    let mask = match mask.non_null().filter(|_| matches!(state, CallState::New)) {
        Some(mask) => match task.mm().get(mask) {
            Ok([mask, size]) => Some((mask, usize::try_from(size).unwrap_or(0))),
            Err(error) => return Step::Done(Err(error)),
        },
        None => None,
    };
    let deadline = begin(task, state, mask, || timespec(task, timeout));
    select_until(
        task,
        count,
        [reads, writes, others],
        deadline,
        Left::Timespec(timeout),
    )
}

/// Gives a new file a descriptor.
fn insert(task: &Arc<Task>, file: Arc<OpenFile>, flags: OpenFlags) -> Result<i32, Errno> {
    task.files().insert(
        file,
        flags.contains(OpenFlags::CLOEXEC),
        0,
        task.limit(Resource::Nofile),
    )
}

/// `*_CLOEXEC` and `*_NONBLOCK` of the calls that make files; EINVAL for others.
fn new_flags(flags: u32) -> Result<OpenFlags, Errno> {
    OpenFlags::from_bits(flags)
        .filter(|flags| (OpenFlags::CLOEXEC | OpenFlags::NONBLOCK).contains(*flags))
        .ok_or(Errno::EINVAL)
}

fn epoll_create(task: &Arc<Task>, size: i32) -> Result<i32, Errno> {
    if size <= 0 {
        return Err(Errno::EINVAL);
    }
    epoll_create1(task, 0)
}

fn epoll_create1(task: &Arc<Task>, flags: u32) -> Result<i32, Errno> {
    let flags = new_flags(flags)
        .ok()
        .filter(|flags| OpenFlags::CLOEXEC.contains(*flags))
        .ok_or(Errno::EINVAL)?;
    insert(task, epoll::epoll(), flags)
}

fn epoll_ctl(
    task: &Arc<Task>,
    instance: Fd,
    operation: i32,
    fd: Fd,
    event: UserPtr<EpollEvent>,
) -> Result<(), Errno> {
    let event = if operation == EPOLL_CTL_DEL {
        EpollEvent::default()
    } else {
        task.mm().get(event)?
    };
    let instance = get(task, instance)?;
    let file = get(task, fd)?;
    if !file.ops().pollable() {
        return Err(Errno::EPERM);
    }
    let epoll = epoll::of(&instance)?;
    match operation {
        EPOLL_CTL_ADD => epoll.add(fd.0, &file, event),
        EPOLL_CTL_MOD => epoll.modify(fd.0, &file, event),
        EPOLL_CTL_DEL => epoll.remove(fd.0, &file),
        _ => Err(Errno::EINVAL),
    }
}

fn wait_for_events(
    task: &Arc<Task>,
    fd: Fd,
    to: u64,
    most: i32,
    deadline: Result<Option<Deadline>, Errno>,
) -> Step {
    const MOST: usize = i32::MAX as usize / size_of::<EpollEvent>();
    let prepared = deadline.and_then(|deadline| {
        let most = usize::try_from(most)
            .ok()
            .filter(|most| (1..=MOST).contains(most))
            .ok_or(Errno::EINVAL)?;
        let file = get(task, fd)?;
        let queue = Arc::clone(epoll::of(&file)?.queue());
        Ok((deadline, most, file, queue))
    });
    let (deadline, most, file, queue) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return Step::Done(Err(error)),
    };
    let events = match epoll::of(&file) {
        Ok(epoll) => epoll.take(most.min(1024)),
        Err(error) => return Step::Done(Err(error)),
    };
    if !events.is_empty() {
        if events.len() == most {
            // There may be more, for another waiter.
            queue.notify_one(EventMask::IN);
        }
        return Step::Done(
            task.mm()
                .write(to, events.as_slice().as_bytes())
                .map(|()| events.len()),
        );
    }
    if deadline.is_some_and(|deadline| task.kernel.clocks().passed(deadline)) {
        return Step::Done(Ok(0));
    }
    Step::Wait(
        Wait::on(&queue, EventMask::IN)
            .deadline(deadline)
            .on_signal(OnSignal::Interrupt)
            .exclusive(),
    )
}

fn epoll_wait(
    task: &Arc<Task>,
    fd: Fd,
    to: u64,
    most: i32,
    timeout: i32,
    state: &mut CallState,
) -> Step {
    let deadline = begin(task, state, None, || Ok(milliseconds(timeout)));
    wait_for_events(task, fd, to, most, deadline)
}

#[allow(clippy::too_many_arguments, reason = "the call has six")]
fn epoll_pwait(
    task: &Arc<Task>,
    fd: Fd,
    to: u64,
    most: i32,
    timeout: i32,
    mask: u64,
    size: usize,
    state: &mut CallState,
) -> Step {
    let deadline = begin(task, state, Some((mask, size)), || {
        Ok(milliseconds(timeout))
    });
    wait_for_events(task, fd, to, most, deadline)
}

#[allow(clippy::too_many_arguments, reason = "the call has six")]
fn epoll_pwait2(
    task: &Arc<Task>,
    fd: Fd,
    to: u64,
    most: i32,
    timeout: UserPtr<Timespec>,
    mask: u64,
    size: usize,
    state: &mut CallState,
) -> Step {
    let deadline = begin(task, state, Some((mask, size)), || timespec(task, timeout));
    wait_for_events(task, fd, to, most, deadline)
}

fn eventfd(task: &Arc<Task>, count: u32) -> Result<i32, Errno> {
    eventfd2(task, count, 0)
}

fn eventfd2(task: &Arc<Task>, count: u32, flags: u32) -> Result<i32, Errno> {
    const SEMAPHORE: u32 = 1;
    let semaphore = flags & SEMAPHORE != 0;
    let flags = new_flags(flags & !SEMAPHORE)?;
    insert(task, eventfd::eventfd(count, semaphore, flags), flags)
}

fn timerfd_create(task: &Arc<Task>, id: i32, flags: u32) -> Result<i32, Errno> {
    const REALTIME_ALARM: i32 = 8;
    const BOOTTIME_ALARM: i32 = 9;
    let flags = new_flags(flags)?;
    let clock = match id {
        0 => Clock::Realtime,
        1 => Clock::Monotonic,
        7 => Clock::Boottime,
        REALTIME_ALARM | BOOTTIME_ALARM if !task.creds().has(abi::cap::Cap::WAKE_ALARM) => {
            return Err(Errno::EPERM);
        }
        REALTIME_ALARM => Clock::Realtime,
        BOOTTIME_ALARM => Clock::Boottime,
        _ => return Err(Errno::EINVAL),
    };
    insert(
        task,
        timerfd::timerfd(&task.kernel, id, clock, flags),
        flags,
    )
}

fn timerfd_settime(
    task: &Arc<Task>,
    fd: Fd,
    flags: u32,
    new: UserPtr<Itimerspec>,
    old: UserPtr<Itimerspec>,
) -> Result<(), Errno> {
    const ABSTIME: u32 = 1;
    const CANCEL_ON_SET: u32 = 2;
    let new = task.mm().get(new)?;
    let (value, interval) = (
        new.value.to_nanos().ok_or(Errno::EINVAL)?,
        new.interval.to_nanos().ok_or(Errno::EINVAL)?,
    );
    if flags & !(ABSTIME | CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL);
    }
    let file = get(task, fd)?;
    let before = timerfd::of(&file)?.set(value, interval, flags & ABSTIME != 0);
    task.mm().put_opt(old, &before)
}

fn timerfd_gettime(task: &Arc<Task>, fd: Fd, to: UserPtr<Itimerspec>) -> Result<(), Errno> {
    let file = get(task, fd)?;
    task.mm().put(to, &timerfd::of(&file)?.get())
}

fn signalfd(task: &Arc<Task>, fd: Fd, mask: UserPtr<SigSet>, size: usize) -> Result<i32, Errno> {
    signalfd4(task, fd, mask, size, 0)
}

fn signalfd4(
    task: &Arc<Task>,
    fd: Fd,
    mask: UserPtr<SigSet>,
    size: usize,
    flags: u32,
) -> Result<i32, Errno> {
    if size != MASK {
        return Err(Errno::EINVAL);
    }
    let flags = new_flags(flags)?;
    let mask = task.mm().get(mask)?;
    if fd.0 == -1 {
        return insert(task, signalfd::signalfd(task, mask, flags), flags);
    }
    let file = get(task, fd)?;
    signalfd::of(&file).ok_or(Errno::EINVAL)?.set_mask(mask);
    Ok(fd.0)
}
