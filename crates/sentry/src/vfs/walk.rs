//! Path walking (path_resolution(7)): from a path to a [`Location`], or to a directory and a last name.

use std::borrow::Cow;
use std::sync::Arc;

use abi::Errno;
use abi::fs::{FileType, MountFlags, NAME_MAX, PATH_MAX, ResolveFlags};

use super::dentry::{Cached, Dentry, Location};
use super::inode::{Caching, LinkTarget};
use super::{PathCx, Vfs, permission};

/// How many links one walk may follow.
const LINKS_MAX: u32 = 40;

/// Where a walk to the last name stopped.
pub(super) struct Last<'a> {
    /// The directory.
    pub(super) dir: Location,
    /// The name in it.
    pub(super) name: LastName<'a>,
    /// Whether slashes came after the name: it must be a directory.
    pub(super) slash: bool,
}

/// The last name of a path.
pub(super) enum LastName<'a> {
    /// An ordinary name.
    Name(Cow<'a, [u8]>),
    /// `.`, or nothing but slashes.
    Dot,
    /// `..`
    DotDot,
}

impl LastName<'_> {
    /// The ordinary name; `error` for all others.
    pub(super) fn name(&self, error: Errno) -> Result<&[u8], Errno> {
        match self {
            LastName::Name(name) => Ok(name),
            LastName::Dot | LastName::DotDot => Err(error),
        }
    }
}

/// A walk on its way.
pub(super) struct Walker<'a> {
    vfs: &'a Vfs,
    cx: &'a PathCx<'a>,
    root: Option<Location>,
    at: Location,
    links: u32,
    resolve: ResolveFlags,
    base: Option<Location>,
}

impl<'a> Walker<'a> {
    /// A walk of this path from where it begins. ENOENT for an empty path, ENAMETOOLONG for one that is too long.
    pub(super) fn new(
        vfs: &'a Vfs,
        cx: &'a PathCx<'a>,
        path: &[u8],
        resolve: ResolveFlags,
    ) -> Result<Walker<'a>, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() >= PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if resolve.contains(ResolveFlags::CACHED) {
            return Err(Errno::EAGAIN);
        }
        let scoped = resolve.intersects(ResolveFlags::BENEATH | ResolveFlags::IN_ROOT);
        let absolute = path[0] == b'/';
        if absolute && resolve.contains(ResolveFlags::BENEATH) {
            return Err(Errno::EXDEV);
        }
        let mut root = None;
        let at = if absolute && !scoped {
            let location = cx.fs.root();
            root = Some(location.clone());
            location
        } else {
            match &cx.dirfd {
                Some(file) => {
                    let location = file.location().ok_or(Errno::ENOTDIR)?;
                    if location.inode().file_type() != FileType::Directory {
                        return Err(Errno::ENOTDIR);
                    }
                    location.clone()
                }
                None => cx.fs.cwd(),
            }
        };
        if resolve.contains(ResolveFlags::IN_ROOT) {
            root = Some(at.clone());
        }
        Ok(Walker {
            vfs,
            cx,
            root,
            base: scoped.then(|| at.clone()),
            at,
            links: 0,
            resolve,
        })
    }

    /// Walks to the end.
    pub(super) fn finish(mut self, path: &[u8], follow: bool) -> Result<Location, Errno> {
        match self.walk(Cow::Borrowed(path), Some(follow))? {
            None => Ok(self.at),
            Some(_) => Err(Errno::ENOENT),
        }
    }

    /// Walks to the last name, and leaves that alone.
    pub(super) fn parent<'p>(&mut self, path: Cow<'p, [u8]>) -> Result<Last<'p>, Errno> {
        match self.walk(path, None)? {
            Some((name, slash)) => Ok(Last {
                dir: self.at.clone(),
                name,
                slash,
            }),
            None => Ok(Last {
                dir: self.at.clone(),
                name: LastName::Dot,
                slash: true,
            }),
        }
    }

    /// The place that `..` leads to from the one where the walk is.
    pub(super) fn dotdot(&mut self) -> Result<(), Errno> {
        if let Some(base) = &self.base
            && self.at.is(base)
        {
            if self.resolve.contains(ResolveFlags::BENEATH) {
                return Err(Errno::EXDEV);
            }
            return Ok(());
        }
        let root = self.root.get_or_insert_with(|| self.cx.fs.root());
        let mut at = self.at.clone();
        loop {
            if at.is(root) {
                break;
            }
            if Arc::ptr_eq(&at.dentry, at.mount.root()) {
                match at.mount.at() {
                    Some(under) => {
                        if self.resolve.contains(ResolveFlags::NO_XDEV) {
                            return Err(Errno::EXDEV);
                        }
                        at = under;
                        continue;
                    }
                    None => break,
                }
            }
            if let Some(parent) = at.dentry.parent() {
                at.dentry = parent;
            }
            at = self.vfs.mounts.top(at);
            break;
        }
        self.at = at;
        Ok(())
    }

    /// Where the walk is.
    pub(super) fn into_location(self) -> Location {
        self.at
    }

    /// Follows a link that is an entry of the directory where the walk is. The path to be walked on, if any; else the walk is there.
    pub(super) fn follow(&mut self, link: &Dentry) -> Result<Option<Vec<u8>>, Errno> {
        self.links += 1;
        if self.links > LINKS_MAX
            || self.resolve.contains(ResolveFlags::NO_SYMLINKS)
            || self.at.mount.flags().contains(MountFlags::NOSYMFOLLOW)
        {
            return Err(Errno::ELOOP);
        }
        match link.inode().follow()? {
            LinkTarget::Path(target) => {
                if target.is_empty() {
                    return Err(Errno::ENOENT);
                }
                if target[0] == b'/' {
                    if self.resolve.contains(ResolveFlags::BENEATH) {
                        return Err(Errno::EXDEV);
                    }
                    let root = self.root.get_or_insert_with(|| self.cx.fs.root());
                    if self.resolve.contains(ResolveFlags::NO_XDEV)
                        && !Arc::ptr_eq(&root.mount, &self.at.mount)
                    {
                        return Err(Errno::EXDEV);
                    }
                    self.at = root.clone();
                }
                Ok(Some(target))
            }
            LinkTarget::Place(place) => {
                self.jump(place)?;
                Ok(None)
            }
            LinkTarget::Inode(inode, name) => {
                let place = self.vfs.placeless(inode, &name);
                self.jump(place)?;
                Ok(None)
            }
        }
    }

    fn jump(&mut self, place: Location) -> Result<(), Errno> {
        if self.resolve.contains(ResolveFlags::NO_MAGICLINKS) {
            return Err(Errno::ELOOP);
        }
        if self.base.is_some()
            || self.resolve.contains(ResolveFlags::NO_XDEV)
                && !Arc::ptr_eq(&place.mount, &self.at.mount)
        {
            return Err(Errno::EXDEV);
        }
        self.at = place;
        Ok(())
    }

    /// Enters an entry of the directory where the walk is, and what is mounted on it.
    pub(super) fn enter(&mut self, child: Arc<Dentry>) -> Result<(), Errno> {
        self.at.dentry = child;
        while let Some(mount) = self.vfs.mounts.covering(&self.at.mount, &self.at.dentry) {
            if self.resolve.contains(ResolveFlags::NO_XDEV) {
                return Err(Errno::EXDEV);
            }
            self.at = mount.location();
        }
        Ok(())
    }

    /// Walks: to the end where `follow` is given (which says whether a last link is followed), else to the last name, which is the result.
    fn walk<'p>(
        &mut self,
        path: Cow<'p, [u8]>,
        follow: Option<bool>,
    ) -> Result<Option<(LastName<'p>, bool)>, Errno> {
        let mut path = path;
        let mut from = 0;
        loop {
            from += path[from..]
                .iter()
                .take_while(|byte| **byte == b'/')
                .count();
            if from == path.len() {
                return Ok(None);
            }
            let end = memchr::memchr(b'/', &path[from..]).map_or(path.len(), |at| from + at);
            let after = end + path[end..].iter().take_while(|byte| **byte == b'/').count();
            let (last, slash) = (after == path.len(), end < path.len());
            if self.at.dentry.kind() != FileType::Directory {
                return Err(Errno::ENOTDIR);
            }
            permission::search(&**self.at.dentry.inode(), self.cx.creds)?;
            let name = &path[from..end];
            let dots = match name {
                b"." => Some(LastName::Dot),
                b".." => Some(LastName::DotDot),
                _ => None,
            };
            if last && follow.is_none() {
                if name.len() > NAME_MAX {
                    return Err(Errno::ENAMETOOLONG);
                }
                let name = match dots {
                    Some(dots) => dots,
                    None => LastName::Name(match path {
                        Cow::Borrowed(path) => Cow::Borrowed(&path[from..end]),
                        Cow::Owned(path) => Cow::Owned(path[from..end].to_vec()),
                    }),
                };
                return Ok(Some((name, slash)));
            }
            match dots {
                Some(LastName::DotDot) => self.dotdot()?,
                Some(_) => {}
                None => {
                    let child = self
                        .vfs
                        .child(&self.at.dentry, name)?
                        .ok_or(Errno::ENOENT)?;
                    let link = child.kind() == FileType::Symlink;
                    if link && (!last || slash || follow == Some(true)) {
                        match self.follow(&child)? {
                            Some(mut target) => {
                                if target.len() >= PATH_MAX {
                                    return Err(Errno::ENAMETOOLONG);
                                }
                                target.extend_from_slice(&path[end..]);
                                path = Cow::Owned(target);
                                from = 0;
                                continue;
                            }
                            None => {
                                if slash && self.at.dentry.kind() != FileType::Directory {
                                    return Err(Errno::ENOTDIR);
                                }
                            }
                        }
                    } else {
                        self.enter(child)?;
                        if slash && self.at.dentry.kind() != FileType::Directory {
                            return Err(Errno::ENOTDIR);
                        }
                    }
                }
            }
            from = after;
        }
    }
}

impl Vfs {
    /// The entry of this name, from the cache or the file system; `None` where there is none.
    pub(super) fn child(
        &self,
        dir: &Arc<Dentry>,
        name: &[u8],
    ) -> Result<Option<Arc<Dentry>>, Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        match self.cache.get(dir, name) {
            Cached::Present(child) => {
                if dir.caching() != Caching::Revalidate
                    || dir.inode().revalidate(name, child.inode())?
                {
                    return Ok(Some(child));
                }
            }
            Cached::Missing => return Ok(None),
            Cached::Unknown => {}
        }
        let _held = dir.lock();
        self.child_locked(dir, name)
    }

    /// The same, with the directory's lock held.
    pub(super) fn child_locked(
        &self,
        dir: &Arc<Dentry>,
        name: &[u8],
    ) -> Result<Option<Arc<Dentry>>, Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        match self.cache.get(dir, name) {
            Cached::Present(child) => {
                if dir.caching() != Caching::Revalidate
                    || dir.inode().revalidate(name, child.inode())?
                {
                    return Ok(Some(child));
                }
                child.kill();
                self.cache.forget(dir, name);
            }
            Cached::Missing => return Ok(None),
            Cached::Unknown => {}
        }
        match dir.inode().lookup(name) {
            Ok(inode) if !dir.keeps(name) => Ok(Some(Dentry::detached(dir, name, inode))),
            Ok(inode) => Ok(Some(self.cache.insert(dir, name, inode))),
            Err(Errno::ENOENT) => {
                self.cache.insert_missing(dir, name);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Where a path leads. With `follow`, a link at its end is followed.
    pub fn resolve(
        &self,
        cx: &PathCx<'_>,
        path: &[u8],
        follow: bool,
        resolve: ResolveFlags,
    ) -> Result<Location, Errno> {
        Walker::new(self, cx, path, resolve)?.finish(path, follow)
    }

    /// The path of a place as seen from `root` (getcwd(2), `/proc/PID/fd`): ` (deleted)` where its name is gone, `(unreachable)` before it
    /// where it is not below that root.
    pub fn path_of(&self, place: &Location, root: &Location) -> Vec<u8> {
        if Arc::ptr_eq(&place.mount, &self.placeless) {
            return place.dentry.name().to_vec();
        }
        let mut names: Vec<Arc<[u8]>> = Vec::new();
        let mut at = place.clone();
        let mut reached = true;
        loop {
            if at.is(root) {
                break;
            }
            if Arc::ptr_eq(&at.dentry, at.mount.root()) {
                if let Some(under) = at.mount.at() {
                    at = under;
                    continue;
                }
                if at.mount.is_hidden() {
                    break;
                }
                // The top: either above a root that chroot(2) moved away from, or a detached mount.
                let top = self.mounts.top(self.mounts.root().clone());
                reached = at.is(&top) && root.is(&top);
                break;
            }
            names.push(at.dentry.name());
            let Some(parent) = at.dentry.parent() else {
                reached = false;
                break;
            };
            at.dentry = parent;
        }
        let mut path = Vec::new();
        if !reached {
            path.extend_from_slice(b"(unreachable)");
        }
        if names.is_empty() {
            path.push(b'/');
        }
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if place.dentry.is_dead() {
            path.extend_from_slice(b" (deleted)");
        }
        path
    }
}
