//! Open directories of an overlay, merged where both layers have them.

use std::collections::HashSet;
use std::sync::Arc;

use abi::Errno;
use abi::fs::{FileType, OpenFlags};

use super::inode::OverlayInode;
use crate::fs::pseudo::emit_dots;
use crate::fs::tmpfs::Node;
use crate::sync::Mutex;
use crate::sync::order::InodeData;
use crate::task::credentials::Credentials;
use crate::vfs::{DirEntry, FileOps, Inode, OpenFile};

/// An open directory. What it reads from is decided whenever reading begins at the start.
pub(super) struct DirOps {
    inode: Arc<OverlayInode>,
    stream: Mutex<Stream, InodeData>,
}

#[derive(Clone, Default)]
enum Stream {
    #[default]
    Unread,
    /// One layer alone: its own stream, nothing kept.
    One(Arc<dyn FileOps>),
    /// Both: all entries, `.` and `..` aside.
    Merged(Arc<[Merged]>),
}

struct Merged {
    name: Arc<[u8]>,
    ino: u64,
    kind: Option<FileType>,
}

impl DirOps {
    pub(super) fn new(inode: Arc<OverlayInode>) -> DirOps {
        DirOps {
            inode,
            stream: Mutex::default(),
        }
    }
}

/// Opens one layer's directory.
fn open(inode: Arc<dyn Inode>) -> Result<Arc<dyn FileOps>, Errno> {
    inode.open(
        OpenFlags::DIRECTORY,
        &Credentials::root(abi::cap::CapSet::FULL),
    )
}

/// Tells of the entries of a lower directory, `.` and `..` aside.
fn each_lower(
    lower: &Arc<dyn Inode>,
    tell: &mut dyn FnMut(&DirEntry<'_>) -> bool,
) -> Result<(), Errno> {
    let ops = open(Arc::clone(lower))?;
    let file = OpenFile::anonymous(Arc::clone(lower), ops, OpenFlags::DIRECTORY);
    let mut at = 0;
    file.ops().readdir(&file, &mut at, &mut |entry| {
        entry.name == b"." || entry.name == b".." || tell(entry)
    })
}

/// All entries of both layers.
fn merge(inode: &OverlayInode) -> Result<Vec<Merged>, Errno> {
    let mut all = Vec::new();
    let mut seen: HashSet<Arc<[u8]>> = HashSet::new();
    if let Some(upper) = inode.upper() {
        let mut from = 0;
        loop {
            let batch = upper.nodes(from)?;
            let Some((last, _, _)) = batch.last() else {
                break;
            };
            from = last + 1;
            for (_, name, node) in batch {
                if let Node::Inode(inode) = node {
                    all.push(Merged {
                        name: Arc::clone(&name),
                        ino: inode.key().ino,
                        kind: Some(inode.file_type()),
                    });
                }
                seen.insert(name);
            }
        }
    }
    if let Some(lower) = inode.lower() {
        each_lower(lower, &mut |entry| {
            if !seen.contains(entry.name) {
                all.push(Merged {
                    name: Arc::from(entry.name),
                    ino: entry.ino,
                    kind: entry.kind,
                });
            }
            true
        })?;
    }
    Ok(all)
}

/// Whether a directory has no entries.
pub(super) fn is_empty(inode: &OverlayInode) -> Result<bool, Errno> {
    let mut seen: HashSet<Arc<[u8]>> = HashSet::new();
    if let Some(upper) = inode.upper() {
        let mut from = 0;
        loop {
            let batch = upper.nodes(from)?;
            let Some((last, _, _)) = batch.last() else {
                break;
            };
            from = last + 1;
            for (_, name, node) in batch {
                if matches!(node, Node::Inode(_)) {
                    return Ok(false);
                }
                seen.insert(name);
            }
        }
    }
    let mut empty = true;
    if let Some(lower) = inode.lower() {
        each_lower(lower, &mut |entry| {
            empty = seen.contains(entry.name);
            empty
        })?;
    }
    Ok(empty)
}

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
        let known = self.stream.lock().clone();
        let stream = match known {
            stream @ (Stream::One(_) | Stream::Merged(_)) if *at > 0 => stream,
            _ => {
                let stream = match (self.inode.upper(), self.inode.lower()) {
                    (Some(_), Some(_)) => Stream::Merged(merge(&self.inode)?.into()),
                    (Some(upper), None) => Stream::One(open(Arc::clone(upper) as _)?),
                    (None, Some(lower)) => Stream::One(open(Arc::clone(lower))?),
                    (None, None) => return Err(Errno::EIO),
                };
                let old = core::mem::replace(&mut *self.stream.lock(), stream.clone());
                drop(old);
                stream
            }
        };
        let all = match stream {
            Stream::One(ops) => return ops.readdir(file, at, emit),
            Stream::Merged(all) => all,
            Stream::Unread => return Err(Errno::EIO),
        };
        let own = self.inode.key().ino;
        let above = (file.location().and_then(|place| place.dentry.parent()))
            .map_or(own, |parent| parent.inode().key().ino);
        if !emit_dots(at, own, above, emit) {
            return Ok(());
        }
        let from = usize::try_from(*at - 2)
            .unwrap_or(usize::MAX)
            .min(all.len());
        for entry in &all[from..] {
            let told = emit(&DirEntry {
                ino: entry.ino,
                next: *at + 1,
                kind: entry.kind,
                name: &entry.name,
            });
            if !told {
                return Ok(());
            }
            *at += 1;
        }
        Ok(())
    }

    fn sync(&self, _file: &OpenFile, _data: bool) -> Result<(), Errno> {
        Ok(())
    }
}
