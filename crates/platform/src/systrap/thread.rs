//! A guest thread: a host thread of a stub, seen through its area.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use abi::Errno;
use abi::signal::SigInfo;
use zerocopy::FromBytes;

use crate::event::{Event, Fpu, Regs};
use crate::{ContextId, Start, Thread, WINDOW};

use super::Shared;
use super::frame::Frame;
use super::layout::{self, AREA, INTERRUPT_SIGNAL, TEXT, ctx, kind, reply, state};
use super::stub::StubSpace;

/// The signal of a trapped call.
const SIGSYS: u32 = 31;

/// A guest thread.
pub(crate) struct StubThread {
    shared: Arc<Shared>,
    space: Weak<StubSpace>,
    pid: i32,
    tid: i32,
    context: u32,
    id: ContextId,
    /// Where its area begins in the file.
    area: u64,
    /// Where its area is in the stub.
    address: u64,
    /// What the last report said: whether the state is in a frame, and where. Read once, when the event was.
    full: AtomicBool,
    frame: AtomicU64,
    /// Processor time that the host thread used for guest threads before this one: nanoseconds.
    used_before: AtomicU64,
    /// Whether its space is halted now and then.
    gated: bool,
}

impl StubThread {
    pub(crate) fn new(
        shared: Arc<Shared>,
        space: Weak<StubSpace>,
        pid: i32,
        tid: i32,
        context: u32,
        address: u64,
    ) -> StubThread {
        let area = u64::from(context) * AREA;
        let frame = Frame::prepared(&shared.areas, area, address).pointer();
        let id = shared.board.id(context);
        StubThread {
            id,
            gated: !shared.host_mm.fork,
            shared,
            space,
            pid,
            tid,
            context,
            area,
            address,
            full: AtomicBool::new(true),
            frame: AtomicU64::new(frame),
            used_before: AtomicU64::new(0),
        }
    }

    fn get32(&self, offset: u64) -> u32 {
        self.shared.areas.get32(self.area + offset)
    }

    fn get64(&self, offset: u64) -> u64 {
        self.shared.areas.get64(self.area + offset)
    }

    fn set32(&self, offset: u64, value: u32) {
        self.shared.areas.set32(self.area + offset, value);
    }

    fn set64(&self, offset: u64, value: u64) {
        self.shared.areas.set64(self.area + offset, value);
    }

    fn frame(&self) -> Frame<'_> {
        Frame::at(
            &self.shared.areas,
            self.area,
            self.address,
            self.frame.load(Ordering::Relaxed),
        )
    }

    /// Whether it runs, or is about to: it has been answered, and has not reported since.
    pub(crate) fn runs(&self) -> bool {
        self.shared.areas.load32(self.area + ctx::STATE) == state::GO
    }

    /// Hands the answer over: from here on the thread runs.
    fn go(&self, what: u32) {
        let space = self.gated.then(|| self.space.upgrade()).flatten();
        let _gate = space.as_ref().and_then(|space| space.enter_gate());
        self.set32(ctx::REPLY, what);
        self.shared.areas.swap32(self.area + ctx::STATE, state::GO);
        self.shared.board.sent(&self.shared.areas, self.context);
        if self.shared.areas.load32(self.area + ctx::SLEEPING) != 0 {
            self.shared.counters.wakeups.fetch_add(1, Ordering::Relaxed);
            self.shared.areas.futex_wake(self.area + ctx::STATE, 1);
        }
    }
}

impl Thread for StubThread {
    fn context(&self) -> ContextId {
        self.id
    }

    fn event(&self) -> Event {
        let counters = &self.shared.counters;
        // A note that comes after this asks for another report.
        self.set32(ctx::NOTE, 0);
        let full = self.get32(ctx::PATH) != 0;
        self.full.store(full, Ordering::Relaxed);
        let kind = self.get32(ctx::KIND);
        if !full {
            return match kind {
                kind::CALL => {
                    counters.patched_calls.fetch_add(1, Ordering::Relaxed);
                    let args = [ctx::RDI, ctx::RSI, ctx::RDX, ctx::R10, ctx::R8, ctx::R9]
                        .map(|offset| self.get64(offset));
                    Event::Call {
                        number: self.get64(ctx::RAX),
                        args,
                        compat: false,
                    }
                }
                kind::ATOMIC => {
                    let bad = self.get64(ctx::ATOMIC_FAULT) != 0;
                    Event::Atomic {
                        found: (!bad).then(|| self.get32(ctx::ATOMIC_FOUND)),
                    }
                }
                _ => Event::Forged,
            };
        }
        self.frame.store(self.get64(ctx::FRAME), Ordering::Relaxed);
        let frame = self.frame();
        match kind {
            kind::CALL => {
                counters.trapped_calls.fetch_add(1, Ordering::Relaxed);
                // A trap of the stub's own is a jump into it: guest code has no call there.
                if frame.rip() >= TEXT && frame.rip() < TEXT + (1 << 32) {
                    return Event::Forged;
                }
                let compat = self.signal_arch() == 0x4000_0003;
                Event::Call {
                    number: frame.rax(),
                    args: frame.args(),
                    compat,
                }
            }
            kind::SIGNAL => {
                let signal = self.get32(ctx::SIGNAL);
                if signal == INTERRUPT_SIGNAL {
                    return Event::Interrupt;
                }
                counters.signals.fetch_add(1, Ordering::Relaxed);
                let (trap, error, address) = frame.trap();
                Event::Fault {
                    info: self.siginfo(),
                    trap,
                    error,
                    address,
                }
            }
            kind::CONVERTED => Event::Converted,
            kind::INTERRUPTED => Event::Interrupt,
            kind::ATOMIC => {
                let bad = self.get64(ctx::ATOMIC_FAULT) != 0;
                Event::Atomic {
                    found: (!bad).then(|| self.get32(ctx::ATOMIC_FOUND)),
                }
            }
            _ => Event::Forged,
        }
    }

    fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    fn regs(&self) -> Regs {
        if self.is_full() {
            let mut regs = self.frame().regs();
            regs.fs_base = self.get64(ctx::FS_BASE);
            let gs = self.get64(ctx::GS_BASE);
            regs.gs_base = if gs == self.address { 0 } else { gs };
            return regs;
        }
        Regs {
            rax: self.get64(ctx::RAX),
            rdi: self.get64(ctx::RDI),
            rsi: self.get64(ctx::RSI),
            rdx: self.get64(ctx::RDX),
            r10: self.get64(ctx::R10),
            r8: self.get64(ctx::R8),
            r9: self.get64(ctx::R9),
            rip: self.get64(ctx::RIP),
            ..Regs::default()
        }
    }

    fn rip(&self) -> u64 {
        if self.is_full() {
            self.frame().rip()
        } else {
            self.get64(ctx::RIP)
        }
    }

    fn set_rip(&self, rip: u64) {
        self.frame().set_rip(rip);
    }

    fn set_regs(&self, regs: &Regs) {
        self.frame().set_regs(regs);
        self.set64(ctx::FS_BASE, regs.fs_base);
        self.set64(
            ctx::GS_BASE,
            if regs.gs_base == 0 {
                self.address
            } else {
                regs.gs_base
            },
        );
        self.set32(ctx::SET_BASES, 1);
    }

    fn fpu(&self) -> Fpu {
        self.frame().fpu()
    }

    fn set_fpu(&self, fpu: Option<&Fpu>) -> Result<(), Errno> {
        if self.frame().set_fpu(fpu) {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    }

    fn copied_in(&self) -> (u64, usize) {
        let len = usize::try_from(self.get64(ctx::COPIED_IN))
            .unwrap_or(0)
            .min(WINDOW);
        (self.get64(ctx::COPIED_FROM), len)
    }

    fn forget_input(&self) {
        self.set64(ctx::COPIED_IN, 0);
    }

    fn park(&self) {
        self.shared
            .areas
            .swap32(self.area + ctx::STATE, state::PARKED);
    }

    fn window_read(&self, at: usize, to: &mut [u8]) {
        if at + to.len() <= WINDOW {
            self.shared
                .areas
                .copy_from(self.area + layout::WINDOW + at as u64, to);
        }
    }

    fn results_read(&self, at: usize, to: &mut [u8]) {
        if at + to.len() <= WINDOW {
            self.shared
                .areas
                .copy_from(self.area + layout::WINDOW_OUT + at as u64, to);
        }
    }

    fn results_write(&self, at: usize, from: &[u8]) {
        if at + from.len() <= WINDOW {
            self.shared
                .areas
                .copy_to(self.area + layout::WINDOW_OUT + at as u64, from);
        }
    }

    fn copy_out(&self, addr: u64, len: usize) {
        self.set64(ctx::COPY_OUT_TO, addr);
        self.set32(
            ctx::COPY_OUT_LEN,
            u32::try_from(len.min(WINDOW)).unwrap_or(0),
        );
    }

    fn answer(&self, result: u64) {
        if self.is_full() {
            self.frame().set_result(result);
        } else {
            self.set64(ctx::RETURN, result);
        }
        self.go(reply::RESUME);
    }

    fn resume(&self) {
        self.go(reply::RESUME);
    }

    fn convert(&self) {
        self.go(reply::RETRAP);
    }

    fn atomic(&self, addr: u64, old: u32, new: u32) {
        self.set64(ctx::ATOMIC_ADDR, addr);
        self.set64(ctx::ATOMIC_OLD, u64::from(old));
        self.set64(ctx::ATOMIC_NEW, u64::from(new));
        self.go(reply::ATOMIC);
    }

    fn interrupt(&self) {
        self.shared
            .counters
            .interrupts
            .fetch_add(1, Ordering::Relaxed);
        self.shared.areas.swap32(self.area + ctx::NOTE, 1);
        let signal = i32::try_from(INTERRUPT_SIGNAL).expect("small");
        // SAFETY: no memory is involved. The thread's number could be forged, the process's can't: the signal stays inside it.
        unsafe { libc::syscall(libc::SYS_tgkill, self.pid, self.tid, signal) };
    }

    fn set_local(&self, pid: u32, tid: u32) {
        self.set32(ctx::LOCAL_PID, pid);
        self.set32(ctx::LOCAL_TID, tid);
    }

    fn cpu_time(&self) -> u64 {
        let used = self
            .space
            .upgrade()
            .map_or(0, |space| space.thread_time(self.tid));
        used.saturating_sub(self.used_before.load(Ordering::Relaxed))
    }

    fn restart(&self, start: &Start) {
        self.set_regs(&start.regs);
        // The frame has room for the state of this machine, so what another thread's frame held fits.
        if !self.frame().set_fpu(start.fpu.as_ref()) {
            self.frame().set_fpu(None);
        }
        self.set_local(start.local.0, start.local.1);
        self.go(reply::RESUME);
    }

    fn retire(self: Arc<Self>, used: Option<u64>) {
        if let Some(space) = self.space.upgrade() {
            let before = self.used_before.load(Ordering::Relaxed);
            let used = used.map_or_else(
                || space.thread_time(self.tid),
                |used| before.saturating_add(used),
            );
            self.used_before.store(used, Ordering::Relaxed);
            space.park(self);
        }
    }
}

impl StubThread {
    /// `si_arch` of a SIGSYS.
    fn signal_arch(&self) -> u32 {
        if self.get32(ctx::SIGNAL) != SIGSYS {
            return 0;
        }
        (self.siginfo().fields[1] >> 32) as u32
    }

    fn siginfo(&self) -> SigInfo {
        let offset = self.get64(ctx::INFO).wrapping_sub(self.address);
        let mut bytes = [0; size_of::<SigInfo>()];
        if offset <= AREA - 128 {
            self.shared.areas.copy_from(self.area + offset, &mut bytes);
        }
        SigInfo::read_from_bytes(&bytes).expect("the sizes agree")
    }
}
