//! Resource limits (getrlimit(2)).

use abi::Errno;

/// A resource, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are getrlimit(2)'s")]
pub enum Resource {
    Cpu,
    Fsize,
    Data,
    Stack,
    Core,
    Rss,
    Nproc,
    Nofile,
    Memlock,
    As,
    Locks,
    Sigpending,
    Msgqueue,
    Nice,
    Rtprio,
    Rttime,
}

impl Resource {
    /// All of them, in the order of their numbers, with the names that `/proc/PID/limits` uses and the units.
    pub const ALL: [(Resource, &'static str, &'static str); 16] = [
        (Resource::Cpu, "Max cpu time", "seconds"),
        (Resource::Fsize, "Max file size", "bytes"),
        (Resource::Data, "Max data size", "bytes"),
        (Resource::Stack, "Max stack size", "bytes"),
        (Resource::Core, "Max core file size", "bytes"),
        (Resource::Rss, "Max resident set", "bytes"),
        (Resource::Nproc, "Max processes", "processes"),
        (Resource::Nofile, "Max open files", "files"),
        (Resource::Memlock, "Max locked memory", "bytes"),
        (Resource::As, "Max address space", "bytes"),
        (Resource::Locks, "Max file locks", "locks"),
        (Resource::Sigpending, "Max pending signals", "signals"),
        (Resource::Msgqueue, "Max msgqueue size", "bytes"),
        (Resource::Nice, "Max nice priority", ""),
        (Resource::Rtprio, "Max realtime priority", ""),
        (Resource::Rttime, "Max realtime timeout", "us"),
    ];

    /// The resource with this number; EINVAL.
    pub fn from_raw(raw: u32) -> Result<Resource, Errno> {
        usize::try_from(raw)
            .ok()
            .and_then(|raw| Resource::ALL.get(raw))
            .map(|row| row.0)
            .ok_or(Errno::EINVAL)
    }
}

/// No limit.
pub const INFINITY: u64 = u64::MAX;

/// A process's limits: (soft, hard) each.
#[derive(Clone, Copy, Debug)]
pub struct Limits([(u64, u64); 16]);

impl Limits {
    /// What the first process gets.
    pub fn initial(tasks: u64) -> Limits {
        let mut limits = Limits([(INFINITY, INFINITY); 16]);
        limits.set(Resource::Stack, (8 << 20, INFINITY));
        limits.set(Resource::Core, (0, INFINITY));
        limits.set(Resource::Nproc, (tasks, tasks));
        limits.set(Resource::Nofile, (1024, 1 << 20));
        limits.set(Resource::Memlock, (8 << 20, 8 << 20));
        limits.set(Resource::Sigpending, (8192, 8192));
        limits.set(Resource::Msgqueue, (819_200, 819_200));
        limits.set(Resource::Nice, (0, 0));
        limits.set(Resource::Rtprio, (0, 0));
        limits
    }

    /// Soft and hard limit.
    pub fn get(&self, resource: Resource) -> (u64, u64) {
        self.0[resource as usize]
    }

    /// Sets both.
    pub fn set(&mut self, resource: Resource, limit: (u64, u64)) {
        self.0[resource as usize] = limit;
    }
}
