//! execve(2): a process runs another program.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::signal::SigSet;
use abi::{Errno, UserPtr};
use platform::{Regs, Start};

use super::call::{OnSignal, Step, Wait};
use super::{Resource, Task};
use crate::mm::loader::Program;
use crate::mm::{Exe, Mm};
use crate::sync::EventMask;
use crate::vfs::{OpenFile, PathCx, Use};

/// A request of execve(2) or execveat(2).
pub struct ExecRequest {
    /// The path as the guest gave it.
    pub path: Vec<u8>,
    /// The file, where it is open already.
    pub file: Option<Arc<OpenFile>>,
    /// The arguments.
    pub args: Vec<Vec<u8>>,
    /// The environment.
    pub env: Vec<Vec<u8>>,
}

impl Task {
    /// Replaces the program. Errors leave the old one as it was; past the point of no return a failure ends the process by SIGKILL, as
    /// Linux does.
    pub fn exec(self: &Arc<Self>, request: ExecRequest) -> Step {
        let (program, name, running) = match self.read_program(request) {
            Ok(read) => read,
            Err(error) => return Step::Done(Err(error)),
        };
        // Other threads end first: they look at this at their boundary.
        if !self.alone() {
            for task in self.process.threads() {
                if task.tid() != self.tid() {
                    task.ask_to_end();
                }
            }
            if !self.alone() {
                return Step::Wait(
                    Wait::on(&self.process.child_changed, EventMask::IN)
                        .on_signal(OnSignal::Killable),
                );
            }
        }
        match self.replace(&program, &name, running) {
            Ok(step) => step,
            Err(_) => {
                self.process.end(super::ExitStatus::Signal(
                    abi::signal::Signal::SIGKILL,
                    false,
                ));
                Step::NoReturn
            }
        }
    }

    /// Opens what is to be run, with its interpreters: the program, what the task is called then, and that the program can't be written from now on.
    fn read_program(&self, request: ExecRequest) -> Result<(Program, Vec<u8>, Use), Errno> {
        let (creds, fs, vfs) = (self.creds(), self.fs(), self.vfs());
        let open = |path: &[u8]| {
            let context = PathCx {
                fs: &fs,
                creds: &creds,
                dirfd: None,
            };
            vfs.open_exec(&context, path, abi::fs::AtFlags::empty())
        };
        let path = &request.path;
        let name = path.rsplit(|byte| *byte == b'/').next();
        let name = name.unwrap_or_default().to_vec();
        let program = Program::read(path, request.file, request.args, request.env, &open)?;
        let running = vfs.uses().run(program.file.inode().key())?;
        Ok((program, name, running))
    }

    fn alone(&self) -> bool {
        self.process.threads.lock().len() == 1
    }

    /// Past the point of no return.
    fn replace(
        self: &Arc<Self>,
        program: &Program,
        name: &[u8],
        running: Use,
    ) -> Result<Step, Errno> {
        let kernel = &self.kernel;
        self.take_leadership();
        let old = self.mm();
        let in_place = old.sole_user();
        let mm = if in_place {
            old.space().defer();
            old.clear()?;
            Arc::clone(&old)
        } else {
            let mm = Mm::new(old.host())?;
            mm.space().defer();
            mm
        };
        mm.limit_as
            .store(self.limit(Resource::As), Ordering::Relaxed);
        mm.limit_data
            .store(self.limit(Resource::Data), Ordering::Relaxed);
        mm.limit_stack
            .store(self.limit(Resource::Stack), Ordering::Relaxed);

        // The file's set-user-ID bits count where the mount honours them and no_new_privs is off.
        let attrs = program.file.attrs()?;
        let nosuid = program
            .file
            .location()
            .is_some_and(|at| at.mount.flags().contains(abi::fs::MountFlags::NOSUID));
        let honour = !nosuid && !self.no_new_privs.load(Ordering::Relaxed);
        let (creds, secure) = self
            .creds()
            .exec((attrs.mode, attrs.uid, attrs.gid), honour);
        let entry = program.load(&mm, &creds, secure)?;
        self.set_creds(creds);
        mm.set_exe(exe(program, running));

        // Everything that does not outlive a program.
        self.process.delete_timers();
        let files = self.files();
        let files = if Arc::strong_count(&files) > 2 {
            files.fork()
        } else {
            files
        };
        files.close_on_exec();
        self.set_files(files);
        let handlers = self.process.handlers();
        let mut fresh = handlers.lock().clone();
        fresh.reset();
        *self.process.handlers.write() = Arc::new(crate::sync::Mutex::new(fresh));
        self.set_alt_stack((0, 2, 0));
        self.robust_list.store(0, Ordering::Relaxed);
        *self.clear_tid.lock() = UserPtr::new(0);
        self.death_signal.store(
            if secure {
                0
            } else {
                self.death_signal.load(Ordering::Relaxed)
            },
            Ordering::Relaxed,
        );
        self.set_name(name);
        self.process.execed.store(true, Ordering::Relaxed);
        self.process
            .dumpable
            .store(u8::from(!secure), Ordering::Relaxed);

        let regs = Regs {
            rip: entry.rip,
            rsp: entry.rsp,
            eflags: 0x202,
            ..Regs::default()
        };
        let thread = self.thread()?;
        mm.space().settle()?;
        if in_place {
            thread.set_regs(&regs);
            thread.set_fpu(None)?;
            self.process.release_vfork();
            return Ok(Step::NoReturn);
        }
        // This is the process's one thread: a vfork child's time is the thread's, any other's its address space's.
        let guest = self.process.guest_of_space.swap(false, Ordering::Relaxed);
        let used = if guest {
            thread.cpu_time()
        } else {
            old.space().cpu_time()
        };
        self.process.past_cpu.fetch_add(used, Ordering::Relaxed);
        // A vfork child: the old host thread stays with the parent's address space, for its next thread.
        let local = kernel.local_numbers(self.process.pid, self.tid());
        self.container().unregister(thread.context());
        thread.retire(guest.then_some(used));
        old.leave(true);
        *self.mm.write() = Arc::clone(&mm);
        self.process.release_vfork();
        let fresh = mm.space().thread(&Start {
            regs,
            fpu: None,
            local,
        })?;
        self.attach(fresh);
        Ok(Step::Gone)
    }

    /// A thread other than the first that execs takes over the process's number.
    fn take_leadership(self: &Arc<Self>) {
        if self.is_leader() {
            return;
        }
        let mut tree = self.tree().lock();
        let gone = tree.tasks.remove(&self.tid());
        self.set_tid(self.process.pid);
        tree.tasks.insert(self.process.pid, Arc::clone(self));
        drop(tree);
        drop(gone);
    }

    /// Starts the first program of the sandbox. The error says what could not be run.
    pub(crate) fn start_first(self: &Arc<Self>, request: ExecRequest) -> Result<(), Errno> {
        let (program, name, running) = self.read_program(request)?;
        let creds = self.creds();
        let mm = self.mm();
        let entry = program.load(&mm, &creds, false)?;
        mm.set_exe(exe(&program, running));
        self.set_name(&name);
        self.process.execed.store(true, Ordering::Relaxed);
        self.set_mask(SigSet::EMPTY);
        let regs = Regs {
            rip: entry.rip,
            rsp: entry.rsp,
            eflags: 0x202,
            ..Regs::default()
        };
        let local = self.kernel.local_numbers(self.process.pid, self.tid());
        let thread = mm.space().thread(&Start {
            regs,
            fpu: None,
            local,
        })?;
        self.attach(thread);
        Ok(())
    }
}

/// What an address space keeps of its program; `None` for one without a place.
fn exe(program: &Program, running: Use) -> Option<Exe> {
    Some(Exe {
        place: program.file.location()?.clone(),
        running: Arc::new(running),
    })
}
