//! Signals as the ABI writes them (signal(7)).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A signal number, 1 to 64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signal(u8);

macro_rules! signals {
    ($($name:ident = $value:literal;)*) => {
        impl Signal {
            $(#[doc = concat!("`", stringify!($name), "`")] pub const $name: Signal = Signal($value);)*
        }
        const NAMES: &[(u8, &str)] = &[$(($value, stringify!($name)),)*];
    };
}

signals! {
    SIGHUP = 1; SIGINT = 2; SIGQUIT = 3; SIGILL = 4; SIGTRAP = 5; SIGABRT = 6; SIGBUS = 7; SIGFPE = 8;
    SIGKILL = 9; SIGUSR1 = 10; SIGSEGV = 11; SIGUSR2 = 12; SIGPIPE = 13; SIGALRM = 14; SIGTERM = 15;
    SIGSTKFLT = 16; SIGCHLD = 17; SIGCONT = 18; SIGSTOP = 19; SIGTSTP = 20; SIGTTIN = 21; SIGTTOU = 22;
    SIGURG = 23; SIGXCPU = 24; SIGXFSZ = 25; SIGVTALRM = 26; SIGPROF = 27; SIGWINCH = 28; SIGIO = 29;
    SIGPWR = 30; SIGSYS = 31;
}

impl Signal {
    /// The first realtime signal, as the kernel counts.
    pub const SIGRTMIN: Signal = Signal(32);
    /// The last signal there is.
    pub const MAX: u8 = 64;

    /// The signal with this number, or `None` where it is not one of 1 to 64.
    pub const fn from_raw(raw: u32) -> Option<Signal> {
        if raw >= 1 && raw <= 64 {
            Some(Signal(raw as u8))
        } else {
            None
        }
    }

    /// The number.
    pub const fn raw(self) -> u8 {
        self.0
    }

    /// Whether several of them queue (32 and up).
    pub const fn is_realtime(self) -> bool {
        self.0 >= 32
    }
}

impl core::fmt::Debug for Signal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match NAMES.iter().find(|row| row.0 == self.0) {
            Some(row) => f.write_str(row.1),
            None => write!(f, "SIGRT_{}", self.0 - 32),
        }
    }
}

/// A set of signals, signal N at bit N - 1.
#[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct SigSet(pub u64);

impl SigSet {
    /// No signal.
    pub const EMPTY: SigSet = SigSet(0);
    /// SIGKILL and SIGSTOP, which nobody can block, ignore or catch.
    pub const UNBLOCKABLE: SigSet = SigSet(1 << 8 | 1 << 18);

    /// The set of just this signal.
    pub const fn of(signal: Signal) -> SigSet {
        SigSet(1 << (signal.0 - 1))
    }

    /// Whether the signal is in the set.
    pub const fn contains(self, signal: Signal) -> bool {
        self.0 & (1 << (signal.0 - 1)) != 0
    }

    /// Adds a signal.
    pub const fn insert(&mut self, signal: Signal) {
        self.0 |= 1 << (signal.0 - 1);
    }

    /// Takes a signal out.
    pub const fn remove(&mut self, signal: Signal) {
        self.0 &= !(1 << (signal.0 - 1));
    }

    /// What is in either.
    pub const fn union(self, other: SigSet) -> SigSet {
        SigSet(self.0 | other.0)
    }

    /// What is in this one and not in the other.
    pub const fn difference(self, other: SigSet) -> SigSet {
        SigSet(self.0 & !other.0)
    }

    /// What is in both.
    pub const fn intersection(self, other: SigSet) -> SigSet {
        SigSet(self.0 & other.0)
    }

    /// Whether nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The signal with the lowest number.
    pub const fn first(self) -> Option<Signal> {
        if self.0 == 0 {
            None
        } else {
            Some(Signal(self.0.trailing_zeros() as u8 + 1))
        }
    }
}

impl core::fmt::Debug for SigSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut rest = *self;
        let mut list = f.debug_set();
        while let Some(signal) = rest.first() {
            rest.remove(signal);
            list.entry(&signal);
        }
        list.finish()
    }
}

/// `struct kernel_sigaction` (rt_sigaction(2)).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SigAction {
    /// The handler's address, or `SIG_DFL` (0) or `SIG_IGN` (1).
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// What the handler returns to.
    pub restorer: u64,
    /// What is blocked while the handler runs.
    pub mask: SigSet,
}

/// `siginfo_t` (sigaction(2)): 128 bytes, of which the fields after the code depend on the signal.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SigInfo {
    /// `si_signo`.
    pub signo: i32,
    /// `si_errno`.
    pub errno: i32,
    /// `si_code`.
    pub code: i32,
    /// Padding that the layout asks for.
    pub pad: i32,
    /// The union: `_kill`, `_timer`, `_rt`, `_sigchld`, `_sigfault`, `_sigpoll`, `_sigsys`.
    pub fields: [u64; 14],
}

impl core::fmt::Debug for SigInfo {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "SigInfo {{ signo: {}, code: {}, {:x?} }}",
            self.signo,
            self.code,
            &self.fields[..3]
        )
    }
}

/// `SI_USER`: sent by kill(2).
pub const SI_USER: i32 = 0;
/// `SI_KERNEL`: sent by the kernel.
pub const SI_KERNEL: i32 = 0x80;
/// `SI_QUEUE`: sent by sigqueue(3).
pub const SI_QUEUE: i32 = -1;
/// `SI_TIMER`: a POSIX timer expired.
pub const SI_TIMER: i32 = -2;
/// `SI_TKILL`: sent by tkill(2) or tgkill(2).
pub const SI_TKILL: i32 = -6;
/// `CLD_EXITED`
pub const CLD_EXITED: i32 = 1;
/// `CLD_KILLED`
pub const CLD_KILLED: i32 = 2;
/// `CLD_DUMPED`
pub const CLD_DUMPED: i32 = 3;
/// `CLD_STOPPED`
pub const CLD_STOPPED: i32 = 5;
/// `CLD_CONTINUED`
pub const CLD_CONTINUED: i32 = 6;

/// `struct sigevent` (sigevent(7)).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Sigevent {
    /// `sigev_value`.
    pub value: u64,
    /// `sigev_signo`.
    pub signo: i32,
    /// `sigev_notify`.
    pub notify: i32,
    /// `sigev_notify_thread_id`.
    pub tid: i32,
    /// What the rest of the union takes.
    pub pad: [u32; 11],
}

impl SigInfo {
    /// An empty one for this signal and code.
    pub const fn new(signal: Signal, code: i32) -> SigInfo {
        SigInfo {
            signo: signal.0 as i32,
            errno: 0,
            code,
            pad: 0,
            fields: [0; 14],
        }
    }

    /// `_kill`: who sent it.
    pub fn sent_by(signal: Signal, code: i32, pid: u32, uid: u32) -> SigInfo {
        let mut info = SigInfo::new(signal, code);
        info.fields[0] = u64::from(pid) | u64::from(uid) << 32;
        info
    }

    /// `_sigfault`: the address at fault.
    pub fn fault(signal: Signal, code: i32, addr: u64) -> SigInfo {
        let mut info = SigInfo::new(signal, code);
        info.fields[0] = addr;
        info
    }

    /// `_sigchld`: a child changed its state.
    pub fn child(code: i32, pid: u32, uid: u32, status: i32) -> SigInfo {
        let mut info = SigInfo::new(Signal::SIGCHLD, code);
        info.fields[0] = u64::from(pid) | u64::from(uid) << 32;
        info.fields[1] = u64::from(status as u32);
        info
    }
}
