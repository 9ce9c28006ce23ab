//! The platform by itself: a few instructions of guest code, run as the first process of a PID namespace. Needs root.

use std::os::fd::AsFd;
use std::sync::Arc;

use platform::systrap::{Setup, Systrap, VDSO};
use platform::{Adjustment, Backing, Event, MemOp, Platform, Regs, Space, Start, Thread};

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
        // As for the sentry, exec gives no capability back: it would clear the zygote's personality, and with it the vDSO's place.
        const NOROOT: libc::c_ulong = 1;
        // SAFETY: no memory is involved.
        let set = unsafe { libc::prctl(libc::PR_SET_SECUREBITS, NOROOT, 0, 0, 0) };
        assert_eq!(set, 0);
        let tests: [(&str, fn(&Systrap)); 6] = [
            ("calls and faults", calls_and_faults),
            ("fork copies memory", fork_copies_memory),
            ("threads share memory", threads_share_memory),
            ("interrupts", interrupts),
            ("stub pages are out of reach", stub_pages),
            ("clocks", clocks),
        ];
        let memory = std::fs::File::open("/dev/null").expect("there is a null device");
        let systrap = Systrap::start(&Setup {
            host_mm: platform::HostMm::default(),
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
        .fork(
            &Start {
                regs,
                fpu: Some(thread.fpu()),
                local: (0, 0),
            },
            &[],
        )
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
            .fork(
                &Start {
                    regs,
                    fpu: None,
                    local: (0, 0),
                },
                &[],
            )
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

/// Where in the image of the vDSO a function is.
fn function(name: &[u8]) -> u64 {
    let word = |at: u64, len: usize| {
        let at = usize::try_from(at).expect("small");
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&VDSO[at..at + len]);
        u64::from_le_bytes(bytes)
    };
    // The dynamic section is the second segment; its entries name symbols (6) and strings (5), which follow them.
    let mut entry = word(64 + 56 + 8, 8);
    let (mut symbols, mut strings) = (0, 0);
    while word(entry, 8) != 0 {
        match word(entry, 8) {
            5 => strings = word(entry + 8, 8),
            6 => symbols = word(entry + 8, 8),
            _ => {}
        }
        entry += 16;
    }
    let found = (symbols..strings).step_by(24).find(|symbol| {
        let at = usize::try_from(strings + word(*symbol, 4)).expect("small");
        VDSO[at..].starts_with(name) && VDSO[at + name.len()] == 0
    });
    word(found.expect("it exports that") + 8, 8)
}

fn clock_of_host(clock: i32) -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the struct lives until the call returns.
    let got = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(got, 0);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// The guest's vDSO and the sentry's clocks show the same, whatever the adjustments are.
fn clocks(systrap: &Systrap) {
    const TEXT: u64 = 0x2_0000_0000;
    // mov edi, ebp; mov rsi, rbx; call rax; syscall with number 500
    let code = [
        0x89, 0xef, 0x48, 0x89, 0xde, 0xff, 0xd0, 0x89, 0xc7, 0xb8, 0xf4, 1, 0, 0, 0x0f, 0x05,
    ];
    let space = space_with(systrap, &code);
    let map = MemOp::Map {
        addr: TEXT,
        len: 4096,
        prot: 3,
        backing: Backing::Anonymous,
    };
    let protect = MemOp::Protect {
        addr: TEXT,
        len: 4096,
        prot: 5,
    };
    space.apply(&[map]).expect("mapped");
    assert_eq!(space.write(TEXT, VDSO), Ok(VDSO.len()));
    space.apply(&[protect]).expect("protected");
    let thread = space.thread(&start(CODE)).expect("a thread");
    let call = |function: u64, clock: i32| {
        let mut regs = thread.regs();
        regs.rip = CODE;
        regs.rsp = DATA + 8192;
        regs.rax = function;
        regs.rbp = u64::from(clock.cast_unsigned());
        regs.rbx = DATA;
        thread.set_regs(&regs);
    };
    let result = |event: Event| match event {
        Event::Call {
            number: 500, args, ..
        } => {
            let mut time = [[0; 8]; 2];
            assert_eq!(space.read(DATA, time.as_flattened_mut()), Ok(16));
            let [seconds, nanos] = time.map(i64::from_le_bytes);
            assert!((0..1_000_000_000).contains(&nanos));
            (args[0] as i32, seconds * 1_000_000_000 + nanos)
        }
        other => panic!("{other:?}"),
    };
    assert!(matches!(next(systrap, &thread), Event::Fault { .. }));
    let gettime = TEXT + function(b"__vdso_clock_gettime");
    let page = systrap.clocks();
    const SECOND: i64 = 1_000_000_000;
    let offsets = [0, 1, -1, 999_999_999, 5 * SECOND, -3 * SECOND - 7, 1 << 60];
    for (turn, offset) in offsets.into_iter().enumerate() {
        for clock in [1u32, 4, 6, 7] {
            let adjustment = Adjustment {
                offset: offset + i64::from(clock) * 1000,
                floor: 0,
            };
            page.adjust(|| vec![(clock, adjustment)]).expect("adjusted");
        }
        for clock in [0i32, 1, 4, 5, 6, 7, 11] {
            let number = clock.cast_unsigned();
            let before = page.now(number, || clock_of_host(clock));
            call(gettime, clock);
            thread.resume();
            let (error, now) = result(next(systrap, &thread));
            let after = page.now(number, || clock_of_host(clock));
            assert_eq!(error, 0);
            assert!((before..=after).contains(&now), "clock {clock}, {turn}");
            let plain = matches!(clock, 0 | 5 | 11);
            let shift = now - clock_of_host(clock);
            let expected = if plain {
                0
            } else {
                offset + i64::from(clock) * 1000
            };
            assert!(
                (shift - expected).abs() < SECOND / 2,
                "clock {clock}, {turn}"
            );
        }
    }
    // A floor holds, for both.
    let floor = clock_of_host(6) + 1000 * SECOND + 5;
    let adjustment = Adjustment { offset: 0, floor };
    page.adjust(|| vec![(6, adjustment)]).expect("adjusted");
    call(gettime, 6);
    thread.resume();
    assert_eq!(result(next(systrap, &thread)), (0, floor));
    assert_eq!(page.now(6, || clock_of_host(6)), floor);
    // While the page changes, a guest that reads it waits.
    call(gettime, 1);
    page.adjust(|| {
        thread.resume();
        for _ in 0..20 {
            assert_eq!(systrap.poll(), None);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let offset = 9 * SECOND;
        [1, 4, 6, 7]
            .map(|clock| (clock, Adjustment { offset, floor: 0 }))
            .to_vec()
    })
    .expect("adjusted");
    let (_, now) = result(next(systrap, &thread));
    assert!((now - clock_of_host(1) - 9 * SECOND).abs() < SECOND / 2);
    // What no vDSO serves is a call, of the guest's.
    for clock in [2, 3, 8, 9, 10, 12, 99, -6, i32::MIN] {
        call(gettime, clock);
        thread.resume();
        match next(systrap, &thread) {
            Event::Call {
                number: 228, args, ..
            } => assert_eq!((args[0] as i32, args[1]), (clock, DATA)),
            other => panic!("{other:?}"),
        }
        assert!(!systrap.in_host_vdso(thread.rip()));
        thread.answer(0x1234);
        assert_eq!(result(next(systrap, &thread)).0, 0x1234);
    }
    // The host's own vDSO asks for what it does not know; who asks shows. Its pointer is the page's second word.
    call(CODE, 0);
    let mut regs = thread.regs();
    // mov rax, [rax]; jmp to the call, behind the page of code's beginning
    regs.rip = CODE + 0x80;
    regs.rax = 0x7ff0_1040_0008;
    regs.rbp = 2;
    let fetch = [0x48, 0x8b, 0x00, 0xe9];
    let jump = (-0x80i32 - 8).to_le_bytes();
    let writable = MemOp::Protect {
        addr: CODE,
        len: 4096,
        prot: 7,
    };
    space.apply(&[writable]).expect("protected");
    assert_eq!(space.write(CODE + 0x80, &[fetch, jump].concat()), Ok(8));
    thread.set_regs(&regs);
    thread.resume();
    match next(systrap, &thread) {
        Event::Call {
            number: 228, args, ..
        } => assert_eq!(args[0], 2),
        other => panic!("{other:?}"),
    }
    assert!(systrap.in_host_vdso(thread.rip()));
    // The guest can't change the page.
    call(CODE, 0);
    let mut regs = thread.regs();
    // mov [rax], eax
    assert_eq!(space.write(CODE + 0x90, &[0x89, 0x00]), Ok(2));
    regs.rip = CODE + 0x90;
    regs.rax = 0x7ff0_1040_0000;
    thread.set_regs(&regs);
    thread.resume();
    assert!(matches!(
        next(systrap, &thread),
        Event::Fault {
            address: 0x7ff0_1040_0000,
            ..
        }
    ));
    space.kill();
}
