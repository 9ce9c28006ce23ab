//! Tests of what is particular to host trees.

use abi::Errno;
use abi::fs::{AtFlags, OpenFlags};

use crate::io::Sink;
use crate::vfs::tests::World;
use crate::vfs::{MmapSource, OpenFile};

fn host(world: &World, name: &str) -> std::path::PathBuf {
    world.dir.as_ref().expect("a host directory").0.join(name)
}

#[test]
fn changes_of_the_host_are_seen() {
    let world = World::host();
    assert_eq!(world.stat("/f"), Err(Errno::ENOENT));
    std::fs::write(host(&world, "f"), "one").expect("writes");
    assert_eq!(world.read("/f"), Ok(b"one".to_vec()));
    std::fs::write(host(&world, "f"), "longer").expect("writes");
    assert_eq!(world.stat("/f").map(|attrs| attrs.size), Ok(6));
    std::fs::remove_file(host(&world, "f")).expect("removes");
    assert_eq!(world.stat("/f"), Err(Errno::ENOENT));
    std::fs::create_dir(host(&world, "f")).expect("makes");
    assert_eq!(world.list("/f", 10), [".", ".."]);
    world.write("/f/x", b"through");
    assert_eq!(
        std::fs::read(host(&world, "f/x")).expect("written through"),
        b"through"
    );
}

#[test]
fn numbers_agree() {
    use std::os::unix::fs::MetadataExt;
    let world = World::host();
    world.write("/f", b"");
    let ino = std::fs::metadata(host(&world, "f")).expect("there").ino();
    assert_eq!(world.stat("/f").map(|attrs| attrs.ino), Ok(ino));
    let dir = world.open("/", OpenFlags::DIRECTORY).expect("opens");
    let mut listed = 0;
    dir.readdir(&mut |entry| {
        if entry.name == b"f" {
            listed = entry.ino;
        }
        true
    })
    .expect("reads");
    assert_eq!(listed, ino);
}

#[test]
fn links_of_the_host_do_not_lead_out() {
    let world = World::host();
    std::os::unix::fs::symlink("/etc/passwd", host(&world, "out")).expect("links");
    std::os::unix::fs::symlink("../../../../etc", host(&world, "up")).expect("links");
    assert_eq!(world.read("/out"), Err(Errno::ENOENT));
    assert_eq!(world.read("/up/passwd"), Err(Errno::ENOENT));
    // A directory that turns into a link while it is in use.
    world.mkdir("/d").expect("makes");
    world.vfs.chdir(&world.cx(), b"/d").expect("enters");
    std::fs::remove_dir(host(&world, "d")).expect("removes");
    std::os::unix::fs::symlink("/etc", host(&world, "d")).expect("links");
    assert!(
        world
            .vfs
            .stat(&world.cx(), b"passwd", AtFlags::empty())
            .is_err()
    );
}

#[test]
fn set_id_bits_never_reach_the_host() {
    use std::os::unix::fs::MetadataExt;
    let world = World::host();
    world.write("/f", b"");
    let target = world
        .vfs
        .target(&world.cx(), b"/f", AtFlags::empty())
        .expect("there");
    world
        .vfs
        .chmod(&world.creds, &target, 0o6755)
        .expect("the rest of it");
    assert_eq!(
        std::fs::metadata(host(&world, "f")).expect("there").mode() & 0o7777,
        0o755
    );
}

#[test]
fn descriptors_stay_few() {
    let world = World::host();
    for at in 0..300 {
        world.mkdir(&format!("/d{at}")).expect("makes");
        world.write(&format!("/d{at}/f"), b"x");
        assert_eq!(world.read(&format!("/d{at}/f")), Ok(b"x".to_vec()));
    }
    let open = std::fs::read_dir("/proc/self/fd")
        .expect("a test's own")
        .count();
    assert!(open < 1000, "{open}");
}

#[test]
fn mappings_name_the_host_file() {
    let world = World::host();
    world.write("/f", b"mapped");
    let file: std::sync::Arc<OpenFile> = world.open("/f", OpenFlags::empty()).expect("opens");
    match file.mmap_source() {
        Ok(MmapSource::Host(host)) => {
            assert_eq!((host.size, host.path.as_slice()), (6, &b"/f"[..]))
        }
        _ => panic!("a host file is mapped as one"),
    }
    let mut to = [0; 3];
    assert_eq!(file.read(&mut Sink::slice(&mut to)), Ok(3));
    assert_eq!(file.read(&mut Sink::slice(&mut to)), Ok(3));
    assert_eq!(
        (&to, file.read(&mut Sink::slice(&mut [0; 3]))),
        (b"ped", Ok(0))
    );
}
