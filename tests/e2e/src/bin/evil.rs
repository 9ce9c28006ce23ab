//! Coffer with hostile code in the sentry's place: launched, isolated and locked as the real one, it then does what
//! its arguments say.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;

use host::fd::Inherited;
use rustix::fs::{CWD, Mode, OFlags};
use sentry::BootSpec;
use sentry::boot::tell;
use sentry::spec::{Control, ExitStatus};

fn main() -> ExitCode {
    coffer::main(boot)
}

fn boot(spec: BootSpec, mut inherited: Inherited) -> ExitCode {
    let control = inherited.take(spec.control).expect("a control socket");
    sentry::boot::prepare(&spec, control.as_fd()).expect("prepared");
    let args: Vec<String> = spec
        .args
        .iter()
        .map(|arg| String::from_utf8_lossy(arg.as_bytes()).into_owned())
        .collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (locked, words) = match words.as_slice() {
        ["unlocked", words @ ..] => (false, words),
        words => (true, words),
    };
    if locked {
        sentry::boot::lock().expect("locked");
    }
    act(words, &spec, inherited, control.as_fd())
}

fn act(
    words: &[&str],
    spec: &BootSpec,
    mut inherited: Inherited,
    control: BorrowedFd<'_>,
) -> ExitCode {
    let say = |message: Control| tell(control, &message).expect("told");
    match words {
        ["exit", code] => say(Control::Exited(ExitStatus::Code(number(code)))),
        ["signal", signal] => say(Control::Exited(ExitStatus::Signal(number(signal)))),
        ["start-failed", code, why] => say(Control::StartFailed(number(code), (*why).to_owned())),
        ["failed", why] => say(Control::Failed((*why).to_owned())),
        ["garbage"] => host::socket::send(control, b"\xff{", &[], true).expect("sent"),
        ["endless"] => host::socket::send(control, &[b'['; 60000], &[], true).expect("sent"),
        ["silent", code] => return ExitCode::from(number(code)),
        ["forbidden"] => {
            let _ = rustix::net::socket(
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::STREAM,
                None,
            );
        }
        ["count-signals", wanted] => count_signals(number(wanted), control),
        ["zygote-started", words @ ..] => {
            say(Control::ZygoteStarted);
            return act(words, spec, inherited, control);
        }
        ["join-guest", words @ ..] => {
            for number in &spec.guest_cgroups {
                let door = inherited.take(*number).expect("a cgroup's file");
                rustix::io::write(&door, b"0").expect("joined");
            }
            return act(words, spec, inherited, control);
        }
        ["terminal"] => terminal(control),
        ["deaf"] => loop {
            std::thread::sleep(std::time::Duration::from_secs(3600));
        },
        ["spec"] => {
            println!("{}", serde_json::to_string(spec).expect("the spec"));
            say(Control::Exited(ExitStatus::Code(0)));
        }
        ["escape"] => {
            for line in escape(spec, &mut inherited) {
                println!("{line}");
            }
            say(Control::Exited(ExitStatus::Code(0)));
        }
        _ => say(Control::StartFailed(127, format!("{words:?}"))),
    }
    ExitCode::SUCCESS
}

/// Waits for so many signals from the launcher; then prints them.
fn count_signals(wanted: u8, control: BorrowedFd<'_>) {
    println!("ready");
    let mut seen = Vec::new();
    let mut packet = [0; 256];
    while seen.len() < usize::from(wanted) {
        let Ok(Some(received)) = host::socket::recv(control, &mut packet, true) else {
            return;
        };
        match serde_json::from_slice(&packet[..received.len]) {
            Ok(Control::Signal(signal)) => seen.push(signal.to_string()),
            Ok(Control::TerminalSignal(signal)) => seen.push(format!("terminal's {signal}")),
            other => println!("unexpected: {other:?}"),
        }
    }
    println!("{}", seen.join(" "));
    tell(control, &Control::Exited(ExitStatus::Code(0))).expect("told");
}

/// Uses the terminal as a locked sentry may; then waits for a signal from it.
fn terminal(control: BorrowedFd<'_>) {
    let input = std::io::stdin();
    let size = rustix::termios::tcgetwinsize(&input).expect("the window's size");
    println!("{}x{}", size.ws_col, size.ws_row);
    let mut settings = rustix::termios::tcgetattr(&input).expect("the settings");
    settings
        .local_modes
        .remove(rustix::termios::LocalModes::ECHO);
    let now = rustix::termios::OptionalActions::Now;
    rustix::termios::tcsetattr(&input, now, &settings).expect("other settings");
    let flags = rustix::fs::fcntl_getfl(&input).expect("the flags");
    println!("non-blocking: {}", flags.contains(OFlags::NONBLOCK));
    count_signals(1, control);
}

/// Tries what a sentry must not be able to do though it is not locked yet; the successes.
fn escape(spec: &BootSpec, inherited: &mut Inherited) -> Vec<String> {
    let mut found = Vec::new();
    let mut tried = |what: &str, worked: bool| {
        if worked {
            found.push(what.to_owned());
        }
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let none = Mode::empty();
    let entries = std::fs::read_dir("/").map_or(usize::MAX, Iterator::count);
    tried("the root is not empty", entries != 0);
    tried(
        "wrote to the root",
        rustix::fs::mkdir("/x", Mode::RWXU).is_ok(),
    );
    tried("found procfs", rustix::fs::stat("/proc").is_ok());
    tried(
        "mounted",
        rustix::mount::mount(
            "none",
            "/",
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            None,
        )
        .is_ok(),
    );
    tried(
        "became root",
        rustix::thread::set_thread_uid(rustix::process::Uid::ROOT).is_ok(),
    );
    tried(
        "joined a group",
        rustix::thread::set_thread_groups(&[rustix::process::Gid::ROOT]).is_ok(),
    );
    let trees = spec.lower.iter().map(|(_, fd)| (*fd, true));
    let volumes = spec
        .volumes
        .iter()
        .map(|volume| (volume.fd, volume.read_only));
    for (number, read_only) in trees.chain(volumes) {
        let tree = inherited.take(number).expect("a tree");
        let here = rustix::fs::fstat(&tree).expect("its attributes");
        if let Ok(up) = rustix::fs::openat(&tree, "..", flags, none) {
            let up = rustix::fs::fstat(&up).expect("its attributes");
            tried(
                "left a tree by ..",
                (up.st_dev, up.st_ino) != (here.st_dev, here.st_ino),
            );
        }
        let made = rustix::fs::mkdirat(&tree, ".coffer-e2e", Mode::RWXU).is_ok();
        tried("wrote to a read-only tree", made && read_only);
        for link in ["bin", "etc/mtab", "absolute", "relative"] {
            tried(
                "followed a link",
                is_link(&tree, link) && rustix::fs::openat(&tree, link, flags, none).is_ok(),
            );
        }
        for device in ["dev/null", "null"] {
            tried(
                "opened a device",
                rustix::fs::openat(&tree, device, flags, none).is_ok(),
            );
        }
        let kind = rustix::fs::FileType::CharacterDevice;
        let device = rustix::fs::makedev(1, 3);
        tried(
            "made a device",
            rustix::fs::mknodat(&tree, ".coffer-e2e-null", kind, Mode::RUSR, device).is_ok(),
        );
        tried(
            "changed a mode",
            read_only && rustix::fs::fchmod(&tree, Mode::RWXU).is_ok(),
        );
        tried(
            "found the host's procfs",
            rustix::fs::openat(&tree, "proc/self", OFlags::PATH, none).is_ok(),
        );
    }
    tried(
        "opened below the cwd",
        rustix::fs::openat(CWD, "etc", flags, none).is_ok(),
    );
    found
}

fn is_link(tree: &OwnedFd, path: &str) -> bool {
    rustix::fs::readlinkat(tree, path, Vec::new()).is_ok()
}

fn number(text: &str) -> u8 {
    text.parse().expect("a small number")
}
