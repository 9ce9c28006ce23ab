//! The frame of a signal handler on a guest's stack (`struct rt_sigframe` of x86-64), and the way back from it (rt_sigreturn(2)).

use abi::Errno;
use abi::signal::{SigAction, SigInfo, SigSet};
use platform::{Fpu, MAX_FPU, Regs, Thread};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Task;
use super::signal::{SA_ONSTACK, SA_RESTORER};

/// `SS_ONSTACK`
const SS_ONSTACK: u32 = 1;
/// `SS_DISABLE`
const SS_DISABLE: u32 = 2;
/// `SS_AUTODISARM`
const SS_AUTODISARM: u32 = 1 << 31;
/// What a function may use below its stack pointer.
const RED_ZONE: u64 = 128;
/// Flags that a handler's return may set: CF PF AF ZF SF TF DF OF NT? AC.
const USER_FLAGS: u64 = 0x0005_0dd5;

/// `struct ucontext` of x86-64 with the kernel's signal mask.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct UContext {
    flags: u64,
    link: u64,
    stack_sp: u64,
    stack_flags: u32,
    stack_pad: u32,
    stack_size: u64,
    regs: [u64; 18],
    segments: [u16; 4],
    error: u64,
    trap: u64,
    old_mask: u64,
    cr2: u64,
    fpstate: u64,
    reserved: [u64; 8],
    mask: SigSet,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Frame {
    restorer: u64,
    context: UContext,
    info: SigInfo,
}

const FRAME: u64 = size_of::<Frame>() as u64;

fn to_array(regs: &Regs) -> [u64; 18] {
    [
        regs.r8,
        regs.r9,
        regs.r10,
        regs.r11,
        regs.r12,
        regs.r13,
        regs.r14,
        regs.r15,
        regs.rdi,
        regs.rsi,
        regs.rbp,
        regs.rbx,
        regs.rdx,
        regs.rax,
        regs.rcx,
        regs.rsp,
        regs.rip,
        regs.eflags,
    ]
}

fn from_array(from: &[u64; 18], regs: &mut Regs) {
    [
        regs.r8,
        regs.r9,
        regs.r10,
        regs.r11,
        regs.r12,
        regs.r13,
        regs.r14,
        regs.r15,
        regs.rdi,
        regs.rsi,
        regs.rbp,
        regs.rbx,
        regs.rdx,
        regs.rax,
        regs.rcx,
        regs.rsp,
        regs.rip,
        regs.eflags,
    ] = *from;
}

/// What a fault left for the frame: trap number, error code, address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FaultInfo {
    pub(super) trap: u64,
    pub(super) error: u64,
    pub(super) address: u64,
}

impl Task {
    /// Makes the thread run a handler: builds the frame, sets the registers. EFAULT where the stack can't take it.
    pub(super) fn enter_handler(
        &self,
        thread: &dyn Thread,
        regs: &mut Regs,
        action: &SigAction,
        info: &SigInfo,
        mask: SigSet,
        fault: FaultInfo,
    ) -> Result<(), Errno> {
        let mm = self.mm();
        let (sp, flags, size) = self.alt_stack();
        let on_stack = flags & SS_DISABLE == 0
            && regs.rsp.wrapping_sub(sp) <= size
            && regs.rsp > sp
            && size > 0;
        let usable = size > 0 && flags & SS_DISABLE == 0;
        let top = if action.flags & SA_ONSTACK != 0 && usable && !on_stack {
            sp.wrapping_add(size)
        } else {
            regs.rsp.wrapping_sub(RED_ZONE)
        };
        let fpu = thread.fpu();
        let fpstate = top.wrapping_sub(fpu.0.len() as u64) & !63;
        // At a function's entry the stack pointer plus 8 is a multiple of 16.
        let at = (fpstate.wrapping_sub(FRAME) & !15).wrapping_sub(8);
        if on_stack && at < sp {
            return Err(Errno::EFAULT);
        }
        if !fpu.0.is_empty() {
            mm.write(fpstate, &fpu.0)?;
        }
        let state = if size == 0 {
            SS_DISABLE
        } else if on_stack {
            flags | SS_ONSTACK
        } else {
            flags
        };
        let frame = Frame {
            restorer: action.restorer,
            context: UContext {
                // UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS
                flags: 7,
                stack_sp: sp,
                stack_flags: state,
                stack_size: size,
                regs: to_array(regs),
                segments: [0x33, 0, 0, 0x2b],
                error: fault.error,
                trap: fault.trap,
                cr2: fault.address,
                old_mask: mask.0,
                fpstate: if fpu.0.is_empty() { 0 } else { fpstate },
                mask,
                ..UContext::default()
            },
            info: *info,
        };
        if action.flags & SA_RESTORER == 0 {
            return Err(Errno::EFAULT);
        }
        mm.write(at, frame.as_bytes())?;
        if flags & SS_AUTODISARM != 0 {
            self.set_alt_stack((0, SS_DISABLE, 0));
        }
        regs.rdi = u64::from(info.signo.cast_unsigned());
        regs.rsi = at + core::mem::offset_of!(Frame, info) as u64;
        regs.rdx = at + core::mem::offset_of!(Frame, context) as u64;
        regs.rax = 0;
        regs.rsp = at;
        regs.rip = action.handler;
        // DF, RF and TF are off in a handler.
        regs.eflags &= !(0x400 | 0x1_0000 | 0x100);
        thread.set_fpu(None)
    }

    /// rt_sigreturn(2): registers, mask and alternate stack from the frame that the stack pointer is behind. EFAULT where it can't be read.
    pub(crate) fn leave_handler(&self, thread: &dyn Thread) -> Result<(), Errno> {
        let mm = self.mm();
        let mut regs = thread.regs();
        let at = regs.rsp.wrapping_sub(8);
        let mut context = UContext::default();
        mm.read(
            at.wrapping_add(core::mem::offset_of!(Frame, context) as u64),
            context.as_mut_bytes(),
        )?;
        let flags = regs.eflags;
        from_array(&context.regs, &mut regs);
        regs.eflags = flags & !USER_FLAGS | context.regs[17] & USER_FLAGS;
        let fpu = if context.fpstate == 0 {
            None
        } else {
            Some(read_fpu(&mm, context.fpstate)?)
        };
        if thread.set_fpu(fpu.as_ref()).is_err() {
            return Err(Errno::EFAULT);
        }
        if context.stack_flags & SS_ONSTACK == 0 {
            self.set_alt_stack((context.stack_sp, context.stack_flags, context.stack_size));
        }
        self.set_mask(context.mask);
        thread.set_regs(&regs);
        Ok(())
    }
}

/// The floating-point state at an address: as long as its own header says, within what is kept.
fn read_fpu(mm: &crate::mm::Mm, addr: u64) -> Result<Fpu, Errno> {
    let mut bytes = vec![0; 512];
    mm.read(addr, &mut bytes)?;
    let word =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let len = if word(464) == 0x4650_5853 {
        word(468) as usize
    } else {
        512
    };
    if len > 512 && len <= MAX_FPU {
        bytes.resize(len, 0);
        mm.read(addr, &mut bytes)?;
    }
    Ok(Fpu(bytes))
}

#[cfg(test)]
mod tests {
    use super::{Frame, UContext};
    use core::mem::{offset_of, size_of};

    #[test]
    fn layout_is_the_kernels() {
        assert_eq!(size_of::<UContext>(), 304);
        assert_eq!(offset_of!(UContext, regs), 40);
        assert_eq!(offset_of!(UContext, fpstate), 224);
        assert_eq!(offset_of!(UContext, mask), 296);
        assert_eq!(offset_of!(Frame, info), 312);
    }
}
