//! Who a task acts as: user and group ids, supplementary groups, capabilities (credentials(7), capabilities(7)).
//!
//! [`Credentials`] is a value: a task replaces its own as a whole, so that files and messages can keep what they were made with. No locks here.

use std::sync::Arc;

use abi::Errno;
use abi::cap::{Cap, CapSet};

/// The four ids of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// Real.
    pub real: u32,
    /// Effective.
    pub effective: u32,
    /// Saved.
    pub saved: u32,
    /// For access to files.
    pub fs: u32,
}

impl Ids {
    /// All four the same.
    pub const fn all(id: u32) -> Ids {
        Ids {
            real: id,
            effective: id,
            saved: id,
            fs: id,
        }
    }

    /// Whether `id` is the real, effective or saved one.
    pub const fn has(&self, id: u32) -> bool {
        self.real == id || self.effective == id || self.saved == id
    }
}

/// `SECBIT_*` that change what ids do to capabilities (capabilities(7)).
pub mod securebits {
    /// Root gets no capabilities at execve(2).
    pub const NOROOT: u32 = 1 << 0;
    /// Changes of ids leave capabilities alone.
    pub const NO_SETUID_FIXUP: u32 = 1 << 2;
    /// Capabilities survive leaving root.
    pub const KEEP_CAPS: u32 = 1 << 4;
    /// Ambient capabilities can't be raised.
    pub const NO_CAP_AMBIENT_RAISE: u32 = 1 << 6;
}

/// What stands for "leave this id as it is" in the calls that set several.
pub const NO_ID: u32 = u32::MAX;
/// How many supplementary groups a task may have (`NGROUPS_MAX`).
pub const GROUPS_MAX: usize = 65536;

/// Who a task acts as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User ids.
    pub uid: Ids,
    /// Group ids.
    pub gid: Ids,
    /// Supplementary groups, sorted.
    pub groups: Arc<[u32]>,
    /// What may become effective.
    pub permitted: CapSet,
    /// What counts.
    pub effective: CapSet,
    /// What execve(2) may hand on.
    pub inheritable: CapSet,
    /// What can ever be gained.
    pub bounding: CapSet,
    /// What execve(2) hands on without a privileged file.
    pub ambient: CapSet,
    /// `SECBIT_*`.
    pub securebits: u32,
}

impl Credentials {
    /// Root with these capabilities.
    pub fn root(caps: CapSet) -> Credentials {
        Credentials {
            uid: Ids::all(0),
            gid: Ids::all(0),
            groups: Arc::from([]),
            permitted: caps,
            effective: caps,
            inheritable: CapSet::EMPTY,
            bounding: caps,
            ambient: CapSet::EMPTY,
            securebits: 0,
        }
    }

    /// A user with no capability.
    pub fn user(uid: u32, gid: u32) -> Credentials {
        Credentials {
            uid: Ids::all(uid),
            gid: Ids::all(gid),
            permitted: CapSet::EMPTY,
            effective: CapSet::EMPTY,
            ..Credentials::root(CapSet::FULL)
        }
    }

    /// Whether this capability is effective.
    pub const fn has(&self, cap: Cap) -> bool {
        self.effective.contains(cap)
    }

    /// Whether files' group permissions apply: the file system gid or a supplementary one.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid.fs == gid || self.groups.binary_search(&gid).is_ok()
    }

    /// As access(2) looks at files: by the real ids, and with root's or no capabilities according to the real uid.
    pub fn for_access(&self) -> Credentials {
        let mut creds = self.clone();
        creds.uid.fs = self.uid.real;
        creds.gid.fs = self.gid.real;
        if self.securebits & securebits::NO_SETUID_FIXUP == 0 {
            creds.effective = if self.uid.real == 0 {
                self.permitted
            } else {
                CapSet::EMPTY
            };
        }
        creds
    }

    /// setuid(2).
    pub fn setuid(&self, uid: u32) -> Result<Credentials, Errno> {
        if uid == NO_ID {
            return Err(Errno::EINVAL);
        }
        let mut new = self.clone();
        if self.has(Cap::SETUID) {
            new.uid = Ids::all(uid);
        } else if uid == self.uid.real || uid == self.uid.saved {
            new.uid.effective = uid;
            new.uid.fs = uid;
        } else {
            return Err(Errno::EPERM);
        }
        new.fix_capabilities(self);
        Ok(new)
    }

    /// setreuid(2); [`NO_ID`] leaves one as it is.
    pub fn setreuid(&self, real: u32, effective: u32) -> Result<Credentials, Errno> {
        let mut new = self.clone();
        new.uid = setre(&self.uid, real, effective, self.has(Cap::SETUID))?;
        new.fix_capabilities(self);
        Ok(new)
    }

    /// setresuid(2); [`NO_ID`] leaves one as it is.
    pub fn setresuid(&self, real: u32, effective: u32, saved: u32) -> Result<Credentials, Errno> {
        let mut new = self.clone();
        new.uid = setres(&self.uid, [real, effective, saved], self.has(Cap::SETUID))?;
        new.fix_capabilities(self);
        Ok(new)
    }

    /// setfsuid(2): never fails, the old id is the call's result either way.
    pub fn setfsuid(&self, uid: u32) -> Credentials {
        let mut new = self.clone();
        if uid == NO_ID || !(self.has(Cap::SETUID) || self.uid.has(uid) || self.uid.fs == uid) {
            return new;
        }
        new.uid.fs = uid;
        if self.securebits & securebits::NO_SETUID_FIXUP == 0 {
            if self.uid.fs == 0 && uid != 0 {
                new.effective = new.effective.difference(CapSet::FILES);
            } else if self.uid.fs != 0 && uid == 0 {
                new.effective = new
                    .effective
                    .union(new.permitted.intersection(CapSet::FILES));
            }
        }
        new
    }

    /// setgid(2).
    pub fn setgid(&self, gid: u32) -> Result<Credentials, Errno> {
        if gid == NO_ID {
            return Err(Errno::EINVAL);
        }
        let mut new = self.clone();
        if self.has(Cap::SETGID) {
            new.gid = Ids::all(gid);
        } else if gid == self.gid.real || gid == self.gid.saved {
            new.gid.effective = gid;
            new.gid.fs = gid;
        } else {
            return Err(Errno::EPERM);
        }
        Ok(new)
    }

    /// setregid(2); [`NO_ID`] leaves one as it is.
    pub fn setregid(&self, real: u32, effective: u32) -> Result<Credentials, Errno> {
        let mut new = self.clone();
        new.gid = setre(&self.gid, real, effective, self.has(Cap::SETGID))?;
        Ok(new)
    }

    /// setresgid(2); [`NO_ID`] leaves one as it is.
    pub fn setresgid(&self, real: u32, effective: u32, saved: u32) -> Result<Credentials, Errno> {
        let mut new = self.clone();
        new.gid = setres(&self.gid, [real, effective, saved], self.has(Cap::SETGID))?;
        Ok(new)
    }

    /// setfsgid(2): never fails.
    pub fn setfsgid(&self, gid: u32) -> Credentials {
        let mut new = self.clone();
        if gid != NO_ID && (self.has(Cap::SETGID) || self.gid.has(gid) || self.gid.fs == gid) {
            new.gid.fs = gid;
        }
        new
    }

    /// setgroups(2).
    pub fn setgroups(&self, mut groups: Vec<u32>) -> Result<Credentials, Errno> {
        if !self.has(Cap::SETGID) {
            return Err(Errno::EPERM);
        }
        if groups.len() > GROUPS_MAX || groups.contains(&NO_ID) {
            return Err(Errno::EINVAL);
        }
        groups.sort_unstable();
        let mut new = self.clone();
        new.groups = groups.into();
        Ok(new)
    }

    /// capset(2).
    pub fn capset(
        &self,
        permitted: CapSet,
        effective: CapSet,
        inheritable: CapSet,
    ) -> Result<Credentials, Errno> {
        let within = self.inheritable.union(self.permitted);
        if !self.has(Cap::SETPCAP) && !inheritable.is_subset(within) {
            return Err(Errno::EPERM);
        }
        if !inheritable.is_subset(self.inheritable.union(self.bounding))
            || !permitted.is_subset(self.permitted)
            || !effective.is_subset(permitted)
        {
            return Err(Errno::EPERM);
        }
        let mut new = self.clone();
        new.permitted = permitted;
        new.effective = effective;
        new.inheritable = inheritable;
        new.ambient = new
            .ambient
            .intersection(permitted)
            .intersection(inheritable);
        Ok(new)
    }

    /// What execve(2) of a file makes of these: set-user-ID and set-group-ID (where `honour` says that the mount and
    /// no_new_privs allow it; `file` is the mode, owner and group), and the rules of capabilities(7) for root. File capabilities are not there.
    /// Also says whether the program runs with more than its caller's ids (`AT_SECURE`).
    pub fn exec(&self, file: (u32, u32, u32), honour: bool) -> (Credentials, bool) {
        let (mode, owner, group) = file;
        let mut new = self.clone();
        if honour {
            if mode & abi::fs::S_ISUID != 0 {
                new.uid.effective = owner;
            }
            // Without the group's execute bit, set-group-ID once meant mandatory locking.
            if mode & (abi::fs::S_ISGID | 0o010) == abi::fs::S_ISGID | 0o010 {
                new.gid.effective = group;
            }
        }
        let changed =
            new.uid.effective != self.uid.effective || new.gid.effective != self.gid.effective;
        if changed {
            new.ambient = CapSet::EMPTY;
        }
        let rooted = self.securebits & securebits::NOROOT == 0
            && (new.uid.real == 0 || new.uid.effective == 0);
        if rooted {
            new.permitted = self.inheritable.union(self.bounding);
            new.effective = if new.uid.effective == 0 {
                new.permitted
            } else {
                new.ambient
            };
        } else {
            new.permitted = new.ambient;
            new.effective = new.ambient;
        }
        new.uid.saved = new.uid.effective;
        new.uid.fs = new.uid.effective;
        new.gid.saved = new.gid.effective;
        new.gid.fs = new.gid.effective;
        new.securebits &= !securebits::KEEP_CAPS;
        let secure = new.uid.effective != new.uid.real || new.gid.effective != new.gid.real;
        (new, secure)
    }

    /// The effect of a change of user ids on capabilities (capabilities(7)).
    fn fix_capabilities(&mut self, old: &Credentials) {
        if self.securebits & securebits::NO_SETUID_FIXUP != 0 {
            return;
        }
        let was_root = old.uid.has(0);
        if was_root && !self.uid.has(0) {
            if self.securebits & securebits::KEEP_CAPS == 0 {
                self.permitted = CapSet::EMPTY;
                self.effective = CapSet::EMPTY;
            }
            self.ambient = CapSet::EMPTY;
        }
        if old.uid.effective == 0 && self.uid.effective != 0 {
            self.effective = CapSet::EMPTY;
        } else if old.uid.effective != 0 && self.uid.effective == 0 {
            self.effective = self.permitted;
        }
    }
}

/// The rule of setreuid(2) and setregid(2).
fn setre(old: &Ids, real: u32, effective: u32, privileged: bool) -> Result<Ids, Errno> {
    let mut new = *old;
    if real != NO_ID {
        if !privileged && real != old.real && real != old.effective {
            return Err(Errno::EPERM);
        }
        new.real = real;
    }
    if effective != NO_ID {
        if !privileged && !old.has(effective) {
            return Err(Errno::EPERM);
        }
        new.effective = effective;
    }
    if real != NO_ID || (effective != NO_ID && effective != old.real) {
        new.saved = new.effective;
    }
    new.fs = new.effective;
    Ok(new)
}

/// The rule of setresuid(2) and setresgid(2).
fn setres(old: &Ids, ids: [u32; 3], privileged: bool) -> Result<Ids, Errno> {
    if !privileged && ids.iter().any(|id| *id != NO_ID && !old.has(*id)) {
        return Err(Errno::EPERM);
    }
    let pick = |new: u32, old: u32| if new == NO_ID { old } else { new };
    let effective = pick(ids[1], old.effective);
    Ok(Ids {
        real: pick(ids[0], old.real),
        effective,
        saved: pick(ids[2], old.saved),
        fs: effective,
    })
}

#[cfg(test)]
mod tests {
    use super::{Cap, CapSet, Credentials, Errno, NO_ID};

    #[test]
    fn leaving_root_drops_capabilities() {
        let root = Credentials::root(CapSet::FULL);
        let user = root.setuid(1000).expect("root may");
        assert!(user.permitted.is_empty() && user.effective.is_empty());
        assert_eq!(user.setuid(0), Err(Errno::EPERM));
        let half = root.setresuid(NO_ID, 1000, NO_ID).expect("root may");
        assert!(!half.has(Cap::CHOWN) && half.permitted.contains(Cap::CHOWN));
        let back = half.setresuid(NO_ID, 0, NO_ID).expect("the saved id");
        assert!(back.has(Cap::CHOWN));
    }

    #[test]
    fn exec_gives_root_everything_bounded() {
        let user = Credentials::user(1000, 1000);
        let (plain, secure) = user.exec((0o100755, 0, 0), true);
        assert!(plain.effective.is_empty() && !secure);
        let (setuid, secure) = user.exec((0o104755, 0, 0), true);
        assert!(setuid.has(Cap::SYS_ADMIN) && secure && setuid.uid.real == 1000);
        let (refused, _) = user.exec((0o104755, 0, 0), false);
        assert!(refused.effective.is_empty());
    }
}
