//! The signal frame that the host's kernel leaves on a guest thread's alternate stack (`struct rt_sigframe` of x86-64), read and written in place.
//!
//! Offsets are within the thread's area; what a guest could have changed is bounded before it is used as one.

use crate::event::{Fpu, MAX_FPU, Regs};

use super::area::SharedPages;
use super::layout::{AREA, STACK};

/// Size of `struct ucontext` with the kernel's 8-byte signal mask.
const UCONTEXT: u64 = 304;
/// Where a prepared frame lies: with its floating-point state behind it.
const PREPARED: u64 = STACK + 0x2000;
const PREPARED_FPU: u64 = PREPARED + 0x400;

const R8: u64 = 40;
const RDI: u64 = 104;
const RAX: u64 = 144;
const RCX: u64 = 152;
const RIP: u64 = 168;
const EFLAGS: u64 = 176;
const R11: u64 = 64;
const SEGMENTS: u64 = 184;
const ERROR: u64 = 192;
const TRAP: u64 = 200;
const CR2: u64 = 216;
const FPSTATE: u64 = 224;
const SIGMASK: u64 = 296;

/// `fpstate.sw_reserved`: magic, then the size with the trailer.
const SW_MAGIC: u64 = 464;
const SW_SIZE: u64 = 468;
const MAGIC1: u32 = 0x4650_5853;

/// The order of the general registers in a frame, from `r8` on.
const ORDER: [fn(&mut Regs) -> &mut u64; 18] = [
    |r| &mut r.r8,
    |r| &mut r.r9,
    |r| &mut r.r10,
    |r| &mut r.r11,
    |r| &mut r.r12,
    |r| &mut r.r13,
    |r| &mut r.r14,
    |r| &mut r.r15,
    |r| &mut r.rdi,
    |r| &mut r.rsi,
    |r| &mut r.rbp,
    |r| &mut r.rbx,
    |r| &mut r.rdx,
    |r| &mut r.rax,
    |r| &mut r.rcx,
    |r| &mut r.rsp,
    |r| &mut r.rip,
    |r| &mut r.eflags,
];

/// A frame in a thread's area.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    areas: &'a SharedPages,
    /// Where the area begins in the file.
    area: u64,
    /// Where the area is in the stub.
    address: u64,
    /// Where the `ucontext` is in the area.
    at: u64,
}

impl<'a> Frame<'a> {
    /// The frame whose `ucontext` a stub says is at `pointer`; one inside the area in any case.
    pub(crate) fn at(areas: &'a SharedPages, area: u64, address: u64, pointer: u64) -> Frame<'a> {
        let offset = pointer.wrapping_sub(address);
        let inside = (STACK..=AREA - UCONTEXT - 128).contains(&offset) && offset.is_multiple_of(8);
        Frame {
            areas,
            area,
            address,
            at: if inside { offset } else { PREPARED },
        }
    }

    /// Where a frame for a thread that starts is prepared.
    pub(crate) fn prepared(areas: &'a SharedPages, area: u64, address: u64) -> Frame<'a> {
        Frame {
            areas,
            area,
            address,
            at: PREPARED,
        }
    }

    /// The address of the `ucontext` in the stub.
    pub(crate) fn pointer(&self) -> u64 {
        self.address + self.at
    }

    fn get(&self, offset: u64) -> u64 {
        self.areas.get64(self.area + self.at + offset)
    }

    fn set(&self, offset: u64, value: u64) {
        self.areas.set64(self.area + self.at + offset, value);
    }

    pub(crate) fn rax(&self) -> u64 {
        self.get(RAX)
    }

    pub(crate) fn rip(&self) -> u64 {
        self.get(RIP)
    }

    pub(crate) fn set_rip(&self, rip: u64) {
        self.set(RIP, rip);
    }

    /// The arguments of a call.
    pub(crate) fn args(&self) -> [u64; 6] {
        [
            self.get(RDI),
            self.get(RDI + 8),
            self.get(136),
            self.get(R8 + 16),
            self.get(R8),
            self.get(R8 + 8),
        ]
    }

    /// The trap's number, its error code, and the address of a page fault.
    pub(crate) fn trap(&self) -> (u64, u64, u64) {
        (self.get(TRAP), self.get(ERROR), self.get(CR2))
    }

    /// Writes the result of a call, with RCX and R11 as SYSCALL leaves them.
    pub(crate) fn set_result(&self, result: u64) {
        self.set(RAX, result);
        self.set(RCX, self.get(RIP));
        self.set(R11, self.get(EFLAGS));
    }

    pub(crate) fn regs(&self) -> Regs {
        let mut regs = Regs::default();
        for (field, offset) in ORDER.iter().zip((R8..).step_by(8)) {
            *field(&mut regs) = self.get(offset);
        }
        regs
    }

    pub(crate) fn set_regs(&self, regs: &Regs) {
        let mut regs = *regs;
        for (field, offset) in ORDER.iter().zip((R8..).step_by(8)) {
            self.set(offset, *field(&mut regs));
        }
    }

    /// Where the floating-point state is in the area, and how long: bounded, whatever the frame says.
    fn fpu_place(&self) -> Option<(u64, usize)> {
        let offset = self.get(FPSTATE).wrapping_sub(self.address);
        if !(STACK..=AREA - 512).contains(&offset) || !offset.is_multiple_of(64) {
            return None;
        }
        let len = if self.areas.get32(self.area + offset + SW_MAGIC) == MAGIC1 {
            u64::from(self.areas.get32(self.area + offset + SW_SIZE)).clamp(512, AREA - offset)
        } else {
            512
        };
        Some((offset, usize::try_from(len).ok()?.min(MAX_FPU)))
    }

    pub(crate) fn fpu(&self) -> Fpu {
        let Some((offset, len)) = self.fpu_place() else {
            return Fpu(Vec::new());
        };
        let mut bytes = vec![0; len];
        self.areas.copy_from(self.area + offset, &mut bytes);
        Fpu(bytes)
    }

    /// Writes the state where the frame has its own, or behind a prepared frame; `None` resets it. False where it does not fit.
    pub(crate) fn set_fpu(&self, fpu: Option<&Fpu>) -> bool {
        let Some(fpu) = fpu.filter(|fpu| !fpu.0.is_empty()) else {
            self.set(FPSTATE, 0);
            return true;
        };
        let (offset, room) = if self.at == PREPARED {
            (PREPARED_FPU, MAX_FPU)
        } else {
            match self.fpu_place() {
                Some(place) => place,
                None => return false,
            }
        };
        if fpu.0.len() < 512 || fpu.0.len() > room {
            return false;
        }
        self.areas.copy_to(self.area + offset, &fpu.0);
        self.set(FPSTATE, self.address + offset);
        true
    }

    /// Fills in everything but registers and floating-point state: flags, alternate stack, segments, an empty mask.
    pub(crate) fn prepare(&self) {
        // UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS.
        self.set(0, 7);
        self.set(8, 0);
        self.set(16, self.address + STACK);
        self.set(24, 0);
        self.set(32, AREA - STACK);
        self.set(SEGMENTS, 0x002b_0000_0000_0033);
        self.set(SIGMASK, 0);
    }
}
