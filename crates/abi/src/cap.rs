//! Capabilities (capabilities(7)).

/// A capability: its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap(pub u8);

macro_rules! capabilities {
    ($($name:ident = $value:literal;)*) => {
        impl Cap {
            $(#[doc = concat!("`CAP_", stringify!($name), "`")] pub const $name: Cap = Cap($value);)*
        }
    };
}

capabilities! {
    CHOWN = 0; DAC_OVERRIDE = 1; DAC_READ_SEARCH = 2; FOWNER = 3; FSETID = 4; KILL = 5; SETGID = 6; SETUID = 7;
    SETPCAP = 8; LINUX_IMMUTABLE = 9; NET_BIND_SERVICE = 10; NET_BROADCAST = 11; NET_ADMIN = 12; NET_RAW = 13;
    IPC_LOCK = 14; IPC_OWNER = 15; SYS_MODULE = 16; SYS_RAWIO = 17; SYS_CHROOT = 18; SYS_PTRACE = 19;
    SYS_PACCT = 20; SYS_ADMIN = 21; SYS_BOOT = 22; SYS_NICE = 23; SYS_RESOURCE = 24; SYS_TIME = 25;
    SYS_TTY_CONFIG = 26; MKNOD = 27; LEASE = 28; AUDIT_WRITE = 29; AUDIT_CONTROL = 30; SETFCAP = 31;
    MAC_OVERRIDE = 32; MAC_ADMIN = 33; SYSLOG = 34; WAKE_ALARM = 35; BLOCK_SUSPEND = 36; AUDIT_READ = 37;
    PERFMON = 38; BPF = 39; CHECKPOINT_RESTORE = 40;
}

impl Cap {
    /// The highest number there is.
    pub const LAST: u8 = 40;
}

/// A set of capabilities, capability N at bit N.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapSet(pub u64);

impl CapSet {
    /// None.
    pub const EMPTY: CapSet = CapSet(0);
    /// All there are.
    pub const FULL: CapSet = CapSet((1 << (Cap::LAST + 1)) - 1);
    /// Those that act on files, which setfsuid(2) drops and raises.
    pub const FILES: CapSet = CapSet(
        1 << Cap::CHOWN.0
            | 1 << Cap::DAC_OVERRIDE.0
            | 1 << Cap::DAC_READ_SEARCH.0
            | 1 << Cap::FOWNER.0
            | 1 << Cap::FSETID.0
            | 1 << Cap::LINUX_IMMUTABLE.0
            | 1 << Cap::MKNOD.0
            | 1 << Cap::MAC_OVERRIDE.0,
    );

    /// Whether it has this one.
    pub const fn contains(self, cap: Cap) -> bool {
        cap.0 < 64 && self.0 >> cap.0 & 1 != 0
    }

    /// What is in both.
    pub const fn intersection(self, other: CapSet) -> CapSet {
        CapSet(self.0 & other.0)
    }

    /// What is in either.
    pub const fn union(self, other: CapSet) -> CapSet {
        CapSet(self.0 | other.0)
    }

    /// What is in this one and not in the other.
    pub const fn difference(self, other: CapSet) -> CapSet {
        CapSet(self.0 & !other.0)
    }

    /// Whether all of it is in the other.
    pub const fn is_subset(self, other: CapSet) -> bool {
        self.0 & !other.0 == 0
    }

    /// Whether nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}
