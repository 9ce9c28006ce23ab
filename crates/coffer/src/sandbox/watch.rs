//! The launcher's life while the sandbox runs: asleep until a signal, a word from the sentry, or its death.

use std::os::fd::AsFd;
use std::time::Duration;

use abi::signal::{SigSet, Signal};
use anyhow::{Context, bail};
use host::process::Death;
use host::signal::Signals;
use sentry::spec::Control;

use super::Outcome;
use super::oom;
use super::spawn::Sentry;

/// The longest packet that the sentry may send.
const LONGEST_PACKET: usize = 4096;
/// The longest message of the sentry's that is shown, in characters.
const LONGEST_MESSAGE: usize = 1000;

/// How long a sentry may take to die after it has closed its socket.
const PATIENCE: Duration = Duration::from_secs(1);

/// Signals that are never passed on: those that cannot be, the launcher's own children's, and those that tell the
/// launcher of a fault or a write of its own.
const KEPT: [Signal; 10] = [
    Signal::SIGKILL,
    Signal::SIGSTOP,
    Signal::SIGCHLD,
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGTRAP,
    Signal::SIGSYS,
    Signal::SIGPIPE,
];

/// Takes the launcher's signals from the moment it is made, so that none is lost or kills the launcher alone.
#[derive(Debug)]
pub(super) struct Watcher {
    signals: Signals,
}

impl Watcher {
    /// Signals that the caller had this process ignore (as nohup does) stay ignored.
    pub(super) fn new() -> anyhow::Result<Watcher> {
        let mut set = SigSet(!host::signal::ignored().0);
        for signal in KEPT {
            set.0 &= !SigSet::of(signal).0;
        }
        // An ignored SIGCHLD would have the kernel reap the sentry unseen.
        host::signal::set_default(Signal::SIGCHLD);
        let signals = Signals::block(set).context("blocking signals")?;
        Ok(Watcher { signals })
    }

    /// Passes signals on until the sentry has said how the guest ended, or has died; then makes sure that all of the
    /// sandbox's processes are dead.
    pub(super) fn watch(&self, sentry: Sentry) -> anyhow::Result<Outcome> {
        let said = self.listen(&sentry);
        if matches!(said, Ok(None)) {
            // It closed its socket, as the dying do; how it died is worth a moment.
            sentry.child.dies_within(PATIENCE)?;
        }
        // The last word is spoken; and whatever else runs in the sandbox dies with its first process.
        sentry.child.kill();
        let death = sentry.child.wait().context("waiting for the sentry")?;
        match said? {
            Some(Control::Exited(status)) => Ok(Outcome::Exited(status)),
            Some(Control::StartFailed(code, why)) if matches!(code, 126 | 127) => {
                Ok(Outcome::NotStarted(code, cut(&why)))
            }
            Some(Control::Failed(why)) => bail!("{}", cut(&why)),
            Some(other) => bail!("the sentry sent what only a launcher may: {other:?}"),
            None => match death {
                Death::Exited(code) => bail!("the sentry exited with code {code} without a word"),
                Death::Killed(signal) => {
                    bail!("the sentry was killed by signal {signal}{}", hint(signal))
                }
            },
        }
    }

    /// The sentry's last word; `None` where it died without one.
    fn listen(&self, sentry: &Sentry) -> anyhow::Result<Option<Control>> {
        loop {
            let control = sentry.control.as_fd();
            let [signalled, spoken] =
                host::process::wait_readable([self.signals.as_fd(), control])?;
            if signalled {
                while let Some(arrived) = self.signals.next()? {
                    let number = arrived.signal.raw();
                    let message = if arrived.by_kernel {
                        Control::TerminalSignal(number)
                    } else {
                        Control::Signal(number)
                    };
                    let packet = serde_json::to_vec(&message)?;
                    // A sentry that reads none of its packets is not worth waiting for; one that died is seen below.
                    let _ = host::socket::send(control, &packet, &[], false);
                }
            }
            if spoken {
                let mut packet = [0; LONGEST_PACKET];
                let received = match host::socket::recv(control, &mut packet, true) {
                    Ok(Some(received)) => received,
                    Ok(None) | Err(abi::Errno::ECONNRESET) => return Ok(None),
                    Err(error) => return Err(error).context("reading the control socket"),
                };
                match serde_json::from_slice(&packet[..received.len])
                    .context("the sentry's packet makes no sense")?
                {
                    Control::ZygoteStarted => oom::spare(sentry.child.pid()),
                    last_word => return Ok(Some(last_word)),
                }
            }
        }
    }
}

/// What a user may want to know about the signal.
fn hint(signal: i32) -> &'static str {
    match signal {
        9 => " (SIGKILL: out of memory, or by somebody's hand)",
        31 => " (SIGSYS: it made a host call that its filter forbids)",
        _ => "",
    }
}

fn cut(message: &str) -> String {
    message.chars().take(LONGEST_MESSAGE).collect()
}
