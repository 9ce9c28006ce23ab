//! Who dies first for want of memory: guest processes, not the sentry.
//!
//! The sentry cannot say, since it has no procfs. So its process is born with a raised score, which the zygote and all
//! guest processes inherit; once the zygote runs, the sentry's own is put back.

/// How much likelier guest processes are to be killed: half of the memory there is.
const OFFER: i32 = 500;
/// The highest score there is.
const HIGHEST: i32 = 1000;

/// Raises the new process's score over the launcher's.
pub(super) fn offer(pid: i32) {
    set(pid, own().saturating_add(OFFER).min(HIGHEST));
}

/// Puts the process's score back to the launcher's.
pub(super) fn spare(pid: i32) {
    set(pid, own());
}

fn own() -> i32 {
    let text = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn set(pid: i32, score: i32) {
    // Where this is refused, guest and sentry are equals before the kernel: a worse choice, not a failure.
    let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string());
}
