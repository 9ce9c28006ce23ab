//! Tests of epoll instances.

use std::sync::Arc;

use abi::Errno;
use abi::cap::CapSet;
use abi::epoll::{EPOLLET, EPOLLEXCLUSIVE, EPOLLONESHOT, EpollEvent};
use abi::fs::OpenFlags;

use super::{epoll, of};
use crate::fs::eventfd::eventfd;
use crate::fs::pipe::pipe;
use crate::io::{Sink, Source};
use crate::sync::EventMask;
use crate::task::credentials::Credentials;
use crate::vfs::OpenFile;

const IN: u32 = 1;
const OUT: u32 = 4;
const HUP: u32 = 0x10;

fn event(events: u32, data: u64) -> EpollEvent {
    EpollEvent { events, data }
}

fn ends() -> (Arc<OpenFile>, Arc<OpenFile>) {
    pipe(OpenFlags::empty(), &Credentials::root(CapSet::FULL))
}

fn write(file: &OpenFile) {
    file.write(&mut Source::slice(b"x")).expect("room");
}

fn drain(file: &OpenFile) {
    let mut to = [0; 100];
    file.read(&mut Sink::slice(&mut to)).expect("data");
}

#[test]
fn level_and_edge() {
    let instance = epoll();
    let set = of(&instance).expect("an instance");
    let (reader, writer) = ends();
    set.add(3, &reader, event(IN, 30)).expect("adds");
    set.add(4, &reader, event(IN | EPOLLET, 40))
        .expect("the same file under another number");
    assert_eq!(set.add(3, &reader, event(IN, 30)), Err(Errno::EEXIST));
    assert!(set.take(10).is_empty());
    assert!(instance.poll().is_empty());
    write(&writer);
    assert!(instance.poll().contains(EventMask::IN));
    assert_eq!(set.take(10), [event(IN | 0x40 & IN, 30), event(IN, 40)]);
    assert_eq!(set.take(10), [event(IN, 30)]);
    write(&writer);
    assert_eq!(set.take(10).len(), 2);
    drain(&reader);
    assert!(set.take(10).is_empty());
    assert!(instance.poll().is_empty());
    drop(writer);
    assert_eq!(set.take(10), [event(HUP, 30), event(HUP, 40)]);
}

#[test]
fn oneshot_and_modify() {
    let instance = epoll();
    let set = of(&instance).expect("an instance");
    let (reader, writer) = ends();
    set.add(3, &reader, event(IN | EPOLLONESHOT, 1))
        .expect("adds");
    write(&writer);
    assert_eq!(set.take(10).len(), 1);
    write(&writer);
    assert!(set.take(10).is_empty());
    set.modify(3, &reader, event(IN | EPOLLONESHOT, 2))
        .expect("is there");
    assert_eq!(set.take(10), [event(IN, 2)]);
    set.add(5, &writer, event(OUT, 5)).expect("adds");
    assert_eq!(set.take(10), [event(OUT, 5)]);
    assert_eq!(set.modify(9, &writer, event(OUT, 5)), Err(Errno::ENOENT));
    set.remove(5, &writer).expect("is there");
    assert!(set.take(10).is_empty());
}

#[test]
fn closing_removes() {
    let instance = epoll();
    let set = of(&instance).expect("an instance");
    let file = eventfd(1, false, OpenFlags::empty());
    set.add(3, &file, event(IN, 1)).expect("adds");
    assert_eq!(set.take(1).len(), 1);
    drop(file);
    assert!(set.take(1).is_empty());
    assert!(set.interests().is_empty());
}

#[test]
fn nesting_has_limits() {
    let chain: Vec<_> = (0..7).map(|_| epoll()).collect();
    let sets: Vec<_> = chain
        .iter()
        .map(|file| of(file).expect("an instance"))
        .collect();
    assert_eq!(sets[0].add(0, &chain[0], event(IN, 0)), Err(Errno::EINVAL));
    let mut depth = 0;
    for at in (1..7).rev() {
        match sets[at - 1].add(0, &chain[at], event(IN, 0)) {
            Ok(()) => depth += 1,
            Err(error) => {
                assert_eq!(error, Errno::ELOOP);
                break;
            }
        }
    }
    assert!((3..6).contains(&depth), "{depth}");
    assert_eq!(sets[6].add(0, &chain[5], event(IN, 0)), Err(Errno::ELOOP));
    let file = eventfd(0, false, OpenFlags::empty());
    sets[6].add(1, &file, event(IN, 9)).expect("adds");
    assert!(chain[5].poll().is_empty());
    file.write(&mut Source::slice(&1u64.to_ne_bytes()))
        .expect("room");
    assert!(chain[5].poll().contains(EventMask::IN));
    assert_eq!(sets[5].take(10).len(), 1);
    assert_eq!(
        sets[5].add(2, &chain[6], event(IN | EPOLLEXCLUSIVE, 0)),
        Err(Errno::EINVAL)
    );
}
