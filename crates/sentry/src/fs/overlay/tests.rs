//! Tests of overlays over real host directories.

use abi::Errno;
use abi::fs::{OpenFlags, RenameFlags};

use crate::io::{Sink, Source};
use crate::vfs::tests::{TempDir, World};

/// A lower tree: `dir/{one,two}`, `file`, `big`, `hard` and `hard2`.
fn world() -> World {
    let dir = TempDir::new();
    std::fs::create_dir(dir.0.join("dir")).expect("makes");
    for (name, data) in [
        ("dir/one", "1"),
        ("dir/two", "2"),
        ("file", "lower"),
        ("hard", "h"),
    ] {
        std::fs::write(dir.0.join(name), data).expect("writes");
    }
    std::fs::hard_link(dir.0.join("hard"), dir.0.join("hard2")).expect("links");
    std::fs::write(dir.0.join("big"), vec![7; 300_000]).expect("writes");
    World::overlay(dir)
}

fn lower(world: &World, name: &str) -> Option<Vec<u8>> {
    std::fs::read(world.dir.as_ref().expect("a host directory").0.join(name)).ok()
}

#[test]
fn changes_stay_above() {
    let world = world();
    let before = world.stat("/file").expect("there");
    let reader = world.open("/file", OpenFlags::empty()).expect("opens");
    let file = world.open("/file", OpenFlags::RDWR).expect("opens");
    assert_eq!(file.pwrite(&mut Source::slice(b"UP"), 0), Ok(2));
    assert_eq!(world.read("/file"), Ok(b"UPwer".to_vec()));
    assert_eq!(lower(&world, "file"), Some(b"lower".to_vec()));
    // Who has it open already sees the change.
    let mut to = [0; 5];
    assert_eq!(reader.pread(&mut Sink::slice(&mut to), 0), Ok(5));
    assert_eq!(&to, b"UPwer");
    let after = world.stat("/file").expect("there");
    assert_eq!(
        (before.dev, before.ino, before.mode),
        (after.dev, after.ino, after.mode)
    );
    world.vfs.shrink();
    assert_eq!(world.stat("/file").map(|attrs| attrs.ino), Ok(before.ino));
    world.unlink("/file").expect("there");
    assert_eq!(world.stat("/file"), Err(Errno::ENOENT));
    world.vfs.shrink();
    assert_eq!(world.stat("/file"), Err(Errno::ENOENT));
    world.write("/file", b"new");
    assert_ne!(world.stat("/file").expect("there").ino, before.ino);
    assert_eq!(world.read("/file"), Ok(b"new".to_vec()));
}

#[test]
fn directories_merge() {
    let world = world();
    assert_eq!(world.list("/dir", 100), [".", "..", "one", "two"]);
    world.write("/dir/three", b"3");
    world.unlink("/dir/one").expect("there");
    for step in [1, 100] {
        assert_eq!(world.list("/dir", step), [".", "..", "three", "two"]);
    }
    assert_eq!(world.rmdir("/dir"), Err(Errno::ENOTEMPTY));
    world.unlink("/dir/two").expect("there");
    world.unlink("/dir/three").expect("there");
    world.rmdir("/dir").expect("empty");
    world.vfs.shrink();
    assert_eq!(world.stat("/dir"), Err(Errno::ENOENT));
    world.mkdir("/dir").expect("makes");
    assert_eq!(world.list("/dir", 100), [".", ".."]);
    world.vfs.shrink();
    assert_eq!(world.stat("/dir/one"), Err(Errno::ENOENT));
}

#[test]
fn lower_directories_do_not_move() {
    let world = world();
    assert_eq!(
        world.rename("/dir", "/moved", RenameFlags::empty()),
        Err(Errno::EXDEV)
    );
    world.mkdir("/new").expect("makes");
    world
        .rename("/file", "/new/file", RenameFlags::empty())
        .expect("moves");
    world.vfs.shrink();
    assert_eq!(world.stat("/file"), Err(Errno::ENOENT));
    assert_eq!(world.read("/new/file"), Ok(b"lower".to_vec()));
    world
        .rename("/new", "/newer", RenameFlags::empty())
        .expect("moves");
    assert_eq!(world.read("/newer/file"), Ok(b"lower".to_vec()));
    // A new directory over the name of an old one hides what that had.
    world.unlink("/dir/one").expect("there");
    world.unlink("/dir/two").expect("there");
    world
        .rename("/newer", "/dir", RenameFlags::empty())
        .expect("replaces an empty one");
    world.vfs.shrink();
    assert_eq!(world.list("/dir", 10), [".", "..", "file"]);
    world
        .rename("/dir/file", "/big", RenameFlags::EXCHANGE)
        .expect("swaps");
    assert_eq!(world.read("/big"), Ok(b"lower".to_vec()));
    assert_eq!(world.read("/dir/file").map(|data| data.len()), Ok(300_000));
}

#[test]
fn truncating_copies_nothing() {
    let world = world();
    let used = world.memory.used();
    world.write("/big", b"small");
    assert_eq!(world.memory.used(), used);
    assert_eq!(world.read("/big"), Ok(b"small".to_vec()));
    assert_eq!(lower(&world, "big").map(|data| data.len()), Some(300_000));
}

#[test]
fn hard_links_part_when_copied() {
    let world = world();
    let before = world.stat("/hard").expect("there");
    assert_eq!(world.stat("/hard2").map(|attrs| attrs.ino), Ok(before.ino));
    world.write("/hard", b"changed");
    assert_eq!(world.read("/hard2"), Ok(b"h".to_vec()));
    assert_ne!(world.stat("/hard").expect("there").ino, before.ino);
    world.link("/big", "/big2").expect("links");
    let (a, b) = (
        world.stat("/big").expect("there"),
        world.stat("/big2").expect("there"),
    );
    assert_eq!((a.ino, a.nlink), (b.ino, 2));
}

#[test]
fn memory_comes_back() {
    let world = world();
    let file = world.open("/big", OpenFlags::RDWR).expect("opens");
    assert!(world.memory.used() >= 300_000);
    world.unlink("/big").expect("there");
    drop(file);
    world.vfs.shrink();
    assert_eq!(world.memory.used(), 0);
}
