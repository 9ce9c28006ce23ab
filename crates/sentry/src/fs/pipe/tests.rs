//! Tests of pipes.

use std::sync::Arc;

use abi::Errno;
use abi::cap::CapSet;
use abi::fs::OpenFlags;

use super::{Pipe, open_fifo, pipe};
use crate::io::{Sink, Source};
use crate::sync::EventMask;
use crate::task::credentials::Credentials;
use crate::vfs::OpenFile;

fn read(file: &Arc<OpenFile>, most: usize) -> Result<Vec<u8>, Errno> {
    let mut to = Vec::new();
    file.read(&mut Sink::vec(&mut to, most))?;
    Ok(to)
}

fn write(file: &Arc<OpenFile>, from: &[u8]) -> Result<usize, Errno> {
    file.write(&mut Source::slice(from))
}

#[test]
fn bytes_come_out_in_order() {
    let (reader, writer) = pipe(OpenFlags::empty(), &Credentials::root(CapSet::FULL));
    assert_eq!(read(&reader, 10), Err(Errno::EAGAIN));
    let mut sent = 0u32;
    let mut got = 0u32;
    for round in 1..500usize {
        let data: Vec<u8> = (0..round)
            .map(|at| ((sent as usize + at) % 251) as u8)
            .collect();
        assert_eq!(write(&writer, &data), Ok(round));
        sent += round as u32;
        for byte in read(&reader, round / 2 + 1).expect("data") {
            assert_eq!(u32::from(byte), got % 251);
            got += 1;
        }
    }
    assert_eq!(reader.poll(), EventMask::IN | EventMask::RDNORM);
    drop(writer);
    while !read(&reader, 4000).expect("data or the end").is_empty() {}
    assert_eq!(reader.poll(), EventMask::HUP);
    assert_eq!(read(&reader, 1), Ok(vec![]));
}

#[test]
fn small_writes_are_whole_or_not_at_all() {
    let (reader, writer) = pipe(OpenFlags::empty(), &Credentials::root(CapSet::FULL));
    assert_eq!(write(&writer, &vec![1; 65536 - 10]), Ok(65526));
    assert_eq!(write(&writer, &[2; 11]), Err(Errno::EAGAIN));
    assert_eq!(write(&writer, &[2; 4097]), Ok(10));
    assert_eq!(write(&writer, &[2; 1]), Err(Errno::EAGAIN));
    assert!(!writer.poll().contains(EventMask::OUT));
    assert_eq!(read(&reader, 4096).map(|data| data.len()), Ok(4096));
    assert!(writer.poll().contains(EventMask::OUT));
    drop(reader);
    assert_eq!(write(&writer, &[2; 1]), Err(Errno::EPIPE));
    assert!(writer.poll().contains(EventMask::ERR));
}

#[test]
fn packets_stay_apart() {
    let (reader, writer) = pipe(OpenFlags::DIRECT, &Credentials::root(CapSet::FULL));
    write(&writer, b"one").expect("room");
    write(&writer, b"three").expect("room");
    assert_eq!(read(&reader, 4096), Ok(b"one".to_vec()));
    assert_eq!(read(&reader, 2), Ok(b"th".to_vec()));
    assert_eq!(read(&reader, 2), Err(Errno::EAGAIN));
}

#[test]
fn fifos_wait_for_the_other_side() {
    let fifo = Pipe::new();
    assert!(matches!(
        open_fifo(&fifo, OpenFlags::WRONLY | OpenFlags::NONBLOCK),
        Err(Errno::ENXIO)
    ));
    let reader = open_fifo(&fifo, OpenFlags::empty()).expect("opens");
    assert!(reader.open_pending());
    let writer = open_fifo(&fifo, OpenFlags::WRONLY).expect("opens");
    assert!(!reader.open_pending() && !writer.open_pending());
    drop(writer);
    assert!(!reader.open_pending());
}

#[test]
fn capacity_has_limits() {
    let fifo = Pipe::new();
    assert_eq!(fifo.set_capacity(1, false), Ok(4096));
    assert_eq!(fifo.set_capacity(70_000, false), Ok(131_072));
    assert_eq!(fifo.set_capacity(2 << 20, false), Err(Errno::EPERM));
    assert_eq!(fifo.set_capacity(usize::MAX, true), Err(Errno::EINVAL));
}
