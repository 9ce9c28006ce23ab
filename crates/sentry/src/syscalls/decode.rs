//! From registers to a handler's types.

use std::sync::Arc;

use abi::signal::Signal;
use abi::{Errno, UserCStr, UserPtr};

use crate::task::{CallState, Step, Task};

/// A type that an argument's register decodes to.
pub trait FromArg: Sized {
    /// Decodes it. Never fails: what is wrong with a value, its handler says.
    fn from_arg(raw: u64) -> Self;

    /// Shows it, for `--strace`.
    fn show(_: &Task, raw: u64) -> String {
        format!("{raw:#x}")
    }
}

/// A file descriptor, or `AT_FDCWD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fd(pub i32);

/// A signal's number as the guest gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalNumber(pub u32);

impl SignalNumber {
    /// The signal; EINVAL.
    pub fn signal(self) -> Result<Signal, Errno> {
        Signal::from_raw(self.0).ok_or(Errno::EINVAL)
    }

    /// The signal, `None` for 0, which only asks whether one could be sent; EINVAL.
    pub fn optional(self) -> Result<Option<Signal>, Errno> {
        if self.0 == 0 {
            Ok(None)
        } else {
            self.signal().map(Some)
        }
    }
}

impl FromArg for i32 {
    fn from_arg(raw: u64) -> Self {
        (raw & 0xffff_ffff) as u32 as i32
    }

    fn show(_: &Task, raw: u64) -> String {
        Self::from_arg(raw).to_string()
    }
}

impl FromArg for u32 {
    fn from_arg(raw: u64) -> Self {
        (raw & 0xffff_ffff) as u32
    }

    fn show(_: &Task, raw: u64) -> String {
        format!("{:#x}", Self::from_arg(raw))
    }
}

impl FromArg for i64 {
    fn from_arg(raw: u64) -> Self {
        raw.cast_signed()
    }

    fn show(_: &Task, raw: u64) -> String {
        Self::from_arg(raw).to_string()
    }
}

impl FromArg for u64 {
    fn from_arg(raw: u64) -> Self {
        raw
    }
}

impl FromArg for usize {
    fn from_arg(raw: u64) -> Self {
        raw as usize
    }

    fn show(_: &Task, raw: u64) -> String {
        raw.to_string()
    }
}

impl FromArg for Fd {
    fn from_arg(raw: u64) -> Self {
        Fd(i32::from_arg(raw))
    }

    fn show(_: &Task, raw: u64) -> String {
        match i32::from_arg(raw) {
            abi::fs::AT_FDCWD => "AT_FDCWD".to_owned(),
            fd => fd.to_string(),
        }
    }
}

impl FromArg for SignalNumber {
    fn from_arg(raw: u64) -> Self {
        SignalNumber(u32::from_arg(raw))
    }

    fn show(_: &Task, raw: u64) -> String {
        Signal::from_raw(u32::from_arg(raw))
            .map_or_else(|| raw.to_string(), |signal| format!("{signal:?}"))
    }
}

impl<T> FromArg for UserPtr<T> {
    fn from_arg(raw: u64) -> Self {
        UserPtr::new(raw)
    }
}

impl FromArg for UserCStr {
    fn from_arg(raw: u64) -> Self {
        UserCStr(raw)
    }

    fn show(task: &Task, raw: u64) -> String {
        match task.mm().get_cstr(UserCStr(raw), 255) {
            Ok(Some(text)) => format!("{:?}", String::from_utf8_lossy(&text)),
            Ok(None) => format!("{raw:#x}..."),
            Err(_) => format!("{raw:#x}"),
        }
    }
}

/// What a handler returns.
pub trait IntoStep {
    /// As a step.
    fn into_step(self) -> Step;
}

impl IntoStep for Step {
    fn into_step(self) -> Step {
        self
    }
}

impl IntoStep for Result<usize, Errno> {
    fn into_step(self) -> Step {
        Step::Done(self)
    }
}

impl IntoStep for Result<(), Errno> {
    fn into_step(self) -> Step {
        Step::Done(self.map(|()| 0))
    }
}

impl IntoStep for Result<u32, Errno> {
    fn into_step(self) -> Step {
        Step::Done(self.map(|value| value as usize))
    }
}

impl IntoStep for Result<i32, Errno> {
    fn into_step(self) -> Step {
        Step::Done(self.map(|value| value as u32 as usize))
    }
}

impl IntoStep for Result<u64, Errno> {
    fn into_step(self) -> Step {
        Step::Done(self.map(|value| value as usize))
    }
}

/// A function that serves a call: `M` tells the kinds apart.
pub trait Handler<M> {
    /// Decodes the arguments and calls it.
    fn invoke(&self, task: &Arc<Task>, args: &[u64; 6], state: &mut CallState) -> Step;

    /// Shows the arguments.
    fn show(&self, task: &Task, args: &[u64; 6]) -> String;
}

/// Marks a handler that cannot wait.
pub struct Plain<A, R>(core::marker::PhantomData<fn(A) -> R>);
/// Marks a handler that can.
pub struct Waits<A, R>(core::marker::PhantomData<fn(A) -> R>);

macro_rules! handlers {
    ($($name:ident = $index:literal),*) => {
        impl<Func, Ret, $($name),*> Handler<Plain<($($name,)*), Ret>> for Func
        where
            Func: Fn(&Arc<Task>, $($name),*) -> Ret,
            Ret: IntoStep,
            $($name: FromArg,)*
        {
            fn invoke(&self, task: &Arc<Task>, args: &[u64; 6], _: &mut CallState) -> Step {
                let _ = args;
                self(task, $($name::from_arg(args[$index])),*).into_step()
            }

            fn show(&self, task: &Task, args: &[u64; 6]) -> String {
                let _ = (task, args);
                let shown: Vec<String> = vec![$($name::show(task, args[$index])),*];
                shown.join(", ")
            }
        }

        impl<Func, Ret, $($name),*> Handler<Waits<($($name,)*), Ret>> for Func
        where
            Func: Fn(&Arc<Task>, $($name,)* &mut CallState) -> Ret,
            Ret: IntoStep,
            $($name: FromArg,)*
        {
            fn invoke(&self, task: &Arc<Task>, args: &[u64; 6], state: &mut CallState) -> Step {
                let _ = args;
                self(task, $($name::from_arg(args[$index]),)* state).into_step()
            }

            fn show(&self, task: &Task, args: &[u64; 6]) -> String {
                let _ = (task, args);
                let shown: Vec<String> = vec![$($name::show(task, args[$index])),*];
                shown.join(", ")
            }
        }
    };
}

handlers!();
handlers!(A = 0);
handlers!(A = 0, B = 1);
handlers!(A = 0, B = 1, C = 2);
handlers!(A = 0, B = 1, C = 2, D = 3);
handlers!(A = 0, B = 1, C = 2, D = 3, E = 4);
handlers!(A = 0, B = 1, C = 2, D = 3, E = 4, F = 5);
