//! futex(2).

use std::sync::Arc;

use abi::time::Timespec;
use abi::{Errno, UserPtr};

use crate::ipc::futex::ANY;
use crate::task::{CallState, Step, Task};
use crate::time::{Clock, Deadline};

const WAIT: u32 = 0;
const WAKE: u32 = 1;
const REQUEUE: u32 = 3;
const CMP_REQUEUE: u32 = 4;
const WAKE_OP: u32 = 5;
const WAIT_BITSET: u32 = 9;
const WAKE_BITSET: u32 = 10;
const PRIVATE: u32 = 128;
const CLOCK_REALTIME: u32 = 256;

pub(super) fn futex(
    task: &Arc<Task>,
    addr: u64,
    op: u32,
    value: u32,
    timeout: u64,
    second: u64,
    third: u32,
    state: &mut CallState,
) -> Step {
    let futexes = &task.kernel.futexes;
    let private = op & PRIVATE != 0;
    let realtime = op & CLOCK_REALTIME != 0;
    // Where `timeout` is a number.
    let number = (timeout & 0xffff_ffff) as u32;
    match op & !(PRIVATE | CLOCK_REALTIME) {
        command @ (WAIT | WAIT_BITSET) => {
            let deadline = if matches!(state, CallState::New) {
                match deadline(task, timeout, command == WAIT, realtime) {
                    Ok(deadline) => deadline,
                    Err(error) => return Step::Done(Err(error)),
                }
            } else {
                None
            };
            let bits = if command == WAIT { ANY } else { third };
            futexes.wait(task, addr, value, bits, private, deadline, state)
        }
        _ if realtime => Step::Done(Err(Errno::ENOSYS)),
        WAKE => Step::Done(futexes.wake_call(task, addr, value, ANY, private)),
        WAKE_BITSET => Step::Done(futexes.wake_call(task, addr, value, third, private)),
        REQUEUE | CMP_REQUEUE if value.cast_signed() < 0 || number.cast_signed() < 0 => {
            Step::Done(Err(Errno::EINVAL))
        }
        REQUEUE => Step::Done(futexes.requeue(task, addr, second, value, number, None, private)),
        CMP_REQUEUE => {
            Step::Done(futexes.requeue(task, addr, second, value, number, Some(third), private))
        }
        WAKE_OP => futexes.wake_op(task, addr, second, value, number, third, private, state),
        // Priority inheritance is not implemented yet.
        _ => Step::Done(Err(Errno::ENOSYS)),
    }
}

/// `FUTEX_WAIT` takes a time to wait, `FUTEX_WAIT_BITSET` a point in time.
fn deadline(
    task: &Task,
    timeout: u64,
    relative: bool,
    realtime: bool,
) -> Result<Option<Deadline>, Errno> {
    if timeout == 0 {
        return Ok(None);
    }
    let nanos = task
        .mm()
        .get(UserPtr::<Timespec>::new(timeout))?
        .to_nanos()
        .ok_or(Errno::EINVAL)?;
    if relative {
        return Ok(Some(task.kernel.clocks().after(Clock::Monotonic, nanos)));
    }
    let clock = if realtime {
        Clock::Realtime
    } else {
        Clock::Monotonic
    };
    Ok(Some(Deadline { clock, nanos }))
}
