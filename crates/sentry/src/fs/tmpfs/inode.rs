//! [`TmpInode`]: a file in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::Errno;
use abi::fs::{FileType, OpenFlags, RenameFlags};
use abi::time::Timespec;

use super::Super;
use super::dir::{Dir, DirOps, Listed, Node};
use super::file::{Contents, FileOpsOf};
use crate::sync::order::{InodeAttrs, InodeData, Leaf};
use crate::sync::{Mutex, RwLock};
use crate::task::credentials::Credentials;
use crate::vfs::{
    Attrs, FileOps, Inode, InodeKey, NewKind, NewNode, Owner, RenameEnd, SetAttrs, SetTime,
    SetXattr,
};

/// How many bytes of extended attributes a file can have.
const XATTRS_MAX: usize = 256 << 10;

/// A file in memory.
pub struct TmpInode {
    pub(super) fs: Arc<Super>,
    key: InodeKey,
    kind: FileType,
    rdev: u64,
    meta: Mutex<Meta, InodeAttrs>,
    pub(super) data: Data,
    xattrs: Mutex<Option<Box<Xattrs>>, Leaf>,
    /// In an overlay's upper layer: whether this directory hides the lower one.
    opaque: AtomicBool,
}

type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a file has beyond attributes.
pub(super) enum Data {
    File(RwLock<Contents, InodeData>),
    Dir(Mutex<Dir, InodeData>),
    Link(Box<[u8]>),
    Nothing,
}

#[derive(Clone, Copy)]
struct Meta {
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    atime: Timespec,
    mtime: Timespec,
    ctime: Timespec,
    btime: Timespec,
}

impl TmpInode {
    /// A file of this number that has no name yet; ENOSPC at the limit of inodes.
    pub fn new(fs: &Arc<Super>, ino: u64, new: &NewNode<'_>) -> Result<Arc<TmpInode>, Errno> {
        TmpInode::with_key(fs, InodeKey { dev: fs.dev, ino }, new)
    }

    /// The same, for a copy that keeps the key of what it is a copy of.
    pub fn with_key(
        fs: &Arc<Super>,
        key: InodeKey,
        new: &NewNode<'_>,
    ) -> Result<Arc<TmpInode>, Errno> {
        fs.quota.take_inode()?;
        let kind = new.kind.file_type();
        let (data, rdev) = match new.kind {
            NewKind::File => (Data::File(RwLock::new(Contents::new())), 0),
            NewKind::Directory => (Data::Dir(Mutex::new(Dir::default())), 0),
            NewKind::Symlink(target) => (Data::Link(target.into()), 0),
            NewKind::Fifo | NewKind::Socket => (Data::Nothing, 0),
            NewKind::CharDevice(rdev) | NewKind::BlockDevice(rdev) => (Data::Nothing, rdev),
        };
        let now = host::fs::file_time();
        Ok(Arc::new(TmpInode {
            fs: Arc::clone(fs),
            key,
            kind,
            rdev,
            meta: Mutex::new(Meta {
                mode: kind.mode() | new.perm,
                // A directory's own `.`; names are counted as they are given.
                nlink: u32::from(kind == FileType::Directory),
                uid: new.uid,
                gid: new.gid,
                atime: now,
                mtime: now,
                ctime: now,
                btime: now,
            }),
            data,
            xattrs: Mutex::new(None),
            opaque: AtomicBool::new(false),
        }))
    }

    /// What of this is a file's contents; EINVAL for all else.
    pub(super) fn contents(&self) -> Result<&RwLock<Contents, InodeData>, Errno> {
        match &self.data {
            Data::File(contents) => Ok(contents),
            _ => Err(Errno::EINVAL),
        }
    }

    /// What of this is a directory's entries; ENOTDIR for all else.
    pub(super) fn dir(&self) -> Result<&Mutex<Dir, InodeData>, Errno> {
        match &self.data {
            Data::Dir(dir) => Ok(dir),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// The contents changed: times.
    pub(super) fn modified(&self) {
        let now = host::fs::file_time();
        let mut meta = self.meta.lock();
        meta.mtime = now;
        meta.ctime = now;
    }

    /// The contents were read: the access time, as `relatime` has it (mount(8)).
    pub(super) fn accessed(&self) {
        let mut meta = self.meta.lock();
        if meta.atime <= meta.mtime || meta.atime <= meta.ctime {
            meta.atime = host::fs::file_time();
        }
    }

    fn changed(&self) {
        self.meta.lock().ctime = host::fs::file_time();
    }

    fn add_links(&self, change: i32) {
        let mut meta = self.meta.lock();
        meta.nlink = meta.nlink.saturating_add_signed(change);
        meta.ctime = host::fs::file_time();
    }

    /// The entry of this name, a whiteout included.
    pub(in crate::fs) fn node(&self, name: &[u8]) -> Result<Option<Node>, Errno> {
        Ok(self.dir()?.lock().get(name).cloned())
    }

    /// Gives a name to a file, or puts a whiteout there, in place of what is there. The directory's times change.
    pub(in crate::fs) fn put_node(&self, name: &[u8], node: Node) -> Result<(), Errno> {
        self.put_quietly(name, node)?;
        self.modified();
        Ok(())
    }

    /// The same, and the directory's times stay as they are.
    pub(in crate::fs) fn put_quietly(&self, name: &[u8], node: Node) -> Result<(), Errno> {
        let before = *self.meta.lock();
        if let Node::Inode(inode) = &node {
            inode.add_links(1);
            if inode.kind == FileType::Directory {
                self.add_links(1);
            }
        }
        let old = self.dir()?.lock().put(name, node);
        self.let_go(old);
        self.meta.lock().ctime = before.ctime;
        Ok(())
    }

    /// Takes a name away.
    pub(in crate::fs) fn take_node(&self, name: &[u8]) -> Result<(), Errno> {
        let old = self.dir()?.lock().take(name);
        self.let_go(old);
        self.modified();
        Ok(())
    }

    fn let_go(&self, old: Option<Node>) {
        if let Some(Node::Inode(inode)) = old {
            if inode.kind == FileType::Directory {
                inode.add_links(-2);
                self.add_links(-1);
            } else {
                inode.add_links(-1);
            }
        }
    }

    /// The entries from a cursor on, a batch at a time: (cursor, name, node).
    pub(in crate::fs) fn nodes(&self, from: u64) -> Result<Vec<Listed>, Errno> {
        Ok(self.dir()?.lock().batch(from))
    }

    /// Whether it hides a lower directory.
    pub(in crate::fs) fn is_opaque(&self) -> bool {
        self.opaque.load(Ordering::Acquire)
    }

    /// Makes it hide a lower directory.
    pub(in crate::fs) fn set_opaque(&self) {
        self.opaque.store(true, Ordering::Release);
    }

    /// Sets all attributes that a copy of another file has.
    pub(in crate::fs) fn copy_attrs(&self, from: &Attrs) {
        let mut meta = self.meta.lock();
        meta.mode = self.kind.mode() | from.mode & 0o7777;
        meta.uid = from.uid;
        meta.gid = from.gid;
        meta.atime = from.atime;
        meta.mtime = from.mtime;
        meta.ctime = from.ctime;
    }

    /// Fills the contents from elsewhere, from the start on; times are left alone.
    pub(in crate::fs) fn fill(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.contents()?.write().write(&self.fs, at, bytes)
    }

    /// Sets the size; times are left alone.
    pub(in crate::fs) fn resize(&self, size: u64) -> Result<(), Errno> {
        self.set_size(size)
    }

    /// Marks an empty directory as one that takes no more entries; ENOTEMPTY. Whiteouts do not count.
    pub(in crate::fs) fn close_dir(&self) -> Result<(), Errno> {
        self.dir()?.lock().close()
    }

    fn reopen_dir(&self) {
        if let Ok(dir) = self.dir() {
            dir.lock().reopen();
        }
    }
}

impl Drop for TmpInode {
    fn drop(&mut self) {
        self.fs.quota.give_inode();
        // A deep tree goes one directory at a time: recursion could use up the stack.
        let mut left: Vec<Arc<TmpInode>> = Vec::new();
        if let Data::Dir(dir) = &mut self.data {
            left.extend(dir.get_mut().drain());
        }
        while let Some(inode) = left.pop() {
            if let Some(mut inode) = Arc::into_inner(inode)
                && let Data::Dir(dir) = &mut inode.data
            {
                left.extend(dir.get_mut().drain());
            }
        }
    }
}

/// The inode as one of ours; EXDEV where it is another file system's.
fn ours(inode: &Arc<dyn Inode>) -> Result<Arc<TmpInode>, Errno> {
    let any: Arc<dyn core::any::Any + Send + Sync> = Arc::clone(inode) as _;
    any.downcast().map_err(|_| Errno::EXDEV)
}

impl Inode for TmpInode {
    fn key(&self) -> InodeKey {
        self.key
    }

    fn file_type(&self) -> FileType {
        self.kind
    }

    fn attrs(&self) -> Result<Attrs, Errno> {
        let (size, blocks) = match &self.data {
            Data::File(contents) => {
                let contents = contents.read();
                (contents.size(), contents.blocks())
            }
            Data::Dir(dir) => (dir.lock().len() as u64 * 20 + 40, 0),
            Data::Link(target) => (target.len() as u64, 0),
            Data::Nothing => (0, 0),
        };
        let meta = *self.meta.lock();
        Ok(Attrs {
            dev: self.key.dev,
            ino: self.key.ino,
            mode: meta.mode,
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            rdev: self.rdev,
            size,
            blksize: 4096,
            blocks,
            atime: meta.atime,
            mtime: meta.mtime,
            ctime: meta.ctime,
            btime: Some(meta.btime),
        })
    }

    fn owner(&self) -> Result<Owner, Errno> {
        let meta = self.meta.lock();
        Ok(Owner {
            mode: meta.mode,
            uid: meta.uid,
            gid: meta.gid,
        })
    }

    fn set_attrs(&self, change: &SetAttrs) -> Result<(), Errno> {
        if let Some(size) = change.size {
            self.set_size(size)?;
            self.modified();
        }
        let now = host::fs::file_time();
        let time = |time| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let mut meta = self.meta.lock();
        if let Some(perm) = change.perm {
            meta.mode = self.kind.mode() | perm & 0o7777;
        }
        meta.uid = change.uid.unwrap_or(meta.uid);
        meta.gid = change.gid.unwrap_or(meta.gid);
        meta.atime = change.atime.map_or(meta.atime, time);
        meta.mtime = change.mtime.map_or(meta.mtime, time);
        meta.ctime = now;
        Ok(())
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        match self.node(name)? {
            Some(Node::Inode(inode)) => Ok(inode),
            Some(Node::Whiteout) | None => Err(Errno::ENOENT),
        }
    }

    fn create(&self, name: &[u8], new: &NewNode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        let inode = TmpInode::new(&self.fs, self.fs.number(), new)?;
        self.dir()?
            .lock()
            .add(name, Node::Inode(Arc::clone(&inode)))?;
        inode.meta.lock().nlink += 1;
        if inode.kind == FileType::Directory {
            self.add_links(1);
        }
        self.modified();
        Ok(inode)
    }

    fn tmpfile(&self, new: &NewNode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        Ok(TmpInode::new(&self.fs, self.fs.number(), new)?)
    }

    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<(), Errno> {
        let target = ours(target)?;
        self.dir()?
            .lock()
            .add(name, Node::Inode(Arc::clone(&target)))?;
        target.add_links(1);
        self.modified();
        Ok(())
    }

    fn unlink(&self, name: &[u8], _child: &Arc<dyn Inode>) -> Result<(), Errno> {
        self.take_node(name)
    }

    fn rmdir(&self, name: &[u8], child: &Arc<dyn Inode>) -> Result<(), Errno> {
        ours(child)?.close_dir()?;
        self.take_node(name)
    }

    fn rename(
        &self,
        from: RenameEnd<'_>,
        to: RenameEnd<'_>,
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let (old, new) = (ours(from.dir)?, ours(to.dir)?);
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let replaced = to.child.map(ours).transpose()?;
        if let Some(replaced) = &replaced
            && replaced.kind == FileType::Directory
            && !exchange
        {
            replaced.close_dir()?;
        }
        let mut moved = Ok(());
        let (mut first, mut second) = Mutex::lock_pair(old.dir()?, new.dir()?);
        let dropped = if exchange {
            let (a, b) = (
                first.get(from.name).cloned(),
                match &second {
                    Some(second) => second.get(to.name).cloned(),
                    None => first.get(to.name).cloned(),
                },
            );
            match (a, b) {
                (Some(a), Some(b)) => {
                    first.put(from.name, b);
                    match &mut second {
                        Some(second) => second.put(to.name, a),
                        None => first.put(to.name, a),
                    };
                }
                _ => moved = Err(Errno::ENOENT),
            }
            None
        } else {
            match first.get(from.name).cloned() {
                Some(node) => {
                    let room = match &second {
                        Some(second) => second.is_open(),
                        None => first.is_open(),
                    };
                    if room {
                        first.take(from.name);
                        match &mut second {
                            Some(second) => second.put(to.name, node),
                            None => first.put(to.name, node),
                        }
                    } else {
                        moved = Err(Errno::ENOENT);
                        None
                    }
                }
                None => {
                    moved = Err(Errno::ENOENT);
                    None
                }
            }
        };
        drop((first, second));
        if moved.is_err() {
            if let Some(replaced) = &replaced {
                replaced.reopen_dir();
            }
            return moved;
        }
        let is_dir = |child: Option<&Arc<dyn Inode>>| {
            child.is_some_and(|child| child.file_type() == FileType::Directory)
        };
        let crossed = i32::from(is_dir(from.child)) - i32::from(exchange && is_dir(to.child));
        if !Arc::ptr_eq(&old, &new) && crossed != 0 {
            old.add_links(-crossed);
            new.add_links(crossed);
        }
        new.let_go(dropped);
        for inode in [from.child, to.child].into_iter().flatten() {
            ours(inode)?.changed();
        }
        old.modified();
        new.modified();
        Ok(())
    }

    fn readlink(&self) -> Result<Vec<u8>, Errno> {
        match &self.data {
            Data::Link(target) => Ok(target.to_vec()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let xattrs = self.xattrs.lock();
        xattrs
            .as_ref()
            .and_then(|xattrs| xattrs.get(name).cloned())
            .ok_or(Errno::ENODATA)
    }

    fn xattrs(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let xattrs = self.xattrs.lock();
        Ok(xattrs
            .as_ref()
            .map_or_else(Vec::new, |xattrs| xattrs.keys().cloned().collect()))
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], how: SetXattr) -> Result<(), Errno> {
        let mut held = self.xattrs.lock();
        let xattrs = held.get_or_insert_default();
        match (how, xattrs.contains_key(name)) {
            (SetXattr::Create, true) => return Err(Errno::EEXIST),
            (SetXattr::Replace, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        let used: usize = xattrs
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        if used + name.len() + value.len() > XATTRS_MAX {
            return Err(Errno::ENOSPC);
        }
        xattrs.insert(name.to_vec(), value.to_vec());
        drop(held);
        self.changed();
        Ok(())
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        let removed = self
            .xattrs
            .lock()
            .as_mut()
            .and_then(|xattrs| xattrs.remove(name));
        removed.ok_or(Errno::ENODATA)?;
        self.changed();
        Ok(())
    }

    fn open(
        self: Arc<Self>,
        flags: OpenFlags,
        _creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno> {
        match self.kind {
            FileType::Directory => Ok(Arc::new(DirOps(self))),
            FileType::Regular => {
                if flags.contains(OpenFlags::TRUNC) {
                    self.set_size(0)?;
                    self.modified();
                }
                Ok(Arc::new(FileOpsOf(self)))
            }
            _ => Err(Errno::ENXIO),
        }
    }
}
