//! Where things lie in a stub's address space and in the pages that it shares with the sentry.
//!
//! Shared by the stub's assembly and by the platform, which includes this file as a module. Offsets are in bytes.

/// From here up everything is the stub's.
pub const GUEST_TOP: u64 = 0x7ff0_0000_0000;
/// Where guest mappings end: some way below the stub, so that a filter which sees only the upper halves of an address and of a
/// length can keep their sum out of it.
pub const USER_TOP: u64 = 0x7fe0_0000_0000;
/// The stub's text. Its low 32 bits are zero, so that filters compare instruction pointers in two halves.
pub const TEXT: u64 = 0x7ff0_0000_0000;
/// Filters F0 and F1 as `sock_fprog` structs and their instructions; read-only, shared by all stubs.
pub const FILTERS: u64 = 0x7ff0_1000_0000;
/// The page from which a stub's helper reads its orders; read-only, its own, sealed, not inherited by fork.
pub const COMMANDS: u64 = 0x7ff0_1010_0000;
/// The container's doorbell: read-only for stubs, which may wake who sleeps on it.
pub const DOORBELL: u64 = 0x7ff0_1020_0000;
/// The container's board: a bit per context that has something to tell; a hint, writable by all its stubs.
pub const BOARD: u64 = 0x7ff0_1030_0000;
/// The parameter page of the clocks; read-only, shared by all stubs of a container.
pub const CLOCKS: u64 = 0x7ff0_1040_0000;
/// Thread areas, [`AREA`] bytes each, by slot; a process's own, not inherited by fork.
pub const AREAS: u64 = 0x7ff1_0000_0000;
/// The size and alignment of a thread area: context page, results page, window, alternate stack.
pub const AREA: u64 = 0x8000;
/// How many thread areas a process can have.
pub const AREA_SLOTS: u64 = 0x4000;

/// The host signal that makes a guest thread report: SIGURG, which nothing else sends to a stub.
pub const INTERRUPT_SIGNAL: u32 = 23;

/// Within a thread area: the results page (used in slot 0 alone, by the helper).
pub const RESULTS: u64 = 0x1000;
/// Within a thread area: the window through which small inputs and results of calls travel.
pub const WINDOW: u64 = 0x2000;
/// Within a thread area: where results begin in the window; inputs lie before.
pub const WINDOW_OUT: u64 = 0x3000;
/// How much fits each way.
pub const WINDOW_LEN: u64 = 0x1000;
/// How much of a path is copied.
pub const PATH_LEN: u64 = 0x200;
/// Within a thread area: the alternate stack, up to the area's end.
pub const STACK: u64 = 0x4000;

/// Offsets in a context page.
pub mod ctx {
    /// u32, a futex: [`super::state`].
    pub const STATE: u64 = 0x00;
    /// u32: 1 while the thread sleeps on `STATE`.
    pub const SLEEPING: u64 = 0x04;
    /// u32: what the thread is to do once `STATE` says so ([`super::reply`]).
    pub const REPLY: u64 = 0x08;
    /// u32: how long to spin before sleeping, in turns of the loop; 0 for not at all.
    pub const SPIN: u64 = 0x0c;
    /// u32: the context's number, which is its bit on the board.
    pub const INDEX: u64 = 0x10;
    /// u32: how often the thread slept.
    pub const SLEEPS: u64 = 0x14;
    /// u32: how often spinning was enough.
    pub const SPINS: u64 = 0x18;
    /// u32: how many calls were answered without the sentry.
    pub const LOCALS: u64 = 0x1c;
    /// u32: a local call's answer for getpid, and whether local calls are on (0: off).
    pub const LOCAL_PID: u64 = 0x20;
    /// u32: gettid.
    pub const LOCAL_TID: u64 = 0x24;
    /// u32 each: getuid, geteuid, getgid, getegid; all ones: ask the sentry.
    pub const LOCAL_UID: u64 = 0x28;
    /// See `LOCAL_UID`.
    pub const LOCAL_EUID: u64 = 0x2c;
    /// See `LOCAL_UID`.
    pub const LOCAL_GID: u64 = 0x30;
    /// See `LOCAL_UID`.
    pub const LOCAL_EGID: u64 = 0x34;

    /// u32: the sentry wants the thread to report.
    pub const NOTE: u64 = 0x40;
    /// u64: the answer to the call.
    pub const RETURN: u64 = 0x48;
    /// u32: bytes to copy from the window to `COPY_OUT_TO` before going on.
    pub const COPY_OUT_LEN: u64 = 0x50;
    /// u64: where they go.
    pub const COPY_OUT_TO: u64 = 0x58;
    /// u32: 1 where the bases below are to be loaded.
    pub const SET_BASES: u64 = 0x60;

    /// u32: [`super::kind`].
    pub const KIND: u64 = 0x80;
    /// u32: 1 where the state is in a signal frame, 0 where it is in the registers below.
    pub const PATH: u64 = 0x84;
    /// u64: the address of the frame's `ucontext`.
    pub const FRAME: u64 = 0x88;
    /// u64: the address of the frame's `siginfo`.
    pub const INFO: u64 = 0x90;
    /// u32: the signal that made the frame.
    pub const SIGNAL: u64 = 0x98;
    /// u32: what a re-trap is to be reported as ([`super::kind`]).
    pub const TRAP_KIND: u64 = 0x9c;
    /// u64: the thread's FS base when it reported by a signal.
    pub const FS_BASE: u64 = 0xa0;
    /// u64: the thread's GS base; the context's own address where the guest has set none.
    pub const GS_BASE: u64 = 0xa8;
    /// u64: the call's number.
    pub const RAX: u64 = 0xb0;
    /// u64 each: the arguments.
    pub const RDI: u64 = 0xb8;
    /// See `RDI`.
    pub const RSI: u64 = 0xc0;
    /// See `RDI`.
    pub const RDX: u64 = 0xc8;
    /// See `RDI`.
    pub const R10: u64 = 0xd0;
    /// See `RDI`.
    pub const R8: u64 = 0xd8;
    /// See `RDI`.
    pub const R9: u64 = 0xe0;
    /// u64: where the call returns to.
    pub const RIP: u64 = 0xe8;
    /// u16: flags, as LAHF and SETO give them.
    pub const FLAGS: u64 = 0xf0;
    /// u64: how many bytes of input the stub has copied to the window.
    pub const COPIED_IN: u64 = 0xf8;
    /// u64: where they came from.
    pub const COPIED_FROM: u64 = 0x148;

    /// `stack_t`: the alternate stack, for sigaltstack(2).
    pub const STACK_T: u64 = 0x100;
    /// u64 each: address, expected value, new value of an atomic operation; then what was found, and 1 where it faulted.
    pub const ATOMIC_ADDR: u64 = 0x120;
    /// See `ATOMIC_ADDR`.
    pub const ATOMIC_OLD: u64 = 0x128;
    /// See `ATOMIC_ADDR`.
    pub const ATOMIC_NEW: u64 = 0x130;
    /// See `ATOMIC_ADDR`.
    pub const ATOMIC_FOUND: u64 = 0x138;
    /// See `ATOMIC_ADDR`.
    pub const ATOMIC_FAULT: u64 = 0x140;
}

/// Which inputs of which calls are copied: a byte a call.
pub mod input {
    /// A string in the first argument.
    pub const PATH: u8 = 1;
    /// A string in the second argument.
    pub const PATH_AT: u8 = 2;
    /// The second argument's bytes, as many as the third says.
    pub const BUFFER: u8 = 3;

    /// The calls, by number.
    pub const TABLE: [u8; 512] = {
        let mut table = [0; 512];
        // write, pwrite64, sendto
        table[1] = BUFFER;
        table[18] = BUFFER;
        table[44] = BUFFER;
        // open, stat, lstat, access, chdir, mkdir, rmdir, unlink, readlink, statfs
        table[2] = PATH;
        table[4] = PATH;
        table[6] = PATH;
        table[21] = PATH;
        table[80] = PATH;
        table[83] = PATH;
        table[84] = PATH;
        table[87] = PATH;
        table[89] = PATH;
        table[137] = PATH;
        // openat, newfstatat, readlinkat, faccessat, unlinkat, statx, faccessat2
        table[257] = PATH_AT;
        table[262] = PATH_AT;
        table[267] = PATH_AT;
        table[269] = PATH_AT;
        table[263] = PATH_AT;
        table[332] = PATH_AT;
        table[439] = PATH_AT;
        table
    };
}

/// Values of a context's state.
pub mod state {
    /// The sentry has answered; the thread goes on.
    pub const GO: u32 = 0;
    /// The thread waits for the sentry.
    pub const POSTED: u32 = 1;
    /// The thread waits, and its call will take a while: it need not spin.
    pub const PARKED: u32 = 2;
}

/// What the sentry answers.
pub mod reply {
    /// Go on in the guest.
    pub const RESUME: u32 = 0;
    /// Trap, so that the whole state is in a signal frame, and report again.
    pub const RETRAP: u32 = 1;
    /// Compare and exchange a u32 in guest memory, and report again.
    pub const ATOMIC: u32 = 2;
}

/// What a thread reports.
pub mod kind {
    /// A call.
    pub const CALL: u32 = 1;
    /// A signal of the host: a fault, or the interrupt signal.
    pub const SIGNAL: u32 = 2;
    /// A call that was reported already, now with the whole state in a frame.
    pub const CONVERTED: u32 = 3;
    /// An answered call that was interrupted on its way out; `RETURN` is its result.
    pub const INTERRUPTED: u32 = 4;
    /// An atomic operation was done.
    pub const ATOMIC: u32 = 5;
}

/// Offsets in the doorbell page.
pub mod doorbell {
    /// u32, a futex: on it sleep the sentry's workers.
    pub const WORD: u64 = 0x00;
    /// u32: how many workers look at the board.
    pub const AWAKE: u64 = 0x40;
}

/// Offsets in the board page.
pub mod board {
    /// u64: a bit for each word below that is not zero.
    pub const SUMMARY: u64 = 0x00;
    /// u64 each: a bit per context.
    pub const WORDS: u64 = 0x40;
    /// How many contexts a board has room for.
    pub const CONTEXTS: u64 = 64 * 64;
}

/// Offsets in the command page.
pub mod command {
    /// u32, a futex: the number of the batch.
    pub const SEQ: u64 = 0x00;
    /// u32: how many orders it has.
    pub const COUNT: u64 = 0x04;
    /// The orders, [`SIZE`] bytes each: number and flags, then six arguments.
    pub const ORDERS: u64 = 0x40;
    /// The size of an order.
    pub const SIZE: u64 = 64;
    /// How many orders fit.
    pub const MOST: u64 = 62;
    /// clone(2)'s flags for a process: CLONE_PARENT, CLONE_FILES. The exit signal is the zygote's, SIGCHLD.
    pub const PROCESS_FLAGS: u64 = 0x8400;
    /// clone(2)'s flags for a thread: CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM.
    pub const THREAD_FLAGS: u64 = 0x5_0f00;
    /// Flag beside the number: clone a thread whose area is argument 5.
    pub const THREAD: u32 = 1;
    /// Flag: clone a process, with arguments 2 to 5: its command page's file and offset, its area's file and offset.
    pub const FORK: u32 = 2;
    /// Flag: where this order fails, the batch ends.
    pub const STOP: u32 = 4;
}

/// Offsets in the results page.
pub mod results {
    /// u32, a futex: the number of the batch that is done.
    pub const DONE: u64 = 0x00;
    /// u32: 1 while the sentry sleeps on `DONE`.
    pub const WAITING: u64 = 0x04;
    /// u64: where the zygote found the host's vDSO.
    pub const VDSO: u64 = 0x08;
    /// i64 each: what the orders returned.
    pub const VALUES: u64 = 0x40;
    /// Bytes that orders left: residency, a thread's time.
    pub const DATA: u64 = 0x800;
}

/// Files of a container's stubs, by their number in the table that all of them share.
pub mod file {
    /// The memory file of command pages (read-only).
    pub const COMMANDS: u64 = 3;
    /// The memory file of thread areas.
    pub const AREAS: u64 = 4;
    /// The memory file of shared guest memory.
    pub const MEMORY: u64 = 5;
    /// The zygote's socket, on which files arrive.
    pub const SOCKET: u64 = 6;
    /// The memory file of the doorbell and the filters (read-only), the board behind them.
    pub const SHARED: u64 = 7;
}

/// Offsets in the container's shared file.
pub mod shared {
    /// The filters' pages.
    pub const FILTERS: u64 = 0x0000;
    /// The doorbell's page.
    pub const DOORBELL: u64 = 0x2000;
    /// The clocks' page.
    pub const CLOCKS: u64 = 0x3000;
    /// The file's size.
    pub const LEN: usize = 0x4000;
}

/// Offsets in the clocks' page: what the guest's vDSO adds to the host's clocks, and how it gets at them.
pub mod clocks {
    /// u32: odd while the sentry changes the records.
    pub const SEQ: u64 = 0x00;
    /// u64: where the host's `__vdso_clock_gettime` is in every stub; 0 where there is none, as for those below.
    pub const GETTIME: u64 = 0x08;
    /// u64: `__vdso_gettimeofday`.
    pub const GETTIMEOFDAY: u64 = 0x10;
    /// u64: `__vdso_time`.
    pub const TIME: u64 = 0x18;
    /// u64: `__vdso_clock_getres`.
    pub const GETRES: u64 = 0x20;
    /// u64: `__vdso_getcpu`.
    pub const GETCPU: u64 = 0x28;
    /// A [`record`] for each clock, by its number.
    pub const RECORDS: u64 = 0x40;
    /// How many there are.
    pub const IDS: u32 = 12;
    /// The clocks that are the host's: REALTIME, REALTIME_COARSE, TAI. Bits.
    pub const PLAIN: u32 = 1 | 1 << 5 | 1 << 11;
    /// The clocks that have an offset: MONOTONIC, MONOTONIC_RAW, MONOTONIC_COARSE, BOOTTIME. Bits.
    pub const OFFSET: u32 = 1 << 1 | 1 << 4 | 1 << 6 | 1 << 7;

    /// What is known of a clock.
    pub mod record {
        /// i64: seconds to be added.
        pub const SEC: u64 = 0x00;
        /// i64: nanoseconds to be added, below a second.
        pub const NSEC: u64 = 0x08;
        /// i64: the sum is never less than this: seconds.
        pub const FLOOR_SEC: u64 = 0x10;
        /// i64: and nanoseconds, below a second.
        pub const FLOOR_NSEC: u64 = 0x18;
        /// The size of a record.
        pub const SIZE: u64 = 0x20;
    }
}

/// Offsets in the filters' pages.
pub mod filters {
    /// `sock_fprog` of F0.
    pub const F0: u64 = 0x00;
    /// `sock_fprog` of F1.
    pub const F1: u64 = 0x10;
    /// `sock_fprog` of F2, which forbids a guest's stub to be cloned; its length is 0 where that is allowed.
    pub const F2: u64 = 0x20;
    /// Instructions of F0.
    pub const F0_CODE: u64 = 0x40;
    /// Instructions of F1.
    pub const F1_CODE: u64 = 0x1000;
    /// Instructions of F2.
    pub const F2_CODE: u64 = 0x1c00;
    /// The size of the pages.
    pub const LEN: u64 = 0x2000;
}
