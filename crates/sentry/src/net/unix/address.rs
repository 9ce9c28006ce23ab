//! Addresses of UNIX sockets (unix(7)), and who has which.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use abi::Errno;
use abi::net::AF_UNIX;

use super::{Kind, UnixSocket};
use crate::vfs::InodeKey;

/// The most bytes of `sun_path`.
const PATH_MAX: usize = 108;

/// An address: the bytes of `sun_path`, with the NUL that ends a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(Box<[u8]>);

/// A socket's address, which it is given once or never; connections and messages refer to it.
pub type Name = Arc<OnceLock<Address>>;

/// What a call was given for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// A file's path.
    Path(Vec<u8>),
    /// An abstract name, without the NUL that begins it.
    Abstract(Vec<u8>),
    /// None: bind(2) makes one up.
    Unnamed,
}

impl Given {
    /// Reads a `struct sockaddr_un`: EINVAL where it is none.
    pub fn parse(bytes: &[u8]) -> Result<Given, Errno> {
        let (family, path) = bytes.split_first_chunk::<2>().ok_or(Errno::EINVAL)?;
        if u16::from_ne_bytes(*family) != AF_UNIX || path.len() > PATH_MAX {
            return Err(Errno::EINVAL);
        }
        Ok(match path.split_first() {
            None => Given::Unnamed,
            Some((0, name)) => Given::Abstract(name.to_vec()),
            Some(_) => Given::Path(path.iter().copied().take_while(|byte| *byte != 0).collect()),
        })
    }
}

impl Address {
    pub(super) fn path(path: &[u8]) -> Address {
        let mut bytes = path.to_vec();
        bytes.push(0);
        Address(bytes.into())
    }

    pub(super) fn abstract_name(name: &[u8]) -> Address {
        let mut bytes = vec![0];
        bytes.extend_from_slice(name);
        Address(bytes.into())
    }

    /// As a `struct sockaddr_un`; without an address the family alone.
    pub fn to_bytes(address: Option<&Address>) -> Vec<u8> {
        let mut bytes = AF_UNIX.to_ne_bytes().to_vec();
        if let Some(address) = address {
            bytes.extend_from_slice(&address.0);
        }
        bytes
    }
}

/// Under what a socket is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    File(InodeKey),
    /// Each type of socket has names of its own.
    Abstract(Kind, Vec<u8>),
}

/// Who has which address.
#[derive(Default)]
pub(super) struct Names {
    bound: HashMap<Key, Weak<UnixSocket>>,
    next: u32,
}

impl Names {
    pub(super) fn get(&self, key: &Key) -> Option<Arc<UnixSocket>> {
        self.bound.get(key).and_then(Weak::upgrade)
    }

    /// Gives a key to a socket; false where another has it.
    pub(super) fn insert(&mut self, key: Key, socket: &Weak<UnixSocket>) -> bool {
        if self.get(&key).is_some() {
            return false;
        }
        self.bound.insert(key, Weak::clone(socket));
        true
    }

    pub(super) fn remove(&mut self, key: &Key) {
        self.bound.remove(key);
    }

    /// An abstract name that nobody has: five hexadecimal digits (unix(7), autobind).
    pub(super) fn unused(&mut self, kind: Kind) -> Result<Vec<u8>, Errno> {
        const ALL: u32 = 1 << 20;
        for _ in 0..ALL {
            self.next = (self.next + 1) % ALL;
            let name = format!("{:05x}", self.next).into_bytes();
            if self.get(&Key::Abstract(kind, name.clone())).is_none() {
                return Ok(name);
            }
        }
        Err(Errno::ENOSPC)
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, Given};
    use abi::Errno;

    #[test]
    fn addresses_are_read_as_linux_reads_them() {
        assert_eq!(
            Given::parse(b"\x01\0/tmp/a\0junk"),
            Ok(Given::Path(b"/tmp/a".to_vec()))
        );
        assert_eq!(
            Given::parse(b"\x01\0\0a\0b"),
            Ok(Given::Abstract(b"a\0b".to_vec()))
        );
        assert_eq!(Given::parse(b"\x01\0"), Ok(Given::Unnamed));
        assert_eq!(Given::parse(b"\x02\0abc"), Err(Errno::EINVAL));
        assert_eq!(Given::parse(b"\x01"), Err(Errno::EINVAL));
        assert_eq!(Address::to_bytes(Some(&Address::path(b"x"))), b"\x01\0x\0");
        assert_eq!(Address::to_bytes(None), b"\x01\0");
    }
}
