//! Synthetic file systems: directories, files and links whose contents are made up as they are looked at. procfs and sysfs are built of these.
//!
//! [`PseudoDir`] has entries that are fixed ([`PseudoDir::add`]) or made up by a [`Dynamic`]; [`PseudoFile`] has bytes that a function
//! makes at each read from the start; [`PseudoLink`] leads where a function says. Lock class: `InodeData`.

use std::collections::BTreeMap;
use std::sync::Arc;

use abi::Errno;
use abi::fs::{FileType, OpenFlags, Statfs};
use abi::time::Timespec;

use crate::io::{Sink, Source};
use crate::sync::order::{InodeAttrs, InodeData};
use crate::sync::{Mutex, RwLock};
use crate::task::credentials::Credentials;
use crate::vfs::{
    Attrs, Caching, DirEntry, FileOps, FileSystem, Inode, InodeKey, LinkTarget, OpenFile, Owner,
    SetAttrs, new_dev, new_id,
};

/// A synthetic file system.
pub struct PseudoFs {
    kind: &'static str,
    magic: i64,
    dev: u64,
    root: Arc<dyn Inode>,
}

impl PseudoFs {
    /// One of this type, with this statfs(2) magic, whose root is what `root` makes for its device number.
    pub fn new(
        kind: &'static str,
        magic: i64,
        root: impl FnOnce(u64) -> Arc<dyn Inode>,
    ) -> Arc<PseudoFs> {
        let dev = new_dev();
        Arc::new(PseudoFs {
            kind,
            magic,
            dev,
            root: root(dev),
        })
    }

    /// One with nothing in it.
    pub fn empty(kind: &'static str) -> Arc<PseudoFs> {
        PseudoFs::new(kind, 0, |dev| PseudoDir::new(dev, 0o555))
    }
}

impl FileSystem for PseudoFs {
    fn kind(&self) -> &'static str {
        self.kind
    }
    fn dev(&self) -> u64 {
        self.dev
    }
    fn root(&self) -> Arc<dyn Inode> {
        Arc::clone(&self.root)
    }
    fn statfs(&self) -> Result<Statfs, Errno> {
        Ok(Statfs {
            kind: self.magic,
            bsize: 4096,
            frsize: 4096,
            namelen: 255,
            ..Statfs::default()
        })
    }
}

/// Number, type and permissions, owner and time of a synthetic file.
pub struct PseudoAttrs {
    key: InodeKey,
    made: Timespec,
    owner: Mutex<Owner, InodeAttrs>,
}

impl PseudoAttrs {
    /// A new number on this device, root's.
    pub fn new(dev: u64, mode: u32) -> PseudoAttrs {
        PseudoAttrs::with_ino(dev, new_id(), mode)
    }

    /// With a number that the caller chose.
    pub fn with_ino(dev: u64, ino: u64, mode: u32) -> PseudoAttrs {
        PseudoAttrs {
            key: InodeKey { dev, ino },
            made: host::fs::file_time(),
            owner: Mutex::new(Owner {
                mode,
                uid: 0,
                gid: 0,
            }),
        }
    }

    /// With these owners.
    pub fn owned_by(self, uid: u32, gid: u32) -> PseudoAttrs {
        let mode = self.owner.lock().mode;
        PseudoAttrs {
            owner: Mutex::new(Owner { mode, uid, gid }),
            ..self
        }
    }

    /// The key.
    pub fn key(&self) -> InodeKey {
        self.key
    }

    /// Mode and owners.
    pub fn owner(&self) -> Owner {
        *self.owner.lock()
    }

    /// All of it.
    pub fn attrs(&self, nlink: u32, size: u64) -> Attrs {
        let owner = self.owner();
        Attrs {
            dev: self.key.dev,
            ino: self.key.ino,
            mode: owner.mode,
            nlink,
            uid: owner.uid,
            gid: owner.gid,
            size,
            blksize: 4096,
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            ..Attrs::default()
        }
    }

    /// Changes permissions and owners.
    pub fn set(&self, change: &SetAttrs) -> Result<(), Errno> {
        let mut owner = self.owner.lock();
        if let Some(perm) = change.perm {
            owner.mode = owner.mode & abi::fs::S_IFMT | perm;
        }
        owner.uid = change.uid.unwrap_or(owner.uid);
        owner.gid = change.gid.unwrap_or(owner.gid);
        Ok(())
    }
}

/// Entries that are made up as they are asked for.
pub trait Dynamic: Send + Sync {
    /// The entry of this name; ENOENT.
    fn lookup(&self, dir: &PseudoDir, name: &[u8]) -> Result<Arc<dyn Inode>, Errno>;

    /// The first entry whose number (its place in the listing, such as a PID) is at least `from`: the number, its name, type and inode number.
    fn next(&self, dir: &PseudoDir, from: u64) -> Option<(u64, Vec<u8>, FileType, u64)>;
}

/// A fixed entry: its cursor, and its inode.
type Fixed = (u64, Arc<dyn Inode>);

/// A directory.
pub struct PseudoDir {
    attrs: PseudoAttrs,
    fixed: RwLock<BTreeMap<Vec<u8>, Fixed>, InodeData>,
    dynamic: Option<Arc<dyn Dynamic>>,
}

/// Cursors from here on are those of made-up entries; below, those of fixed ones.
const DYNAMIC_BASE: u64 = 1 << 32;

impl PseudoDir {
    /// An empty directory with these permissions.
    pub fn new(dev: u64, perm: u32) -> Arc<PseudoDir> {
        PseudoDir::with(
            PseudoAttrs::new(dev, FileType::Directory.mode() | perm),
            None,
        )
    }

    /// A directory with these attributes, and entries made up by `dynamic`.
    pub fn with(attrs: PseudoAttrs, dynamic: Option<Arc<dyn Dynamic>>) -> Arc<PseudoDir> {
        Arc::new(PseudoDir {
            attrs,
            fixed: RwLock::new(BTreeMap::new()),
            dynamic,
        })
    }

    /// The device.
    pub fn dev(&self) -> u64 {
        self.attrs.key.dev
    }

    /// Adds an entry, in place of one of the same name. To be done before names are looked up.
    pub fn add(&self, name: &str, inode: Arc<dyn Inode>) {
        let mut fixed = self.fixed.write();
        let at = fixed.len() as u64 + 2;
        let old = fixed.insert(name.as_bytes().to_vec(), (at, inode));
        drop(fixed);
        drop(old);
    }

    /// Adds a directory.
    pub fn add_dir(&self, name: &str) -> Arc<PseudoDir> {
        let dir = PseudoDir::new(self.dev(), 0o555);
        self.add(name, Arc::clone(&dir) as _);
        dir
    }

    /// Adds a read-only file of made-up bytes.
    pub fn add_file(
        &self,
        name: &str,
        make: impl Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static,
    ) {
        self.add(name, PseudoFile::new(self.dev(), 0o444, make));
    }

    /// Adds a link of a fixed text.
    pub fn add_link(&self, name: &str, target: &str) {
        let target = target.as_bytes().to_vec();
        self.add(
            name,
            PseudoLink::new(self.dev(), move || Ok(LinkTarget::Path(target.clone()))),
        );
    }
}

impl Inode for PseudoDir {
    fn key(&self) -> InodeKey {
        self.attrs.key
    }
    fn file_type(&self) -> FileType {
        FileType::Directory
    }
    fn attrs(&self) -> Result<Attrs, Errno> {
        let fixed = self.fixed.read();
        let dirs = fixed
            .values()
            .filter(|(_, inode)| inode.file_type() == FileType::Directory)
            .count();
        drop(fixed);
        Ok(self.attrs.attrs(2 + u32::try_from(dirs).unwrap_or(0), 0))
    }
    fn owner(&self) -> Result<Owner, Errno> {
        Ok(self.attrs.owner())
    }
    fn set_attrs(&self, change: &SetAttrs) -> Result<(), Errno> {
        self.attrs.set(change)
    }
    fn caching(&self) -> Caching {
        if self.dynamic.is_some() {
            Caching::Never
        } else {
            Caching::Assume
        }
    }
    fn keeps(&self, name: &[u8]) -> bool {
        self.fixed.read().contains_key(name)
    }
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        if let Some((_, inode)) = self.fixed.read().get(name) {
            return Ok(Arc::clone(inode));
        }
        self.dynamic
            .as_ref()
            .ok_or(Errno::ENOENT)?
            .lookup(self, name)
    }
    fn create(
        &self,
        _name: &[u8],
        _new: &crate::vfs::NewNode<'_>,
    ) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EACCES)
    }
    fn open(
        self: Arc<Self>,
        _flags: OpenFlags,
        _creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno> {
        Ok(Arc::new(DirOps(self)))
    }
}

struct DirOps(Arc<PseudoDir>);

impl FileOps for DirOps {
    fn seekable(&self) -> bool {
        true
    }

    fn readdir(
        &self,
        file: &OpenFile,
        at: &mut u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let own = self.0.attrs.key.ino;
        let above = file
            .location()
            .and_then(|place| place.dentry.parent())
            .map_or(own, |parent| parent.inode().key().ino);
        if !emit_dots(at, own, above, emit) {
            return Ok(());
        }
        let mut fixed: Vec<_> = (self.0.fixed.read().iter())
            .filter(|(_, (number, _))| *number >= *at)
            .map(|(name, (number, inode))| {
                (*number, name.clone(), inode.file_type(), inode.key().ino)
            })
            .collect();
        fixed.sort_unstable_by_key(|entry| entry.0);
        for (number, name, kind, ino) in fixed {
            let next = number + 1;
            let entry = DirEntry {
                ino,
                next,
                kind: Some(kind),
                name: &name,
            };
            if !emit(&entry) {
                return Ok(());
            }
            *at = next;
        }
        let Some(dynamic) = &self.0.dynamic else {
            return Ok(());
        };
        *at = (*at).max(DYNAMIC_BASE);
        while let Some((number, name, kind, ino)) = dynamic.next(&self.0, *at - DYNAMIC_BASE) {
            let next = DYNAMIC_BASE.saturating_add(number).saturating_add(1);
            let entry = DirEntry {
                ino,
                next,
                kind: Some(kind),
                name: &name,
            };
            if !emit(&entry) {
                return Ok(());
            }
            *at = next;
        }
        Ok(())
    }

    fn sync(&self, _file: &OpenFile, _data: bool) -> Result<(), Errno> {
        Ok(())
    }
}

/// Tells of `.` at cursor 0 and `..` at 1; false where one did not fit.
pub fn emit_dots(
    at: &mut u64,
    own: u64,
    above: u64,
    emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
) -> bool {
    for (cursor, name, ino) in [(0, &b"."[..], own), (1, b"..", above)] {
        if *at > cursor {
            continue;
        }
        let entry = DirEntry {
            ino,
            next: cursor + 1,
            kind: Some(FileType::Directory),
            name,
        };
        if !emit(&entry) {
            return false;
        }
        *at = cursor + 1;
    }
    true
}

/// What makes a file's bytes.
pub type Make = dyn Fn() -> Result<Vec<u8>, Errno> + Send + Sync;
/// What takes bytes that are written to a file: all of one write(2), at offset 0.
pub type Take = dyn Fn(&[u8]) -> Result<(), Errno> + Send + Sync;

/// A regular file whose bytes are made up: when it is first read, and again whenever it is read from the start.
pub struct PseudoFile {
    attrs: PseudoAttrs,
    make: Box<Make>,
    take: Option<Box<Take>>,
}

impl PseudoFile {
    /// One with these permissions, that can't be written.
    pub fn new(
        dev: u64,
        perm: u32,
        make: impl Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static,
    ) -> Arc<PseudoFile> {
        PseudoFile::with(
            PseudoAttrs::new(dev, FileType::Regular.mode() | perm),
            make,
            None,
        )
    }

    /// One with these attributes, that can be written where `take` is given.
    pub fn with(
        attrs: PseudoAttrs,
        make: impl Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static,
        take: Option<Box<Take>>,
    ) -> Arc<PseudoFile> {
        Arc::new(PseudoFile {
            attrs,
            make: Box::new(make),
            take,
        })
    }
}

impl Inode for PseudoFile {
    fn key(&self) -> InodeKey {
        self.attrs.key
    }
    fn file_type(&self) -> FileType {
        FileType::Regular
    }
    fn attrs(&self) -> Result<Attrs, Errno> {
        Ok(self.attrs.attrs(1, 0))
    }
    fn owner(&self) -> Result<Owner, Errno> {
        Ok(self.attrs.owner())
    }
    fn set_attrs(&self, change: &SetAttrs) -> Result<(), Errno> {
        // Truncating (`>` of a shell) leaves a file of procfs as it is.
        self.attrs.set(change)
    }
    fn open(
        self: Arc<Self>,
        flags: OpenFlags,
        _creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno> {
        if !(flags & OpenFlags::ACCMODE).is_empty() && self.take.is_none() {
            return Err(Errno::EACCES);
        }
        Ok(Arc::new(PseudoFileOps {
            file: self,
            bytes: Mutex::new(None),
        }))
    }
}

struct PseudoFileOps {
    file: Arc<PseudoFile>,
    bytes: Mutex<Option<Arc<[u8]>>, InodeData>,
}

impl FileOps for PseudoFileOps {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _file: &OpenFile, to: &mut Sink<'_>, at: u64) -> Result<usize, Errno> {
        let known = self.bytes.lock().clone();
        let bytes = match known {
            Some(bytes) if at > 0 => bytes,
            _ => {
                let made: Arc<[u8]> = (self.file.make)()?.into();
                let old = self.bytes.lock().replace(Arc::clone(&made));
                drop(old);
                made
            }
        };
        let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
        to.write(&bytes[from..])
    }

    fn write(
        &self,
        _file: &OpenFile,
        from: &mut Source<'_>,
        at: &mut u64,
        _append: bool,
    ) -> Result<usize, Errno> {
        let take = self.file.take.as_ref().ok_or(Errno::EACCES)?;
        let mut bytes = vec![0; from.remaining().min(4096)];
        let got = from.read(&mut bytes)?;
        take(&bytes[..got])?;
        *at = at.saturating_add(got as u64);
        Ok(got)
    }

    fn sync(&self, _file: &OpenFile, _data: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn truncate(&self, _file: &OpenFile, _size: u64) -> Result<(), Errno> {
        Ok(())
    }
}

/// What says where a link leads.
pub type Follow = dyn Fn() -> Result<LinkTarget, Errno> + Send + Sync;

/// A symbolic link that leads where a function says.
pub struct PseudoLink {
    attrs: PseudoAttrs,
    follow: Box<Follow>,
    text: Option<Box<Make>>,
}

impl PseudoLink {
    /// A link; what it leads to is a path, which is its text too.
    pub fn new(
        dev: u64,
        follow: impl Fn() -> Result<LinkTarget, Errno> + Send + Sync + 'static,
    ) -> Arc<PseudoLink> {
        PseudoLink::with(
            PseudoAttrs::new(dev, FileType::Symlink.mode() | 0o777),
            follow,
            None,
        )
    }

    /// A link with these attributes, and a text for readlink(2) where it leads to a place.
    pub fn with(
        attrs: PseudoAttrs,
        follow: impl Fn() -> Result<LinkTarget, Errno> + Send + Sync + 'static,
        text: Option<Box<Make>>,
    ) -> Arc<PseudoLink> {
        Arc::new(PseudoLink {
            attrs,
            follow: Box::new(follow),
            text,
        })
    }
}

impl Inode for PseudoLink {
    fn key(&self) -> InodeKey {
        self.attrs.key
    }
    fn file_type(&self) -> FileType {
        FileType::Symlink
    }
    fn attrs(&self) -> Result<Attrs, Errno> {
        Ok(self.attrs.attrs(1, 0))
    }
    fn owner(&self) -> Result<Owner, Errno> {
        Ok(self.attrs.owner())
    }
    fn readlink(&self) -> Result<Vec<u8>, Errno> {
        if let Some(text) = &self.text {
            return text();
        }
        match (self.follow)()? {
            LinkTarget::Path(path) => Ok(path),
            LinkTarget::Inode(_, name) => Ok(name.into_bytes()),
            LinkTarget::Place(_) => Err(Errno::EINVAL),
        }
    }
    fn follow(&self) -> Result<LinkTarget, Errno> {
        (self.follow)()
    }
    fn open(
        self: Arc<Self>,
        _flags: OpenFlags,
        _creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno> {
        Err(Errno::ELOOP)
    }
}

#[cfg(test)]
mod tests {
    use super::{Dynamic, FileType, Inode, PseudoAttrs, PseudoDir, PseudoFs, PseudoLink};
    use crate::sync::Mutex;
    use crate::sync::order::ProcessTree;
    use crate::vfs::tests::World;
    use crate::vfs::{LinkTarget, Mount};
    use abi::Errno;
    use abi::fs::{MountFlags, OpenFlags};
    use std::sync::Arc;

    /// Numbers from 1 to 300, each a directory; asked for under a lock that comes before all of the VFS's.
    struct Numbers(Mutex<u64, ProcessTree>);

    impl Dynamic for Numbers {
        fn lookup(&self, dir: &PseudoDir, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
            let most = *self.0.lock();
            let text = core::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
            let number: u64 = text.parse().map_err(|_| Errno::ENOENT)?;
            if !(1..=most).contains(&number) {
                return Err(Errno::ENOENT);
            }
            let one = PseudoDir::new(dir.dev(), 0o555);
            one.add_file("status", move || Ok(number.to_string().into_bytes()));
            one.add(
                "link",
                PseudoLink::new(dir.dev(), || Ok(LinkTarget::Path(b"status".to_vec()))),
            );
            Ok(one)
        }

        fn next(&self, _dir: &PseudoDir, from: u64) -> Option<(u64, Vec<u8>, FileType, u64)> {
            let most = *self.0.lock();
            let number = from.max(1);
            (number <= most).then(|| {
                (
                    number,
                    number.to_string().into_bytes(),
                    FileType::Directory,
                    1000 + number,
                )
            })
        }
    }

    #[test]
    fn made_up_entries_come_and_go() {
        let world = World::tmpfs();
        let numbers = Arc::new(Numbers(Mutex::new(300)));
        let entries = Arc::clone(&numbers);
        let fs = PseudoFs::new("test", 0, |dev| {
            let attrs = PseudoAttrs::new(dev, FileType::Directory.mode() | 0o555);
            let root = PseudoDir::with(attrs, Some(entries));
            root.add_dir("fixed")
                .add_file("file", || Ok(b"kept".to_vec()));
            root
        });
        let mount = Mount::of(fs, MountFlags::empty(), "none");
        crate::fs::root::mount_at(&world.vfs, &mount, b"/p").expect("mounts");
        for step in [1, 50, 1000] {
            assert_eq!(world.list("/p", step).len(), 303);
        }
        assert_eq!(world.read("/p/7/status"), Ok(b"7".to_vec()));
        assert_eq!(world.read("/p/8/link"), Ok(b"8".to_vec()));
        assert_eq!(world.read("/p/fixed/file"), Ok(b"kept".to_vec()));
        assert_eq!(world.mkdir("/p/9"), Err(Errno::EEXIST));
        assert_eq!(world.mkdir("/p/x"), Err(Errno::EACCES));
        assert_eq!(world.rmdir("/p/9"), Err(Errno::EPERM));
        let held = world
            .open("/p/9/status", OpenFlags::empty())
            .expect("opens");
        *numbers.0.lock() = 8;
        assert_eq!(world.stat("/p/9").map(drop), Err(Errno::ENOENT));
        assert_eq!(
            world.vfs.file_path(&held, &world.fs.root()),
            b"/p/9/status".to_vec()
        );
        assert_eq!(world.list("/p", 1000).len(), 11);
    }
}
