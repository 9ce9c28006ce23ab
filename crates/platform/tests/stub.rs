//! The platform by itself: a few instructions of guest code, run as the first process of a PID namespace. Needs root.

use std::os::fd::AsFd;
use std::sync::Arc;

use platform::systrap::{Setup, Systrap};
use platform::{Backing, Event, MemOp, Platform, Regs, Space, Start, Thread};

const CODE: u64 = 0x1_0000_0000;
const DATA: u64 = 0x1_0010_0000;

fn main() {
    // What a test runner asks of a test program: which tests there are. They share one PID namespace, so they are one.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        if !arguments.iter().any(|argument| argument == "--ignored") {
            println!("guest_code: test");
        }
        return;
    }
    // SAFETY: no memory is involved.
    if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
        println!("cannot make a PID namespace (not root?)");
        std::process::exit(1);
    }
    // SAFETY: this process has one thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        block_signals();
        let tests: [(&str, fn(&Systrap)); 5] = [
            ("calls and faults", calls_and_faults),
            ("fork copies memory", fork_copies_memory),
            ("threads share memory", threads_share_memory),
            ("interrupts", interrupts),
            ("stub pages are out of reach", stub_pages),
        ];
        let memory = std::fs::File::open("/dev/null").expect("there is a null device");
        let systrap = Systrap::start(&Setup {
            memory: memory.as_fd(),
            cgroups: &[],
            spin: true,
        })
        .expect("zygote");
        systrap.join();
        for (name, test) in tests {
            test(&systrap);
            println!("test {name} ... ok");
        }
        println!(
            "\ntest result: ok. {} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
            tests.len()
        );
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: the status lives until the call returns.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(status, 0, "the tests failed");
}

fn block_signals() {
    let all = u64::MAX;
    // SAFETY: the set lives until the call returns.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            std::ptr::null_mut::<u64>(),
            8,
        )
    };
}

/// A space with this code, and a page of data.
fn space_with(systrap: &Systrap, code: &[u8]) -> Arc<dyn Space> {
    let space = systrap.new_space().expect("a space");
    space
        .apply(&[
            MemOp::Map {
                addr: CODE,
                len: 4096,
                prot: 3,
                backing: Backing::Anonymous,
            },
            MemOp::Map {
                addr: DATA,
                len: 8192,
                prot: 3,
                backing: Backing::Anonymous,
            },
        ])
        .expect("mapped");
    assert_eq!(space.write(CODE, code), Ok(code.len()));
    space
        .apply(&[MemOp::Protect {
            addr: CODE,
            len: 4096,
            prot: 5,
        }])
        .expect("protected");
    space
}

fn start(rip: u64) -> Start {
    Start {
        regs: Regs {
            rip,
            rsp: DATA + 8192,
            eflags: 0x202,
            ..Regs::default()
        },
        fpu: None,
        local: (0, 0),
    }
}

/// Waits for the thread's next report.
fn next(systrap: &Systrap, thread: &Arc<dyn Thread>) -> Event {
    for _ in 0..1_000_000 {
        if let Some(context) = systrap.poll() {
            assert_eq!(context, thread.context());
            return thread.event();
        }
        systrap.wait(&|| false);
    }
    panic!("nothing is reported");
}

fn calls_and_faults(systrap: &Systrap) {
    // mov eax, 500; mov edi, 7; syscall; mov [rax], eax
    let space = space_with(
        systrap,
        &[
            0xb8, 0xf4, 1, 0, 0, 0xbf, 7, 0, 0, 0, 0x0f, 0x05, 0x89, 0x00,
        ],
    );
    let thread = space.thread(&start(CODE)).expect("a thread");
    match next(systrap, &thread) {
        Event::Call {
            number: 500,
            args,
            compat: false,
        } => assert_eq!(args[0], 7),
        other => panic!("{other:?}"),
    }
    assert!(thread.is_full());
    thread.answer(0x1234);
    match next(systrap, &thread) {
        Event::Fault {
            info,
            trap: 14,
            address: 0x1234,
            ..
        } => assert_eq!(info.signo, 11),
        other => panic!("{other:?}"),
    }
    let mut regs = thread.regs();
    assert_eq!((regs.rax, regs.rip), (0x1234, CODE + 12));
    regs.rax = DATA;
    regs.rip = CODE;
    regs.rbx = 5;
    thread.set_regs(&regs);
    thread.resume();
    assert!(matches!(
        next(systrap, &thread),
        Event::Call { number: 500, .. }
    ));
    assert_eq!(thread.regs().rbx, 5);
    let started = std::time::Instant::now();
    let rounds = 20_000;
    for _ in 0..rounds {
        let mut regs = thread.regs();
        regs.rip = CODE;
        thread.set_regs(&regs);
        thread.resume();
        assert!(matches!(
            next(systrap, &thread),
            Event::Call { number: 500, .. }
        ));
    }
    println!("a trapped call: {:?}", started.elapsed() / rounds);
    space.kill();
}

fn fork_copies_memory(systrap: &Systrap) {
    // mov eax, 57; syscall; mov [rsp - 8], eax; mov edi, [rsp - 8]; syscall
    let space = space_with(
        systrap,
        &[
            0xb8, 57, 0, 0, 0, 0x0f, 0x05, 0x89, 0x44, 0x24, 0xf8, 0x8b, 0x7c, 0x24, 0xf8, 0x0f,
            0x05,
        ],
    );
    let thread = space.thread(&start(CODE)).expect("a thread");
    assert!(matches!(
        next(systrap, &thread),
        Event::Call { number: 57, .. }
    ));
    let mut regs = thread.regs();
    regs.rax = 0;
    let started = std::time::Instant::now();
    let (child_space, child) = space
        .fork(&Start {
            regs,
            fpu: Some(thread.fpu()),
            local: (0, 0),
        })
        .expect("fork");
    match next(systrap, &child) {
        Event::Call {
            number: 0, args, ..
        } => assert_eq!(args[0], 0),
        other => panic!("{other:?}"),
    }
    println!("fork to the child's first call: {:?}", started.elapsed());
    thread.answer(42);
    match next(systrap, &thread) {
        Event::Call {
            number: 42, args, ..
        } => assert_eq!(args[0], 42),
        other => panic!("{other:?}"),
    }
    let mut word = [0; 4];
    assert_eq!(child_space.read(DATA + 8184, &mut word), Ok(4));
    assert_eq!(word, [0; 4]);
    let started = std::time::Instant::now();
    for _ in 0..100 {
        let (copy, _thread) = space
            .fork(&Start {
                regs,
                fpu: None,
                local: (0, 0),
            })
            .expect("fork");
        copy.kill();
        drop(copy);
        while systrap.poll().is_some() {}
    }
    println!("fork and kill: {:?}", started.elapsed() / 100);
    systrap.reap();
}

fn threads_share_memory(systrap: &Systrap) {
    // mov [rsp - 8], rdi; mov eax, 9; syscall
    let space = space_with(
        systrap,
        &[0x48, 0x89, 0x7c, 0x24, 0xf8, 0xb8, 9, 0, 0, 0, 0x0f, 0x05],
    );
    for value in [3u64, 4, 5] {
        let mut begin = start(CODE);
        begin.regs.rdi = value;
        begin.regs.rsp = DATA + value * 64;
        let thread = space.thread(&begin).expect("a thread");
        assert!(matches!(
            next(systrap, &thread),
            Event::Call { number: 9, .. }
        ));
        let mut word = [0; 8];
        assert_eq!(space.read(DATA + value * 64 - 8, &mut word), Ok(8));
        assert_eq!(u64::from_le_bytes(word), value);
    }
    space.kill();
}

fn interrupts(systrap: &Systrap) {
    // jmp .
    let space = space_with(systrap, &[0xeb, 0xfe]);
    let thread = space.thread(&start(CODE)).expect("a thread");
    for _ in 0..1000 {
        thread.interrupt();
        assert!(matches!(next(systrap, &thread), Event::Interrupt));
        assert_eq!(thread.regs().rip, CODE);
        thread.resume();
    }
    space.kill();
}

fn stub_pages(systrap: &Systrap) {
    let space = space_with(systrap, &[0xeb, 0xfe]);
    for addr in [
        0x7ff0_0000_0000u64,
        0x7ff0_1010_0000,
        0x7ff1_0000_0000,
        0x7fe0_0000_0000,
        u64::MAX - 7,
    ] {
        let mut byte = [0; 8];
        assert!(space.read(addr, &mut byte).is_err());
        assert!(space.write(addr, &byte).is_err());
        assert!(
            space
                .apply(&[MemOp::Map {
                    addr: addr & !4095,
                    len: 4096,
                    prot: 3,
                    backing: Backing::Anonymous
                }])
                .is_err()
        );
    }
    let mut long = [0; 64];
    assert!(space.read(0x7fe0_0000_0000 - 32, &mut long).is_err());
}
