//! [`OverlayInode`]: a file of an overlay.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use abi::Errno;
use abi::fs::{FileType, OpenFlags, RenameFlags};

use super::Shared;
use super::dir::{self, DirOps};
use super::file::FileOpsOf;
use crate::fs::tmpfs::{Node, TmpInode};
use crate::io::Sink;
use crate::sync::Mutex;
use crate::sync::order::Leaf;
use crate::task::credentials::Credentials;
use crate::vfs::{
    Attrs, FileOps, Inode, InodeKey, NewKind, NewNode, OpenFile, Owner, RenameEnd, SetAttrs,
    SetXattr,
};

/// A file of an overlay: lower, upper or, for directories, both.
pub(super) struct OverlayInode {
    this: Weak<OverlayInode>,
    fs: Arc<Shared>,
    kind: FileType,
    lower: Option<Arc<dyn Inode>>,
    upper: OnceLock<Arc<TmpInode>>,
    place: Mutex<Place, Leaf>,
    /// For a directory: whether it was taken away.
    dead: AtomicBool,
}

#[derive(Clone)]
struct Place {
    /// `None` for the root, and for what has no name any more.
    parent: Option<Arc<OverlayInode>>,
    name: Arc<[u8]>,
}

impl OverlayInode {
    pub(super) fn root(fs: &Arc<Shared>, lower: Arc<dyn Inode>) -> Arc<OverlayInode> {
        let place = Place {
            parent: None,
            name: Arc::from([]),
        };
        OverlayInode::new(fs, Some(lower), None, place)
    }

    fn new(
        fs: &Arc<Shared>,
        lower: Option<Arc<dyn Inode>>,
        upper: Option<Arc<TmpInode>>,
        place: Place,
    ) -> Arc<OverlayInode> {
        let kind = match (&upper, &lower) {
            (Some(upper), _) => upper.file_type(),
            (None, Some(lower)) => lower.file_type(),
            (None, None) => FileType::Regular,
        };
        Arc::new_cyclic(|this| OverlayInode {
            this: Weak::clone(this),
            fs: Arc::clone(fs),
            kind,
            lower,
            upper: upper.map_or_else(OnceLock::new, OnceLock::from),
            place: Mutex::new(place),
            dead: AtomicBool::new(false),
        })
    }

    fn child(
        &self,
        name: &[u8],
        lower: Option<Arc<dyn Inode>>,
        upper: Option<Arc<TmpInode>>,
    ) -> Arc<OverlayInode> {
        let place = Place {
            parent: self.this.upgrade(),
            name: Arc::from(name),
        };
        OverlayInode::new(&self.fs, lower, upper, place)
    }

    /// The lower file; for a directory only where it is merged.
    pub(super) fn lower(&self) -> Option<&Arc<dyn Inode>> {
        self.lower.as_ref()
    }

    /// The upper file.
    pub(super) fn upper(&self) -> Option<&Arc<TmpInode>> {
        self.upper.get()
    }

    /// The file that counts.
    fn real(&self) -> &dyn Inode {
        match (self.upper.get(), &self.lower) {
            (Some(upper), _) => &**upper,
            (None, Some(lower)) => &**lower,
            (None, None) => unreachable!("an overlay's inode is made with one of the two"),
        }
    }

    /// What the lower directory has of this name.
    fn lower_child(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>, Errno> {
        match &self.lower {
            Some(lower) => match lower.lookup(name) {
                Ok(inode) => Ok(Some(inode)),
                Err(Errno::ENOENT) => Ok(None),
                Err(error) => Err(error),
            },
            None => Ok(None),
        }
    }

    /// Copies it up where it is not yet, its directories first. Without `data` a regular file becomes an empty one.
    fn copy_up(&self, data: bool) -> Result<Arc<TmpInode>, Errno> {
        if let Some(upper) = self.upper.get() {
            return Ok(Arc::clone(upper));
        }
        let mut chain: Vec<Arc<OverlayInode>> = Vec::new();
        let mut at = self.place.lock().parent.clone();
        while let Some(dir) = at {
            if dir.upper.get().is_some() {
                break;
            }
            at = dir.place.lock().parent.clone();
            chain.push(dir);
        }
        while let Some(dir) = chain.pop() {
            dir.copy_up_one(false)?;
        }
        self.copy_up_one(data)
    }

    fn copy_up_one(&self, data: bool) -> Result<Arc<TmpInode>, Errno> {
        let lower = self.lower.as_ref().ok_or(Errno::EIO)?;
        let attrs = lower.attrs()?;
        let target;
        let kind = match self.kind {
            FileType::Regular => NewKind::File,
            FileType::Directory => NewKind::Directory,
            FileType::Symlink => {
                target = lower.readlink()?;
                NewKind::Symlink(&target)
            }
            FileType::Fifo => NewKind::Fifo,
            FileType::Socket => NewKind::Socket,
            FileType::CharDevice => NewKind::CharDevice(attrs.rdev),
            FileType::BlockDevice => NewKind::BlockDevice(attrs.rdev),
        };
        let mut key = lower.key();
        if self.kind != FileType::Directory && attrs.nlink > 1 {
            key.ino = self.fs.upper.number();
        }
        let upper = TmpInode::with_key(
            &self.fs.upper,
            key,
            &NewNode {
                kind,
                perm: attrs.mode & 0o7777,
                uid: attrs.uid,
                gid: attrs.gid,
            },
        )?;
        if self.kind == FileType::Regular && data {
            copy_data(lower, &upper, attrs.size)?;
        }
        if matches!(self.kind, FileType::Regular | FileType::Directory) {
            for name in lower.xattrs()? {
                // What can't be read by us stays behind, as absent.
                if let Ok(value) = lower.xattr(&name) {
                    upper.set_xattr(&name, &value, SetXattr::Any)?;
                }
            }
        }
        upper.copy_attrs(&attrs);
        let _held = self.fs.names.lock();
        // Somebody may have been faster.
        if let Some(upper) = self.upper.get() {
            return Ok(Arc::clone(upper));
        }
        let place = self.place.lock().clone();
        if let Some(parent) = &place.parent {
            let dir = parent.upper.get().ok_or(Errno::EIO)?;
            dir.put_quietly(&place.name, Node::Inode(Arc::clone(&upper)))?;
        }
        Ok(Arc::clone(self.upper.get_or_init(|| upper)))
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Marks an empty directory as taken away; ENOTEMPTY. Names are locked.
    fn close(&self) -> Result<(), Errno> {
        if !dir::is_empty(self)? {
            return Err(Errno::ENOTEMPTY);
        }
        self.dead.store(true, Ordering::Release);
        Ok(())
    }

    /// Takes a name away, leaving a whiteout where the lower directory has it. Names are locked.
    fn take(&self, upper: &TmpInode, name: &[u8]) -> Result<(), Errno> {
        if self.lower_child(name)?.is_some() {
            upper.put_node(name, Node::Whiteout)
        } else {
            upper.take_node(name)
        }
    }

    fn unnamed(&self) {
        let parent = self.place.lock().parent.take();
        drop(parent);
    }

    fn moved(&self, parent: &Arc<OverlayInode>, name: &[u8]) {
        let place = Place {
            parent: Some(Arc::clone(parent)),
            name: Arc::from(name),
        };
        let old = core::mem::replace(&mut *self.place.lock(), place);
        drop(old);
    }
}

impl Drop for OverlayInode {
    fn drop(&mut self) {
        // A chain of parents goes one by one: a deep tree could use up the stack.
        let mut next = self.place.get_mut().parent.take();
        while let Some(parent) = next {
            next =
                Arc::into_inner(parent).and_then(|mut parent| parent.place.get_mut().parent.take());
        }
    }
}

/// Copies contents, leaving out what is zero.
fn copy_data(lower: &Arc<dyn Inode>, upper: &TmpInode, size: u64) -> Result<(), Errno> {
    let creds = Credentials::root(abi::cap::CapSet::FULL);
    let ops = Arc::clone(lower).open(OpenFlags::empty(), &creds)?;
    let file = OpenFile::anonymous(Arc::clone(lower), ops, OpenFlags::empty());
    let mut buffer = vec![0; usize::try_from(size.min(256 << 10)).unwrap_or(0)];
    let mut at = 0u64;
    while at < size {
        let got = file.ops().read(&file, &mut Sink::slice(&mut buffer), at)?;
        if got == 0 {
            break;
        }
        let bytes = &buffer[..got];
        if bytes.iter().any(|byte| *byte != 0) {
            upper.fill(at, bytes)?;
        }
        at = at.saturating_add(got as u64);
    }
    upper.resize(size)
}

/// The inode as one of ours; EXDEV where it is another file system's.
fn ours(inode: &Arc<dyn Inode>) -> Result<Arc<OverlayInode>, Errno> {
    let any: Arc<dyn core::any::Any + Send + Sync> = Arc::clone(inode) as _;
    any.downcast().map_err(|_| Errno::EXDEV)
}

impl Inode for OverlayInode {
    fn key(&self) -> InodeKey {
        self.real().key()
    }

    fn file_type(&self) -> FileType {
        self.kind
    }

    fn attrs(&self) -> Result<Attrs, Errno> {
        let mut attrs = self.real().attrs()?;
        if self.kind == FileType::Directory && self.upper.get().is_some() && self.lower.is_some() {
            // "Not counted", as overlayfs says it.
            attrs.nlink = 1;
        }
        Ok(attrs)
    }

    fn owner(&self) -> Result<Owner, Errno> {
        self.real().owner()
    }

    fn set_attrs(&self, change: &SetAttrs) -> Result<(), Errno> {
        self.copy_up(change.size != Some(0))?.set_attrs(change)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        if let Some(upper) = self.upper.get() {
            match upper.node(name)? {
                Some(Node::Whiteout) => return Err(Errno::ENOENT),
                Some(Node::Inode(inode)) => {
                    let merged = if inode.file_type() == FileType::Directory && !inode.is_opaque() {
                        self.lower_child(name)?
                            .filter(|lower| lower.file_type() == FileType::Directory)
                    } else {
                        None
                    };
                    return Ok(self.child(name, merged, Some(inode)));
                }
                None => {}
            }
        }
        let lower = self.lower.as_ref().ok_or(Errno::ENOENT)?.lookup(name)?;
        Ok(self.child(name, Some(lower), None))
    }

    fn create(&self, name: &[u8], new: &NewNode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        let upper = self.copy_up(false)?;
        let inode = TmpInode::new(&self.fs.upper, self.fs.upper.number(), new)?;
        let _held = self.fs.names.lock();
        if self.is_dead() {
            return Err(Errno::ENOENT);
        }
        if let Some(Node::Inode(_)) = upper.node(name)? {
            return Err(Errno::EEXIST);
        }
        if inode.file_type() == FileType::Directory {
            inode.set_opaque();
        }
        upper.put_node(name, Node::Inode(Arc::clone(&inode)))?;
        Ok(self.child(name, None, Some(inode)))
    }

    fn tmpfile(&self, new: &NewNode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        let inode = TmpInode::new(&self.fs.upper, self.fs.upper.number(), new)?;
        let child = self.child(b"", None, Some(inode));
        child.unnamed();
        Ok(child)
    }

    fn link(&self, name: &[u8], target: &Arc<dyn Inode>) -> Result<(), Errno> {
        let target = ours(target)?.copy_up(true)?;
        let upper = self.copy_up(false)?;
        let _held = self.fs.names.lock();
        if self.is_dead() {
            return Err(Errno::ENOENT);
        }
        if let Some(Node::Inode(_)) = upper.node(name)? {
            return Err(Errno::EEXIST);
        }
        upper.put_node(name, Node::Inode(target))
    }

    fn unlink(&self, name: &[u8], child: &Arc<dyn Inode>) -> Result<(), Errno> {
        let child = ours(child)?;
        let upper = self.copy_up(false)?;
        let _held = self.fs.names.lock();
        self.take(&upper, name)?;
        child.forget_name(self, name);
        Ok(())
    }

    fn rmdir(&self, name: &[u8], child: &Arc<dyn Inode>) -> Result<(), Errno> {
        let child = ours(child)?;
        let upper = self.copy_up(false)?;
        let _held = self.fs.names.lock();
        child.close()?;
        self.take(&upper, name)?;
        child.unnamed();
        Ok(())
    }

    fn rename(
        &self,
        from: RenameEnd<'_>,
        to: RenameEnd<'_>,
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let (old, new) = (ours(from.dir)?, ours(to.dir)?);
        let child = ours(from.child.ok_or(Errno::ENOENT)?)?;
        let target = to.child.map(ours).transpose()?;
        let rooted =
            |inode: &OverlayInode| inode.kind == FileType::Directory && inode.lower.is_some();
        if rooted(&child) || exchange && target.as_ref().is_some_and(|target| rooted(target)) {
            return Err(Errno::EXDEV);
        }
        let moved = child.copy_up(true)?;
        let there = match &target {
            Some(target) if exchange => Some(target.copy_up(true)?),
            Some(target) => target.upper.get().cloned(),
            None => None,
        };
        let dirs: (Arc<dyn Inode>, Arc<dyn Inode>) = (old.copy_up(false)?, new.copy_up(false)?);
        let _held = self.fs.names.lock();
        if new.is_dead() {
            return Err(Errno::ENOENT);
        }
        if let Some(target) = &target
            && !exchange
            && target.kind == FileType::Directory
        {
            target.close()?;
        }
        let hidden = old.lower_child(from.name)?.is_some();
        let moved: Arc<dyn Inode> = moved;
        let there: Option<Arc<dyn Inode>> = there.map(|there| there as _);
        dirs.0.rename(
            RenameEnd {
                dir: &dirs.0,
                name: from.name,
                child: Some(&moved),
            },
            RenameEnd {
                dir: &dirs.1,
                name: to.name,
                child: there.as_ref(),
            },
            flags,
        )?;
        child.moved(&new, to.name);
        if let Some(target) = &target {
            if exchange {
                target.moved(&old, from.name);
            } else {
                target.forget_name(&new, to.name);
            }
        }
        if hidden && !exchange {
            old.copy_up(false)?.put_quietly(from.name, Node::Whiteout)?;
        }
        Ok(())
    }

    fn readlink(&self) -> Result<Vec<u8>, Errno> {
        self.real().readlink()
    }

    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.real().xattr(name)
    }

    fn xattrs(&self) -> Result<Vec<Vec<u8>>, Errno> {
        self.real().xattrs()
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], how: SetXattr) -> Result<(), Errno> {
        self.copy_up(true)?.set_xattr(name, value, how)
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        self.real().xattr(name)?;
        self.copy_up(true)?.remove_xattr(name)
    }

    fn open(
        self: Arc<Self>,
        flags: OpenFlags,
        creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno> {
        match self.kind {
            FileType::Directory => Ok(Arc::new(DirOps::new(self))),
            FileType::Regular => {
                let truncates = flags.contains(OpenFlags::TRUNC);
                if truncates || !(flags & OpenFlags::ACCMODE).is_empty() {
                    return self.copy_up(!truncates)?.open(flags, creds);
                }
                match (self.upper.get(), &self.lower) {
                    (Some(upper), _) => Arc::clone(upper).open(flags, creds),
                    (None, Some(lower)) => {
                        let lower = Arc::clone(lower).open(flags, creds)?;
                        Ok(Arc::new(FileOpsOf::new(self, lower)))
                    }
                    (None, None) => Err(Errno::EIO),
                }
            }
            _ => Err(Errno::ENXIO),
        }
    }
}

impl OverlayInode {
    /// One of its names was taken away: where that is the one it is known by, it is known by none.
    fn forget_name(&self, dir: &OverlayInode, name: &[u8]) {
        let place = self.place.lock();
        let known = place
            .parent
            .as_ref()
            .is_some_and(|parent| core::ptr::eq(&raw const **parent, dir))
            && *place.name == *name;
        drop(place);
        if known {
            self.unnamed();
        }
    }
}
