//! Runs guest code and traps its system calls.
//!
//! [`Platform`] makes [`Space`]s (guest address spaces) and tells which [`Thread`]s have something to report; everything else about a guest is the sentry's
//! business. [`systrap`] is the one implementation so far. What a guest could have written is read once, bounded, and never
//! believed: at worst a forged report harms the process that forged it.
//!
//! Unsafe code is confined to [`systrap`]'s `area` (memory shared with stubs), `zygote` (start of the first stub) and `vm`
//! (another process's memory); each opens with the invariant it keeps.

mod event;
pub mod systrap;

pub use event::{Event, Fpu, MAX_FPU, Regs};
pub use systrap::{Adjustment, ClockPage};

use std::os::fd::OwnedFd;
use std::sync::Arc;

use abi::Errno;

/// The end of guest addresses: no mapping lies at or above it.
pub const USER_TOP: u64 = systrap::USER_TOP;
/// How many bytes of inputs, and of results, the stub copies itself.
pub const WINDOW: usize = 4096;
/// The size of a page.
pub const PAGE: u64 = 4096;

/// What can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Zeroed private memory.
    Anonymous,
    /// A private mapping of a file that was [shared](Platform::share_file) with the stubs, from this offset.
    PrivateFile(SharedFile, u64),
    /// A shared mapping of such a file.
    SharedFile(SharedFile, u64),
    /// A private mapping of the memory file.
    PrivateMemory(u64),
    /// A shared mapping of the memory file.
    SharedMemory(u64),
}

/// Which features of the host's memory management may serve guest memory. What is off is refused by the stubs' filters, so that a fault in the host's
/// code for it is out of a guest's reach, and whoever maps guest memory has to copy instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMm {
    /// Moving mappings: [`MemOp::Move`].
    pub mremap: bool,
    /// Transparent huge pages, and advice about them.
    pub huge_pages: bool,
    /// Private mappings of files: [`Backing::PrivateFile`] and [`Backing::PrivateMemory`].
    pub private_files: bool,
    /// Copies on write between a process and its fork: [`Space::fork`].
    pub fork: bool,
}

impl Default for HostMm {
    /// Everything.
    fn default() -> HostMm {
        HostMm {
            mremap: true,
            huge_pages: true,
            private_files: true,
            fork: true,
        }
    }
}

/// A file's number in the table that a container's stubs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedFile(pub u32);

/// One change of an address space. Addresses and lengths are whole pages below [`USER_TOP`]; the sentry knows what lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemOp {
    /// Map over whatever is there; `prot` as in mmap(2).
    Map {
        /// Where.
        addr: u64,
        /// How many bytes.
        len: u64,
        /// `PROT_*`.
        prot: u32,
        /// What.
        backing: Backing,
    },
    /// Unmap.
    Unmap {
        /// Where.
        addr: u64,
        /// How many bytes.
        len: u64,
    },
    /// Change the protection.
    Protect {
        /// Where.
        addr: u64,
        /// How many bytes.
        len: u64,
        /// `PROT_*`.
        prot: u32,
    },
    /// Move a mapping, growing or shrinking it, over whatever is at the new place.
    Move {
        /// From where.
        old: u64,
        /// How many bytes it has.
        old_len: u64,
        /// To where.
        new: u64,
        /// How many bytes it gets.
        new_len: u64,
    },
    /// madvise(2) with `MADV_DONTNEED`, `MADV_FREE`, `MADV_HUGEPAGE` or `MADV_NOHUGEPAGE`.
    Advise {
        /// Where.
        addr: u64,
        /// How many bytes.
        len: u64,
        /// `MADV_*`.
        advice: u32,
    },
}

/// Names a context: how a report is matched with its thread. A slot is used again once its process has ended, then with another serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId {
    /// Which of the platform's contexts, from 0 on.
    pub slot: u32,
    /// How often the slot was given up before.
    pub serial: u32,
}

/// A way to run guest code.
pub trait Platform: Send + Sync {
    /// A new, empty address space, with no thread yet.
    fn new_space(&self) -> Result<Arc<dyn Space>, Errno>;

    /// Hands a host file to the container's stubs, for mapping. The number stays taken until [`Platform::unshare_file`].
    fn share_file(&self, file: &OwnedFd) -> Result<SharedFile, Errno>;

    /// Takes a file back. Mappings of it stay.
    fn unshare_file(&self, file: SharedFile);

    /// A context that has reported, where there is one; does not wait.
    fn poll(&self) -> Option<ContextId>;

    /// Says that the calling thread is a worker from now on: it looks at what [`Platform::poll`] gives.
    fn join(&self);

    /// Waits until a context has reported, [`Platform::kick`] was called since the caller last looked, or something may have changed. `spin` says
    /// whether the caller may burn processor time before it sleeps.
    fn wait(&self, ready: &dyn Fn() -> bool);

    /// Wakes one worker that waits, if one does. With `busy` only where no worker is awake at all, the caller counted: who is awake looks
    /// again before it sleeps.
    fn kick(&self, busy: bool);

    /// Takes note of stubs that have ended: the sentry's main loop calls it on SIGCHLD. Returns the spaces that ended unasked.
    fn reap(&self) -> Vec<SpaceId>;

    /// What of the host's memory management may be used.
    fn host_mm(&self) -> HostMm;

    /// How the container's clocks differ from the host's.
    fn clocks(&self) -> Arc<ClockPage>;

    /// Whether an instruction is the host's vDSO's: what it asks of a clock is the host's time, which the guest's vDSO adjusts.
    fn in_host_vdso(&self, rip: u64) -> bool;

    /// Counts a call site that was replaced by a jump to [`systrap::ENTRY`].
    fn count_patch(&self);

    /// What was counted since the start.
    fn counters(&self) -> Counters;
}

/// Names an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(pub u64);

/// What a platform has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Calls that came by a signal.
    pub trapped_calls: u64,
    /// Calls that came from patched sites.
    pub patched_calls: u64,
    /// Faults and other signals.
    pub signals: u64,
    /// Interrupts that were sent.
    pub interrupts: u64,
    /// Batches that helpers executed.
    pub batches: u64,
    /// Wake-ups of guest threads that slept.
    pub wakeups: u64,
    /// Times that a worker slept.
    pub worker_sleeps: u64,
    /// Sites that were patched.
    pub patched_sites: u64,
    /// Calls that stubs answered themselves. This and what follows is what the stubs say, which a guest can falsify.
    pub local_calls: u64,
    /// Times that a guest thread got its answer while it spun.
    pub spins: u64,
    /// Times that a guest thread slept until its answer came.
    pub sleeps: u64,
}

/// A forked address space, and its one thread.
pub type Forked = (Arc<dyn Space>, Arc<dyn Thread>);

/// A guest address space.
pub trait Space: Send + Sync {
    /// Its name.
    fn id(&self) -> SpaceId;

    /// Carries out changes in order, and stops at the first that fails: then the error, and how many were done.
    fn apply(&self, ops: &[MemOp]) -> Result<(), (usize, Errno)>;

    /// Changes that are asked for from here on may be carried out later, together: at the latest before the next access to guest memory, thread or fork, and with
    /// [`Space::settle`]. Where one fails then, so does what it was carried out for, and the space is lost. For a space that no thread runs in.
    fn defer(&self);

    /// Carries out what was deferred, and defers no more.
    fn settle(&self) -> Result<(), Errno>;

    /// Copies from guest memory; says how many bytes from the start could be read. Respects the protection.
    fn read(&self, addr: u64, to: &mut [u8]) -> Result<usize, Errno>;

    /// Copies to guest memory; says how many bytes from the start could be written. Respects the protection.
    fn write(&self, addr: u64, from: &[u8]) -> Result<usize, Errno>;

    /// A copy of this space (copy on write), which is changed by `ops` before its one thread starts. ENOSYS where [`HostMm::fork`] is off.
    fn fork(&self, start: &Start, ops: &[MemOp]) -> Result<Forked, Errno>;

    /// Does something while no guest instruction of this space runs, where [`HostMm::fork`] is off: threads that run report first, and those that are answered
    /// meanwhile wait. ESRCH where the space ends, or does not come to a halt in time, after which it ends.
    fn while_halted(&self, run: &mut dyn FnMut() -> Result<(), Errno>) -> Result<(), Errno>;

    /// A new thread in this space, which goes on from `regs`.
    fn thread(&self, start: &Start) -> Result<Arc<dyn Thread>, Errno>;

    /// Which pages of the range are resident, a byte each (bit 0), as mincore(2) says.
    fn residency(&self, addr: u64, len: u64) -> Result<Vec<u8>, Errno>;

    /// Ends it: no guest instruction of it runs after this returns, and its memory is given back soon.
    fn kill(&self);

    /// Processor time that it used so far: nanoseconds.
    fn cpu_time(&self) -> u64;

    /// What is being carried out in it need not be waited for long: whoever uses it is about to end.
    fn hurry(&self);

    /// Whether a change of it is being carried out right now.
    fn is_busy(&self) -> bool;

    /// Whether it has ended.
    fn is_dead(&self) -> bool;
}

/// How a thread starts.
#[derive(Clone, Debug)]
pub struct Start {
    /// All registers.
    pub regs: Regs,
    /// The state of the floating-point and vector registers; `None` for the initial one.
    pub fpu: Option<Fpu>,
    /// What getpid and gettid answer.
    pub local: (u32, u32),
}

/// A guest thread. Between a report and the answer its state can be read and changed; the sentry answers with one of the `resume` calls.
pub trait Thread: Send + Sync {
    /// Its number.
    fn context(&self) -> ContextId;

    /// What it reported. Read once: each read may differ where the guest tampers with it.
    fn event(&self) -> Event;

    /// Whether the whole state is at hand: not so for a call from a patched site, until it was [converted](Thread::convert).
    fn is_full(&self) -> bool;

    /// All registers; where not [full](Thread::is_full), only those that a call is made of.
    fn regs(&self) -> Regs;

    /// The instruction pointer alone.
    fn rip(&self) -> u64;

    /// Changes the instruction pointer alone. Full state only.
    fn set_rip(&self, rip: u64);

    /// Changes all registers. Full state only.
    fn set_regs(&self, regs: &Regs);

    /// The floating-point and vector state. Full state only.
    fn fpu(&self) -> Fpu;

    /// Changes that state. Full state only. EINVAL where it is malformed.
    fn set_fpu(&self, fpu: Option<&Fpu>) -> Result<(), Errno>;

    /// What the stub has already copied of the reported call's inputs: from where, and how many bytes.
    fn copied_in(&self) -> (u64, usize);

    /// What was copied of the inputs no longer counts: the sentry has written there since.
    fn forget_input(&self);

    /// The reported call will take a while: the thread need not spin. To be said before anybody may answer it.
    fn park(&self);

    /// Reads from the window of inputs, whose bytes are the guest's to change until they are read.
    fn window_read(&self, at: usize, to: &mut [u8]);

    /// Reads back from the window of results.
    fn results_read(&self, at: usize, to: &mut [u8]);

    /// Writes to the window of results.
    fn results_write(&self, at: usize, from: &[u8]);

    /// Lets the stub copy the first `len` bytes of the window of results to `addr` when the call is answered; EFAULT is the
    /// result then where it can't.
    fn copy_out(&self, addr: u64, len: usize);

    /// Answers a call and lets the thread go on.
    fn answer(&self, result: u64);

    /// Lets the thread go on with its registers as they are. Full state only.
    fn resume(&self);

    /// Asks for the whole state: the thread reports the same call again, as [`Event::Converted`].
    fn convert(&self);

    /// Lets the thread compare and exchange a word of its memory, and report [`Event::Atomic`].
    fn atomic(&self, addr: u64, old: u32, new: u32);

    /// Makes a thread that runs guest code report, by [`Event::Interrupt`] where nothing else comes first.
    fn interrupt(&self);

    /// Sets what getpid and gettid answer without a report; zeros for "ask".
    fn set_local(&self, pid: u32, tid: u32);

    /// Processor time that it used so far: nanoseconds.
    fn cpu_time(&self) -> u64;

    /// Starts the thread over with other registers: what [`Space::thread`] does, without a new host thread. The thread has reported.
    fn restart(&self, start: &Start);

    /// Puts the thread aside: it ran its last guest instruction, and its host thread can serve a new one of the same space, whose time begins at zero. `used` is
    /// what [`Thread::cpu_time`] has just said, where that was asked for.
    fn retire(self: Arc<Self>, used: Option<u64>);
}
