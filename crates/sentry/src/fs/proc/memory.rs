//! `/proc/PID/mem`: a process's memory, by address (proc_pid_mem(5)).
//!
//! Who may is asked when it is opened, and what was opened is one program's memory: once the process has run another, there is nothing more to read, so that
//! a descriptor that outlives exec opens no way into a set-user-ID program. Unlike Linux's it respects protection: what the process could not read or write
//! itself is EIO, as what is not mapped is.

use std::sync::{Arc, Weak};

use abi::Errno;
use abi::fs::{FileType, OpenFlags};

use super::process::Subject;
use crate::fs::pseudo::PseudoAttrs;
use crate::io::{Sink, Source};
use crate::mm::Mm;
use crate::task::credentials::Credentials;
use crate::vfs::{Attrs, FileOps, Inode, InodeKey, OpenFile, Owner, SetAttrs};

/// How much is moved at a time: never over the edge of a page, where the next may not be there.
const PAGE: usize = 4096;

/// The file.
pub(super) struct Memory {
    pub(super) attrs: PseudoAttrs,
    pub(super) subject: Subject,
}

impl Inode for Memory {
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
    fn set_attrs(&self, change: &SetAttrs) -> Result<(), Errno> {
        self.attrs.set(change)
    }
    fn open(
        self: Arc<Self>,
        _flags: OpenFlags,
        _creds: &Credentials,
    ) -> Result<Arc<dyn FileOps>, Errno> {
        let mm = self.subject.guarded()?.mm();
        Ok(Arc::new(OpenMemory {
            program: mm.program(),
            mm: Arc::downgrade(&mm),
        }))
    }
}

struct OpenMemory {
    mm: Weak<Mm>,
    program: u64,
}

fn to_page_end(addr: u64) -> usize {
    PAGE - (addr % PAGE as u64) as usize
}

impl FileOps for OpenMemory {
    fn seekable(&self) -> bool {
        true
    }

    fn read(&self, _file: &OpenFile, to: &mut Sink<'_>, at: u64) -> Result<usize, Errno> {
        let Some(mm) = self.mm.upgrade() else {
            return Ok(0);
        };
        let mut buffer = [0; PAGE];
        let mut done = 0;
        while to.remaining() > 0 {
            let addr = at.saturating_add(done as u64);
            let want = to_page_end(addr).min(to.remaining());
            let got = match mm.peek(self.program, addr, &mut buffer[..want]) {
                Ok(got) => to.write(&buffer[..got]),
                Err(error) => Err(error),
            };
            match got {
                Ok(got) => {
                    done += got;
                    if got < want {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn write(
        &self,
        _file: &OpenFile,
        from: &mut Source<'_>,
        at: &mut u64,
        _append: bool,
    ) -> Result<usize, Errno> {
        let Some(mm) = self.mm.upgrade() else {
            return Ok(0);
        };
        let mut buffer = [0; PAGE];
        let mut done = 0;
        while from.remaining() > 0 {
            let want = to_page_end(*at).min(from.remaining());
            let put = match from.read(&mut buffer[..want]) {
                Ok(got) => mm.poke(self.program, *at, &buffer[..got]),
                Err(error) => Err(error),
            };
            match put {
                Ok(put) => {
                    done += put;
                    *at = at.saturating_add(put as u64);
                    if put < want {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}
