//! Namespaces (namespaces(7)): what a group of tasks sees as its own system.
//!
//! Each kind is a type of its own that owns what it sets apart: [`PidNamespace`] the processes, [`MountNamespace`] the tree of files, [`UtsNamespace`] the
//! names, [`NetNamespace`] the UNIX sockets' addresses. A task holds one of each by way of a [`Namespaces`]; tasks of a container share it until one of
//! them gets a UTS namespace of its own, the one kind that a guest can make.
//!
//! Lock classes: `ProcessTree`, `Namespace`. Not done: namespaces within a container but UTS, and what the kinds without contents would hold: System V
//! IPC, mappings of user ids, offsets of clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::net::unix;
use crate::sync::Mutex;
use crate::sync::order::{Namespace as NamespaceClass, ProcessTree};
use crate::task::{CloneFlags, Tree};
use crate::vfs::Vfs;

/// The identity of a namespace: the number of its inode in `/proc/PID/ns`. No two namespaces of a kernel share one, whatever their kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamespaceId(pub u64);

/// Gives out identities.
#[derive(Debug)]
pub struct NamespaceIds(AtomicU64);

impl Default for NamespaceIds {
    fn default() -> Self {
        // Below are the numbers of Linux's first namespaces (`PROC_DYNAMIC_FIRST`).
        NamespaceIds(AtomicU64::new(0xf000_0000))
    }
}

impl NamespaceIds {
    /// An identity that no namespace has had.
    pub fn next(&self) -> NamespaceId {
        NamespaceId(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// A kind of namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Control groups.
    Cgroup,
    /// System V IPC and message queues.
    Ipc,
    /// Mounts.
    Mount,
    /// The network.
    Net,
    /// Processes.
    Pid,
    /// Clocks.
    Time,
    /// Users, groups and capabilities.
    User,
    /// Names of the system.
    Uts,
}

impl Kind {
    /// What it is called in `/proc/PID/ns`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Cgroup => "cgroup",
            Kind::Ipc => "ipc",
            Kind::Mount => "mnt",
            Kind::Net => "net",
            Kind::Pid => "pid",
            Kind::Time => "time",
            Kind::User => "user",
            Kind::Uts => "uts",
        }
    }

    /// The `CLONE_NEW*` that setns(2) knows it by. `CLONE_NEWTIME` is none that clone(2) takes.
    pub const fn flag(self) -> u64 {
        match self {
            Kind::Cgroup => CloneFlags::NEWCGROUP.bits(),
            Kind::Ipc => CloneFlags::NEWIPC.bits(),
            Kind::Mount => CloneFlags::NEWNS.bits(),
            Kind::Net => CloneFlags::NEWNET.bits(),
            Kind::Pid => CloneFlags::NEWPID.bits(),
            Kind::Time => 0x80,
            Kind::User => CloneFlags::NEWUSER.bits(),
            Kind::Uts => CloneFlags::NEWUTS.bits(),
        }
    }
}

/// Processes (pid_namespaces(7)): numbers, parents, groups, sessions.
pub struct PidNamespace {
    id: NamespaceId,
    tree: Mutex<Tree, ProcessTree>,
}

impl PidNamespace {
    fn new(id: NamespaceId) -> PidNamespace {
        PidNamespace {
            id,
            tree: Mutex::new(Tree::default()),
        }
    }

    /// Its identity.
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Its processes and threads.
    pub fn tree(&self) -> &Mutex<Tree, ProcessTree> {
        &self.tree
    }
}

/// Mounts (mount_namespaces(7)): the tree of files.
pub struct MountNamespace {
    id: NamespaceId,
    vfs: Arc<Vfs>,
}

impl MountNamespace {
    /// Its identity.
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Its tree.
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.vfs
    }
}

/// Names that uname(2) tells (uts_namespaces(7)).
pub struct UtsNamespace {
    id: NamespaceId,
    names: Mutex<UtsNames, NamespaceClass>,
}

/// The names of a UTS namespace, of at most 64 bytes each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UtsNames {
    /// The host's name (sethostname(2)).
    pub host: String,
    /// The NIS domain's (setdomainname(2)).
    pub domain: String,
}

impl UtsNamespace {
    fn new(id: NamespaceId, names: UtsNames) -> UtsNamespace {
        UtsNamespace {
            id,
            names: Mutex::new(names),
        }
    }

    /// Its identity.
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Its names.
    pub fn names(&self) -> UtsNames {
        self.names.lock().clone()
    }

    /// Changes its names.
    pub fn change(&self, change: impl FnOnce(&mut UtsNames)) {
        change(&mut self.names.lock());
    }
}

/// The network (network_namespaces(7)): so far, who has which UNIX address.
pub struct NetNamespace {
    id: NamespaceId,
    unix: Arc<unix::Space>,
}

impl NetNamespace {
    /// Its identity.
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Its UNIX sockets' addresses.
    pub fn unix(&self) -> &Arc<unix::Space> {
        &self.unix
    }
}

/// System V IPC and message queues (ipc_namespaces(7)), of which there are none yet.
pub struct IpcNamespace(NamespaceId);

/// Users and groups (user_namespaces(7)): each id is itself, and capabilities reach as far as the container.
pub struct UserNamespace(NamespaceId);

/// Clocks (time_namespaces(7)): the kernel's, without offsets.
pub struct TimeNamespace(NamespaceId);

/// Control groups (cgroup_namespaces(7)): the container's own is the root.
pub struct CgroupNamespace(NamespaceId);

/// One namespace of each kind: those that a task is in, and its children will be (Linux: `nsproxy`).
#[derive(Clone)]
pub struct Namespaces {
    /// Control groups.
    pub cgroup: Arc<CgroupNamespace>,
    /// System V IPC and message queues.
    pub ipc: Arc<IpcNamespace>,
    /// Mounts.
    pub mount: Arc<MountNamespace>,
    /// The network.
    pub net: Arc<NetNamespace>,
    /// Processes.
    pub pid: Arc<PidNamespace>,
    /// Clocks.
    pub time: Arc<TimeNamespace>,
    /// Users and groups.
    pub user: Arc<UserNamespace>,
    /// Names of the system.
    pub uts: Arc<UtsNamespace>,
}

impl Namespaces {
    /// New ones of all kinds, with this tree of files and this host's name.
    pub fn new(ids: &NamespaceIds, vfs: Arc<Vfs>, host: String) -> Arc<Namespaces> {
        let names = UtsNames {
            host,
            domain: "(none)".to_owned(),
        };
        Arc::new(Namespaces {
            cgroup: Arc::new(CgroupNamespace(ids.next())),
            ipc: Arc::new(IpcNamespace(ids.next())),
            mount: Arc::new(MountNamespace {
                id: ids.next(),
                vfs,
            }),
            net: Arc::new(NetNamespace {
                id: ids.next(),
                unix: Arc::default(),
            }),
            pid: Arc::new(PidNamespace::new(ids.next())),
            time: Arc::new(TimeNamespace(ids.next())),
            user: Arc::new(UserNamespace(ids.next())),
            uts: Arc::new(UtsNamespace::new(ids.next(), names)),
        })
    }

    /// These, but for a UTS namespace of their own, whose names are the same for now (`CLONE_NEWUTS`).
    pub fn with_new_uts(&self, ids: &NamespaceIds) -> Arc<Namespaces> {
        self.with_uts(Arc::new(UtsNamespace::new(ids.next(), self.uts.names())))
    }

    /// These, but for this UTS namespace.
    pub fn with_uts(&self, uts: Arc<UtsNamespace>) -> Arc<Namespaces> {
        Arc::new(Namespaces {
            uts,
            ..self.clone()
        })
    }

    /// The identity of the namespace of this kind.
    pub fn id(&self, kind: Kind) -> NamespaceId {
        match kind {
            Kind::Cgroup => self.cgroup.0,
            Kind::Ipc => self.ipc.0,
            Kind::Mount => self.mount.id,
            Kind::Net => self.net.id,
            Kind::Pid => self.pid.id,
            Kind::Time => self.time.0,
            Kind::User => self.user.0,
            Kind::Uts => self.uts.id,
        }
    }
}
