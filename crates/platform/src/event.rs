//! What a guest thread reports, and the registers it has.

use abi::signal::SigInfo;

/// The general registers of x86-64, in the order of `struct user_regs_struct` without the segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the processor")]
pub struct Regs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rip: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub fs_base: u64,
    /// Zero where the guest has set none.
    pub gs_base: u64,
}

/// The largest floating-point and vector state that is kept (AVX-512 and PKRU; AMX is refused).
pub const MAX_FPU: usize = 4096;

/// Floating-point and vector state, in the form that a signal frame has (XSAVE's standard form with the kernel's trailer).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fpu(pub Vec<u8>);

/// What a guest thread reports.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A system call: number and arguments. `patched` where the full state is not at hand.
    Call {
        /// The number.
        number: u64,
        /// The arguments.
        args: [u64; 6],
        /// Whether it came by the 32-bit entry (`int $0x80`), whose numbers are other ones.
        compat: bool,
    },
    /// A fault or trap of the processor.
    Fault {
        /// The host's siginfo.
        info: SigInfo,
        /// The trap's number (14: page fault).
        trap: u64,
        /// The error code; of a page fault, bit 1 says write.
        error: u64,
        /// The address of a page fault.
        address: u64,
    },
    /// The interrupt signal arrived in guest code, or the thread was caught on its way out of a call, the result in its registers.
    Interrupt,
    /// The call that was reported before, now with the full state.
    Converted,
    /// The atomic operation was done: what was found, or that the address was bad.
    Atomic {
        /// What was there.
        found: Option<u32>,
    },
    /// Something that a well-behaved guest can't report.
    Forged,
}
