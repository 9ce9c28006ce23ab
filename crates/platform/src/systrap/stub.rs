//! A stub process: a guest address space and its helper.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use abi::Errno;
use abi::nr::nr;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::{Backing, Forked, MemOp, Space, SpaceId, Start, Thread};

use super::frame::Frame;
use super::layout::{
    AREA, AREA_SLOTS, AREAS, RESULTS, STACK, USER_TOP, command, ctx, file, results,
};
use super::thread::StubThread;
use super::{FIRST_FORK_SIGNAL, HELPER_DEADLINE, HURRIED_DEADLINE, Shared, vm};

/// The context of the zygote, which runs no guest code: its area holds its results alone.
const ZYGOTE_CONTEXT: u32 = 1;
/// Within the zygote's results page: a `msghdr`, its vector, its byte, its control message.
const MESSAGE: u64 = 0x800;

/// An address space: one process of the host.
pub(crate) struct StubSpace {
    shared: Arc<Shared>,
    id: SpaceId,
    pid: i32,
    command: u32,
    /// The context whose area is at slot 0, with the helper's results.
    first: u32,
    /// One batch at a time; the number of the last.
    helper: Mutex<u32>,
    dead: AtomicBool,
    killed: AtomicBool,
    hurried: AtomicBool,
    /// Whether changes are put off; only then is `deferred` looked at.
    defers: AtomicBool,
    deferred: Mutex<Vec<MemOp>>,
    slots: Mutex<Slots>,
    /// Where forks are copied by the sentry: held by who does that, and shared by who lets a thread run.
    gate: Option<RwLock<()>>,
    weak: Weak<StubSpace>,
}

/// Thread areas: which exist, and which have a thread that is put aside.
struct Slots {
    next: u32,
    parked: Vec<Arc<StubThread>>,
    contexts: BTreeSet<u32>,
    /// All threads, where there is a gate.
    gated: Vec<Weak<StubThread>>,
}

/// An order to the helper.
struct Order {
    number: u32,
    flags: u32,
    args: [u64; 6],
}

impl Order {
    const fn new(number: u32, args: [u64; 6]) -> Order {
        Order {
            number,
            flags: command::STOP,
            args,
        }
    }
}

/// Reaps a stub that has ended; whether it is gone.
pub(crate) fn reap(pid: i32) -> bool {
    // SAFETY: no memory is involved; the PID is a child that nobody else reaps.
    let got = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
    got != 0
}

impl StubSpace {
    fn make(shared: Arc<Shared>, pid: i32, command: u32, first: u32) -> Arc<StubSpace> {
        let id = SpaceId(shared.next_space.fetch_add(1, Ordering::Relaxed));
        let space = Arc::new_cyclic(|weak| StubSpace {
            id,
            pid,
            command,
            first,
            helper: Mutex::new(0),
            dead: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            hurried: AtomicBool::new(false),
            defers: AtomicBool::new(false),
            deferred: Mutex::new(Vec::new()),
            slots: Mutex::new(Slots {
                next: 0,
                parked: Vec::new(),
                contexts: BTreeSet::from([first]),
                gated: Vec::new(),
            }),
            gate: (!shared.host_mm.fork).then(RwLock::default),
            weak: weak.clone(),
            shared: Arc::clone(&shared),
        });
        shared.spaces.lock().insert(id.0, Arc::downgrade(&space));
        space
    }

    /// The contexts that its threads have had.
    pub(super) fn contexts(&self) -> Vec<u32> {
        self.slots.lock().contexts.iter().copied().collect()
    }

    /// The zygote, just started: gives it its first orders and waits for the answer.
    pub(crate) fn zygote(shared: Arc<Shared>, pid: i32) -> Result<Arc<StubSpace>, Errno> {
        let zygote = StubSpace::make(shared, pid, 0, ZYGOTE_CONTEXT);
        // Everything below the stub and the first stack above it: none of it is needed any more.
        zygote
            .batch(&[Order::new(nr::munmap, [0, USER_TOP, 0, 0, 0, 0])])
            .map_err(|(_, error)| error)?;
        Ok(zygote)
    }

    /// Executes a batch of orders: what they returned, up to the first that failed, then its error.
    fn batch(&self, orders: &[Order]) -> Result<Vec<i64>, (Vec<i64>, Errno)> {
        self.execute(&mut self.helper.lock(), orders)
    }

    /// Executes an order that leaves bytes behind its result, and fetches them before another does.
    fn fetch(&self, order: Order, to: &mut [u8]) -> Result<(), Errno> {
        let mut last = self.helper.lock();
        self.execute(&mut last, &[order])
            .map_err(|(_, error)| error)?;
        let data = u64::from(self.first) * AREA + RESULTS + results::DATA;
        self.shared.areas.copy_from(data, to);
        Ok(())
    }

    /// Processor time of a thread of the stub: nanoseconds, 0 where it is gone. The host tells it nobody but the process itself.
    pub(crate) fn thread_time(&self, tid: i32) -> u64 {
        // CPUCLOCK_SCHED of a thread; a forged number names another thread of the same process.
        let clock = u64::from((!tid << 3 | 6).cast_unsigned());
        let order = Order::new(
            nr::clock_gettime,
            [clock, AREAS + RESULTS + results::DATA, 0, 0, 0, 0],
        );
        let mut time = [0; 16];
        if self.fetch(order, &mut time).is_err() {
            return 0;
        }
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&time[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        // The guest can write here too, so it is no more than a number.
        word(0).wrapping_mul(1_000_000_000).wrapping_add(word(8))
    }

    /// [`StubSpace::batch`] by who has the helper.
    fn execute(&self, last: &mut u32, orders: &[Order]) -> Result<Vec<i64>, (Vec<i64>, Errno)> {
        let gone = (Vec::new(), Errno::ESRCH);
        if self.is_dead() {
            return Err(gone);
        }
        let page = u64::from(self.command) * 4096;
        let shared = &self.shared;
        shared.counters.batches.fetch_add(1, Ordering::Relaxed);
        *last = last.wrapping_add(1);
        write_batch(shared, page, *last, orders);
        shared.commands.futex_wake(page + command::SEQ, 1);
        self.await_batch(*last, orders.len())
    }

    /// Waits until the helper has done batch `seq`, of `count` orders: what they returned.
    fn await_batch(&self, seq: u32, count: usize) -> Result<Vec<i64>, (Vec<i64>, Errno)> {
        let gone = (Vec::new(), Errno::ESRCH);
        let shared = &self.shared;
        let area = u64::from(self.first) * AREA + RESULTS;
        let done = area + results::DONE;
        // The helper sleeps, and needs a processor: this thread's, where the others are busy.
        let mut spins = 0;
        let mut waited = 0;
        while shared.areas.load32(done) != seq {
            if spins > 0 {
                spins -= 1;
                std::hint::spin_loop();
                continue;
            }
            shared.areas.swap32(area + results::WAITING, 1);
            let seen = shared.areas.load32(done);
            if seen == seq {
                break;
            }
            const STEP: u64 = 100_000_000;
            let began = std::time::Instant::now();
            shared.areas.futex_wait(done, seen, Some(STEP));
            waited += u64::try_from(began.elapsed().as_nanos()).unwrap_or(STEP);
            if waited >= STEP && self.check_dead() {
                return Err(gone);
            }
            let deadline = if self.hurried.load(Ordering::SeqCst) {
                HURRIED_DEADLINE
            } else {
                HELPER_DEADLINE
            };
            if waited >= deadline {
                self.kill();
                return Err(gone);
            }
        }
        shared.areas.set32(area + results::WAITING, 0);
        let mut values = Vec::with_capacity(count);
        for at in (area + results::VALUES..).step_by(8).take(count) {
            let value = shared.areas.get64(at).cast_signed();
            if (-4095..0).contains(&value) {
                let error = i32::try_from(-value)
                    .ok()
                    .and_then(Errno::from_raw)
                    .unwrap_or(Errno::EIO);
                return Err((values, error));
            }
            values.push(value);
        }
        Ok(values)
    }

    /// Clones the stub. The new one learns no more than where its pages are, and the kernel says who it is. Where it is to have a thread, its helper changes
    /// the memory as told and starts the thread with its first batch.
    fn clone_stub(&self, then: Option<(&Start, &[MemOp])>) -> Result<Arc<StubSpace>, Errno> {
        let shared = &self.shared;
        let slot = shared.take_fork_signal().ok_or(Errno::EAGAIN)?;
        let give_signal = scopeguard(|| shared.give_fork_signal(slot));
        let context = shared.take_context()?;
        let command_page = match shared.take_command() {
            Ok(page) => page,
            Err(error) => {
                shared.numbers.lock().contexts.push(context);
                return Err(error);
            }
        };
        let signal = FIRST_FORK_SIGNAL + i32::try_from(slot).expect("small");
        let page = u64::from(command_page) * 4096;
        let introduce = Order::new(
            nr::kill,
            [1, u64::try_from(signal).expect("positive"), 0, 0, 0, 0],
        );
        let give_back = || {
            shared.board.forget(context);
            let mut numbers = shared.numbers.lock();
            numbers.contexts.push(context);
            numbers.commands.push(command_page);
        };
        let area = u64::from(context) * AREA;
        let mut orders = vec![introduce];
        if let Some((start, ops)) = then {
            if let Err(error) = prepare_thread(shared, context, AREAS, start) {
                give_back();
                return Err(error);
            }
            orders.extend(ops.iter().map(StubSpace::order));
            orders.push(thread_order(AREAS));
            shared.board.send(context);
        }
        shared.areas.set32(area + RESULTS + results::DONE, 0);
        shared.areas.set32(area + RESULTS + results::WAITING, 0);
        write_batch(shared, page, 1, &orders);
        let order = Order {
            number: nr::clone,
            flags: command::FORK | command::STOP,
            args: [
                command::PROCESS_FLAGS,
                0,
                page,
                file::COMMANDS,
                file::AREAS,
                u64::from(context) * AREA,
            ],
        };
        let told = self.batch(&[order]);
        // What the helper says of it could be forged; who signals could not.
        let patience = if told.is_ok() { HELPER_DEADLINE } else { 0 };
        let pid = await_signal(signal, patience);
        drop(give_signal);
        let Some(pid) = pid else {
            give_back();
            return Err(told.err().map_or(Errno::EAGAIN, |(_, error)| error));
        };
        if pid <= 0 {
            // The signal was delivered without its sender's name: the process can't be trusted with a name. An order that its filter
            // forbids, while all its signals are blocked, ends it.
            shared
                .commands
                .set32(page + command::ORDERS, nr::exit_group);
            shared.commands.swap32(page + command::SEQ, 2);
            shared.commands.futex_wake(page + command::SEQ, 1);
            return Err(Errno::EAGAIN);
        }
        let child = StubSpace::make(Arc::clone(shared), pid, command_page, context);
        *child.helper.lock() = 1;
        Ok(child)
    }

    /// A copy of the zygote: an empty address space.
    pub(crate) fn clone_process(&self) -> Result<Arc<StubSpace>, Errno> {
        self.clone_stub(None)
    }

    /// Gives the area of `context`, at `slot`, a thread that starts as told. The area is mapped already where `slot` is 0.
    fn start_thread(
        &self,
        context: u32,
        slot: u32,
        start: &Start,
    ) -> Result<Arc<StubThread>, Errno> {
        let shared = &self.shared;
        let area = u64::from(context) * AREA;
        let address = AREAS + u64::from(slot) * AREA;
        prepare_thread(shared, context, address, start)?;
        let mut orders = Vec::with_capacity(3);
        if slot != 0 {
            orders.push(Order::new(
                nr::mmap,
                [address, AREA, 3, 0x11, file::AREAS, area],
            ));
            orders.push(Order::new(nr::madvise, [address, AREA, 10, 0, 0, 0]));
        }
        orders.push(thread_order(address));
        shared.board.send(context);
        let values = self.batch(&orders).map_err(|(_, error)| {
            shared.board.forget(context);
            error
        })?;
        Ok(self.made_thread(context, address, &values))
    }

    /// The thread that the last order of a batch made.
    fn made_thread(&self, context: u32, address: u64, values: &[i64]) -> Arc<StubThread> {
        // A forged number is used with this process's own only.
        let tid = values
            .last()
            .and_then(|tid| i32::try_from(*tid).ok())
            .unwrap_or(0);
        let thread = Arc::new(StubThread::new(
            Arc::clone(&self.shared),
            self.weak.clone(),
            self.pid,
            tid,
            context,
            address,
        ));
        if self.gate.is_some() {
            let mut slots = self.slots.lock();
            slots.gated.retain(|thread| thread.strong_count() > 0);
            slots.gated.push(Arc::downgrade(&thread));
        }
        thread
    }

    /// Held while a thread is let run: then nobody copies the space.
    pub(crate) fn enter_gate(&self) -> Option<RwLockReadGuard<'_, ()>> {
        // A thread that is started over comes here twice.
        self.gate.as_ref().map(RwLock::read_recursive)
    }

    /// Waits until a thread has reported, which it is asked to do.
    fn halt(&self, thread: &StubThread) -> Result<(), Errno> {
        const STEP: Duration = Duration::from_micros(50);
        let deadline = Instant::now() + Duration::from_nanos(HELPER_DEADLINE);
        let mut asked = false;
        while thread.runs() {
            if !asked {
                thread.interrupt();
                asked = true;
            }
            if self.check_dead() {
                return Err(Errno::ESRCH);
            }
            if Instant::now() > deadline {
                self.kill();
                return Err(Errno::ESRCH);
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Takes a file that was sent to the zygote's socket: its number in the shared table. Only the zygote can be asked, since nothing
    /// in it can forge the answer.
    pub(crate) fn receive_file(&self) -> Result<u32, Errno> {
        let results = AREAS + RESULTS;
        let area = u64::from(self.first) * AREA + RESULTS;
        let areas = &self.shared.areas;
        let message = [
            0,
            0,
            results + MESSAGE + 0x40,
            1,
            results + MESSAGE + 0x80,
            24,
            0,
        ];
        for (value, at) in message.iter().zip((area + MESSAGE..).step_by(8)) {
            areas.set64(at, *value);
        }
        areas.set64(area + MESSAGE + 0x40, results + MESSAGE + 0x60);
        areas.set64(area + MESSAGE + 0x48, 1);
        let order = Order::new(
            nr::recvmsg,
            [file::SOCKET, results + MESSAGE, 0x4000_0000, 0, 0, 0],
        );
        self.batch(&[order]).map_err(|(_, error)| error)?;
        if areas.get64(area + MESSAGE + 0x80) != 20 {
            return Err(Errno::EMFILE);
        }
        Ok(areas.get32(area + MESSAGE + 0x90))
    }

    /// Closes a file of the shared table.
    pub(crate) fn close_file(&self, number: u32) {
        // Nothing can be done where it fails: the number is lost, the file is not.
        let _ = self.batch(&[Order::new(nr::close, [u64::from(number), 0, 0, 0, 0, 0])]);
    }

    /// Whether the process has ended; looks, and leaves it to be reaped.
    pub(crate) fn check_dead(&self) -> bool {
        if self.dead.load(Ordering::SeqCst) {
            return true;
        }
        // SAFETY: all zeroes is a valid siginfo_t.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let id = libc::id_t::try_from(self.pid).expect("positive");
        // SAFETY: the struct lives until the call returns; the PID is a child that is reaped only when this object is gone.
        let got = unsafe {
            libc::waitid(
                libc::P_PID,
                id,
                &raw mut info,
                libc::WEXITED | libc::WNOHANG | libc::WNOWAIT,
            )
        };
        // SAFETY: waitid fills in these fields, or leaves the zero.
        let ended = got == 0 && unsafe { info.si_pid() } == self.pid;
        if ended {
            self.dead.store(true, Ordering::SeqCst);
        }
        ended
    }

    fn order(op: &MemOp) -> Order {
        match *op {
            MemOp::Map {
                addr,
                len,
                prot,
                backing,
            } => {
                let prot = u64::from(prot & 7);
                let (flags, fd, offset) = match backing {
                    Backing::Anonymous => (0x4032, u64::MAX, 0),
                    Backing::PrivateFile(file, offset) => (0x4012, u64::from(file.0), offset),
                    Backing::SharedFile(file, offset) => (0x11, u64::from(file.0), offset),
                    Backing::PrivateMemory(offset) => (0x4012, file::MEMORY, offset),
                    Backing::SharedMemory(offset) => (0x11, file::MEMORY, offset),
                };
                Order::new(nr::mmap, [addr, len, prot, flags, fd, offset])
            }
            MemOp::Unmap { addr, len } => Order::new(nr::munmap, [addr, len, 0, 0, 0, 0]),
            MemOp::Protect { addr, len, prot } => {
                Order::new(nr::mprotect, [addr, len, u64::from(prot & 7), 0, 0, 0])
            }
            MemOp::Move {
                old,
                old_len,
                new,
                new_len,
            } => Order::new(nr::mremap, [old, old_len, new_len, 3, new, 0]),
            MemOp::Advise { addr, len, advice } => {
                Order::new(nr::madvise, [addr, len, u64::from(advice), 0, 0, 0])
            }
        }
    }

    pub(crate) fn park(&self, thread: Arc<StubThread>) {
        self.slots.lock().parked.push(thread);
    }
}

/// Writes a batch to a command page; the helper is to be woken if it sleeps.
fn write_batch(shared: &Shared, page: u64, seq: u32, orders: &[Order]) {
    assert!(
        orders.len() as u64 <= command::MOST,
        "a batch has at most {} orders",
        command::MOST
    );
    for (order, at) in orders.iter().zip((page + command::ORDERS..).step_by(64)) {
        shared.commands.set32(at, order.number);
        shared.commands.set32(at + 4, order.flags);
        for (arg, at) in order.args.iter().zip((at + 8..).step_by(8)) {
            shared.commands.set64(at, *arg);
        }
    }
    let count = u32::try_from(orders.len()).expect("few");
    shared.commands.set32(page + command::COUNT, count);
    shared.commands.swap32(page + command::SEQ, seq);
}

/// The order that makes a thread whose area is there.
fn thread_order(address: u64) -> Order {
    Order {
        number: nr::clone,
        flags: command::THREAD | command::STOP,
        args: [command::THREAD_FLAGS, 0, 0, 0, 0, address],
    }
}

/// Fills in the area of a thread that is to start as told: EINVAL where its vector state is malformed.
fn prepare_thread(
    shared: &Arc<Shared>,
    context: u32,
    address: u64,
    start: &Start,
) -> Result<(), Errno> {
    let area = u64::from(context) * AREA;
    for offset in (0..0x200).step_by(8) {
        shared.areas.set64(area + offset, 0);
    }
    let frame = Frame::prepared(&shared.areas, area, address);
    frame.prepare();
    frame.set_regs(&start.regs);
    if !frame.set_fpu(start.fpu.as_ref()) {
        return Err(Errno::EINVAL);
    }
    shared.areas.set64(area + ctx::FRAME, frame.pointer());
    shared.areas.set32(area + ctx::INDEX, context);
    shared.areas.set32(area + ctx::SPIN, shared.spin);
    shared.areas.set64(area + ctx::FS_BASE, start.regs.fs_base);
    shared.areas.set64(
        area + ctx::GS_BASE,
        if start.regs.gs_base == 0 {
            address
        } else {
            start.regs.gs_base
        },
    );
    shared.areas.set32(area + ctx::LOCAL_PID, start.local.0);
    shared.areas.set32(area + ctx::LOCAL_TID, start.local.1);
    shared.areas.set64(area + ctx::STACK_T, address + STACK);
    shared.areas.set64(area + ctx::STACK_T + 8, 0);
    shared.areas.set64(area + ctx::STACK_T + 16, AREA - STACK);
    Ok(())
}

/// A processor-time clock of the host: nanoseconds, 0 where there is none any more.
pub(crate) fn clock(id: i32) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the struct lives until the call returns.
    let got = unsafe { libc::clock_gettime(id, &raw mut time) };
    if got < 0 {
        0
    } else {
        (time.tv_sec * 1_000_000_000 + time.tv_nsec).cast_unsigned()
    }
}

/// Runs its closure when it is dropped.
fn scopeguard<F: FnMut()>(run: F) -> impl Drop {
    struct Guard<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Guard<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    Guard(run)
}

/// Waits for a signal that every thread has blocked: who sent it (0 where the kernel does not say), or `None` after `nanos`.
fn await_signal(signal: i32, nanos: u64) -> Option<i32> {
    let set: u64 = 1 << (signal - 1);
    // SAFETY: all zeroes is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let timeout = libc::timespec {
        tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(0),
        tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
    };
    loop {
        // SAFETY: set, info and timeout live until the call returns.
        let got = unsafe {
            libc::syscall(
                libc::SYS_rt_sigtimedwait,
                &raw const set,
                &raw mut info,
                &raw const timeout,
                8,
            )
        };
        if got == i64::from(signal) {
            // SAFETY: a signal that was sent has this field.
            return Some(unsafe { info.si_pid() });
        }
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return None;
        }
    }
}

impl StubSpace {
    fn apply_now(&self, ops: &[MemOp]) -> Result<(), (usize, Errno)> {
        let mut done = 0;
        for chunk in ops.chunks(usize::try_from(command::MOST).expect("small")) {
            let orders: Vec<Order> = chunk.iter().map(StubSpace::order).collect();
            match self.batch(&orders) {
                Ok(_) => done += chunk.len(),
                Err((values, error)) => return Err((done + values.len(), error)),
            }
        }
        Ok(())
    }

    /// Carries out what was deferred.
    fn catch_up(&self) -> Result<(), Errno> {
        if !self.defers.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ops = std::mem::take(&mut *self.deferred.lock());
        self.apply_now(&ops).map_err(|(_, error)| {
            self.kill();
            error
        })
    }
}

impl Space for StubSpace {
    fn id(&self) -> SpaceId {
        self.id
    }

    fn apply(&self, ops: &[MemOp]) -> Result<(), (usize, Errno)> {
        if self.defers.load(Ordering::Relaxed) {
            self.deferred.lock().extend_from_slice(ops);
            return Ok(());
        }
        self.apply_now(ops)
    }

    fn defer(&self) {
        self.defers.store(true, Ordering::Relaxed);
    }

    fn settle(&self) -> Result<(), Errno> {
        let done = self.catch_up();
        self.defers.store(false, Ordering::Relaxed);
        done
    }

    fn read(&self, addr: u64, to: &mut [u8]) -> Result<usize, Errno> {
        self.catch_up()?;
        vm::read(self.pid, addr, to)
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<usize, Errno> {
        self.catch_up()?;
        vm::write(self.pid, addr, from)
    }

    fn while_halted(&self, run: &mut dyn FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
        let gate = self.gate.as_ref().ok_or(Errno::ENOSYS)?;
        let held = gate.write();
        let threads: Vec<_> = (self.slots.lock().gated.iter())
            .filter_map(Weak::upgrade)
            .collect();
        let done = threads
            .iter()
            .try_for_each(|thread| self.halt(thread))
            .and_then(|()| run());
        drop(held);
        done
    }

    fn fork(&self, start: &Start, ops: &[MemOp]) -> Result<Forked, Errno> {
        if !self.shared.host_mm.fork {
            return Err(Errno::ENOSYS);
        }
        self.settle()?;
        if ops.len() as u64 + 2 > command::MOST {
            let child = self.clone_stub(None)?;
            child.apply(ops).map_err(|(_, error)| error)?;
            let thread = child.thread(start)?;
            return Ok((child, thread));
        }
        let child = self.clone_stub(Some((start, ops)))?;
        let values = child
            .await_batch(1, ops.len() + 2)
            .map_err(|(_, error)| error)?;
        child.slots.lock().next = 1;
        let thread = child.made_thread(child.first, AREAS, &values);
        Ok((child, thread))
    }

    fn thread(&self, start: &Start) -> Result<Arc<dyn Thread>, Errno> {
        self.settle()?;
        let _gate = self.enter_gate();
        let (slot, context) = {
            let mut slots = self.slots.lock();
            if let Some(parked) = slots.parked.pop() {
                drop(slots);
                parked.restart(start);
                return Ok(parked);
            }
            if u64::from(slots.next) >= AREA_SLOTS {
                return Err(Errno::EAGAIN);
            }
            slots.next += 1;
            let slot = slots.next - 1;
            let context = if slot == 0 {
                self.first
            } else {
                self.shared.take_context()?
            };
            slots.contexts.insert(context);
            (slot, context)
        };
        let thread: Arc<dyn Thread> = self.start_thread(context, slot, start)?;
        Ok(thread)
    }

    fn residency(&self, addr: u64, len: u64) -> Result<Vec<u8>, Errno> {
        self.settle()?;
        let pages = len / 4096;
        let mut out = Vec::with_capacity(usize::try_from(pages).unwrap_or(0));
        // Half of the results page takes the answer of 2048 pages at a time.
        let mut at = 0;
        while at < pages {
            let some = (pages - at).min(2048);
            let order = Order::new(
                nr::mincore,
                [
                    addr + at * 4096,
                    some * 4096,
                    AREAS + RESULTS + results::DATA,
                    0,
                    0,
                    0,
                ],
            );
            let mut part = vec![0; usize::try_from(some).expect("small")];
            self.fetch(order, &mut part)?;
            out.extend_from_slice(&part);
            at += some;
        }
        Ok(out)
    }

    fn kill(&self) {
        if !self.killed.swap(true, Ordering::SeqCst) {
            // SAFETY: the PID is this stub's: it is reaped only after this object is gone.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
        self.dead.store(true, Ordering::SeqCst);
    }

    fn cpu_time(&self) -> u64 {
        // CPUCLOCK_SCHED of a process.
        clock(!self.pid << 3 | 2)
    }

    fn hurry(&self) {
        self.hurried.store(true, Ordering::SeqCst);
    }

    fn is_busy(&self) -> bool {
        self.helper.is_locked()
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }
}

impl Drop for StubSpace {
    fn drop(&mut self) {
        self.kill();
        self.shared.spaces.lock().remove(&self.id.0);
        // Contexts and pages are another's only when this process can't touch them any more.
        let slots = self.slots.get_mut();
        let contexts = std::mem::take(&mut slots.contexts);
        slots.parked.clear();
        self.shared.retire(self.pid, self.command, contexts);
    }
}
