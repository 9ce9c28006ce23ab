//! Tests of what is particular to files in memory.

use std::sync::Arc;

use abi::Errno;
use abi::fs::OpenFlags;

use super::{MemfdSeals, TmpFs, add_seals, memfd, seals};
use crate::io::Source;
use crate::mm::memory_file::{PAGE, Quota};
use crate::sync::Mutex;
use crate::sync::order::MmAreas;
use crate::vfs::tests::World;
use crate::vfs::{FileSystem, MmapSource, Mount};

#[test]
fn small_files_take_no_pages() {
    let world = World::tmpfs();
    for at in 0..100 {
        world.write(&format!("/f{at}"), &[b'x'; 500]);
    }
    assert_eq!(world.memory.used(), 0);
    world.write("/f0", &[b'x'; 600]);
    assert_eq!(world.memory.used(), PAGE);
    assert_eq!(world.read("/f0"), Ok(vec![b'x'; 600]));
    world.write("/f0", b"");
    assert_eq!(world.memory.used(), 0);
}

#[test]
fn limits_hold() {
    let world = World::tmpfs();
    let fs =
        TmpFs::new(Arc::clone(&world.memory), Quota::new(64 << 10, 4), 0o755).expect("a tmpfs");
    crate::fs::root::mount_at(
        &world.vfs,
        &Mount::of(fs, abi::fs::MountFlags::empty(), "none"),
        b"/m",
    )
    .expect("mounts");
    let file = world
        .open("/m/f", OpenFlags::CREAT | OpenFlags::RDWR)
        .expect("opens");
    assert_eq!(
        file.write(&mut Source::slice(&vec![1; 100_000])),
        Ok(64 << 10)
    );
    assert_eq!(file.write(&mut Source::slice(&[1])), Err(Errno::ENOSPC));
    world.write("/m/g", b"inline");
    world.write("/m/h", b"inline");
    assert_eq!(world.mkdir("/m/i"), Err(Errno::ENOSPC));
    file.truncate(0).expect("shrinks");
    assert_eq!(world.memory.used(), 0);
    world.unlink("/m/g").expect("there");
    world.vfs.shrink();
    world.mkdir("/m/i").expect("room again");
}

/// Notes what is unmapped, under a lock that comes before the file's.
struct Mapper(Mutex<Vec<core::ops::Range<u64>>, MmAreas>);
impl crate::mm::memory_file::Mapper for Mapper {
    fn unmap(&self, _window: &crate::mm::memory_file::Window, range: core::ops::Range<u64>) {
        self.0.lock().push(range);
    }
}

#[test]
fn mappings_are_told_of_what_goes() {
    let world = World::tmpfs();
    world.write("/f", &vec![7; 20_000]);
    let file = world.open("/f", OpenFlags::RDWR).expect("opens");
    let Ok(MmapSource::Memory { window, object }) = file.mmap_source() else {
        panic!("a file in memory is mapped as one");
    };
    let mapper = Arc::new(Mapper(Mutex::new(Vec::new())));
    let weak = Arc::downgrade(&mapper);
    object.watch(weak);
    assert_eq!(object.size(), 20_000);
    assert_eq!(object.populate(4096..8192), Ok(0..20_480));
    assert_eq!(object.populate(20_480..20_481), Err(Errno::ENXIO));
    window.write(0, b"through").expect("allocated");
    assert_eq!(
        world.read("/f").map(|data| data[..8].to_vec()),
        Ok(b"through\x07".to_vec())
    );
    file.truncate(5000).expect("shrinks");
    assert_eq!(mapper.0.lock().first(), Some(&(8192..u64::MAX)));
    assert_eq!(world.memory.used(), 2 * PAGE);
    file.truncate(9000).expect("grows");
    assert_eq!(
        world
            .read("/f")
            .map(|data| data[5000..].iter().all(|byte| *byte == 0)),
        Ok(true)
    );
    drop((file, object));
    world.unlink("/f").expect("there");
    world.vfs.shrink();
    assert_eq!(world.memory.used(), 0);
}

#[test]
fn seals_hold() {
    let world = World::tmpfs();
    let fs =
        TmpFs::new(Arc::clone(&world.memory), Quota::new(1 << 20, 10), 0o755).expect("a tmpfs");
    let mount = Mount::hidden(Arc::clone(&fs) as Arc<dyn FileSystem>);
    let file = memfd(&mount, &fs, b"name", true, (0, 0)).expect("makes");
    assert_eq!(
        world.vfs.file_path(&file, &world.fs.root()),
        b"/memfd:name (deleted)".to_vec()
    );
    file.write(&mut Source::slice(b"data")).expect("room");
    add_seals(&file, MemfdSeals::SHRINK | MemfdSeals::GROW, false).expect("sealable");
    assert_eq!(file.truncate(1), Err(Errno::EPERM));
    assert_eq!(file.pwrite(&mut Source::slice(b"DATA"), 0), Ok(4));
    assert_eq!(
        file.pwrite(&mut Source::slice(b"DATA"), 1),
        Err(Errno::EPERM)
    );
    assert_eq!(add_seals(&file, MemfdSeals::WRITE, true), Err(Errno::EBUSY));
    add_seals(&file, MemfdSeals::WRITE | MemfdSeals::SEAL, false).expect("sealable");
    assert_eq!(
        file.pwrite(&mut Source::slice(b"DATA"), 0),
        Err(Errno::EPERM)
    );
    assert_eq!(add_seals(&file, MemfdSeals::EXEC, false), Err(Errno::EPERM));
    assert!(seals(&file).expect("a memfd").contains(MemfdSeals::WRITE));
    let plain = memfd(&mount, &fs, b"", false, (0, 0)).expect("makes");
    assert_eq!(seals(&plain), Ok(MemfdSeals::SEAL));
}
