//! Threads that were asked to report and have not: an interrupt has a deadline.
//!
//! Guest code can make itself deaf to the interrupt signal, by a forged signal frame. Nothing that the sentry does may wait for it without end (a
//! stop, exec by another thread, a checkpoint), so a process whose thread does not answer, though it had the processor time to, loses its life.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::Task;
use crate::kernel::Kernel;
use crate::sync::Mutex;
use crate::sync::order::Leaf;
use crate::time::{Clock, OnTime, TimerId};

/// How often those who owe an answer are looked at: nanoseconds.
const TICK: i64 = 50_000_000;
/// The processor time in which a thread answers, in nanoseconds: 100 ms after it was asked, the first tick included.
const PATIENCE: u64 = 50_000_000;
/// Looks after which a process that got no processor time at all is given up: ten seconds that the sentry itself could run.
const LOOKS: u32 = 200;

/// Those that owe an answer.
#[derive(Default)]
pub(crate) struct Overdue {
    list: Mutex<List, Leaf>,
}

#[derive(Default)]
struct List {
    asked: Vec<Asked>,
    serial: u32,
    armed: bool,
}

struct Asked {
    task: Weak<Task>,
    serial: u32,
    looks: u32,
    /// Processor time of the address space when it was looked at first.
    cpu: u64,
}

impl Task {
    /// The thread was interrupted: from now on it owes an answer.
    pub(super) fn expect_answer(&self) {
        let weak = self.run.weak();
        self.kernel
            .overdue
            .expect(&self.kernel, self.run.owed(), weak);
    }
}

impl Overdue {
    fn expect(&self, kernel: &Arc<Kernel>, owed: &std::sync::atomic::AtomicU32, task: Weak<Task>) {
        let mut list = self.list.lock();
        let serial = list.serial.wrapping_add(1).max(1);
        if owed
            .compare_exchange(0, serial, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            // It was asked before.
            return;
        }
        list.serial = serial;
        list.asked.push(Asked {
            task,
            serial,
            looks: 0,
            cpu: 0,
        });
        let armed = std::mem::replace(&mut list.armed, true);
        drop(list);
        if !armed {
            plan(kernel);
        }
    }

    /// Looks at those that owe an answer: ends the address spaces of those that had their time. Whether any did.
    fn look(&self, kernel: &Arc<Kernel>) -> bool {
        let mut list = self.list.lock();
        let asked = std::mem::take(&mut list.asked);
        drop(list);
        let mut rest = Vec::new();
        let mut ended = false;
        for mut asked in asked {
            let Some(task) = asked.task.upgrade() else {
                continue;
            };
            if task.run.owed().load(Ordering::SeqCst) != asked.serial || task.run.is_dead() {
                continue;
            }
            let space = Arc::clone(task.mm().space());
            let cpu = space.cpu_time();
            asked.looks += 1;
            // The first look, or the helper is at work, whose time is not the thread's and whose work may hold the thread up.
            if asked.looks == 1 || (space.is_busy() && asked.looks < LOOKS) {
                asked.cpu = cpu;
                rest.push(asked);
                continue;
            }
            // Each thread of the process has had about this share.
            let threads = u64::try_from(task.process.threads().len())
                .unwrap_or(1)
                .max(1);
            if cpu.saturating_sub(asked.cpu) / threads >= PATIENCE || asked.looks >= LOOKS {
                host::log::line(&format!(
                    "coffer: thread {} of process {} does not answer an interrupt: the process is killed",
                    task.tid(),
                    task.process.pid
                ));
                space.kill();
                ended = true;
            } else {
                rest.push(asked);
            }
        }
        let mut list = self.list.lock();
        list.asked.append(&mut rest);
        list.armed = !list.asked.is_empty();
        let again = list.armed;
        drop(list);
        if again {
            plan(kernel);
        }
        ended
    }
}

fn plan(kernel: &Arc<Kernel>) {
    let kernel_dyn: Arc<dyn OnTime> = kernel.clone();
    let deadline = kernel.clocks().after(Clock::Monotonic, TICK);
    kernel.arm(deadline, Arc::downgrade(&kernel_dyn));
}

impl OnTime for Kernel {
    fn on_time(self: Arc<Self>, _: TimerId) {
        if self.overdue.look(&self) {
            self.reap_stubs();
        }
    }
}
