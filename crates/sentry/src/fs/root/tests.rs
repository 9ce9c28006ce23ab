//! Tests of the tree of mounts.

use std::os::fd::IntoRawFd;

use abi::Errno;
use abi::cap::CapSet;
use abi::fs::OpenFlags;

use super::build_root;
use crate::io::Source;
use crate::spec::{BootSpec, ByteString, Limits, Volume};
use crate::task::credentials::Credentials;
use crate::vfs::FsContext;
use crate::vfs::tests::{TempDir, World, memory};

fn path(text: &str) -> ByteString {
    ByteString::Text(text.to_owned())
}

#[test]
fn roots_have_what_they_should() {
    let (root, sub, rw, ro) = (
        TempDir::new(),
        TempDir::new(),
        TempDir::new(),
        TempDir::new(),
    );
    std::fs::create_dir_all(root.0.join("home/sub")).expect("makes");
    std::fs::create_dir_all(root.0.join("proc/host")).expect("makes");
    std::fs::write(sub.0.join("x"), "sub").expect("writes");
    std::fs::write(ro.0.join("x"), "ro").expect("writes");
    std::fs::write(rw.0.join("single"), "file").expect("writes");
    let single = std::fs::File::options()
        .read(true)
        .write(true)
        .open(rw.0.join("single"))
        .expect("opens");
    let spec = BootSpec {
        args: vec![path("/bin/true")],
        env: Vec::new(),
        cwd: path("/"),
        hostname: "box".to_owned(),
        lower: vec![
            (path("/"), root.fd().into_raw_fd()),
            (path("/home/sub"), sub.fd().into_raw_fd()),
        ],
        volumes: vec![
            Volume {
                target: path("/data/deep"),
                fd: rw.fd().into_raw_fd(),
                read_only: false,
            },
            Volume {
                target: path("/ro"),
                fd: ro.fd().into_raw_fd(),
                read_only: true,
            },
            Volume {
                target: path("/etc/single"),
                fd: single.into_raw_fd(),
                read_only: false,
            },
        ],
        stdio: [0, 1, 2],
        control: -1,
        guest_cgroups: Vec::new(),
        limits: Limits {
            memory: 64 << 20,
            pids: 10,
            cpus: 1,
        },
        cpu: String::new(),
        strace: false,
        host_mm: crate::spec::HostMm::default(),
    };
    let mut inherited = host::fd::Inherited::claim().expect("the one test that does");
    let built = build_root(&spec, &memory(), &mut inherited).expect("builds");
    let world = World {
        fs: FsContext::new(built.vfs.root()),
        vfs: built.vfs,
        creds: Credentials::root(CapSet::FULL),
        dir: None,
        memory: memory(),
    };
    assert_eq!(world.read("/home/sub/x"), Ok(b"sub".to_vec()));
    assert_eq!(world.read("/ro/x"), Ok(b"ro".to_vec()));
    assert_eq!(
        world.open("/ro/x", OpenFlags::WRONLY).map(drop),
        Err(Errno::EROFS)
    );
    world.write("/data/deep/new", b"through");
    assert_eq!(
        std::fs::read(rw.0.join("new")).expect("written through"),
        b"through"
    );
    assert!(!root.0.join("data").exists());
    assert_eq!(world.read("/etc/single"), Ok(b"file".to_vec()));
    world.write("/etc/single", b"changed");
    assert_eq!(
        std::fs::read(rw.0.join("single")).expect("written through"),
        b"changed"
    );
    assert_eq!(world.stat("/etc/single").map(|attrs| attrs.size), Ok(7));
    world.write("/tmpfile", b"above");
    assert!(!root.0.join("tmpfile").exists());
    let null = world.open("/dev/null", OpenFlags::WRONLY).expect("opens");
    assert_eq!(null.write(&mut Source::slice(&[0; 100])), Ok(100));
    assert_eq!(
        world.open("/dev/tty", OpenFlags::empty()).map(drop),
        Err(Errno::ENXIO)
    );
    world.write("/dev/shm/s", b"shared");
    assert_eq!(world.stat("/dev/shm").map(|attrs| attrs.mode), Ok(0o041777));
    assert!(world.list("/", 100).contains(&"sys".to_owned()));
    let mounts = crate::fs::proc::mounts(&world.vfs, &world.fs.root());
    assert_eq!(String::from_utf8_lossy(&mounts).lines().count(), 7);
}

#[test]
fn sizes_of_mount_options() {
    use super::size;
    assert_eq!(
        ["4096", "64k", "2M", "1g", "50%", "5x", "", "k"].map(|text| size(text, 1000)),
        [
            Some(4096),
            Some(64 << 10),
            Some(2 << 20),
            Some(1 << 30),
            Some(1000),
            None,
            None,
            None
        ]
    );
}
