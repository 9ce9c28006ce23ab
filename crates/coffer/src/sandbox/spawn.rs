//! Makes the process that becomes the sentry: isolated first, stripped of privileges, then executed.

use std::convert::Infallible;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context, anyhow};
use host::process::{Child, Fork};
use sentry::spec::Control;

use super::cgroup::Groups;
use super::oom;
use super::{Given, HOSTNAME, Handover};

/// Who the sentry is: on the host a user that owns nothing.
const SENTRY_ID: u32 = 65000;
/// What the launcher sends once the new process may go on.
const GO: &[u8] = b"go";

/// A sentry that was started.
#[derive(Debug)]
pub(super) struct Sentry {
    /// Its process.
    pub(super) child: Child,
    /// The launcher's end of the control socket.
    pub(super) control: OwnedFd,
}

/// Starts the sentry. What is handed over is closed here.
pub(super) fn sentry(handover: Handover, groups: &Groups) -> anyhow::Result<Sentry> {
    let program = host::mount::own_program().context("coffer's own program file")?;
    let child = match host::process::fork_isolated()
        .context("making the sandbox's process and namespaces")?
    {
        Fork::Original(child) => child,
        Fork::Copy => become_sentry_or_exit(handover, program.as_fd()),
    };
    let admitted = map_ids(child.pid())
        .and_then(|()| groups.admit_sentry(child.pid()))
        .inspect(|()| oom::offer(child.pid()))
        .and_then(|()| {
            host::socket::send(handover.launcher.as_fd(), GO, &[], true)
                .context("the control socket")
        });
    if let Err(error) = admitted {
        child.kill();
        child.wait().context("reaping the sandbox's process")?;
        return Err(error);
    }
    Ok(Sentry {
        child,
        control: handover.launcher,
    })
}

/// Has the process's user namespace map each id that exists here to itself.
///
/// The sentry then meets files' owners under the ids that they have; it is none of them.
fn map_ids(pid: i32) -> anyhow::Result<()> {
    for kind in ["uid_map", "gid_map"] {
        let own = format!("/proc/self/{kind}");
        let text = std::fs::read_to_string(&own).with_context(|| own.clone())?;
        let mut map = String::new();
        for line in text.lines() {
            let mut fields = line.split_whitespace();
            if let (Some(first), Some(count)) = (fields.next(), fields.nth(1)) {
                map.push_str(&format!("{first} {first} {count}\n"));
            }
        }
        let path = format!("/proc/{pid}/{kind}");
        std::fs::write(&path, map).with_context(|| path.clone())?;
    }
    Ok(())
}

/// Turns the new process, a copy of the launcher in namespaces of its own, into the sentry; or tells the launcher why
/// that failed, and ends.
fn become_sentry_or_exit(handover: Handover, program: BorrowedFd<'_>) -> ! {
    // This copy of the launcher's end would keep the socket open when the launcher dies.
    drop(handover.launcher);
    let Err(error) = become_sentry(&handover.given, program);
    let message = Control::Failed(format!("{error:#}"));
    if let Ok(packet) = serde_json::to_vec(&message) {
        // The launcher sees the exit code where it cannot be told more.
        let _ = host::socket::send(handover.given.control.as_fd(), &packet, &[], true);
    }
    host::process::exit_now(1)
}

fn become_sentry(given: &Given, program: BorrowedFd<'_>) -> anyhow::Result<Infallible> {
    host::process::die_with_parent()?;
    let mut word = [0; GO.len()];
    let go = host::socket::recv(given.control.as_fd(), &mut word, true)?;
    go.ok_or_else(|| anyhow!("the launcher is gone"))?;

    host::signal::reset().context("resetting signals")?;
    host::process::start_session().context("starting a session")?;
    host::process::set_hostname(HOSTNAME).context("naming the host")?;
    host::process::set_limits().context("setting resource limits")?;
    host::fd::become_stdio(given.stdio.each_ref().map(AsFd::as_fd)).context("setting stdio")?;
    host::mount::enter_empty_root().context("entering an empty root")?;
    host::caps::confine(SENTRY_ID, SENTRY_ID, sentry::CAPABILITIES)
        .context("dropping privileges")?;
    // Again, since changing the ids cleared it.
    host::process::die_with_parent()?;
    if host::socket::peer_is_gone(given.control.as_fd()) {
        return Err(anyhow!("the launcher is gone"));
    }
    host::fd::hand_over(&given.kept()).context("closing descriptors")?;
    let number = format!("{}\0", given.spec.as_raw_fd());
    let number = std::ffi::CStr::from_bytes_with_nul(number.as_bytes())?;
    let arguments = [c"coffer", c"boot", c"--spec-fd", number];
    host::process::execute(program, &arguments).context("executing coffer's own program")
}
