//! Tests of open files over host descriptors.

use std::io::{Read, Seek, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use abi::Errno;

use super::{HostPoller, Terminal, open, terminal_of};
use crate::io::{GuestMemory, Sink, Source};
use crate::sync::{EventMask, WaitQueue};
use crate::vfs::tests::TempDir;
use crate::vfs::{OpenFile, Seek as Whence};

/// Takes descriptors without ever telling.
struct Silent;
impl HostPoller for Silent {
    fn watch(&self, fd: BorrowedFd<'_>, _queue: &Arc<WaitQueue>) -> Result<(), Errno> {
        let stat = host::fs::stat(fd)?;
        if stat.mode & 0o170000 == 0o100000 {
            Err(Errno::EPERM)
        } else {
            Ok(())
        }
    }
    fn unwatch(&self, _fd: BorrowedFd<'_>) {}
}

struct NoMemory;
impl GuestMemory for NoMemory {
    fn copy_in(&self, _addr: u64, _to: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::EFAULT)
    }
    fn copy_out(&self, _addr: u64, _from: &[u8]) -> Result<usize, Errno> {
        Err(Errno::EFAULT)
    }
}

fn stream(fd: OwnedFd) -> Arc<OpenFile> {
    let poller: Arc<dyn HostPoller> = Arc::new(Silent);
    open(fd, &Arc::new(Terminal::default()), &poller).expect("opens")
}

#[test]
fn pipes_never_wait() {
    let (mut host_reader, host_writer) = std::io::pipe().expect("a pipe");
    let out = stream(host_writer.into());
    let mut sent = 0;
    let error = loop {
        match out.write(&mut Source::slice(&[7; 10_000])) {
            Ok(put) => sent += put,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Errno::EAGAIN);
    assert!((32_768..=65_536).contains(&sent), "{sent}");
    assert!(!out.poll().contains(EventMask::OUT));
    let mut back = vec![0; sent];
    host_reader.read_exact(&mut back).expect("all of it");
    drop(host_reader);
    assert!(out.poll().contains(EventMask::ERR));
    assert_eq!(out.write(&mut Source::slice(b"x")), Err(Errno::EPIPE));

    let (host_reader, mut host_writer) = std::io::pipe().expect("a pipe");
    let input = stream(host_reader.into());
    let mut to = [0; 10];
    assert_eq!(input.read(&mut Sink::slice(&mut to)), Err(Errno::EAGAIN));
    host_writer.write_all(b"hello").expect("room");
    assert_eq!(input.read(&mut Sink::slice(&mut to)), Ok(5));
    drop(host_writer);
    assert_eq!(input.read(&mut Sink::slice(&mut to)), Ok(0));
    assert!(terminal_of(&input).is_none());
    assert_eq!(input.ioctl(0x5401, 0, &NoMemory), Err(Errno::ENOTTY));
    // TIOCSTI
    assert_eq!(input.ioctl(0x5412, 0, &NoMemory), Err(Errno::ENOTTY));
    assert!(
        input
            .anonymous_name()
            .is_some_and(|name| name.starts_with("pipe:["))
    );
}

#[test]
fn regular_files_share_the_position() {
    let dir = TempDir::new();
    let mut host = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(dir.0.join("out"))
        .expect("makes");
    host.write_all(b"before ").expect("writes");
    let out = stream(host.try_clone().expect("duplicates").into());
    assert_eq!(out.position(), 7);
    assert_eq!(out.write(&mut Source::slice(b"inside ")), Ok(7));
    host.write_all(b"after").expect("writes");
    host.rewind().expect("rewinds");
    let mut text = String::new();
    host.read_to_string(&mut text).expect("reads");
    assert_eq!(text, "before inside after");
    assert_eq!(out.seek(0, Whence::Set), Ok(0));
    let mut to = [0; 6];
    assert_eq!(out.read(&mut Sink::slice(&mut to)), Ok(6));
    assert_eq!(&to, b"before");
}
