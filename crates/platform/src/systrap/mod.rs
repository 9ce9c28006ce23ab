//! The platform that works by SIGSYS: guest code runs in processes of its own (*stubs*), whose seccomp filter traps every system call.
//!
//! A stub ([`stub::StubSpace`]) is a guest address space; each of its guest threads ([`thread::StubThread`]) is a host thread that, when it traps,
//! writes what happened into its area, rings the container's doorbell and waits for the answer. A helper thread in each stub executes the
//! sentry's orders. All stubs are copies of one *zygote*, made without exec, and children of the sentry.

mod area;
mod board;
mod clock;
mod filter;
mod frame;
#[path = "../../../stub/src/layout.rs"]
#[allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "shared with the stub, which uses what is unused here; documented there"
)]
mod layout;
mod stub;
mod symbols;
mod thread;
mod vm;
mod zygote;

/// Addresses of the stub's labels, written by the build.
mod labels {
    #![allow(dead_code, reason = "the build writes down every label")]
    include!(concat!(env!("OUT_DIR"), "/labels.rs"));
}

pub use clock::{Adjustment, ClockPage};
pub use layout::USER_TOP;

/// Where a replaced call site enters the stub: the number in RAX, the place to return to in RCX, everything else as for SYSCALL.
pub const ENTRY: u64 = labels::STUB_ENTRY;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use abi::Errno;
use parking_lot::Mutex;

use crate::{ContextId, Counters, HostMm, Platform, SharedFile, Space, SpaceId};
use area::SharedPages;
use board::Board;
use layout::{AREA, doorbell, filters, results, shared};
use stub::StubSpace;
use symbols::HostVdso;

/// The stub's executable.
const STUB: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stub.elf"));

/// The guest's vDSO (`crates/vdso`): a shared object of one page, to be mapped readable and executable.
pub const VDSO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vdso.so"));

/// How long a helper may take for a batch before its process is given up: nanoseconds.
const HELPER_DEADLINE: u64 = 10_000_000_000;

/// How long it may take where its process is ending anyway: nanoseconds.
const HURRIED_DEADLINE: u64 = 400_000_000;

/// How many turns a thread waits for an answer before it sleeps: about as long as waking it costs, some tens of microseconds.
const SPIN: u32 = 1000;

/// What a container's stubs are made of.
pub struct Setup<'a> {
    /// The memory file: shared guest memory.
    pub memory: BorrowedFd<'a>,
    /// `cgroup.procs` files that the zygote writes 0 to.
    pub cgroups: &'a [BorrowedFd<'a>],
    /// Whether threads may spin while they wait: not so with fewer than two processors.
    pub spin: bool,
    /// What of the host's memory management guest memory may use.
    pub host_mm: HostMm,
}

/// The platform: a container's zygote, and the pages it shares with its stubs.
pub struct Systrap {
    shared: Arc<Shared>,
    zygote: Arc<StubSpace>,
    /// The sentry's end of the socket on which the zygote takes files.
    socket: OwnedFd,
    clocks: Arc<ClockPage>,
    /// What of every stub's address space the host's vDSO takes.
    host_vdso: Range<u64>,
}

/// What every stub of the container needs.
struct Shared {
    areas: SharedPages,
    commands: SharedPages,
    pages: Arc<SharedPages>,
    board: Board,
    numbers: Mutex<Numbers>,
    spaces: Mutex<HashMap<u64, Weak<StubSpace>>>,
    /// Stubs that nobody refers to any more, killed and not yet reaped.
    dying: Mutex<Vec<Dying>>,
    spin: u32,
    host_mm: HostMm,
    counters: AtomicCounters,
    next_space: AtomicU64,
}

thread_local! {
    /// How many turns this worker spins before it sleeps.
    static SPIN_TURNS: std::cell::Cell<u32> = const { std::cell::Cell::new(SPIN) };
}

/// What is handed out: contexts, command pages, signals for forks in flight.
struct Numbers {
    contexts: Vec<u32>,
    next_context: u32,
    commands: Vec<u32>,
    next_command: u32,
    fork_signals: u32,
}

struct Dying {
    pid: i32,
    command: u32,
    contexts: BTreeSet<u32>,
}

#[derive(Default)]
struct AtomicCounters {
    trapped_calls: AtomicU64,
    patched_calls: AtomicU64,
    signals: AtomicU64,
    interrupts: AtomicU64,
    batches: AtomicU64,
    wakeups: AtomicU64,
    worker_sleeps: AtomicU64,
    patched_sites: AtomicU64,
    /// Those of contexts whose stubs are gone.
    past: Mutex<Counted>,
}

/// What stubs count in their contexts.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    locals: u64,
    spins: u64,
    sleeps: u64,
}

/// How many command pages there are: one per address space.
const COMMAND_PAGES: u32 = 8192;
/// Signals by which new stubs make themselves known: this one and those above it.
const FIRST_FORK_SIGNAL: i32 = 36;
const FORK_SIGNALS: u32 = 24;

impl Systrap {
    /// Starts the zygote. The caller is the first process of its PID namespace, has one thread, and has blocked every signal.
    pub fn start(setup: &Setup<'_>) -> Result<Systrap, Errno> {
        let areas_len = AREA * layout::board::CONTEXTS;
        let areas_file = zygote::memory_file(c"areas", i64::try_from(areas_len).expect("fits"))?;
        let commands_file = zygote::memory_file(c"commands", i64::from(COMMAND_PAGES) * 4096)?;
        let pages_file = zygote::memory_file(c"shared", i64::try_from(shared::LEN).expect("fits"))?;
        let areas = SharedPages::map(
            areas_file.as_fd(),
            usize::try_from(areas_len).expect("fits"),
        )?;
        let commands = SharedPages::map(commands_file.as_fd(), COMMAND_PAGES as usize * 4096)?;
        let pages = Arc::new(SharedPages::map(pages_file.as_fd(), shared::LEN)?);
        write_filters(&pages, setup.host_mm);
        // From here on only the mappings just made can write to them.
        zygote::seal_future_writes(commands_file.as_fd())?;
        zygote::seal_future_writes(pages_file.as_fd())?;
        let stub = zygote::executable(STUB)?;
        let (ours, theirs) = socket_pair()?;
        let pid = zygote::spawn(&zygote::Parts {
            stub: stub.as_fd(),
            commands: commands_file.as_fd(),
            areas: areas_file.as_fd(),
            memory: setup.memory,
            socket: theirs.as_fd(),
            shared: pages_file.as_fd(),
            cgroups: setup.cgroups,
            huge_pages: setup.host_mm.huge_pages,
        })?;
        let shared = Arc::new(Shared {
            areas,
            commands,
            pages,
            board: Board::new(),
            numbers: Mutex::new(Numbers {
                contexts: Vec::new(),
                next_context: 2,
                commands: Vec::new(),
                next_command: 1,
                fork_signals: 0,
            }),
            spaces: Mutex::new(HashMap::new()),
            dying: Mutex::new(Vec::new()),
            spin: if setup.spin { SPIN } else { 0 },
            host_mm: setup.host_mm,
            counters: AtomicCounters::default(),
            next_space: AtomicU64::new(1),
        });
        let zygote = StubSpace::zygote(Arc::clone(&shared), pid)?;
        // No guest runs yet, so the zygote's word is its own.
        let at = shared.areas.get64(AREA + layout::RESULTS + results::VDSO);
        let vdso = host_vdso(pid, at);
        Ok(Systrap {
            clocks: Arc::new(ClockPage::new(&shared.pages, vdso.as_ref())),
            shared,
            zygote,
            socket: ours,
            host_vdso: vdso.map_or(0..0, |vdso| vdso.range),
        })
    }
}

/// The host's vDSO, which lies at `at` in the zygote and in all that are cloned of it; `None` where the host has none, or none that can be made sense
/// of: then every clock is read by a system call.
fn host_vdso(zygote: i32, at: u64) -> Option<HostVdso> {
    if at <= layout::AREAS {
        return None;
    }
    let mut image = vec![0; 4096];
    vm::read_above(zygote, at, &mut image).ok()?;
    let len = symbols::size(&image)?.next_multiple_of(4096);
    image.resize(len, 0);
    vm::read_above(zygote, at, &mut image).ok()?;
    symbols::find(&image, at)
}

/// Puts the filters where stubs find them.
fn write_filters(pages: &SharedPages, features: HostMm) {
    for (program, head, code, end) in [
        (
            filter::helper(features),
            filters::F0,
            filters::F0_CODE,
            filters::F1_CODE,
        ),
        (
            filter::guest(),
            filters::F1,
            filters::F1_CODE,
            filters::F2_CODE,
        ),
        (
            filter::no_forks(features),
            filters::F2,
            filters::F2_CODE,
            filters::LEN,
        ),
    ] {
        let base = shared::FILTERS;
        pages.set32(
            base + head,
            u32::try_from(program.len()).expect("a filter has fewer than 4096 instructions"),
        );
        pages.set64(base + head + 8, layout::FILTERS + code);
        for (insn, at) in program.iter().zip((base + code..).step_by(8)) {
            let word = u32::from(insn.code) | u32::from(insn.jt) << 16 | u32::from(insn.jf) << 24;
            pages.set32(at, word);
            pages.set32(at + 4, insn.k);
        }
        let len = 8 * u64::try_from(program.len()).expect("small");
        assert!(code + len <= end, "filters fit in their places");
    }
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut fds = [0; 2];
    // SAFETY: two numbers are written to the array.
    let made = unsafe {
        libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
            0,
            fds.as_mut_ptr(),
        )
    };
    if made < 0 {
        return Err(Errno::EMFILE);
    }
    // SAFETY: the first of two new descriptors, owned by nobody else.
    let ours = unsafe { OwnedFd::from_raw_fd(fds[0]) };
    // SAFETY: the second of them.
    let theirs = unsafe { OwnedFd::from_raw_fd(fds[1]) };
    Ok((ours, theirs))
}

impl Platform for Systrap {
    fn new_space(&self) -> Result<Arc<dyn Space>, Errno> {
        let space: Arc<dyn Space> = self.zygote.clone_process()?;
        Ok(space)
    }

    fn share_file(&self, file: &OwnedFd) -> Result<SharedFile, Errno> {
        send_file(self.socket.as_fd(), file.as_fd())?;
        self.zygote.receive_file().map(SharedFile)
    }

    fn unshare_file(&self, file: SharedFile) {
        self.zygote.close_file(file.0);
    }

    fn poll(&self) -> Option<ContextId> {
        self.shared.board.take(&self.shared.areas)
    }

    fn wait(&self, ready: &dyn Fn() -> bool) {
        let posted = || self.shared.areas.load64(layout::board::SUMMARY) != 0 || ready();
        // A worker spins for as long as that has paid lately.
        let most = self.shared.spin;
        let turns = SPIN_TURNS.get().min(most);
        for _ in 0..turns {
            if posted() {
                SPIN_TURNS.set((turns * 2).clamp(1, most.max(1)));
                return;
            }
            std::hint::spin_loop();
        }
        SPIN_TURNS.set((turns / 2).max(most / 16));
        let pages = &self.shared.pages;
        let word = pages.load32(shared::DOORBELL + doorbell::WORD);
        pages.sub32(shared::DOORBELL + doorbell::AWAKE, 1);
        if !posted() && !self.shared.board.recover(&self.shared.areas) {
            self.shared
                .counters
                .worker_sleeps
                .fetch_add(1, Ordering::Relaxed);
            pages.futex_wait(shared::DOORBELL + doorbell::WORD, word, None);
        }
        pages.add32(shared::DOORBELL + doorbell::AWAKE, 1);
    }

    fn join(&self) {
        self.shared
            .pages
            .add32(shared::DOORBELL + doorbell::AWAKE, 1);
    }

    fn kick(&self, busy: bool) {
        let pages = &self.shared.pages;
        if busy && pages.load32(shared::DOORBELL + doorbell::AWAKE) > 0 {
            return;
        }
        pages.add32(shared::DOORBELL + doorbell::WORD, 1);
        pages.futex_wake(shared::DOORBELL + doorbell::WORD, 1);
    }

    fn reap(&self) -> Vec<SpaceId> {
        self.shared.reap_dying();
        let spaces: Vec<Arc<StubSpace>> = self
            .shared
            .spaces
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        spaces
            .into_iter()
            .filter(|space| space.check_dead())
            .map(|space| space.id())
            .collect()
    }

    fn host_mm(&self) -> HostMm {
        self.shared.host_mm
    }

    fn clocks(&self) -> Arc<ClockPage> {
        Arc::clone(&self.clocks)
    }

    fn in_host_vdso(&self, rip: u64) -> bool {
        self.host_vdso.contains(&rip)
    }

    fn count_patch(&self) {
        self.shared
            .counters
            .patched_sites
            .fetch_add(1, Ordering::Relaxed);
    }

    fn counters(&self) -> Counters {
        let counters = &self.shared.counters;
        let counted = self.shared.counted();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            trapped_calls: get(&counters.trapped_calls),
            patched_calls: get(&counters.patched_calls),
            signals: get(&counters.signals),
            interrupts: get(&counters.interrupts),
            batches: get(&counters.batches),
            wakeups: get(&counters.wakeups),
            worker_sleeps: get(&counters.worker_sleeps),
            patched_sites: get(&counters.patched_sites),
            local_calls: counted.locals,
            spins: counted.spins,
            sleeps: counted.sleeps,
        }
    }
}

/// Sends a descriptor in a packet of one byte.
fn send_file(socket: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut byte = 0u8;
    let mut data = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // A control message of one descriptor: header of 16 bytes, the number, padding.
    let mut control = [0u64; 3];
    control[0] = 20;
    control[1] = u64::from(libc::SOL_SOCKET as u32) | u64::from(libc::SCM_RIGHTS as u32) << 32;
    control[2] = u64::from(file.as_raw_fd().cast_unsigned());
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = 24;
    // SAFETY: the message's parts live until the call returns.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent == 1 {
        Ok(())
    } else {
        Err(Errno::EMFILE)
    }
}

impl Shared {
    fn take_context(&self) -> Result<u32, Errno> {
        let mut numbers = self.numbers.lock();
        if let Some(context) = numbers.contexts.pop() {
            return Ok(context);
        }
        if u64::from(numbers.next_context) >= layout::board::CONTEXTS {
            return Err(Errno::EAGAIN);
        }
        numbers.next_context += 1;
        Ok(numbers.next_context - 1)
    }

    fn take_command(&self) -> Result<u32, Errno> {
        let mut numbers = self.numbers.lock();
        if let Some(command) = numbers.commands.pop() {
            return Ok(command);
        }
        if numbers.next_command >= COMMAND_PAGES {
            return Err(Errno::EAGAIN);
        }
        numbers.next_command += 1;
        Ok(numbers.next_command - 1)
    }

    fn take_fork_signal(&self) -> Option<u32> {
        let mut numbers = self.numbers.lock();
        let free = (!numbers.fork_signals).trailing_zeros();
        if free >= FORK_SIGNALS {
            return None;
        }
        numbers.fork_signals |= 1 << free;
        Some(free)
    }

    fn give_fork_signal(&self, slot: u32) {
        self.numbers.lock().fork_signals &= !(1 << slot);
    }

    /// Takes over a stub that nobody refers to any more: once it is reaped, its pages can be another's.
    fn retire(&self, pid: i32, command: u32, contexts: BTreeSet<u32>) {
        self.dying.lock().push(Dying {
            pid,
            command,
            contexts,
        });
        self.reap_dying();
    }

    const COUNTED: [u64; 3] = [layout::ctx::LOCALS, layout::ctx::SPINS, layout::ctx::SLEEPS];

    /// Adds what a context's stub says that it counted.
    fn count(&self, context: u32, to: &mut Counted) {
        let [locals, spins, sleeps] = Self::COUNTED
            .map(|field| u64::from(self.areas.get32(u64::from(context) * AREA + field)));
        to.locals = to.locals.wrapping_add(locals);
        to.spins = to.spins.wrapping_add(spins);
        to.sleeps = to.sleeps.wrapping_add(sleeps);
    }

    /// What all stubs say that they counted, those that are gone too.
    fn counted(&self) -> Counted {
        let spaces: Vec<Arc<StubSpace>> = (self.spaces.lock().values())
            .filter_map(Weak::upgrade)
            .collect();
        let mut contexts: Vec<u32> = spaces.iter().flat_map(|space| space.contexts()).collect();
        drop(spaces);
        let dying = self.dying.lock();
        contexts.extend(dying.iter().flat_map(|dying| dying.contexts.iter()));
        let mut counted = *self.counters.past.lock();
        drop(dying);
        contexts.sort_unstable();
        contexts.dedup();
        for context in contexts {
            self.count(context, &mut counted);
        }
        counted
    }

    /// Reaps those that have ended of the stubs nobody refers to.
    fn reap_dying(&self) {
        let mut gone = Vec::new();
        self.dying.lock().retain_mut(|dying| {
            let reaped = stub::reap(dying.pid);
            if reaped {
                gone.push((dying.command, std::mem::take(&mut dying.contexts)));
            }
            !reaped
        });
        for (_, contexts) in &gone {
            let mut past = self.counters.past.lock();
            for context in contexts {
                // Nobody counts there any more; the next stub is to begin at zero.
                self.count(*context, &mut past);
                for field in Self::COUNTED {
                    self.areas.set32(u64::from(*context) * AREA + field, 0);
                }
            }
        }
        let mut numbers = self.numbers.lock();
        for (command, contexts) in gone {
            for context in &contexts {
                self.board.forget(*context);
            }
            numbers.commands.push(command);
            numbers.contexts.extend(contexts);
        }
    }
}
