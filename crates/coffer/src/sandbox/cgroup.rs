//! The sandbox's control groups, of version 1 and 2.
//!
//! A sandbox has a group `coffer-<id>` in each hierarchy that carries one of its limits, with the children `sentry`
//! and `guest`: the limits stand on the group, and the kernel accounts the two apart. The launcher holds a lock
//! (flock(2)) on each group's directory for as long as it lives. A group whose lock is free therefore has no owner
//! any more, however that ended: [`Groups::create`] removes the empty ones among its siblings.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::mounts::{self, MountEntry};

/// What every group's name begins with.
const PREFIX: &str = "coffer-";
/// How many host tasks a guest task may need: itself, and at most a helper.
const HOST_TASKS_PER_GUEST_TASK: u64 = 2;
/// Host tasks for the sentry itself.
const RESERVED_TASKS: u64 = 64;
/// How long the dead may take to leave a group.
const PATIENCE: Duration = Duration::from_secs(2);

/// The limits that groups carry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes, of sentry and guest together.
    pub(super) memory: u64,
    /// Whether the user named the memory limit, so that going without is an error.
    pub(super) memory_is_explicit: bool,
    /// Guest tasks.
    pub(super) pids: u32,
}

/// The groups of one sandbox.
#[derive(Debug)]
pub(super) struct Groups {
    groups: Vec<Group>,
}

/// A sandbox's group in one hierarchy.
#[derive(Debug)]
struct Group {
    path: PathBuf,
    /// The directory, open and locked.
    _owned: File,
}

/// The place in one hierarchy where sandboxes have their groups.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    path: PathBuf,
    version: Version,
    controllers: BTreeSet<Controller>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Controller {
    Memory,
    Pids,
}

impl Controller {
    const ALL: [Controller; 2] = [Controller::Memory, Controller::Pids];

    fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
        }
    }
}

impl Groups {
    /// Makes a new sandbox's groups wherever they can be made, and removes what dead launchers left beside them.
    ///
    /// Hierarchies that are missing or not writable are done without, unless the user asked for a memory limit.
    pub(super) fn create(limits: &Limits) -> anyhow::Result<Groups> {
        let mut groups = Groups { groups: Vec::new() };
        let mut obstacle = None;
        let mut limited = BTreeSet::new();
        for place in places()? {
            sweep(&place.path);
            match Group::create(&place, limits) {
                Ok(group) => {
                    groups.groups.push(group);
                    limited.extend(place.controllers);
                }
                Err(error) => obstacle = Some(error),
            }
        }
        if limits.memory_is_explicit && !limited.contains(&Controller::Memory) {
            groups.remove();
            let why = obstacle.unwrap_or_else(|| anyhow::anyhow!("none is mounted"));
            bail!("--memory: no memory cgroup can be used: {why:#}");
        }
        Ok(groups)
    }

    /// Moves the sentry's process into its groups.
    pub(super) fn admit_sentry(&self, pid: i32) -> anyhow::Result<()> {
        for group in &self.groups {
            let path = group.path.join("sentry/cgroup.procs");
            write(&path, &pid.to_string())?;
        }
        Ok(())
    }

    /// `cgroup.procs` of each guest group, for writing.
    pub(super) fn guest_doors(&self) -> anyhow::Result<Vec<OwnedFd>> {
        self.groups
            .iter()
            .map(|group| {
                let path = group.path.join("guest/cgroup.procs");
                let file = OpenOptions::new().write(true).open(&path);
                file.map(OwnedFd::from)
                    .with_context(|| path.display().to_string())
            })
            .collect()
    }

    /// Removes the groups, once their last processes are gone. What cannot be removed is left to a later launcher.
    pub(super) fn remove(self) {
        let deadline = Instant::now() + PATIENCE;
        for group in &self.groups {
            while remove_tree(&group.path) == Removal::Busy && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Group {
    fn create(place: &Place, limits: &Limits) -> anyhow::Result<Group> {
        // Another launcher may sweep the group away between its making and its locking.
        for _ in 0..8 {
            let name = format!("{PREFIX}{:016x}", host::machine::random()?);
            let path = place.path.join(name);
            std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
            let Some(owned) = lock(&path)? else {
                continue;
            };
            let group = Group {
                path,
                _owned: owned,
            };
            return match group.fill(place, limits) {
                Ok(()) => Ok(group),
                Err(error) => {
                    remove_tree(&group.path);
                    Err(error)
                }
            };
        }
        bail!(
            "{}: other launchers keep removing new groups",
            place.path.display()
        )
    }

    fn fill(&self, place: &Place, limits: &Limits) -> anyhow::Result<()> {
        for &controller in &place.controllers {
            let (file, limit) = match (controller, place.version) {
                (Controller::Memory, Version::One) => ("memory.limit_in_bytes", limits.memory),
                (Controller::Memory, Version::Two) => ("memory.max", limits.memory),
                (Controller::Pids, _) => {
                    let tasks = u64::from(limits.pids) * HOST_TASKS_PER_GUEST_TASK;
                    ("pids.max", tasks + RESERVED_TASKS)
                }
            };
            write(&self.path.join(file), &limit.to_string())?;
        }
        for child in ["sentry", "guest"] {
            let path = self.path.join(child);
            std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

/// Locks the group's directory; `None` where the group is gone.
fn lock(path: &Path) -> anyhow::Result<Option<File>> {
    let name = || path.display().to_string();
    let directory = match File::open(path) {
        Ok(directory) => directory,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(name),
    };
    directory.lock().with_context(name)?;
    // The lock of a removed directory is worth nothing.
    Ok(path.exists().then_some(directory))
}

/// Removes the groups here whose launchers are dead.
fn sweep(place: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else {
        return;
    };
    for entry in entries.flatten() {
        let is_group = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX))
            .is_some_and(|id| id.len() == 16 && id.bytes().all(|b| b.is_ascii_hexdigit()));
        if !is_group {
            continue;
        }
        if let Ok(directory) = File::open(entry.path())
            && directory.try_lock().is_ok()
        {
            // Where processes are still dying in it, the next launcher comes by.
            remove_tree(&entry.path());
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    Gone,
    Busy,
    Refused,
}

/// Removes a group and its children, which have no groups of their own.
fn remove_tree(group: &Path) -> Removal {
    for path in [group.join("sentry"), group.join("guest"), group.to_owned()] {
        match std::fs::remove_dir(path) {
            Ok(()) => (),
            Err(error) if error.kind() == ErrorKind::NotFound => (),
            Err(error) if error.kind() == ErrorKind::ResourceBusy => return Removal::Busy,
            Err(_) => return Removal::Refused,
        }
    }
    Removal::Gone
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .open(path)
        .with_context(|| path.display().to_string())?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("writing {text:?} to {}", path.display()))
}

/// The hierarchies that carry a limit, each controller in one of them.
fn places() -> anyhow::Result<Vec<Place>> {
    let path = "/proc/self/cgroup";
    let own = std::fs::read_to_string(path).context(path)?;
    let available = |group: &Path| {
        let controllers = std::fs::read_to_string(group.join("cgroup.controllers"));
        controllers.unwrap_or_default()
    };
    let found = find_places(&mounts::entries()?, &own, &available);
    for place in found.iter().filter(|place| place.version == Version::Two) {
        for controller in &place.controllers {
            // Where this fails, the limit's file is missing later, and that is reported.
            let _ = write(
                &place.path.join("cgroup.subtree_control"),
                &format!("+{}", controller.name()),
            );
        }
    }
    Ok(found)
}

/// As [`places`], from the mounts, the text of /proc/self/cgroup, and what tells a version-2 group's controllers.
fn find_places(
    mounts: &[MountEntry],
    own: &str,
    available: &dyn Fn(&Path) -> String,
) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    let mut wanted: BTreeSet<Controller> = Controller::ALL.into();
    for version in [Version::One, Version::Two] {
        for mount in mounts {
            let is_v1 = mount.kind == "cgroup";
            let matches = match version {
                Version::One => is_v1,
                Version::Two => mount.kind == "cgroup2",
            };
            let Some(group) = matches.then(|| own_group(mount, own, is_v1)).flatten() else {
                continue;
            };
            let (path, names) = match version {
                Version::One => (group, mount.options.replace(',', " ")),
                Version::Two => {
                    // A version-2 group with processes, as ours is, cannot have limited children; its parent can.
                    let is_root = group == mount.point;
                    let parent = group.parent().map(Path::to_owned);
                    let path = if is_root {
                        group
                    } else {
                        parent.unwrap_or(group)
                    };
                    let names = available(&path);
                    (path, names)
                }
            };
            let controllers: BTreeSet<Controller> = wanted
                .iter()
                .copied()
                .filter(|controller| {
                    names
                        .split_whitespace()
                        .any(|name| name == controller.name())
                })
                .collect();
            if !controllers.is_empty() {
                wanted.retain(|controller| !controllers.contains(controller));
                places.push(Place {
                    path,
                    version,
                    controllers,
                });
            }
        }
    }
    places
}

/// This process's group in the mounted hierarchy, as a path; `None` where the mount does not show it.
fn own_group(mount: &MountEntry, own: &str, is_v1: bool) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let same = if is_v1 {
            !controllers.is_empty()
                && controllers
                    .split(',')
                    .all(|name| mount.options.split(',').any(|option| option == name))
        } else {
            controllers.is_empty()
        };
        same.then_some(path)
    })?;
    let below = Path::new(path).strip_prefix(&mount.root).ok()?;
    Some(mount.point.join(below)).map(|path| path.components().collect())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Controller, Place, Version, find_places};
    use crate::sandbox::mounts::MountEntry;

    fn mount(kind: &str, root: &str, point: &str, options: &str) -> MountEntry {
        MountEntry {
            id: 1,
            root: PathBuf::from(root),
            point: PathBuf::from(point),
            kind: kind.to_owned(),
            options: options.to_owned(),
        }
    }

    #[test]
    fn version_1_groups_stand_below_our_own() {
        let mounts = [
            mount("cgroup", "/", "/c/cpu,cpuacct", "rw,cpu,cpuacct"),
            mount("cgroup", "/", "/c/memory", "rw,memory"),
            mount("cgroup", "/outer", "/c/pids", "rw,pids"),
            mount("cgroup2", "/", "/c/unified", "rw"),
        ];
        let own = "4:memory:/mine\n3:pids:/outer/mine\n2:cpu,cpuacct:/\n0::/\n";
        let places = find_places(&mounts, own, &|_| "memory pids".to_owned());
        let place = |path: &str, controller| Place {
            path: PathBuf::from(path),
            version: Version::One,
            controllers: [controller].into(),
        };
        let expected = vec![
            place("/c/memory/mine", Controller::Memory),
            place("/c/pids/mine", Controller::Pids),
        ];
        assert_eq!(places, expected);
    }

    #[test]
    fn version_2_groups_stand_beside_our_own() {
        let mounts = [mount("cgroup2", "/", "/c", "rw")];
        let available = |path: &std::path::Path| {
            assert!(path == std::path::Path::new("/c/slice") || path == std::path::Path::new("/c"));
            "cpu memory".to_owned()
        };
        let places = find_places(&mounts, "0::/slice/scope\n", &available);
        assert_eq!(places[0].path, PathBuf::from("/c/slice"));
        assert_eq!(places[0].controllers, [Controller::Memory].into());
        let places = find_places(&mounts, "0::/\n", &available);
        assert_eq!(places[0].path, PathBuf::from("/c"));
    }
}
