//! The files behind `/proc/PID/ns/*` (namespaces(7)): each stands for a namespace, and setns(2) takes it.

use std::sync::Arc;

use abi::Errno;
use abi::fs::{FileType, OpenFlags};

use super::pseudo::PseudoAttrs;
use crate::io::GuestMemory;
use crate::namespace::{Kind, Namespaces};
use crate::task::credentials::Credentials;
use crate::vfs::{Attrs, FileOps, Inode, InodeKey, OpenFile, Owner, SetAttrs};

/// `NS_GET_NSTYPE` (ioctl_ns(2))
const GET_NSTYPE: u32 = 0xb703;

/// A namespace as a file, which keeps it alive. Nothing can be read from it (EINVAL).
pub struct NamespaceFile {
    attrs: PseudoAttrs,
    held: Namespace,
}

/// A namespace that an open file stands for: the one of this kind among these.
#[derive(Clone)]
pub struct Namespace {
    /// The kind.
    pub kind: Kind,
    /// It, and those of other kinds that were a task's together with it.
    pub among: Arc<Namespaces>,
}

impl NamespaceFile {
    /// The file, with this device's number; its inode's is the namespace's identity.
    pub fn new(dev: u64, held: Namespace) -> Arc<NamespaceFile> {
        let id = held.among.id(held.kind).0;
        Arc::new(NamespaceFile {
            attrs: PseudoAttrs::with_ino(dev, id, FileType::Regular.mode() | 0o444),
            held,
        })
    }
}

impl Inode for NamespaceFile {
    fn key(&self) -> InodeKey {
        self.attrs.key()
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
    fn set_attrs(&self, _change: &SetAttrs) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
    fn open(
        self: Arc<Self>,
        flags: OpenFlags,
        _creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno> {
        if !(flags & OpenFlags::ACCMODE).is_empty() {
            // The files of namespaces can't be changed, whatever their mode says.
            return Err(Errno::EPERM);
        }
        Ok(Arc::new(self.held.clone()))
    }
}

impl FileOps for Namespace {
    fn ioctl(
        &self,
        _file: &OpenFile,
        request: u32,
        _arg: u64,
        _memory: &dyn GuestMemory,
    ) -> Result<u64, Errno> {
        match request {
            GET_NSTYPE => Ok(self.kind.flag()),
            _ => Err(Errno::ENOTTY),
        }
    }
}
