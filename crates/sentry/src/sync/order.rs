//! Every lock class, outermost first: a thread that holds one may take only those below it.

/// A lock class: where in the order a lock stands.
pub trait Class {
    /// Its place; a lower rank is taken first.
    const RANK: u8;
    /// Its name, for the message of a violation.
    const NAME: &'static str;
}

macro_rules! classes {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[allow(clippy::upper_case_acronyms, reason = "class names are those of the objects")]
        #[repr(u8)]
        enum Rank { $($name,)* }
        $(
            $(#[$doc])*
            pub struct $name;
            impl Class for $name {
                const RANK: u8 = Rank::$name as u8;
                const NAME: &'static str = stringify!($name);
            }
        )*
    };
}

classes! {
    /// A file's position: one read, write or getdents at a time moves it. Held for the whole of it, as Linux holds `f_pos_lock`: those who share the
    /// description wait for each other. Outermost, since what a file is asked for may be anything: a file of procfs looks at processes and memory.
    FilePos,
    /// The kernel's own registries (containers, boot state).
    KernelState,
    /// Which program an address space holds: changes at exec, held while another process moves bytes of it.
    ExecLock,
    /// The process tree: parents, children, groups, sessions, wait status.
    ProcessTree,
    /// Namespaces' tables (PIDs, host names).
    Namespace,
    /// The mount table.
    MountTable,
    /// A rename within a file system.
    RenameLock,
    /// One change at a time of which epoll instance watches which, so that no circle comes about.
    EpollNesting,
    /// Which interests an epoll instance has (one instance may hold another's, by depth).
    EpollInterests,
    /// A memory descriptor's list of areas; the one class that is held across a helper's answer.
    MmAreas,
    /// An inode's directory entries or contents, held while an entry or page changes.
    InodeOp,
    /// A directory entry's children.
    DentryChildren,
    /// The dentry cache's list of what was used last.
    DentryLru,
    /// A copied-up overlay inode's state.
    OverlayState,
    /// An inode's data: pages, link target, xattrs.
    InodeData,
    /// An inode's attributes.
    InodeAttrs,
    /// File locks of an inode.
    FileLocks,
    /// A table of file descriptors.
    FdTable,
    /// Working directory, root and umask.
    FsContext,
    /// A socket's or pipe's state.
    PipeState,
    /// UNIX sockets in flight: while descriptors of them are put into messages, taken out, or looked for.
    SocketsInFlight,
    /// A UNIX socket's peer and queue.
    SocketState,
    /// What a UNIX socket has received.
    SocketInbox,
    /// Futex buckets.
    FutexBucket,
    /// Signal handlers.
    SigHandlers,
    /// Pending signals of a process or thread.
    SigPending,
    /// A task's own state.
    TaskState,
    /// Credentials, limits and names.
    Credentials,
    /// The memory file's allocator.
    MemoryFile,
    /// Timers in order of their deadlines.
    Timers,
    /// What an epoll instance has ready.
    EpollReady,
    /// A wait queue's list.
    WaitList,
    /// A waiter's own flag.
    Waiter,
    /// Tasks that are ready to go on.
    RunQueue,
    /// Logs, counters, leaf state.
    Leaf,
}
