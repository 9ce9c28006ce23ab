//! Directories in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use abi::Errno;

use super::inode::TmpInode;
use crate::fs::pseudo::emit_dots;
use crate::vfs::{DirEntry, FileOps, Inode, OpenFile};

/// What a name leads to.
#[derive(Clone)]
pub(in crate::fs) enum Node {
    /// A file.
    Inode(Arc<TmpInode>),
    /// Nothing, although a lower layer has something (overlays alone).
    Whiteout,
}

/// An entry as it is listed: cursor, name, what it leads to.
pub(in crate::fs) type Listed = (u64, Arc<[u8]>, Node);

/// A directory's entries. Each has a cursor, given when it was made, so that a listing that is under way meets each entry that stays exactly once.
#[derive(Default)]
pub(super) struct Dir {
    cursors: hashbrown::HashMap<Arc<[u8]>, u64>,
    entries: BTreeMap<u64, (Arc<[u8]>, Node)>,
    made: u64,
    closed: bool,
}

/// Cursors begin past those of `.` and `..`.
const FIRST: u64 = 2;
/// How many entries a batch has.
const BATCH: usize = 128;

impl Dir {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<&Node> {
        self.entries
            .get(self.cursors.get(name)?)
            .map(|(_, node)| node)
    }

    pub(super) fn is_open(&self) -> bool {
        !self.closed
    }

    /// Adds an entry; EEXIST, ENOENT where the directory is gone.
    pub(super) fn add(&mut self, name: &[u8], node: Node) -> Result<(), Errno> {
        if self.closed {
            return Err(Errno::ENOENT);
        }
        if self.cursors.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.put(name, node);
        Ok(())
    }

    /// Adds an entry in place of one of the same name, which is the result.
    pub(super) fn put(&mut self, name: &[u8], node: Node) -> Option<Node> {
        if let Some(cursor) = self.cursors.get(name)
            && let Some((_, old)) = self.entries.get_mut(cursor)
        {
            return Some(core::mem::replace(old, node));
        }
        let name: Arc<[u8]> = Arc::from(name);
        let cursor = FIRST + self.made;
        self.made += 1;
        self.cursors.insert(Arc::clone(&name), cursor);
        self.entries.insert(cursor, (name, node));
        None
    }

    pub(super) fn take(&mut self, name: &[u8]) -> Option<Node> {
        let cursor = self.cursors.remove(name)?;
        self.entries.remove(&cursor).map(|(_, node)| node)
    }

    pub(super) fn batch(&self, from: u64) -> Vec<Listed> {
        (self.entries.range(from..).take(BATCH))
            .map(|(cursor, (name, node))| (*cursor, Arc::clone(name), node.clone()))
            .collect()
    }

    pub(super) fn close(&mut self) -> Result<(), Errno> {
        if self
            .entries
            .values()
            .any(|(_, node)| matches!(node, Node::Inode(_)))
        {
            return Err(Errno::ENOTEMPTY);
        }
        self.closed = true;
        Ok(())
    }

    pub(super) fn reopen(&mut self) {
        self.closed = false;
    }

    pub(super) fn drain(&mut self) -> Vec<Arc<TmpInode>> {
        self.cursors.clear();
        (core::mem::take(&mut self.entries).into_values())
            .filter_map(|(_, node)| match node {
                Node::Inode(inode) => Some(inode),
                Node::Whiteout => None,
            })
            .collect()
    }
}

/// An open directory.
pub(super) struct DirOps(pub(super) Arc<TmpInode>);

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
        let own = self.0.key().ino;
        let above = (file.location().and_then(|place| place.dentry.parent()))
            .map_or(own, |parent| parent.inode().key().ino);
        if !emit_dots(at, own, above, emit) {
            return Ok(());
        }
        loop {
            let batch = self.0.nodes(*at)?;
            if batch.is_empty() {
                return Ok(());
            }
            for (cursor, name, node) in batch {
                if let Node::Inode(inode) = node {
                    let entry = DirEntry {
                        ino: inode.key().ino,
                        next: cursor + 1,
                        kind: Some(inode.file_type()),
                        name: &name,
                    };
                    if !emit(&entry) {
                        return Ok(());
                    }
                }
                *at = cursor + 1;
            }
        }
    }

    fn sync(&self, _file: &OpenFile, _data: bool) -> Result<(), Errno> {
        Ok(())
    }
}
