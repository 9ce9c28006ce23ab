//! The stubs' seccomp filters, as programs of classic BPF (seccomp(2)).
//!
//! F0 holds for every thread of a stub and bounds what the helper can be told to do; what of the host's memory management is switched off
//! ([`HostMm`]), it refuses. F2 holds for all stubs but the zygote where forks by the host are off. F1 is added by each guest thread before it runs guest code, and allows two
//! calls, each at its one instruction: a wait on the thread's own context (or a wake-up of the doorbell), and
//! `rt_sigreturn`. Everything else raises SIGSYS, wherever the instruction stands.
//!
//! seccompiler builds filters from call numbers and arguments, but not from instruction pointers, on which these turn;
//! hence the small assembler at the end.

use abi::nr::nr;

use crate::HostMm;

use super::labels;
use super::layout::{self, command, file};

/// `sock_filter` of linux/filter.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Insn {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

const ALLOW: u32 = 0x7fff_0000;
const TRAP: u32 = 0x0003_0000;
const ARCH_X86_64: u32 = 0xc000_003e;
const NR: u32 = 0;
const ARCH: u32 = 4;
const IP: u32 = 8;

/// Offset of the low half of argument `n`.
const fn low(n: u32) -> u32 {
    16 + 8 * n
}

/// Offset of the high half of argument `n`.
const fn high(n: u32) -> u32 {
    low(n) + 4
}

const fn lo32(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}

const fn hi32(value: u64) -> u32 {
    (value >> 32) as u32
}

/// The filter of guest threads.
pub(crate) fn guest() -> Vec<Insn> {
    let mut p = Program::default();
    p.prologue();
    p.at(labels::STUB_FUTEX_AFTER, "futex");
    p.at(labels::STUB_SIGRETURN_AFTER, "sigreturn");
    p.trap();
    p.guest_calls();
    p.finish()
}

/// The filter of stubs that are not to be cloned; it adds to F0. Nothing where cloning them is allowed.
pub(crate) fn no_forks(features: HostMm) -> Vec<Insn> {
    let mut p = Program::default();
    if features.fork {
        return p.finish();
    }
    p.load(NR);
    p.branch_eq(nr::clone, "clone");
    p.allow();
    p.label("clone");
    p.load(low(0));
    p.require_eq(lo32(command::THREAD_FLAGS));
    p.allow();
    p.finish()
}

/// The filter of all threads of a stub.
pub(crate) fn helper(features: HostMm) -> Vec<Insn> {
    let mut p = Program::default();
    p.prologue();
    p.at(labels::STUB_FUTEX_AFTER, "futex");
    p.at(labels::STUB_SIGRETURN_AFTER, "sigreturn");
    p.at(labels::STUB_ORDER_AFTER, "order");
    p.at(labels::STUB_HELPER_FUTEX_AFTER, "helper futex");
    p.at(labels::STUB_PAGES_AFTER, "pages");
    p.at(labels::STUB_THREAD_AFTER, "thread");
    p.trap();
    p.guest_calls();

    // A helper waits for orders and wakes the sentry, nobody else.
    p.label("helper futex");
    p.number(nr::futex);
    p.load(low(1));
    p.branch_eq(0, "helper wait");
    p.require_eq(1);
    p.argument(0, layout::AREAS + layout::RESULTS);
    p.allow();
    p.label("helper wait");
    p.argument(0, layout::COMMANDS);
    p.argument(3, 0);
    p.allow();

    // A new process maps and seals its own pages.
    p.label("pages");
    p.load(NR);
    p.branch_eq(nr::mmap, "pages mmap");
    p.branch_eq(nr::madvise, "pages madvise");
    if !features.fork {
        p.branch_eq(nr::seccomp, "pages seccomp");
    }
    p.require_eq(nr::mseal);
    p.argument(0, layout::COMMANDS);
    p.allow();
    p.label("pages madvise");
    p.argument(2, 10);
    p.load(high(0));
    p.require_at_least(hi32(layout::TEXT));
    p.allow();
    p.label("pages mmap");
    p.argument(3, 0x11);
    p.load(low(4));
    p.branch_eq(lo32(file::COMMANDS), "pages commands");
    p.require_eq(lo32(file::AREAS));
    p.argument(0, layout::AREAS);
    p.argument(1, layout::AREA);
    p.argument(2, 3);
    p.allow();
    p.label("pages commands");
    p.argument(0, layout::COMMANDS);
    p.argument(1, 4096);
    p.argument(2, 1);
    p.allow();

    if !features.fork {
        p.label("pages seccomp");
        p.argument(0, 1);
        p.argument(1, 0);
        p.argument(2, layout::FILTERS + layout::filters::F2);
        p.allow();
    }

    // A new guest thread: its alternate stack, and F1.
    p.label("thread");
    p.load(NR);
    p.branch_eq(nr::sigaltstack, "allow");
    p.require_eq(nr::seccomp);
    p.argument(0, 1);
    p.argument(1, 0);
    p.argument(2, layout::FILTERS + layout::filters::F1);
    p.label("allow");
    p.allow();

    // Orders.
    p.label("order");
    p.load(NR);
    for (number, label) in [
        (nr::mmap, "mmap"),
        (nr::munmap, "munmap"),
        (nr::mprotect, "mprotect"),
        (nr::madvise, "madvise"),
        (nr::clone, "clone"),
        (nr::kill, "kill"),
        (nr::close, "close"),
        (nr::recvmsg, "recvmsg"),
        (nr::mincore, "mincore"),
        (nr::pread64, "pread"),
        (nr::clock_gettime, "clock"),
    ] {
        p.branch_eq(number, label);
    }
    if features.mremap {
        p.branch_eq(nr::mremap, "mremap");
    }
    p.trap();

    p.label("mmap");
    p.load(high(0));
    p.branch_eq(hi32(layout::AREAS), "mmap area");
    p.range(0, 1);
    p.at_most(2, 7);
    p.high_zero(3);
    p.load(low(3));
    // MAP_FIXED with PRIVATE or SHARED, ANONYMOUS, NORESERVE: never GROWSDOWN, LOCKED, HUGETLB, POPULATE.
    for flags in [0x4032, 0x11, 0x4011] {
        p.branch_eq(flags, "allow 2");
    }
    if features.private_files {
        p.branch_eq(0x4012, "allow 2");
        p.branch_eq(0x12, "allow 2");
    }
    p.trap();
    p.label("allow 2");
    p.allow();
    p.label("mmap area");
    p.load(low(0));
    p.require_less(lo32(layout::AREA * layout::AREA_SLOTS));
    p.argument(1, layout::AREA);
    p.argument(2, 3);
    p.argument(3, 0x11);
    p.argument(4, file::AREAS);
    p.allow();

    p.label("munmap");
    // The zygote's first stack, above everything.
    p.load(high(0));
    p.branch_at_least(hi32(layout::AREAS) + 1, "allow 3");
    p.range(0, 1);
    p.label("allow 3");
    p.allow();

    p.label("mprotect");
    p.range(0, 1);
    p.at_most(2, 7);
    p.allow();

    if features.mremap {
        p.label("mremap");
        p.range(0, 1);
        p.range(0, 2);
        p.range(4, 2);
        p.high_zero(3);
        p.load(low(3));
        p.require_eq(3);
        p.allow();
    }

    p.label("madvise");
    p.load(high(0));
    p.branch_eq(hi32(layout::AREAS), "madvise area");
    p.range(0, 1);
    p.load(low(2));
    // DONTNEED, FREE, HUGEPAGE, NOHUGEPAGE; never MERGEABLE.
    for advice in [4, 8, 15] {
        p.branch_eq(advice, "allow 4");
    }
    if features.huge_pages {
        p.branch_eq(14, "allow 4");
    }
    p.trap();
    p.label("madvise area");
    p.argument(2, 10);
    p.label("allow 4");
    p.allow();

    p.label("clone");
    p.high_zero(0);
    p.load(low(0));
    p.branch_eq(lo32(command::PROCESS_FLAGS), "allow 5");
    p.require_eq(lo32(command::THREAD_FLAGS));
    p.label("allow 5");
    p.allow();

    // A new process tells the sentry, the first of its namespace, who it is.
    p.label("kill");
    p.argument(0, 1);
    p.high_zero(1);
    p.load(low(1));
    p.require_at_least(34);
    p.require_less(65);
    p.allow();

    // Files that arrived, which got 0, 1 and 2 too; never the stub's own.
    p.label("close");
    p.high_zero(0);
    p.load(low(0));
    p.branch_at_least(lo32(file::COMMANDS), "close above");
    p.allow();
    p.label("close above");
    p.require_at_least(lo32(file::SHARED) + 1);
    p.allow();

    p.label("recvmsg");
    p.argument(0, file::SOCKET);
    p.load(high(1));
    p.require_eq(hi32(layout::AREAS));
    p.allow();

    p.label("mincore");
    p.range(0, 1);
    p.load(high(2));
    p.require_eq(hi32(layout::AREAS));
    p.allow();

    p.label("pread");
    p.range(1, 2);
    p.allow();

    // A thread's processor time, which the kernel tells its own process alone; into the results.
    p.label("clock");
    p.load(low(0));
    p.require_at_least(0x8000_0000);
    p.argument(1, layout::AREAS + layout::RESULTS + layout::results::DATA);
    p.allow();
    p.finish()
}

/// A program under construction: jumps name labels that come later.
#[derive(Default)]
struct Program {
    insns: Vec<Insn>,
    jumps: Vec<(usize, &'static str)>,
    labels: Vec<(&'static str, usize)>,
}

impl Program {
    fn op(&mut self, code: u16, k: u32) {
        self.insns.push(Insn {
            code,
            jt: 0,
            jf: 0,
            k,
        });
    }

    /// BPF_LD | BPF_W | BPF_ABS
    fn load(&mut self, offset: u32) {
        self.op(0x20, offset);
    }

    fn allow(&mut self) {
        self.op(0x06, ALLOW);
    }

    fn trap(&mut self) {
        self.op(0x06, TRAP);
    }

    fn label(&mut self, name: &'static str) {
        self.labels.push((name, self.insns.len()));
    }

    /// A conditional jump over the trap that follows it.
    fn require(&mut self, code: u16, k: u32) {
        self.insns.push(Insn {
            code,
            jt: 1,
            jf: 0,
            k,
        });
        self.trap();
    }

    fn require_eq(&mut self, k: u32) {
        self.require(0x15, k);
    }

    fn require_at_least(&mut self, k: u32) {
        self.require(0x35, k);
    }

    fn require_less(&mut self, k: u32) {
        self.insns.push(Insn {
            code: 0x35,
            jt: 0,
            jf: 1,
            k,
        });
        self.trap();
    }

    /// Jumps to a label: `jt` skips one instruction to an unconditional jump that has the reach.
    fn branch(&mut self, code: u16, k: u32, label: &'static str) {
        self.insns.push(Insn {
            code,
            jt: 0,
            jf: 1,
            k,
        });
        self.jumps.push((self.insns.len(), label));
        self.op(0x05, 0);
    }

    fn branch_eq(&mut self, k: u32, label: &'static str) {
        self.branch(0x15, k, label);
    }

    fn branch_at_least(&mut self, k: u32, label: &'static str) {
        self.branch(0x35, k, label);
    }

    /// The native architecture, and an instruction of the stub's text; leaves the low half of its address loaded.
    fn prologue(&mut self) {
        self.load(ARCH);
        self.require_eq(ARCH_X86_64);
        self.load(IP + 4);
        self.require_eq(hi32(layout::TEXT));
        self.load(IP);
    }

    fn at(&mut self, address: u64, label: &'static str) {
        self.branch_eq(lo32(address), label);
    }

    fn number(&mut self, number: u32) {
        self.load(NR);
        self.require_eq(number);
    }

    fn argument(&mut self, n: u32, value: u64) {
        self.load(high(n));
        self.require_eq(hi32(value));
        self.load(low(n));
        self.require_eq(lo32(value));
    }

    fn high_zero(&mut self, n: u32) {
        self.load(high(n));
        self.require_eq(0);
    }

    fn at_most(&mut self, n: u32, most: u32) {
        self.high_zero(n);
        self.load(low(n));
        self.require_less(most + 1);
    }

    /// Argument `a` as an address and `b` as a length end below the stub: their upper halves add up to at most two less
    /// than its, so that no carry can reach it.
    fn range(&mut self, a: u32, b: u32) {
        self.load(high(b));
        self.require_less(hi32(layout::TEXT));
        // BPF_MISC | BPF_TAX, then BPF_ALU | BPF_ADD | BPF_X
        self.op(0x07, 0);
        self.load(high(a));
        self.require_less(hi32(layout::TEXT));
        self.op(0x0c, 0);
        self.require_less(hi32(layout::TEXT) - 1);
    }

    /// The two calls of guest threads, at `futex` and `sigreturn`.
    fn guest_calls(&mut self) {
        self.label("sigreturn");
        self.number(nr::rt_sigreturn);
        self.allow();
        self.label("futex");
        self.number(nr::futex);
        self.high_zero(1);
        self.load(low(1));
        self.branch_eq(0, "wait");
        self.require_eq(1);
        self.argument(0, layout::DOORBELL);
        self.argument(2, 1);
        self.allow();
        self.label("wait");
        self.load(high(0));
        self.require_eq(hi32(layout::AREAS));
        self.load(low(0));
        self.require_less(lo32(layout::AREA * layout::AREA_SLOTS));
        // BPF_ALU | BPF_AND | BPF_K: a context page's first word.
        self.op(0x54, lo32(layout::AREA - 1));
        self.require_eq(0);
        self.argument(3, 0);
        self.allow();
    }

    fn finish(mut self) -> Vec<Insn> {
        for (at, label) in &self.jumps {
            let target = self
                .labels
                .iter()
                .find(|(name, _)| name == label)
                .expect("every label is defined")
                .1;
            self.insns[*at].k =
                u32::try_from(target - at - 1).expect("labels come after their jumps");
        }
        self.insns
    }
}

#[cfg(test)]
mod tests {
    use super::{ALLOW, HostMm, Insn, TRAP, command, guest, helper, labels, layout, no_forks};
    use abi::nr::nr;

    /// What the program says of a call, as the kernel's interpreter would.
    fn run(program: &[Insn], arch: u32, number: u32, ip: u64, args: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(number.to_le_bytes());
        data.extend(arch.to_le_bytes());
        data.extend(ip.to_le_bytes());
        for arg in args {
            data.extend(arg.to_le_bytes());
        }
        let (mut a, mut x, mut pc) = (0u32, 0u32, 0usize);
        loop {
            let insn = program[pc];
            pc += 1;
            let k = insn.k;
            let jump = |taken: bool| usize::from(if taken { insn.jt } else { insn.jf });
            match insn.code {
                0x20 => {
                    a = u32::from_le_bytes(
                        data[k as usize..k as usize + 4]
                            .try_into()
                            .expect("four bytes"),
                    )
                }
                0x06 => return k,
                0x15 => pc += jump(a == k),
                0x35 => pc += jump(a >= k),
                0x05 => pc += k as usize,
                0x07 => x = a,
                0x0c => a = a.wrapping_add(x),
                0x54 => a &= k,
                code => panic!("no such instruction: {code:#x}"),
            }
        }
    }

    const NATIVE: u32 = 0xc000_003e;

    #[test]
    fn guests_have_two_calls() {
        let program = guest();
        assert!(program.len() < 100);
        for number in 0..1000 {
            for ip in [
                0x40_0000,
                labels::STUB_ORDER_AFTER,
                labels::STUB_FUTEX_AFTER - 2,
            ] {
                assert_eq!(run(&program, NATIVE, number, ip, [0; 6]), TRAP);
            }
            let own = [layout::AREAS, 0, 1, 0, 0, 0];
            let at_futex = run(&program, NATIVE, number, labels::STUB_FUTEX_AFTER, own);
            assert_eq!(at_futex == ALLOW, number == nr::futex, "{number}");
            let at_return = run(&program, NATIVE, number, labels::STUB_SIGRETURN_AFTER, own);
            assert_eq!(at_return == ALLOW, number == nr::rt_sigreturn, "{number}");
        }
        let futex = |args| run(&program, NATIVE, nr::futex, labels::STUB_FUTEX_AFTER, args);
        assert_eq!(futex([layout::DOORBELL, 1, 1, 0, 0, 0]), ALLOW);
        assert_eq!(futex([layout::AREAS + layout::AREA, 0, 7, 0, 0, 0]), ALLOW);
        for hostile in [
            [layout::DOORBELL, 1, 2, 0, 0, 0],
            [layout::DOORBELL, 0, 1, 0, 0, 0],
            [layout::DOORBELL + 4, 1, 1, 0, 0, 0],
            [0x40_0000, 1, 1, 0, 0, 0],
            [0x40_0000, 0, 1, 0, 0, 0],
            [layout::AREAS + 4, 0, 1, 0, 0, 0],
            [layout::AREAS, 0, 1, 0x1000, 0, 0],
            [layout::AREAS, 0x80, 1, 0, 0, 0],
            [layout::AREAS, 1 << 32, 1, 0, 0, 0],
            [layout::AREAS, 3, 1, 0, 0, 0],
            [
                layout::AREAS + layout::AREA * layout::AREA_SLOTS,
                0,
                1,
                0,
                0,
                0,
            ],
        ] {
            assert_eq!(futex(hostile), TRAP, "{hostile:x?}");
        }
        assert_eq!(
            run(
                &program,
                0x4000_0003,
                nr::futex,
                labels::STUB_FUTEX_AFTER,
                [layout::AREAS, 0, 1, 0, 0, 0]
            ),
            TRAP
        );
        assert_eq!(
            run(
                &program,
                NATIVE,
                nr::futex | 0x4000_0000,
                labels::STUB_FUTEX_AFTER,
                [layout::AREAS, 0, 1, 0, 0, 0]
            ),
            TRAP
        );
    }

    #[test]
    fn helpers_stay_below_the_stub() {
        for switches in 0..16 {
            let features = features(switches);
            let end = layout::filters::F0_CODE + 8 * helper(features).len() as u64;
            assert!(end <= layout::filters::F1_CODE);
        }
        for switches in 0..16 {
            stay_below_the_stub(&helper(features(switches)));
        }
    }

    fn features(switches: u32) -> HostMm {
        HostMm {
            mremap: switches & 1 == 0,
            huge_pages: switches & 2 == 0,
            private_files: switches & 4 == 0,
            fork: switches & 8 == 0,
        }
    }

    /// What is switched off is refused, alone; all else stays.
    #[test]
    fn switches_remove_calls() {
        for switches in 0..16 {
            let features = features(switches);
            let program = helper(features);
            let order =
                |number, args| run(&program, NATIVE, number, labels::STUB_ORDER_AFTER, args);
            for (number, args, on) in [
                (
                    nr::mremap,
                    [0x1000, 0x1000, 0x2000, 3, 0x10000, 0],
                    features.mremap,
                ),
                (
                    nr::madvise,
                    [0x1000, 0x1000, 14, 0, 0, 0],
                    features.huge_pages,
                ),
                (nr::madvise, [0x1000, 0x1000, 15, 0, 0, 0], true),
                (nr::madvise, [0x1000, 0x1000, 4, 0, 0, 0], true),
                (
                    nr::mmap,
                    [0x1000, 0x1000, 3, 0x4012, 9, 0],
                    features.private_files,
                ),
                (
                    nr::mmap,
                    [0x1000, 0x1000, 3, 0x12, 9, 0],
                    features.private_files,
                ),
                (nr::mmap, [0x1000, 0x1000, 3, 0x11, 9, 0], true),
                (nr::mmap, [0x1000, 0x1000, 3, 0x4032, u64::MAX, 0], true),
                // The zygote's clones are its own affair; F2 is for those that come of it.
                (nr::clone, [command::PROCESS_FLAGS, 0, 0, 0, 0, 0], true),
            ] {
                let says = order(number, args);
                assert_eq!(says == ALLOW, on, "{features:?} {number} {args:x?}");
            }
            let stubs = no_forks(features);
            assert_eq!(stubs.is_empty(), features.fork);
            let own = [1, 0, layout::FILTERS + layout::filters::F2, 0, 0, 0];
            let at_pages = |args| {
                run(
                    &program,
                    NATIVE,
                    nr::seccomp,
                    labels::STUB_PAGES_AFTER,
                    args,
                )
            };
            assert_eq!(at_pages(own) == ALLOW, !features.fork);
            assert_eq!(at_pages([1, 0, layout::FILTERS, 0, 0, 0]), TRAP);
            if features.fork {
                continue;
            }
            for number in 0..1000 {
                for flags in [
                    command::PROCESS_FLAGS,
                    command::THREAD_FLAGS,
                    0x11,
                    command::THREAD_FLAGS ^ 0x100,
                ] {
                    let args = [flags, 0, 0, 0, 0, 0];
                    let says = run(&stubs, NATIVE, number, labels::STUB_ORDER_AFTER, args);
                    let clones = number == nr::clone && flags != command::THREAD_FLAGS;
                    assert_eq!(says == TRAP, clones, "{number} {flags:#x}");
                }
            }
        }
    }

    fn stay_below_the_stub(program: &[Insn]) {
        let order = |number, args| run(program, NATIVE, number, labels::STUB_ORDER_AFTER, args);
        assert_eq!(
            order(nr::mmap, [0x1000, 0x1000, 3, 0x4032, u64::MAX, 0]),
            ALLOW
        );
        assert_eq!(order(nr::munmap, [0, layout::USER_TOP, 0, 0, 0, 0]), ALLOW);
        assert_eq!(
            order(
                nr::mmap,
                [
                    layout::AREAS + layout::AREA,
                    layout::AREA,
                    3,
                    0x11,
                    4,
                    0x10000
                ]
            ),
            ALLOW
        );
        let around = [
            0u64,
            1,
            0xfff,
            0x1000,
            0xffff_f000,
            0xffff_ffff,
            0x1_0000_0000,
        ];
        for delta in around {
            for start in [
                layout::TEXT.wrapping_sub(delta),
                layout::TEXT + delta,
                u64::MAX - delta,
                layout::COMMANDS,
                layout::FILTERS,
            ] {
                for len in [
                    0x1000,
                    0x1_0000_0000,
                    u64::MAX - 0xfff,
                    1 << 63,
                    layout::TEXT,
                ] {
                    let reaches = start >= layout::TEXT
                        || start.checked_add(len).is_none_or(|end| end > layout::TEXT);
                    // Far above lies the zygote's first stack, which may be unmapped.
                    if !reaches || start >> 32 > layout::AREAS >> 32 {
                        continue;
                    }
                    for (number, args) in [
                        (nr::mmap, [start, len, 3, 0x4032, u64::MAX, 0]),
                        (nr::munmap, [start, len, 0, 0, 0, 0]),
                        (nr::mprotect, [start, len, 3, 0, 0, 0]),
                        (nr::mremap, [start, len, len, 3, 0x1000, 0]),
                        (nr::mremap, [0x1000, len, len, 3, start, 0]),
                        (nr::madvise, [start, len, 4, 0, 0, 0]),
                        (nr::mincore, [start, len, layout::AREAS, 0, 0, 0]),
                        (nr::pread64, [9, start, len, 0, 0, 0]),
                        (nr::clock_gettime, [0xffff_fff6, start, 0, 0, 0, 0]),
                    ] {
                        assert_eq!(order(number, args), TRAP, "{number} {args:x?}");
                    }
                }
            }
        }
        let time = layout::AREAS + layout::RESULTS + layout::results::DATA;
        assert_eq!(
            order(nr::clock_gettime, [0xffff_fff6, time, 0, 0, 0, 0]),
            ALLOW
        );
        for (number, args) in [
            (nr::clock_gettime, [1, time, 0, 0, 0, 0]),
            (nr::clock_gettime, [0xffff_fff6, 0x1000, 0, 0, 0, 0]),
            (nr::mmap, [0x1000, 0x1000, 3, 0x4132, u64::MAX, 0]),
            (nr::mmap, [0x1000, 0x1000, 3, 0x6032, u64::MAX, 0]),
            (nr::mmap, [0x1000, 0x1000, 3, 0x4_4032, u64::MAX, 0]),
            (nr::mmap, [0x1000, 0x1000, 3, 0x4022, u64::MAX, 0]),
            (nr::mmap, [layout::AREAS, 0x1000, 3, 0x11, 4, 0]),
            (nr::mmap, [layout::AREAS, layout::AREA, 7, 0x11, 4, 0]),
            (nr::mmap, [layout::AREAS, layout::AREA, 3, 0x11, 5, 0]),
            (nr::madvise, [0x1000, 0x1000, 12, 0, 0, 0]),
            (nr::madvise, [0x1000, 0x1000, 11, 0, 0, 0]),
            (nr::clone, [0x8000_0000 | 0x8400, 0, 0, 0, 0, 0]),
            (nr::clone, [0x1100, 0, 0, 0, 0, 0]),
            (nr::kill, [2, 40, 0, 0, 0, 0]),
            (nr::kill, [1, 9, 0, 0, 0, 0]),
            (nr::kill, [u64::MAX, 40, 0, 0, 0, 0]),
            (nr::close, [5, 0, 0, 0, 0, 0]),
            (nr::recvmsg, [8, layout::AREAS, 0, 0, 0, 0]),
            (nr::openat, [0; 6]),
            (nr::execve, [0; 6]),
            (nr::ptrace, [0; 6]),
            (nr::process_vm_writev, [0; 6]),
        ] {
            assert_eq!(order(number, args), TRAP, "{number} {args:x?}");
        }
        for number in 0..12 {
            let own = (layout::file::COMMANDS..=layout::file::SHARED).contains(&number);
            assert_eq!(
                order(nr::close, [number, 0, 0, 0, 0, 0]) == TRAP,
                own,
                "{number}"
            );
        }
        for number in 0..1000 {
            assert_eq!(run(program, NATIVE, number, 0x40_0000, [0; 6]), TRAP);
        }
    }
}
