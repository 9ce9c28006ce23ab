//! Two containers of one kernel, over a platform that runs no code.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::Errno;
use abi::cap::CapSet;
use abi::fs::{FileType, MountFlags, ResolveFlags};
use platform::{
    ClockPage, ContextId, Counters, Forked, HostMm, MemOp, Platform, SharedFile, Space, SpaceId,
    Start, Thread,
};

use super::{Container, INIT, Parts};
use crate::fs::tmpfs::TmpFs;
use crate::kernel::Kernel;
use crate::mm::memory_file::Quota;
use crate::mm::{Mm, MmHost, SharedFiles, Vdso};
use crate::namespace::Kind;
use crate::net::unix::{self, UnixSocket};
use crate::spec::Limits;
use crate::sync::Mutex;
use crate::sync::order::Leaf;
use crate::task::credentials::Credentials;
use crate::task::{ExitStatus, Task, TaskParts};
use crate::time::Clocks;
use crate::vfs::tests::World;
use crate::vfs::{FdTable, FileSystem, FsContext, Mount, PathCx};

/// A platform whose spaces are empty and run nothing; its reports are what a test puts there.
#[derive(Default)]
struct Idle {
    reports: Mutex<VecDeque<ContextId>, Leaf>,
    dead: Mutex<Vec<SpaceId>, Leaf>,
    spaces: AtomicU64,
    kicks: AtomicU64,
}

impl Platform for Idle {
    fn new_space(&self) -> Result<Arc<dyn Space>, Errno> {
        let id = SpaceId(self.spaces.fetch_add(1, Ordering::Relaxed));
        Ok(Arc::new(Empty(id, AtomicBool::new(false))))
    }
    fn share_file(&self, _: &OwnedFd) -> Result<SharedFile, Errno> {
        Err(Errno::ENOSYS)
    }
    fn unshare_file(&self, _: SharedFile) {}
    fn poll(&self) -> Option<ContextId> {
        self.reports.lock().pop_front()
    }
    fn join(&self) {}
    fn wait(&self, _: &dyn Fn() -> bool) {}
    fn kick(&self, _: bool) {
        self.kicks.fetch_add(1, Ordering::Relaxed);
    }
    fn reap(&self) -> Vec<SpaceId> {
        core::mem::take(&mut *self.dead.lock())
    }
    fn count_patch(&self) {}
    fn counters(&self) -> Counters {
        Counters::default()
    }
    fn host_mm(&self) -> HostMm {
        HostMm::default()
    }
    fn clocks(&self) -> Arc<ClockPage> {
        Arc::new(ClockPage::detached().expect("a page"))
    }
    fn in_host_vdso(&self, _: u64) -> bool {
        false
    }
}

struct Empty(SpaceId, AtomicBool);

impl Space for Empty {
    fn id(&self) -> SpaceId {
        self.0
    }
    fn apply(&self, _: &[MemOp]) -> Result<(), (usize, Errno)> {
        Err((0, Errno::ENOSYS))
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::EFAULT)
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<usize, Errno> {
        Err(Errno::EFAULT)
    }
    fn defer(&self) {}
    fn settle(&self) -> Result<(), Errno> {
        Ok(())
    }
    fn hurry(&self) {}
    fn while_halted(&self, _: &mut dyn FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }
    fn is_busy(&self) -> bool {
        false
    }
    fn fork(&self, _: &Start, _: &[MemOp]) -> Result<Forked, Errno> {
        Err(Errno::ENOSYS)
    }
    fn thread(&self, _: &Start) -> Result<Arc<dyn Thread>, Errno> {
        Err(Errno::ENOSYS)
    }
    fn residency(&self, _: u64, _: u64) -> Result<Vec<u8>, Errno> {
        Err(Errno::ENOSYS)
    }
    fn kill(&self) {
        self.1.store(true, Ordering::Relaxed);
    }
    fn cpu_time(&self) -> u64 {
        0
    }
    fn is_dead(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }
}

fn kernel() -> Arc<Kernel> {
    Kernel::new(
        host::poll::Poller::new().expect("an epoll"),
        Clocks::new(Arc::new(ClockPage::detached().expect("a page"))),
        false,
    )
}

/// A container with its first task, and its platform.
fn container(kernel: &Arc<Kernel>, name: &str) -> (Arc<Container>, Arc<Task>, Arc<Idle>) {
    let world = World::tmpfs();
    let unseen = TmpFs::new(Arc::clone(&world.memory), Quota::new(1 << 20, 100), 0o755);
    let unseen = unseen.expect("a tmpfs");
    let unseen_mount = Mount::hidden(Arc::clone(&unseen) as Arc<dyn FileSystem>);
    let idle = Arc::new(Idle::default());
    let platform: Arc<dyn Platform> = Arc::clone(&idle) as _;
    let mm = Arc::new(MmHost {
        platform: Arc::clone(&platform),
        files: SharedFiles::default(),
        vdso: Vdso::new(&world.memory).expect("a vDSO"),
        memory: Arc::clone(&world.memory),
    });
    let container = kernel.add_container(Parts {
        platform,
        mm,
        vfs: Arc::clone(&world.vfs),
        limits: Limits {
            memory: 1 << 30,
            pids: 16,
            cpus: 1,
        },
        hostname: name.to_owned(),
        unseen: (unseen, unseen_mount),
    });
    crate::fs::proc::mount(kernel, &container, "").expect("mounts");
    let task = task(kernel, &container);
    (container, task, idle)
}

fn task(kernel: &Arc<Kernel>, container: &Arc<Container>) -> Arc<Task> {
    let namespaces = container.namespaces();
    let reserved = namespaces.pid.tree().lock().reserve(16);
    let parts = TaskParts {
        mm: Mm::new(container.mm()).expect("a space"),
        files: FdTable::new(),
        fs: FsContext::new(namespaces.mount.vfs().root()),
        creds: Arc::new(Credentials::root(CapSet::FULL)),
        namespaces: Arc::clone(namespaces),
        signals: Task::initial_signals(),
    };
    let limits = crate::task::Limits::initial(16);
    container.start(kernel, reserved.expect("a number"), limits, parts)
}

fn exists(task: &Task, path: &[u8]) -> bool {
    let (fs, creds) = (task.fs(), task.creds());
    let cx = PathCx {
        fs: &fs,
        creds: &creds,
        dirfd: None,
    };
    let found = task.vfs().resolve(&cx, path, true, ResolveFlags::empty());
    found.is_ok()
}

const KINDS: [Kind; 8] = [
    Kind::Cgroup,
    Kind::Ipc,
    Kind::Mount,
    Kind::Net,
    Kind::Pid,
    Kind::Time,
    Kind::User,
    Kind::Uts,
];

#[test]
fn namespaces_are_separate() {
    let kernel = kernel();
    let (a, in_a, _) = container(&kernel, "a");
    let (b, in_b, _) = container(&kernel, "b");
    let found = kernel.container(b.id()).expect("is there");
    assert!(Arc::ptr_eq(&found, &b) && a.id() != b.id());
    for of_a in KINDS {
        for of_b in KINDS {
            assert_ne!(in_a.namespaces().id(of_a), in_b.namespaces().id(of_b));
        }
    }

    // Numbers.
    assert_eq!((in_a.tid(), in_b.tid()), (INIT, INIT));
    let second = task(&kernel, &a);
    assert_eq!(second.tid(), 2);
    assert!(a.namespaces().pid.tree().lock().process(2).is_ok());
    assert!(b.namespaces().pid.tree().lock().process(2).is_err());
    assert!(exists(&in_a, b"/proc/2/stat") && !exists(&in_b, b"/proc/2/stat"));

    // Names.
    in_a.namespaces()
        .uts
        .change(|names| names.host = "changed".to_owned());
    assert_eq!(in_a.namespaces().uts.names().host, "changed");
    assert_eq!(in_b.namespaces().uts.names().host, "b");
    in_a.set_namespaces(in_a.namespaces().with_new_uts(kernel.namespace_ids()));
    in_a.namespaces()
        .uts
        .change(|names| names.host = "own".to_owned());
    assert_eq!(second.namespaces().uts.names().host, "changed");
    let (own, shared) = (in_a.namespaces(), second.namespaces());
    assert_ne!(own.id(Kind::Uts), shared.id(Kind::Uts));
    assert_eq!(own.id(Kind::Mount), shared.id(Kind::Mount));

    // Mounts and files.
    let (fs, creds) = (in_a.fs(), in_a.creds());
    let cx = PathCx {
        fs: &fs,
        creds: &creds,
        dirfd: None,
    };
    in_a.vfs().mkdir(&cx, b"/d", 0o755).expect("makes");
    let memory = Arc::clone(&a.mm().memory);
    let over = TmpFs::new(memory, Quota::new(1 << 20, 100), 0o755).expect("a tmpfs");
    crate::fs::root::mount_at(
        &in_a.vfs(),
        &Mount::of(over, MountFlags::empty(), "x"),
        b"/d",
    )
    .expect("mounts");
    in_a.vfs()
        .mknod(&cx, b"/d/f", FileType::Regular.mode() | 0o644, 0)
        .expect("makes");
    assert!(exists(&second, b"/d/f"));
    assert!(!exists(&in_b, b"/d"));
}

#[test]
fn abstract_names_are_separate() {
    let kernel = kernel();
    let (_, in_a, _) = container(&kernel, "a");
    let (_, in_b, _) = container(&kernel, "b");
    let socket = |task: &Task| {
        let identity = unix::Identity::new(task.tid(), &task.creds());
        let space = Arc::clone(task.namespaces().net.unix());
        UnixSocket::new(&space, unix::Kind::Stream, identity)
    };
    let (first, second, other) = (socket(&in_a), socket(&in_a), socket(&in_b));
    assert_eq!(first.bind_abstract(b"name"), Ok(()));
    assert_eq!(second.bind_abstract(b"name"), Err(Errno::EADDRINUSE));
    assert!(second.find_abstract(b"name").is_ok());
    assert!(other.find_abstract(b"name").is_err());
    assert_eq!(other.bind_abstract(b"name"), Ok(()));
}

#[test]
fn reports_reach_the_container_they_come_from() {
    let kernel = kernel();
    let (a, in_a, of_a) = container(&kernel, "a");
    let (b, in_b, of_b) = container(&kernel, "b");
    let context = ContextId { slot: 5, serial: 0 };
    of_a.reports.lock().push_back(context);
    assert!(!b.serve_report());
    // It came before its thread was known: its registration gives a worker of its container something to do, and no other.
    assert!(a.serve_report());
    assert!(!a.serve_report());
    b.register(context, &in_b);
    assert_eq!(of_b.kicks.load(Ordering::Relaxed), 0);
    a.register(context, &in_a);
    assert_eq!(of_a.kicks.load(Ordering::Relaxed), 1);
    assert_eq!(of_b.kicks.load(Ordering::Relaxed), 0);
    // Address spaces are numbered by each platform for itself.
    assert_eq!(in_a.mm().space().id(), in_b.mm().space().id());
    let died = in_b.mm().space().id();
    of_b.dead.lock().push(died);
    kernel.reap_stubs();
    let killed = Some(ExitStatus::Signal(abi::signal::Signal::SIGKILL, false));
    assert_eq!(
        (in_a.process.ending(), in_b.process.ending()),
        (None, killed)
    );
}

#[test]
fn the_sandbox_ends_with_its_last_container() {
    let kernel = kernel();
    let (a, _, _) = container(&kernel, "a");
    let (b, in_b, _) = container(&kernel, "b");
    let second = task(&kernel, &a);
    let killed = Some(ExitStatus::Signal(abi::signal::Signal::SIGKILL, false));
    kernel.end_container(&a, ExitStatus::Code(3));
    kernel.end_container(&a, ExitStatus::Code(4));
    assert_eq!(a.end(), Some(ExitStatus::Code(3)));
    assert_eq!(
        (second.process.ending(), in_b.process.ending()),
        (killed, None)
    );
    assert_eq!((b.end(), kernel.is_over()), (None, false));
    kernel.end_container(&b, ExitStatus::Code(0));
    assert!(kernel.is_over());
}
