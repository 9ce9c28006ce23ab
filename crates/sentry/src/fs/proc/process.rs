//! `/proc/PID` and `/proc/PID/task/TID`: one row of [`ROWS`] an entry, made as it is looked up.
//!
//! What an entry is about is a [`Subject`]: a process, or one of its threads, that may be gone by the time somebody reads. Who reads is the task whose call
//! the worker serves ([`syscalls::current`]).

use std::sync::{Arc, Weak};

use abi::Errno;
use abi::cap::Cap;
use abi::fs::FileType;

use super::{fds, maps, memory, mounts, status};
use crate::container::Container;
use crate::fs::nsfs::{Namespace, NamespaceFile};
use crate::fs::pseudo::{Dynamic, PseudoAttrs, PseudoDir, PseudoFile, PseudoLink};
use crate::namespace::Kind as NamespaceKind;
use crate::syscalls;
use crate::task::{Process, Task};
use crate::vfs::{Inode, LinkTarget, Location, Vfs};

/// A process, or one of its threads.
#[derive(Clone)]
pub(super) struct Subject {
    container: Weak<Container>,
    process: Weak<Process>,
    /// The process's number.
    pub(super) pid: u32,
    /// The thread's, where it is about a thread.
    pub(super) thread: Option<u32>,
}

impl Subject {
    /// The container; ESRCH at its end.
    pub(super) fn container(&self) -> Result<Arc<Container>, Errno> {
        self.container.upgrade().ok_or(Errno::ESRCH)
    }

    /// The tree of files that paths of the container are in.
    pub(super) fn vfs(&self) -> Result<Arc<Vfs>, Errno> {
        Ok(Arc::clone(self.container()?.namespaces().mount.vfs()))
    }

    /// The process, which may have ended; ESRCH once it is gone.
    pub(super) fn process(&self) -> Result<Arc<Process>, Errno> {
        self.process.upgrade().ok_or(Errno::ESRCH)
    }

    /// The thread, or the first of the process; ESRCH where it has ended.
    pub(super) fn task(&self) -> Result<Arc<Task>, Errno> {
        let process = self.process()?;
        match self.thread {
            Some(tid) => process
                .threads()
                .into_iter()
                .find(|task| task.tid() == tid)
                .ok_or(Errno::ESRCH),
            None => process.any_thread().ok_or(Errno::ESRCH),
        }
    }

    /// The number that it goes by.
    pub(super) fn number(&self) -> u32 {
        self.thread.unwrap_or(self.pid)
    }

    /// The task, where the reader may look into it as a debugger could: EACCES.
    pub(super) fn guarded(&self) -> Result<Arc<Task>, Errno> {
        let task = self.task()?;
        let Ok(reader) = self.reader() else {
            return Ok(task);
        };
        if Arc::ptr_eq(&reader.process, &task.process) {
            return Ok(task);
        }
        let (mine, theirs) = (reader.creds(), task.creds());
        if mine.has(Cap::SYS_PTRACE) {
            return Ok(task);
        }
        let (uid, gid) = (mine.uid.fs, mine.gid.fs);
        let same = |id: u32, ids: &crate::task::credentials::Ids| {
            ids.real == id && ids.effective == id && ids.saved == id
        };
        let dumpable = task
            .process
            .dumpable
            .load(core::sync::atomic::Ordering::Relaxed)
            == 1;
        if dumpable
            && same(uid, &theirs.uid)
            && same(gid, &theirs.gid)
            && theirs.permitted.is_subset(mine.permitted)
        {
            return Ok(task);
        }
        Err(Errno::EACCES)
    }

    /// Who reads.
    fn reader(&self) -> Result<Arc<Task>, Errno> {
        reader(&*self.container()?)
    }

    /// The root from which paths are shown: the reader's.
    pub(super) fn shown_from(&self) -> Result<Location, Errno> {
        match self.reader() {
            Ok(reader) => Ok(reader.fs().root()),
            Err(_) => Ok(self.vfs()?.root()),
        }
    }

    /// Whose its entries are: the effective user's, or root's where it is not dumpable.
    fn owner(&self) -> (u32, u32) {
        let Ok(task) = self.task() else { return (0, 0) };
        if task
            .process
            .dumpable
            .load(core::sync::atomic::Ordering::Relaxed)
            != 1
        {
            return (0, 0);
        }
        let creds = task.creds();
        (creds.uid.effective, creds.gid.effective)
    }

    /// Attributes of an entry of it, numbered by its place among them.
    pub(super) fn attrs(&self, dev: u64, place: u64, mode: u32) -> PseudoAttrs {
        let (uid, gid) = self.owner();
        PseudoAttrs::with_ino(dev, self.ino(place), mode).owned_by(uid, gid)
    }

    /// The inode's number of an entry.
    pub(super) fn ino(&self, place: u64) -> u64 {
        1 << 48 | u64::from(self.thread.is_some()) << 47 | u64::from(self.number()) << 24 | place
    }
}

/// The task whose call this worker serves; ESRCH where it is in another container.
pub(super) fn reader(container: &Container) -> Result<Arc<Task>, Errno> {
    let tid = syscalls::current(container.id()).ok_or(Errno::ESRCH)?;
    let tree = container.namespaces().pid.tree().lock();
    tree.tasks.get(&tid).cloned().ok_or(Errno::ESRCH)
}

type Make = fn(&Subject) -> Result<Vec<u8>, Errno>;
type Take = fn(&Subject, &[u8]) -> Result<(), Errno>;

/// What an entry is.
#[derive(Clone, Copy)]
enum Kind {
    /// A file of this text.
    File(u32, Make),
    /// A file that can be written.
    Writable(u32, Make, Take),
    /// A link to a place.
    Link(fn(&Subject) -> Result<Location, Errno>),
    /// `ns`.
    Namespaces,
    /// `fd`, `fdinfo`.
    Descriptors(bool),
    /// `mem`.
    Memory,
    /// `task`.
    Threads,
    /// `net`.
    Net,
}

impl Kind {
    fn file_type(self) -> FileType {
        match self {
            Kind::File(..) | Kind::Writable(..) | Kind::Memory => FileType::Regular,
            Kind::Link(_) => FileType::Symlink,
            Kind::Namespaces | Kind::Descriptors(_) | Kind::Threads | Kind::Net => {
                FileType::Directory
            }
        }
    }
}

fn fixed(text: &'static str) -> Result<Vec<u8>, Errno> {
    Ok(text.as_bytes().to_vec())
}

const ROWS: &[(&str, Kind)] = &[
    (
        "auxv",
        Kind::File(0o400, |subject| Ok(subject.guarded()?.mm().layout().auxv)),
    ),
    ("cgroup", Kind::File(0o444, |_| fixed("0::/\n"))),
    ("cmdline", Kind::File(0o444, status::cmdline)),
    (
        "comm",
        Kind::Writable(0o644, status::comm, status::set_comm),
    ),
    (
        "coredump_filter",
        Kind::File(0o444, |_| fixed("00000033\n")),
    ),
    ("cpuset", Kind::File(0o444, |_| fixed("/\n"))),
    (
        "cwd",
        Kind::Link(|subject| Ok(subject.guarded()?.fs().cwd())),
    ),
    ("environ", Kind::File(0o400, status::environ)),
    (
        "exe",
        Kind::Link(|subject| subject.guarded()?.mm().exe().ok_or(Errno::ENOENT)),
    ),
    ("fd", Kind::Descriptors(true)),
    ("fdinfo", Kind::Descriptors(false)),
    (
        "gid_map",
        Kind::File(0o444, |_| fixed("         0          0 4294967295\n")),
    ),
    ("io", Kind::File(0o400, status::io)),
    ("limits", Kind::File(0o444, status::limits)),
    ("loginuid", Kind::File(0o444, |_| fixed("4294967295"))),
    ("maps", Kind::File(0o444, maps::maps)),
    ("mem", Kind::Memory),
    (
        "mountinfo",
        Kind::File(0o444, |subject| {
            Ok(mounts::mountinfo(
                &*subject.vfs()?,
                &subject.task()?.fs().root(),
            ))
        }),
    ),
    (
        "mounts",
        Kind::File(0o444, |subject| {
            Ok(mounts::mounts(
                &*subject.vfs()?,
                &subject.task()?.fs().root(),
            ))
        }),
    ),
    ("net", Kind::Net),
    ("ns", Kind::Namespaces),
    ("oom_adj", Kind::File(0o444, |_| fixed("0\n"))),
    ("oom_score", Kind::File(0o444, status::oom_score)),
    (
        "oom_score_adj",
        Kind::Writable(0o644, status::oom_score_adj, status::set_oom_score_adj),
    ),
    ("personality", Kind::File(0o400, |_| fixed("00000000\n"))),
    (
        "projid_map",
        Kind::File(0o444, |_| fixed("         0          0 4294967295\n")),
    ),
    (
        "root",
        Kind::Link(|subject| Ok(subject.guarded()?.fs().root())),
    ),
    ("schedstat", Kind::File(0o444, status::schedstat)),
    ("sessionid", Kind::File(0o444, |_| fixed("4294967295"))),
    ("setgroups", Kind::File(0o444, |_| fixed("allow\n"))),
    ("smaps", Kind::File(0o444, maps::smaps)),
    ("smaps_rollup", Kind::File(0o444, maps::smaps_rollup)),
    ("stat", Kind::File(0o444, status::stat)),
    ("statm", Kind::File(0o444, status::statm)),
    ("status", Kind::File(0o444, status::status)),
    ("task", Kind::Threads),
    (
        "uid_map",
        Kind::File(0o444, |_| fixed("         0          0 4294967295\n")),
    ),
    ("wchan", Kind::File(0o444, |_| fixed("0"))),
];

/// The entries of `/proc/PID`.
struct Entries(Subject);

impl Entries {
    /// Threads have all but the list of threads.
    fn shown(&self, kind: Kind) -> bool {
        self.0.thread.is_none() || !matches!(kind, Kind::Threads)
    }

    fn make(&self, dev: u64, place: u64, kind: Kind) -> Arc<dyn Inode> {
        let subject = self.0.clone();
        let attrs = |perm: u32| subject.attrs(dev, place, kind.file_type().mode() | perm);
        let dir = |perm: u32, entries: Arc<dyn Dynamic>| -> Arc<dyn Inode> {
            PseudoDir::with(attrs(perm), Some(entries))
        };
        match kind {
            Kind::File(perm, make) => {
                let attrs = attrs(perm);
                PseudoFile::with(attrs, move || make(&subject), None)
            }
            Kind::Writable(perm, make, take) => {
                let attrs = attrs(perm);
                let writer = subject.clone();
                PseudoFile::with(
                    attrs,
                    move || make(&subject),
                    Some(Box::new(move |bytes| take(&writer, bytes))),
                )
            }
            Kind::Link(follow) => {
                let attrs = attrs(0o777);
                let shown = subject.clone();
                let text = move || Ok(shown.vfs()?.path_of(&follow(&shown)?, &shown.shown_from()?));
                PseudoLink::with(
                    attrs,
                    move || follow(&subject).map(LinkTarget::Place),
                    Some(Box::new(text)),
                )
            }
            Kind::Namespaces => dir(0o511, Arc::new(Namespaces(self.0.clone()))),
            Kind::Descriptors(links) => dir(
                if links { 0o500 } else { 0o555 },
                Arc::new(fds::Descriptors {
                    subject: self.0.clone(),
                    links,
                }),
            ),
            Kind::Memory => Arc::new(memory::Memory {
                attrs: attrs(0o600),
                subject: self.0.clone(),
            }),
            Kind::Threads => dir(0o555, Arc::new(Threads(self.0.clone()))),
            Kind::Net => super::net::directory(dev),
        }
    }
}

impl Dynamic for Entries {
    fn lookup(&self, dir: &PseudoDir, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        self.0.process().map_err(|_| Errno::ENOENT)?;
        let place = ROWS
            .binary_search_by(|(known, _)| known.as_bytes().cmp(name))
            .map_err(|_| Errno::ENOENT)?;
        let kind = ROWS[place].1;
        if self.shown(kind) {
            Ok(self.make(dir.dev(), place as u64 + 1, kind))
        } else {
            Err(Errno::ENOENT)
        }
    }

    fn next(&self, _dir: &PseudoDir, from: u64) -> Option<(u64, Vec<u8>, FileType, u64)> {
        let from = usize::try_from(from).ok()?;
        let (place, (name, kind)) = ROWS
            .iter()
            .enumerate()
            .skip(from)
            .find(|(_, (_, kind))| self.shown(*kind))?;
        Some((
            place as u64,
            name.as_bytes().to_vec(),
            kind.file_type(),
            self.0.ino(place as u64 + 1),
        ))
    }
}

/// `ns/`: namespaces, each a link whose text is its identity (namespaces(7)).
struct Namespaces(Subject);

const NAMESPACES: [(&str, NamespaceKind); 10] = [
    ("cgroup", NamespaceKind::Cgroup),
    ("ipc", NamespaceKind::Ipc),
    ("mnt", NamespaceKind::Mount),
    ("net", NamespaceKind::Net),
    ("pid", NamespaceKind::Pid),
    ("pid_for_children", NamespaceKind::Pid),
    ("time", NamespaceKind::Time),
    ("time_for_children", NamespaceKind::Time),
    ("user", NamespaceKind::User),
    ("uts", NamespaceKind::Uts),
];

impl Dynamic for Namespaces {
    fn lookup(&self, dir: &PseudoDir, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        let place = NAMESPACES
            .iter()
            .position(|(known, _)| known.as_bytes() == name)
            .ok_or(Errno::ENOENT)?;
        let kind = NAMESPACES[place].1;
        let text = move |held: &Namespace| {
            let id = held.among.id(kind).0;
            format!("{}:[{id}]", kind.name())
        };
        let held = move |subject: &Subject| {
            let among = subject.guarded()?.namespaces();
            Ok::<_, Errno>(Namespace { kind, among })
        };
        let (subject, shown) = (self.0.clone(), self.0.clone());
        let attrs = self.0.attrs(
            dir.dev(),
            1 << 16 | place as u64,
            FileType::Symlink.mode() | 0o777,
        );
        let dev = dir.dev();
        let follow = move || {
            let held = held(&subject)?;
            let name = text(&held);
            Ok(LinkTarget::Inode(NamespaceFile::new(dev, held), name))
        };
        Ok(PseudoLink::with(
            attrs,
            follow,
            Some(Box::new(move || Ok(text(&held(&shown)?).into_bytes()))),
        ))
    }

    fn next(&self, _dir: &PseudoDir, from: u64) -> Option<(u64, Vec<u8>, FileType, u64)> {
        let (name, _) = NAMESPACES.get(usize::try_from(from).ok()?)?;
        Some((
            from,
            name.as_bytes().to_vec(),
            FileType::Symlink,
            self.0.ino(1 << 16 | from),
        ))
    }
}

/// `task/`: threads.
struct Threads(Subject);

impl Dynamic for Threads {
    fn lookup(&self, dir: &PseudoDir, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        let tid = parse(name)?;
        let process = self.0.process().map_err(|_| Errno::ENOENT)?;
        if !process.threads().iter().any(|task| task.tid() == tid) {
            return Err(Errno::ENOENT);
        }
        Ok(entries(
            dir.dev(),
            Subject {
                thread: Some(tid),
                ..self.0.clone()
            },
        ))
    }

    fn next(&self, _dir: &PseudoDir, from: u64) -> Option<(u64, Vec<u8>, FileType, u64)> {
        let process = self.0.process().ok()?;
        let tid = process
            .threads()
            .iter()
            .map(|task| task.tid())
            .filter(|tid| u64::from(*tid) >= from)
            .min()?;
        let subject = Subject {
            thread: Some(tid),
            ..self.0.clone()
        };
        Some((
            u64::from(tid),
            tid.to_string().into_bytes(),
            FileType::Directory,
            subject.ino(0),
        ))
    }
}

/// The directory of a process or thread.
fn entries(dev: u64, subject: Subject) -> Arc<dyn Inode> {
    let attrs = subject.attrs(dev, 0, FileType::Directory.mode() | 0o555);
    PseudoDir::with(attrs, Some(Arc::new(Entries(subject))))
}

/// A number as the name of an entry: no sign, no leading zero. ENOENT.
pub(super) fn parse(name: &[u8]) -> Result<u32, Errno> {
    if name.first() == Some(&b'0') && name.len() > 1 || !name.iter().all(u8::is_ascii_digit) {
        return Err(Errno::ENOENT);
    }
    core::str::from_utf8(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(Errno::ENOENT)
}

/// The processes, as entries of procfs's root.
pub(super) struct Processes(pub(super) Weak<Container>);

impl Dynamic for Processes {
    fn lookup(&self, dir: &PseudoDir, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        let number = parse(name)?;
        let container = self.0.upgrade().ok_or(Errno::ENOENT)?;
        let tree = container.namespaces().pid.tree().lock();
        // A thread's number leads to it, though it is not listed.
        let (process, thread) = match (tree.nodes.get(&number), tree.tasks.get(&number)) {
            (Some(node), _) => (Arc::clone(&node.process), None),
            (None, Some(task)) => (Arc::clone(&task.process), Some(number)),
            (None, None) => return Err(Errno::ENOENT),
        };
        drop(tree);
        let subject = Subject {
            container: Weak::clone(&self.0),
            process: Arc::downgrade(&process),
            pid: process.pid,
            thread,
        };
        Ok(entries(dir.dev(), subject))
    }

    fn next(&self, _dir: &PseudoDir, from: u64) -> Option<(u64, Vec<u8>, FileType, u64)> {
        let container = self.0.upgrade()?;
        let from = u32::try_from(from).ok()?;
        let tree = container.namespaces().pid.tree().lock();
        let pid = *tree.nodes.range(from..).next()?.0;
        drop(tree);
        let ino = 1 << 48 | u64::from(pid) << 24;
        Some((
            u64::from(pid),
            pid.to_string().into_bytes(),
            FileType::Directory,
            ino,
        ))
    }
}

/// `self` and `thread-self`: texts that depend on who reads.
pub(super) fn add_self(root: &PseudoDir, container: &Weak<Container>) {
    let of = |text: fn(&Task) -> String| {
        let container = Weak::clone(container);
        PseudoLink::new(root.dev(), move || {
            let container = container.upgrade().ok_or(Errno::ENOENT)?;
            let reader = reader(&container).map_err(|_| Errno::ENOENT)?;
            Ok(LinkTarget::Path(text(&reader).into_bytes()))
        })
    };
    root.add("self", of(|task| task.process.pid.to_string()));
    root.add(
        "thread-self",
        of(|task| format!("{}/task/{}", task.process.pid, task.tid())),
    );
}

#[cfg(test)]
mod tests {
    use super::{ROWS, parse};

    #[test]
    fn rows_are_in_order() {
        assert!(ROWS.is_sorted_by(|a, b| a.0.as_bytes() < b.0.as_bytes()));
    }

    #[test]
    fn numbers_are_names() {
        assert_eq!(parse(b"17"), Ok(17));
        for wrong in [&b"017"[..], b"+1", b"", b"x", b"99999999999"] {
            assert!(parse(wrong).is_err());
        }
    }
}
