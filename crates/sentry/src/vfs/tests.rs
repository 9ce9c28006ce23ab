//! Tests of the calls that take paths, over tmpfs, host directories and overlays alike.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use abi::Errno;
use abi::cap::CapSet;
use abi::fs::{AtFlags, FileType, MountFlags, OpenFlags, RenameFlags, ResolveFlags};

use super::{Attrs, Caching, FsContext, Mount, OpenFile, PathCx, Seek, SetXattr, Target, Vfs};
use crate::fs::host::{HostFs, HostMount};
use crate::fs::overlay::OverlayFs;
use crate::fs::tmpfs::TmpFs;
use crate::io::{Sink, Source};
use crate::mm::memory_file::{MemoryFile, Quota};
use crate::task::credentials::Credentials;

/// A host directory that goes when the test ends.
pub(crate) struct TempDir(pub(crate) PathBuf);

impl TempDir {
    pub(crate) fn new() -> TempDir {
        let path = std::env::temp_dir().join(format!(
            "vfs-test-{}-{}",
            std::process::id(),
            super::new_id()
        ));
        std::fs::create_dir(&path).expect("a temporary directory");
        TempDir(path)
    }

    pub(crate) fn fd(&self) -> OwnedFd {
        std::fs::File::open(&self.0).expect("a directory").into()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // What a failed test leaves is the system's to clean.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn memory() -> Arc<MemoryFile> {
    MemoryFile::new(
        host::shared::memory_file("test").expect("a memory file"),
        256 << 20,
    )
}

/// A namespace, and who acts in it.
pub(crate) struct World {
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) fs: Arc<FsContext>,
    pub(crate) creds: Credentials,
    pub(crate) dir: Option<TempDir>,
    pub(crate) memory: Arc<MemoryFile>,
}

impl World {
    fn of(mount: Arc<Mount>, dir: Option<TempDir>, memory: Arc<MemoryFile>) -> World {
        let vfs = Vfs::new(mount);
        crate::fs::dev::register(&vfs);
        let fs = FsContext::new(vfs.root());
        World {
            vfs,
            fs,
            creds: Credentials::root(CapSet::FULL),
            dir,
            memory,
        }
    }

    pub(crate) fn tmpfs() -> World {
        let memory = memory();
        let fs =
            TmpFs::new(Arc::clone(&memory), Quota::new(64 << 20, 10_000), 0o755).expect("a tmpfs");
        World::of(Mount::of(fs, MountFlags::empty(), "none"), None, memory)
    }

    pub(crate) fn host() -> World {
        let dir = TempDir::new();
        let fs = HostFs::new(dir.fd(), Caching::Revalidate).expect("a tree");
        World::of(
            Mount::of(Arc::new(HostMount(fs)), MountFlags::empty(), "none"),
            Some(dir),
            memory(),
        )
    }

    pub(crate) fn overlay(dir: TempDir) -> World {
        let memory = memory();
        let lower = HostFs::new(dir.fd(), Caching::Assume).expect("a tree");
        let fs = OverlayFs::new(&lower, Arc::clone(&memory), Quota::new(64 << 20, 10_000));
        World::of(
            Mount::of(fs, MountFlags::empty(), "none"),
            Some(dir),
            memory,
        )
    }

    /// One of each.
    fn each() -> [World; 3] {
        [
            World::tmpfs(),
            World::host(),
            World::overlay(TempDir::new()),
        ]
    }

    pub(crate) fn cx(&self) -> PathCx<'_> {
        PathCx {
            fs: &self.fs,
            creds: &self.creds,
            dirfd: None,
        }
    }

    pub(crate) fn open(&self, path: &str, flags: OpenFlags) -> Result<Arc<OpenFile>, Errno> {
        self.vfs.open(
            &self.cx(),
            path.as_bytes(),
            flags,
            0o644,
            ResolveFlags::empty(),
        )
    }

    pub(crate) fn write(&self, path: &str, data: &[u8]) {
        let file = self
            .open(
                path,
                OpenFlags::WRONLY | OpenFlags::CREAT | OpenFlags::TRUNC,
            )
            .expect("opens");
        assert_eq!(file.write(&mut Source::slice(data)), Ok(data.len()));
    }

    pub(crate) fn read(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let file = self.open(path, OpenFlags::empty())?;
        let mut data = Vec::new();
        while file.read(&mut Sink::vec(&mut data, 1 << 20))? > 0 {}
        Ok(data)
    }

    pub(crate) fn stat(&self, path: &str) -> Result<Attrs, Errno> {
        self.vfs
            .stat(&self.cx(), path.as_bytes(), AtFlags::SYMLINK_NOFOLLOW)
    }

    pub(crate) fn mkdir(&self, path: &str) -> Result<(), Errno> {
        self.vfs.mkdir(&self.cx(), path.as_bytes(), 0o755)
    }

    pub(crate) fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<(), Errno> {
        self.vfs.rename(
            &self.cx(),
            from.as_bytes(),
            &self.cx(),
            to.as_bytes(),
            flags,
        )
    }

    pub(crate) fn unlink(&self, path: &str) -> Result<(), Errno> {
        self.vfs.unlink(&self.cx(), path.as_bytes())
    }

    pub(crate) fn rmdir(&self, path: &str) -> Result<(), Errno> {
        self.vfs.rmdir(&self.cx(), path.as_bytes())
    }

    fn symlink(&self, target: &str, path: &str) -> Result<(), Errno> {
        self.vfs
            .symlink(&self.cx(), target.as_bytes(), path.as_bytes())
    }

    pub(crate) fn link(&self, from: &str, to: &str) -> Result<(), Errno> {
        self.vfs.link(
            &self.cx(),
            from.as_bytes(),
            &self.cx(),
            to.as_bytes(),
            AtFlags::empty(),
        )
    }

    /// Names in a directory, sorted, read `step` entries at a time.
    pub(crate) fn list(&self, path: &str, step: usize) -> Vec<String> {
        let file = self.open(path, OpenFlags::DIRECTORY).expect("a directory");
        let mut names = Vec::new();
        loop {
            let before = names.len();
            file.readdir(&mut |entry| {
                if names.len() - before >= step {
                    return false;
                }
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                true
            })
            .expect("reads");
            if names.len() == before {
                break;
            }
        }
        names.sort();
        names
    }

    fn target(&self, path: &str) -> Target {
        self.vfs
            .target(&self.cx(), path.as_bytes(), AtFlags::empty())
            .expect("is there")
    }
}

#[test]
fn files_come_and_go() {
    for world in World::each() {
        assert_eq!(world.stat("/a"), Err(Errno::ENOENT));
        world.write("/a", b"hello");
        assert_eq!(world.read("/a"), Ok(b"hello".to_vec()));
        let attrs = world.stat("/a").expect("is there");
        assert_eq!((attrs.size, attrs.mode, attrs.nlink), (5, 0o100644, 1));
        assert_eq!(
            world
                .open("/a", OpenFlags::CREAT | OpenFlags::EXCL)
                .map(drop),
            Err(Errno::EEXIST)
        );
        assert_eq!(
            world.open("/a", OpenFlags::DIRECTORY).map(drop),
            Err(Errno::ENOTDIR)
        );
        assert_eq!(
            world.open("/a/", OpenFlags::empty()).map(drop),
            Err(Errno::ENOTDIR)
        );
        assert_eq!(
            world.open("/b/", OpenFlags::CREAT).map(drop),
            Err(Errno::EISDIR)
        );
        assert_eq!(
            world.open("/a/b", OpenFlags::empty()).map(drop),
            Err(Errno::ENOTDIR)
        );
        assert_eq!(
            world.open("/", OpenFlags::WRONLY).map(drop),
            Err(Errno::EISDIR)
        );
        assert_eq!(world.mkdir("/a"), Err(Errno::EEXIST));
        assert_eq!(world.rmdir("/a"), Err(Errno::ENOTDIR));
        let held = world.open("/a", OpenFlags::RDWR).expect("opens");
        world.unlink("/a").expect("is there");
        assert_eq!(world.unlink("/a"), Err(Errno::ENOENT));
        assert_eq!(world.stat("/a"), Err(Errno::ENOENT));
        assert_eq!(held.attrs().map(|attrs| attrs.nlink), Ok(0));
        assert_eq!(held.pwrite(&mut Source::slice(b"J"), 0), Ok(1));
        let mut to = [0; 5];
        assert_eq!(held.pread(&mut Sink::slice(&mut to), 0), Ok(5));
        assert_eq!(&to, b"Jello");
        assert_eq!(
            world.vfs.file_path(&held, &world.fs.root()),
            b"/a (deleted)".to_vec()
        );
    }
}

#[test]
fn directories_and_their_listings() {
    for world in World::each() {
        world.mkdir("/d").expect("makes");
        for at in 0..300 {
            world.write(&format!("/d/file{at}"), b"");
        }
        world.mkdir("/d/sub").expect("makes");
        for step in [1, 7, 1000] {
            let names = world.list("/d", step);
            assert_eq!(names.len(), 303);
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        }
        assert_eq!(world.rmdir("/d"), Err(Errno::ENOTEMPTY));
        // Taking entries away while they are listed.
        let file = world.open("/d", OpenFlags::DIRECTORY).expect("opens");
        let mut seen = 0;
        loop {
            let mut names = Vec::new();
            file.readdir(&mut |entry| {
                let more = names.len() < 10;
                if more {
                    names.push(String::from_utf8_lossy(entry.name).into_owned());
                }
                more
            })
            .expect("reads");
            if names.is_empty() {
                break;
            }
            for name in names.iter().filter(|name| name.starts_with("file")) {
                seen += 1;
                world.unlink(&format!("/d/{name}")).expect("is there");
            }
        }
        assert_eq!(seen, 300);
        assert_eq!(world.unlink("/d/sub"), Err(Errno::EISDIR));
        world.rmdir("/d/sub").expect("empty");
        world.rmdir("/d/").expect("empty");
        assert_eq!(world.stat("/d"), Err(Errno::ENOENT));
        assert_eq!(world.rmdir("/"), Err(Errno::EBUSY));
        assert_eq!(world.rmdir("/."), Err(Errno::EINVAL));
    }
}

#[test]
fn links_are_followed_so_far() {
    for world in World::each() {
        world.mkdir("/d").expect("makes");
        world.write("/d/file", b"x");
        world.symlink("d/file", "/rel").expect("makes");
        world.symlink("/d", "/abs").expect("makes");
        world.symlink("loop", "/loop").expect("makes");
        world.symlink("new", "/dangling").expect("makes");
        assert_eq!(world.read("/rel"), Ok(b"x".to_vec()));
        assert_eq!(world.read("/abs/../abs/./file"), Ok(b"x".to_vec()));
        assert_eq!(world.read("/loop"), Err(Errno::ELOOP));
        assert_eq!(
            world.open("/rel", OpenFlags::NOFOLLOW).map(drop),
            Err(Errno::ELOOP)
        );
        assert!(
            world
                .open("/rel", OpenFlags::NOFOLLOW | OpenFlags::PATH)
                .is_ok()
        );
        assert_eq!(
            world.vfs.readlink(&world.cx(), b"/rel"),
            Ok(b"d/file".to_vec())
        );
        assert_eq!(world.vfs.readlink(&world.cx(), b"/d"), Err(Errno::EINVAL));
        assert_eq!(
            world.stat("/rel").map(|attrs| attrs.mode & 0o170000),
            Ok(0o120000)
        );
        assert_eq!(
            world
                .open("/dangling", OpenFlags::CREAT | OpenFlags::EXCL)
                .map(drop),
            Err(Errno::EEXIST)
        );
        world.write("/dangling", b"made");
        assert_eq!(world.read("/new"), Ok(b"made".to_vec()));
        let mut last = "d/file".to_owned();
        for at in 0..41 {
            let name = format!("chain{at}");
            world.symlink(&last, &format!("/{name}")).expect("makes");
            last = name;
        }
        assert_eq!(world.read("/chain39"), Ok(b"x".to_vec()));
        assert_eq!(world.read("/chain40"), Err(Errno::ELOOP));
        let beneath = |path: &[u8], resolve| {
            world
                .vfs
                .open(&world.cx(), path, OpenFlags::empty(), 0, resolve)
                .map(drop)
        };
        assert_eq!(
            beneath(b"abs/file", ResolveFlags::BENEATH),
            Err(Errno::EXDEV)
        );
        assert_eq!(beneath(b"abs/file", ResolveFlags::IN_ROOT), Ok(()));
        assert_eq!(
            beneath(b"rel", ResolveFlags::NO_SYMLINKS),
            Err(Errno::ELOOP)
        );
        assert_eq!(
            beneath(b"d/../../d", ResolveFlags::BENEATH),
            Err(Errno::EXDEV)
        );
    }
}

#[test]
fn hostile_paths() {
    for world in World::each() {
        let long = "n".repeat(256);
        assert_eq!(world.stat(&format!("/{long}")), Err(Errno::ENAMETOOLONG));
        assert_eq!(world.mkdir(&format!("/{long}")), Err(Errno::ENAMETOOLONG));
        assert_eq!(world.stat(&"/a".repeat(2048)), Err(Errno::ENAMETOOLONG));
        assert_eq!(world.stat(""), Err(Errno::ENOENT));
        assert_eq!(
            world
                .stat(&"/".repeat(4095))
                .map(|attrs| attrs.mode & 0o170000),
            Ok(0o040000)
        );
        assert_eq!(world.stat("/../../..").map(drop), Ok(()));
        world
            .mkdir(&format!("/{}", "m".repeat(255)))
            .expect("makes");
        assert_eq!(world.mkdir("/."), Err(Errno::EEXIST));
        assert_eq!(world.mkdir("/.."), Err(Errno::EEXIST));
        assert_eq!(world.unlink("/.."), Err(Errno::EISDIR));
        assert_eq!(
            world.rename("/..", "/x", RenameFlags::empty()),
            Err(Errno::EBUSY)
        );
        // A tree as deep as relative paths can make it.
        for _ in 0..600 {
            world
                .vfs
                .mkdir(&world.cx(), b"deeper", 0o755)
                .expect("makes");
            world.vfs.chdir(&world.cx(), b"deeper").expect("enters");
        }
        assert!(world.vfs.getcwd(&world.fs).expect("reachable").len() == 600 * 7);
        world.vfs.chdir(&world.cx(), b"/").expect("enters");
        world.vfs.shrink();
    }
}

#[test]
fn offsets_at_the_edge() {
    for world in World::each() {
        let file = world
            .open("/f", OpenFlags::CREAT | OpenFlags::RDWR)
            .expect("opens");
        assert_eq!(file.seek(i64::MAX, Seek::Set), Ok(i64::MAX as u64));
        assert_eq!(file.write(&mut Source::slice(b"x")), Err(Errno::EINVAL));
        assert_eq!(file.read(&mut Sink::slice(&mut [0; 4])), Err(Errno::EINVAL));
        assert_eq!(
            file.pread(&mut Sink::slice(&mut [0; 4]), i64::MAX - 4),
            Ok(0)
        );
        assert_eq!(
            file.pwrite(&mut Source::slice(b"far"), i64::MAX - 3),
            Err(Errno::EFBIG)
        );
        assert_eq!(file.seek(1, Seek::Current), Err(Errno::EOVERFLOW));
        assert_eq!(file.seek(-1, Seek::Set), Err(Errno::EINVAL));
        assert_eq!(
            file.pwrite(&mut Source::slice(b"x"), -1),
            Err(Errno::EINVAL)
        );
        assert_eq!(
            file.pread(&mut Sink::slice(&mut [0; 4]), i64::MIN),
            Err(Errno::EINVAL)
        );
        assert_eq!(file.truncate(-1), Err(Errno::EINVAL));
        assert_eq!(file.fallocate(0, i64::MAX, 1), Err(Errno::EFBIG));
        assert_eq!(file.fallocate(0, 0, 0), Err(Errno::EINVAL));
        assert_eq!(file.fallocate(2, 0, 1), Err(Errno::EOPNOTSUPP));
        assert_eq!(file.seek(0, Seek::Data), Err(Errno::ENXIO));
        assert_eq!(file.pwrite(&mut Source::slice(b"end"), 1 << 30), Ok(3));
        assert_eq!(file.seek(0, Seek::Hole), Ok(0));
        let data = file.seek(0, Seek::Data).expect("data");
        assert!(data <= 1 << 30 && data > (1 << 30) - 65536, "{data}");
        let mut to = [1; 8];
        assert_eq!(file.pread(&mut Sink::slice(&mut to), (1 << 30) - 5), Ok(8));
        assert_eq!(&to, b"\0\0\0\0\0end");
    }
}

#[test]
fn renames() {
    for world in World::each() {
        world.write("/a", b"a");
        world.write("/b", b"b");
        let ino = world.stat("/a").expect("is there").ino;
        world
            .rename("/a", "/b", RenameFlags::empty())
            .expect("replaces");
        assert_eq!(world.read("/b"), Ok(b"a".to_vec()));
        assert_eq!(world.stat("/b").map(|attrs| attrs.ino), Ok(ino));
        assert_eq!(world.stat("/a"), Err(Errno::ENOENT));
        world.mkdir("/d").expect("makes");
        world.mkdir("/e").expect("makes");
        world.mkdir("/d/in").expect("makes");
        world.write("/d/in/f", b"deep");
        assert_eq!(
            world.rename("/d", "/d/in/x", RenameFlags::empty()),
            Err(Errno::EINVAL)
        );
        assert_eq!(
            world.rename("/e", "/d", RenameFlags::empty()),
            Err(Errno::ENOTEMPTY)
        );
        assert_eq!(
            world.rename("/d/in", "/d", RenameFlags::empty()),
            Err(Errno::ENOTEMPTY)
        );
        assert_eq!(
            world.rename("/b", "/d", RenameFlags::empty()),
            Err(Errno::EISDIR)
        );
        assert_eq!(
            world.rename("/d", "/b", RenameFlags::empty()),
            Err(Errno::ENOTDIR)
        );
        assert_eq!(
            world.rename("/b", "/e", RenameFlags::NOREPLACE),
            Err(Errno::EEXIST)
        );
        world
            .rename("/d/in", "/e", RenameFlags::empty())
            .expect("replaces an empty one");
        assert_eq!(world.read("/e/f"), Ok(b"deep".to_vec()));
        world
            .rename("/b", "/e", RenameFlags::EXCHANGE)
            .expect("swaps");
        assert_eq!(world.read("/b/f"), Ok(b"deep".to_vec()));
        assert_eq!(world.read("/e"), Ok(b"a".to_vec()));
        assert_eq!(
            world.rename("/e", "/none", RenameFlags::EXCHANGE),
            Err(Errno::ENOENT)
        );
        world
            .rename("/b", "/d/b", RenameFlags::empty())
            .expect("moves");
        assert_eq!(world.read("/d/b/../b/f"), Ok(b"deep".to_vec()));
        let held = world.open("/d/b/f", OpenFlags::empty()).expect("opens");
        world
            .rename("/d", "/elsewhere", RenameFlags::empty())
            .expect("moves");
        assert_eq!(
            world.vfs.file_path(&held, &world.fs.root()),
            b"/elsewhere/b/f".to_vec()
        );
        assert_eq!(world.stat("/d"), Err(Errno::ENOENT));
    }
}

#[test]
fn hard_links_share() {
    for world in World::each() {
        world.write("/a", b"one");
        world.link("/a", "/b").expect("links");
        assert_eq!(world.link("/a", "/b"), Err(Errno::EEXIST));
        world.write("/b", b"two!");
        assert_eq!(world.read("/a"), Ok(b"two!".to_vec()));
        let (a, b) = (
            world.stat("/a").expect("there"),
            world.stat("/b").expect("there"),
        );
        assert_eq!((a.ino, a.nlink, b.nlink), (b.ino, 2, 2));
        world
            .rename("/a", "/b", RenameFlags::empty())
            .expect("nothing to do");
        assert_eq!(world.read("/a"), Ok(b"two!".to_vec()));
        world.unlink("/a").expect("is there");
        assert_eq!(world.stat("/b").map(|attrs| attrs.nlink), Ok(1));
        assert_eq!(world.read("/b"), Ok(b"two!".to_vec()));
        world.mkdir("/d").expect("makes");
        assert_eq!(world.link("/d", "/e"), Err(Errno::EPERM));
    }
}

#[test]
fn attributes_change_by_the_rules() {
    for mut world in World::each() {
        world.write("/f", b"x");
        let owner = world.creds.clone();
        world
            .vfs
            .chmod(&owner, &world.target("/f"), 0o600)
            .expect("root may");
        world
            .vfs
            .chown(&owner, &world.target("/f"), 1000, 100)
            .expect("root may");
        world.creds = Credentials::user(1001, 100);
        assert_eq!(world.read("/f"), Err(Errno::EACCES));
        assert_eq!(
            world.vfs.chmod(&world.creds, &world.target("/f"), 0o777),
            Err(Errno::EPERM)
        );
        assert_eq!(world.unlink("/f"), Err(Errno::EACCES));
        world.creds = Credentials::user(1000, 100);
        assert_eq!(world.read("/f"), Ok(b"x".to_vec()));
        assert_eq!(
            world.vfs.chown(&world.creds, &world.target("/f"), 0, 100),
            Err(Errno::EPERM)
        );
        assert_eq!(
            world.vfs.access(&world.cx(), b"/f", 1, AtFlags::empty()),
            Err(Errno::EACCES)
        );
        assert_eq!(
            world.vfs.access(&world.cx(), b"/f", 6, AtFlags::empty()),
            Ok(())
        );
        assert_eq!(world.vfs.truncate(&world.cx(), b"/f", 1 << 20), Ok(()));
        assert_eq!(world.stat("/f").map(|attrs| attrs.size), Ok(1 << 20));
    }
}

#[test]
fn writing_takes_set_id_bits() {
    for mut world in [World::tmpfs(), World::overlay(TempDir::new())] {
        world.write("/f", b"x");
        let target = world.target("/f");
        world
            .vfs
            .chmod(&world.creds, &target, 0o6777)
            .expect("root may");
        world.write("/f", b"root keeps them");
        assert_eq!(world.stat("/f").map(|attrs| attrs.mode), Ok(0o106777));
        world.creds = Credentials::user(1000, 1000);
        let file = world.open("/f", OpenFlags::WRONLY).expect("opens");
        assert_eq!(file.write(&mut Source::slice(b"y")), Ok(1));
        assert_eq!(world.stat("/f").map(|attrs| attrs.mode), Ok(0o100777));
    }
}

#[test]
fn appending_and_unnamed() {
    for world in World::each() {
        world.write("/log", b"1");
        let one = world
            .open("/log", OpenFlags::WRONLY | OpenFlags::APPEND)
            .expect("opens");
        let two = world
            .open("/log", OpenFlags::WRONLY | OpenFlags::APPEND)
            .expect("opens");
        for file in [&one, &two, &one] {
            assert_eq!(file.write(&mut Source::slice(b"23")), Ok(2));
        }
        assert_eq!(one.position(), 7);
        assert_eq!(world.read("/log"), Ok(b"1232323".to_vec()));
        let unnamed = world
            .open("/", OpenFlags::TMPFILE | OpenFlags::RDWR)
            .expect("makes");
        assert_eq!(unnamed.write(&mut Source::slice(b"gone")), Ok(4));
        assert_eq!(
            unnamed.attrs().map(|attrs| (attrs.nlink, attrs.size)),
            Ok((0, 4))
        );
        assert_eq!(
            world.open("/", OpenFlags::TMPFILE).map(drop),
            Err(Errno::EINVAL)
        );
    }
}

#[test]
fn special_files() {
    for world in World::each() {
        let make = |path: &[u8], mode, dev| world.vfs.mknod(&world.cx(), path, mode, dev);
        make(b"/fifo", 0o010644, 0).expect("makes");
        make(b"/sock", 0o140644, 0).expect("makes");
        assert_eq!(
            world.open("/sock", OpenFlags::RDWR).map(drop),
            Err(Errno::ENXIO)
        );
        assert_eq!(
            world
                .open("/fifo", OpenFlags::WRONLY | OpenFlags::NONBLOCK)
                .map(drop),
            Err(Errno::ENXIO)
        );
        let reader = world.open("/fifo", OpenFlags::empty()).expect("opens");
        assert!(reader.open_pending());
        let writer = world.open("/fifo", OpenFlags::WRONLY).expect("opens");
        assert!(!reader.open_pending() && !writer.open_pending());
        assert_eq!(writer.write(&mut Source::slice(b"hi")), Ok(2));
        let mut to = Vec::new();
        assert_eq!(reader.read(&mut Sink::vec(&mut to, 9)), Ok(2));
        assert_eq!(writer.seek(0, Seek::Set), Err(Errno::ESPIPE));
        match make(b"/null", 0o020644, abi::fs::makedev(1, 3)) {
            Ok(()) => {
                let null = world.open("/null", OpenFlags::RDWR).expect("opens");
                assert_eq!(null.write(&mut Source::slice(b"gone")), Ok(4));
                assert_eq!(null.read(&mut Sink::slice(&mut [0; 4])), Ok(0));
            }
            // The sentry makes no devices on the host.
            Err(error) => assert_eq!(error, Errno::EPERM),
        }
    }
}

#[test]
fn xattrs_of_users() {
    for world in World::each() {
        world.write("/f", b"x");
        let target = world.target("/f");
        let set = |name: &[u8], how| {
            world
                .vfs
                .set_xattr(&world.creds, &target, name, b"value", how)
        };
        match set(b"user.a", SetXattr::Create) {
            // The host's temporary directory may know no xattrs.
            Err(Errno::EOPNOTSUPP) => continue,
            made => assert_eq!(made, Ok(())),
        }
        assert_eq!(set(b"user.a", SetXattr::Create), Err(Errno::EEXIST));
        assert_eq!(set(b"user.b", SetXattr::Replace), Err(Errno::ENODATA));
        assert_eq!(set(b"system.x", SetXattr::Any), Err(Errno::EOPNOTSUPP));
        assert_eq!(
            world.vfs.xattr(&world.creds, &target, b"user.a"),
            Ok(b"value".to_vec())
        );
        assert_eq!(
            world.vfs.xattrs(&world.creds, &target),
            Ok(b"user.a\0".to_vec())
        );
        world
            .vfs
            .remove_xattr(&world.creds, &target, b"user.a")
            .expect("is there");
        assert_eq!(
            world.vfs.xattr(&world.creds, &target, b"user.a"),
            Err(Errno::ENODATA)
        );
    }
}

#[test]
fn mounts_cover_and_uncover() {
    let world = World::tmpfs();
    world.mkdir("/m").expect("makes");
    world.write("/m/under", b"");
    let fs =
        TmpFs::new(Arc::clone(&world.memory), Quota::new(1 << 20, 100), 0o755).expect("a tmpfs");
    let mount = Mount::of(fs, MountFlags::empty(), "none");
    crate::fs::root::mount_at(&world.vfs, &mount, b"/m").expect("mounts");
    assert_eq!(world.stat("/m/under"), Err(Errno::ENOENT));
    world.write("/m/over", b"");
    assert_eq!(
        world.stat("/m/..").map(|attrs| attrs.ino),
        world.stat("/").map(|attrs| attrs.ino)
    );
    assert_eq!(
        world.rename("/m/over", "/over", RenameFlags::empty()),
        Err(Errno::EXDEV)
    );
    assert_eq!(world.rmdir("/m"), Err(Errno::EBUSY));
    world.vfs.chdir(&world.cx(), b"/m").expect("enters");
    assert_eq!(world.vfs.getcwd(&world.fs), Ok(b"/m".to_vec()));
    mount.set_flags(MountFlags::RDONLY);
    assert_eq!(world.mkdir("/m/no"), Err(Errno::EROFS));
    assert_eq!(
        world.open("/m/over", OpenFlags::WRONLY).map(drop),
        Err(Errno::EROFS)
    );
    world.vfs.chdir(&world.cx(), b"/").expect("enters");
    world
        .vfs
        .umount(&mount.location(), false)
        .expect("not busy");
    assert!(world.stat("/m/under").is_ok());
}

#[test]
fn the_cache_of_names_is_bounded() {
    let world = World::tmpfs();
    for at in 0..30_000 {
        assert_eq!(world.stat(&format!("/missing{at}")), Err(Errno::ENOENT));
    }
    assert!(world.vfs.cache.len() <= super::NAMES_KEPT);
    for at in 0..9_000 {
        world.write(&format!("/f{at}"), b"");
    }
    assert!(world.vfs.cache.len() <= super::NAMES_KEPT);
    assert_eq!(
        world.stat("/f0").map(|attrs| attrs.mode & 0o170000),
        Ok(FileType::Regular.mode())
    );
    world.vfs.shrink();
    assert_eq!(world.vfs.cache.len(), 0);
}
