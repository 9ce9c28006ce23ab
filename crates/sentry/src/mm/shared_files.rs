//! Which host files the stubs have at hand for mapping.

use std::os::fd::AsFd;
use std::sync::Arc;

use abi::Errno;
use platform::{Platform, SharedFile};

use crate::fs::host::HostFile;
use crate::sync::Mutex;
use crate::sync::order::Leaf;

/// How many files stay with the stubs though nobody is mapping them just now.
const KEPT: usize = 64;

/// A host file among the stubs' files. It stays there while this is held.
pub struct Held {
    platform: Arc<dyn Platform>,
    number: SharedFile,
    key: (u64, u64, bool),
}

impl Held {
    /// Its number.
    pub fn number(&self) -> SharedFile {
        self.number
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.platform.unshare_file(self.number);
    }
}

/// A bounded cache of the files that stubs have, the last used at the end. A file that is kept open can't have its inode number reused, so host device and inode name it.
#[derive(Default)]
pub struct SharedFiles {
    held: Mutex<Vec<Arc<Held>>, Leaf>,
}

impl SharedFiles {
    /// The file, handed to the stubs where they do not have it.
    pub fn hold(&self, platform: &Arc<dyn Platform>, file: &HostFile) -> Result<Arc<Held>, Errno> {
        let key = (file.key.0, file.key.1, file.writable);
        let mut held = self.held.lock();
        if let Some(at) = held.iter().position(|held| held.key == key) {
            let found = held.remove(at);
            held.push(Arc::clone(&found));
            return Ok(found);
        }
        drop(held);
        let owned = file
            .as_fd()
            .try_clone_to_owned()
            .map_err(|_| Errno::EMFILE)?;
        let number = platform.share_file(&owned)?;
        let new = Arc::new(Held {
            platform: Arc::clone(platform),
            number,
            key,
        });
        let mut held = self.held.lock();
        held.push(Arc::clone(&new));
        let oldest = (held.len() > KEPT).then(|| held.remove(0));
        drop(held);
        drop(oldest);
        Ok(new)
    }
}
