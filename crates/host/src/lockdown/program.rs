//! The list of calls as a program for the kernel (seccomp(2), classic BPF).
//!
//! A seccomp library would test one number after another, which cost 0.5 µs for a call with tested arguments; here the
//! number is searched by halves. The kernel's own cache lets calls without tested arguments pass unrun.
//!
//! The invariant: every path ends in a verdict, and only a number that has a row, with arguments that pass, ends in
//! the one that allows.

use std::mem::offset_of;

use abi::Errno;

use super::calls::{Call, Test, Width};

/// What the program answers for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may be made.
    Allow,
    /// It fails with this error.
    Fail(Errno),
    /// The process is killed.
    #[cfg_attr(
        debug_assertions,
        expect(dead_code, reason = "development builds trap")
    )]
    Kill,
    /// The process gets SIGSYS.
    #[cfg_attr(
        not(debug_assertions),
        expect(dead_code, reason = "what is shipped kills")
    )]
    Trap,
}

impl Verdict {
    fn value(self) -> u32 {
        match self {
            Verdict::Allow => libc::SECCOMP_RET_ALLOW,
            Verdict::Fail(errno) => libc::SECCOMP_RET_ERRNO | errno.raw().unsigned_abs(),
            Verdict::Kill => libc::SECCOMP_RET_KILL_PROCESS,
            Verdict::Trap => libc::SECCOMP_RET_TRAP,
        }
    }
}

/// One number's fate.
#[derive(Clone, Copy, Debug)]
struct Leaf<'a> {
    number: u32,
    fate: Fate<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Fate<'a> {
    /// Allowed where one of the sets of tests passes, or where there is none.
    Tested(&'a [&'a [Test]]),
    Fails(Errno),
}

/// `AUDIT_ARCH_X86_64`.
const ARCH: u32 = 0xc000_003e;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const IF_MORE: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Compiles the rows, which are of different numbers; `missing` are answered as a kernel without them would, and all
/// else is refused.
pub(super) fn compile<'a>(
    calls: impl Iterator<Item = &'a Call>,
    missing: &[u32],
    refusal: Verdict,
) -> Vec<libc::sock_filter> {
    let mut leaves: Vec<Leaf<'_>> = calls
        .map(|call| Leaf {
            number: call.number,
            fate: Fate::Tested(call.allowed),
        })
        .chain(missing.iter().map(|&number| Leaf {
            number,
            fate: Fate::Fails(Errno::ENOSYS),
        }))
        .collect();
    leaves.sort_by_key(|leaf| leaf.number);
    let mut program = vec![
        plain(LOAD, offset(offset_of!(libc::seccomp_data, arch))),
        branch(IF_EQUAL, ARCH, 1, 0),
        verdict(refusal),
        plain(LOAD, offset(offset_of!(libc::seccomp_data, nr))),
    ];
    search(&leaves, refusal, &mut program);
    program
}

/// Appends the search for the number, which is loaded, among the leaves.
fn search(leaves: &[Leaf<'_>], refusal: Verdict, program: &mut Vec<libc::sock_filter>) {
    match leaves {
        [] => program.push(verdict(refusal)),
        [leaf] => {
            program.push(branch(IF_EQUAL, leaf.number, 1, 0));
            program.push(verdict(refusal));
            match leaf.fate {
                Fate::Tested([]) => program.push(verdict(Verdict::Allow)),
                Fate::Tested(alternatives) => {
                    for tests in alternatives {
                        program.append(&mut alternative(tests));
                    }
                    program.push(verdict(refusal));
                }
                Fate::Fails(errno) => program.push(verdict(Verdict::Fail(errno))),
            }
        }
        _ => {
            let (low, high) = leaves.split_at(leaves.len() / 2);
            program.push(branch(IF_AT_LEAST, high[0].number, 0, 1));
            let jump = program.len();
            program.push(plain(JUMP, 0));
            search(low, refusal, program);
            program[jump].k = offset(program.len() - jump - 1);
            search(high, refusal, program);
        }
    }
}

/// The tests, then the verdict that allows; a test that fails leads past it.
fn alternative(tests: &[Test]) -> Vec<libc::sock_filter> {
    /// Stands for the way out until it is known.
    const OUT: u8 = u8::MAX;
    let mut code = Vec::new();
    for test in tests {
        match *test {
            Test::Is(argument, width, value) => {
                if let Width::Full = width {
                    code.push(plain(LOAD, high_half(argument)));
                    code.push(branch(IF_EQUAL, upper(value), 0, OUT));
                }
                code.push(plain(LOAD, low_half(argument)));
                code.push(branch(IF_EQUAL, lower(value), 0, OUT));
            }
            Test::Bits(argument, width, mask, value) => {
                if let Width::Full = width {
                    code.push(plain(LOAD, high_half(argument)));
                    code.push(plain(AND, upper(mask)));
                    code.push(branch(IF_EQUAL, upper(value), 0, OUT));
                }
                code.push(plain(LOAD, low_half(argument)));
                code.push(plain(AND, lower(mask)));
                code.push(branch(IF_EQUAL, lower(value), 0, OUT));
            }
            Test::AtLeast(argument, value) => {
                code.push(plain(LOAD, low_half(argument)));
                code.push(branch(IF_AT_LEAST, lower(value), 0, OUT));
            }
            Test::AtMost(argument, value) => {
                code.push(plain(LOAD, low_half(argument)));
                code.push(branch(IF_MORE, lower(value), OUT, 0));
            }
        }
    }
    code.push(verdict(Verdict::Allow));
    let end = code.len();
    for (at, instruction) in code.iter_mut().enumerate() {
        let out = u8::try_from(end - at - 1).expect("an alternative is of few tests");
        for target in [&mut instruction.jt, &mut instruction.jf] {
            if *target == OUT {
                *target = out;
            }
        }
    }
    code
}

fn plain(code: u32, k: u32) -> libc::sock_filter {
    branch(code, k, 0, 0)
}

fn branch(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    let code = u16::try_from(code).expect("operation codes are of 16 bits");
    libc::sock_filter { code, jt, jf, k }
}

fn verdict(verdict: Verdict) -> libc::sock_filter {
    plain(RETURN, verdict.value())
}

fn low_half(argument: u8) -> u32 {
    offset(offset_of!(libc::seccomp_data, args)) + 8 * u32::from(argument)
}

fn high_half(argument: u8) -> u32 {
    low_half(argument) + 4
}

fn lower(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).expect("masked")
}

fn upper(value: u64) -> u32 {
    u32::try_from(value >> 32).expect("shifted")
}

fn offset(value: usize) -> u32 {
    u32::try_from(value).expect("programs and seccomp_data are small")
}
