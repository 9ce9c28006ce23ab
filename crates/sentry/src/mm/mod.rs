//! Guest memory: address spaces, what is mapped in them, and the loading of programs.
//!
//! [`Mm`] is an address space: a list of [`Area`]s, which is what the guest is told, over a [`platform::Space`], which is what the host
//! maps. Private memory is the host's business (faults, copy on write, fork); shared memory lives in the memory file ([`memory_file`]),
//! and its pages are mapped when they are first touched. Everything that reads or writes guest memory goes through [`Mm`].
//!
//! Lock classes: `MmAreas`, held across a helper's answer, alone of all. It does not do: swapping, userfaultfd.

mod anon_shared;
mod area;
mod copying;
mod fault;
pub mod loader;
mod map;
pub mod memory_file;
pub mod patch;
mod shared_files;
mod vdso;
pub mod window;

pub use area::{Area, AreaFlags, Mapping, Prot};
pub use fault::Fault;
pub use map::{MapFlags, MapRequest, Remap};
pub use shared_files::SharedFiles;
pub use vdso::Vdso;

use core::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use abi::{Errno, UserCStr, UserPtr, UserSlice};
use platform::{MemOp, Platform, Space, Start, Thread, USER_TOP};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::io::GuestMemory;
use crate::sync::order::{ExecLock, Leaf, MmAreas};
use crate::sync::{Mutex, RwLock};
use area::Areas;
use memory_file::{Mapper, SharedObject, Window};

/// The size of a page.
pub const PAGE: u64 = platform::PAGE;
/// The lowest address that can be mapped (`vm.mmap_min_addr`).
pub const MIN_ADDR: u64 = 0x1_0000;

/// Rounds up to a page; `None` past the end of addresses.
pub fn page_up(value: u64) -> Option<u64> {
    value.checked_add(PAGE - 1).map(|value| value & !(PAGE - 1))
}

/// Rounds down to a page.
pub const fn page_down(value: u64) -> u64 {
    value & !(PAGE - 1)
}

/// What address spaces share: the platform and the files that its stubs have.
pub struct MmHost {
    /// The platform.
    pub platform: Arc<dyn Platform>,
    /// Host files that the stubs know.
    pub files: SharedFiles,
    /// The memory file, for anonymous shared memory.
    pub memory: Arc<memory_file::MemoryFile>,
    /// The vDSO that every program gets.
    pub vdso: Vdso,
}

/// Where a program's parts are, for `/proc` and prctl(2).
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Where brk(2) begins, and where it is.
    pub brk: (u64, u64),
    /// The stack's top.
    pub stack: u64,
    /// Arguments, from and to.
    pub args: (u64, u64),
    /// Environment, from and to.
    pub env: (u64, u64),
    /// The program's code, from and to.
    pub code: (u64, u64),
    /// The program's data, from and to.
    pub data: (u64, u64),
    /// The auxiliary vector, as it was given to the program.
    pub auxv: Vec<u8>,
    /// Below this, mappings without an address of their own are placed.
    pub mmap_base: u64,
}

/// The program that an address space runs.
#[derive(Clone)]
pub struct Exe {
    /// Where it is.
    pub place: crate::vfs::Location,
    /// That it can't be written meanwhile.
    pub running: Arc<crate::vfs::Use>,
}

/// An address space.
pub struct Mm {
    /// Itself, for who has to tell it of pages that go.
    this: Weak<Mm>,
    host: Arc<MmHost>,
    space: Arc<dyn Space>,
    areas: Mutex<Areas, MmAreas>,
    layout: Mutex<Layout, Leaf>,
    /// `RLIMIT_AS`, `RLIMIT_DATA` and `RLIMIT_STACK`, in bytes, as the process that owns it last set them.
    pub limit_as: AtomicU64,
    /// See `limit_as`.
    pub limit_data: AtomicU64,
    /// See `limit_as`.
    pub limit_stack: AtomicU64,
    /// The program, for `/proc/PID/exe`.
    exe: Mutex<Option<Exe>, Leaf>,
    /// How many processes use it.
    users: AtomicU32,
    /// Which program is in it: counts exec(2) in place. Held, shared, while somebody who was let into one program's memory moves bytes.
    program: RwLock<u64, ExecLock>,
    patches: Mutex<patch::Patches, Leaf>,
}

impl Mm {
    /// A new, empty address space.
    pub fn new(host: &Arc<MmHost>) -> Result<Arc<Mm>, Errno> {
        let space = host.platform.new_space()?;
        Ok(Arc::new_cyclic(|this| Mm {
            this: Weak::clone(this),
            host: Arc::clone(host),
            space,
            areas: Mutex::new(Areas::default()),
            layout: Mutex::new(Layout {
                mmap_base: USER_TOP - (1 << 30),
                ..Layout::default()
            }),
            limit_as: AtomicU64::new(u64::MAX),
            limit_data: AtomicU64::new(u64::MAX),
            limit_stack: AtomicU64::new(8 << 20),
            exe: Mutex::new(None),
            users: AtomicU32::new(1),
            program: RwLock::new(0),
            patches: Mutex::default(),
        }))
    }

    /// The host's side of it.
    pub fn space(&self) -> &Arc<dyn Space> {
        &self.space
    }

    /// What all address spaces share.
    pub fn host(&self) -> &Arc<MmHost> {
        &self.host
    }

    /// A copy, with one thread in it that starts as told (fork(2)).
    pub fn fork(&self, start: &Start) -> Result<(Arc<Mm>, Arc<dyn Thread>), Errno> {
        let areas = self.areas.lock();
        let child = areas.fork();
        let (space, thread) = if self.host.platform.host_mm().fork {
            self.space.fork(start, &child.1)?
        } else {
            self.fork_by_copy(&areas, start)?
        };
        let exe = self.exe.lock().clone();
        let mm = Arc::new_cyclic(|this| Mm {
            this: Weak::clone(this),
            host: Arc::clone(&self.host),
            space,
            areas: Mutex::new(child.0),
            layout: Mutex::new(self.layout()),
            limit_as: AtomicU64::new(self.limit_as.load(Ordering::Relaxed)),
            limit_data: AtomicU64::new(self.limit_data.load(Ordering::Relaxed)),
            limit_stack: AtomicU64::new(self.limit_stack.load(Ordering::Relaxed)),
            exe: Mutex::new(exe),
            users: AtomicU32::new(1),
            program: RwLock::new(0),
            patches: Mutex::new(self.patches.lock().clone()),
        });
        // The child has the pages that this space has: it is known before this space could be told that some of them go.
        for (_, area) in areas.iter() {
            if let Mapping::Memory { object, .. } = &area.mapping {
                mm.watch(object.as_ref());
            }
        }
        drop(areas);
        Ok((mm, thread))
    }

    /// Asks a shared object that is mapped here to tell of pages that go.
    fn watch(&self, object: &dyn SharedObject) {
        let this: Weak<dyn Mapper> = self.this.clone();
        object.watch(this);
    }

    /// Another process uses it (CLONE_VM).
    pub fn enter(&self) {
        self.users.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread leaves it; with the last of its process the process does. Whether another process uses it still.
    pub fn leave(&self, process: bool) -> bool {
        if process {
            self.users.fetch_sub(1, Ordering::SeqCst) > 1
        } else {
            self.users.load(Ordering::SeqCst) > 1
        }
    }

    /// Whether one process alone uses it.
    pub fn sole_user(&self) -> bool {
        self.users.load(Ordering::SeqCst) == 1
    }

    /// Unmaps everything, before another program is loaded.
    pub fn clear(&self) -> Result<(), Errno> {
        *self.program.write() += 1;
        let mut areas = self.areas.lock();
        self.space
            .apply(&[MemOp::Unmap {
                addr: 0,
                len: USER_TOP,
            }])
            .map_err(|(_, error)| error)?;
        self.forget_patches();
        let old = core::mem::take(&mut *areas);
        drop(areas);
        drop(old);
        Ok(())
    }

    /// Where the program's parts are.
    pub fn layout(&self) -> Layout {
        self.layout.lock().clone()
    }

    /// Changes what is known of the program's parts.
    pub fn set_layout(&self, change: impl FnOnce(&mut Layout)) {
        change(&mut self.layout.lock());
    }

    /// The program's file.
    pub fn exe(&self) -> Option<crate::vfs::Location> {
        let exe = self.exe.lock();
        exe.as_ref().map(|exe| exe.place.clone())
    }

    /// Sets the program's file.
    pub fn set_exe(&self, exe: Option<Exe>) {
        let old = core::mem::replace(&mut *self.exe.lock(), exe);
        drop(old);
    }

    /// What is mapped, in order, for `/proc/PID/maps`.
    pub fn snapshot(&self) -> Vec<(u64, Area)> {
        self.areas
            .lock()
            .iter()
            .map(|(start, area)| (start, area.clone()))
            .collect()
    }

    /// Bytes that are mapped.
    pub fn mapped(&self) -> u64 {
        self.areas.lock().total()
    }

    /// Reads exactly `to.len()` bytes, or EFAULT.
    pub fn read(&self, addr: u64, to: &mut [u8]) -> Result<(), Errno> {
        if self.copy_in(addr, to)? == to.len() {
            Ok(())
        } else {
            Err(Errno::EFAULT)
        }
    }

    /// Writes exactly these bytes, or EFAULT, some of them perhaps written.
    pub fn write(&self, addr: u64, from: &[u8]) -> Result<(), Errno> {
        if self.copy_out(addr, from)? == from.len() {
            Ok(())
        } else {
            Err(Errno::EFAULT)
        }
    }

    /// Reads a value.
    pub fn get<T: FromBytes + IntoBytes>(&self, from: UserPtr<T>) -> Result<T, Errno> {
        let mut value = T::new_zeroed();
        self.read(from.addr(), value.as_mut_bytes())?;
        Ok(value)
    }

    /// Writes a value.
    pub fn put<T: IntoBytes + Immutable>(&self, to: UserPtr<T>, value: &T) -> Result<(), Errno> {
        self.write(to.addr(), value.as_bytes())
    }

    /// Writes a value that other threads are about to look at: it is in memory when this returns, not in the call's window.
    pub fn put_now<T: IntoBytes + Immutable>(
        &self,
        to: UserPtr<T>,
        value: &T,
    ) -> Result<(), Errno> {
        self.put(to, value)?;
        self.flush_overlap(to.addr(), size_of::<T>());
        Ok(())
    }

    /// Writes a value where the guest gave an address.
    pub fn put_opt<T: IntoBytes + Immutable>(
        &self,
        to: UserPtr<T>,
        value: &T,
    ) -> Result<(), Errno> {
        if to.is_null() {
            Ok(())
        } else {
            self.put(to, value)
        }
    }

    /// Reads `count` values that follow one another.
    pub fn get_array<T: FromBytes + IntoBytes + Clone>(
        &self,
        from: UserPtr<T>,
        count: usize,
    ) -> Result<Vec<T>, Errno> {
        let mut values = vec![T::new_zeroed(); count];
        let mut addr = from.addr();
        for chunk in values.chunks_mut(256) {
            for value in chunk {
                self.read(addr, value.as_mut_bytes())?;
                addr = addr.wrapping_add(size_of::<T>() as u64);
            }
        }
        Ok(values)
    }

    /// Reads bytes; EFAULT where some can't be read, ENOMEM past a bound that no call needs.
    pub fn get_bytes(&self, from: UserSlice) -> Result<Vec<u8>, Errno> {
        if from.len > 64 << 20 {
            return Err(Errno::ENOMEM);
        }
        let mut bytes = vec![0; from.len];
        self.read(from.addr, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a string of at most `most` bytes without its NUL; `None` where there is no NUL among the first `most` + 1.
    pub fn get_cstr(&self, from: UserCStr, most: usize) -> Result<Option<Vec<u8>>, Errno> {
        if let Some(string) = window::string(self.space.id(), from.0) {
            return Ok((string.len() <= most).then_some(string));
        }
        let mut bytes = Vec::new();
        let mut addr = from.0;
        let mut chunk = [0u8; 256];
        loop {
            // Short strings are many: read up to the end of a small block first, since the page behind may not be there.
            let want = chunk
                .len()
                .min(usize::try_from(PAGE - addr % PAGE).unwrap_or(usize::MAX));
            let got = self.copy_in(addr, &mut chunk[..want])?;
            match chunk[..got].iter().position(|byte| *byte == 0) {
                Some(end) => {
                    bytes.extend_from_slice(&chunk[..end]);
                    return Ok((bytes.len() <= most).then_some(bytes));
                }
                None => bytes.extend_from_slice(&chunk[..got]),
            }
            if bytes.len() > most {
                return Ok(None);
            }
            if got < want {
                return Err(Errno::EFAULT);
            }
            addr = addr.checked_add(got as u64).ok_or(Errno::EFAULT)?;
        }
    }

    /// Reads a path: ENAMETOOLONG where it is too long.
    pub fn get_path(&self, from: UserCStr) -> Result<Vec<u8>, Errno> {
        self.get_cstr(from, abi::fs::PATH_MAX - 1)?
            .ok_or(Errno::ENAMETOOLONG)
    }
}

impl Mm {
    /// Whether the guest may write all of the range, which lies in one area.
    fn writable(&self, addr: u64, len: usize) -> bool {
        let areas = self.areas.lock();
        areas.find(addr).is_some_and(|(_, area)| {
            area.prot.contains(Prot::WRITE) && area.end - addr >= len as u64
        })
    }

    /// Results that wait in the window are written first where they would be overtaken.
    fn flush_overlap(&self, addr: u64, len: usize) {
        if let Some((thread, results)) = window::take_overlap(self.space.id(), addr, len) {
            // The range was found writable when the results were put there; what changed since shows in the access that follows.
            let _ = window::flush(self, thread.as_ref(), results);
        }
    }
}

impl Mm {
    /// Writes what the call has put in its window so far: for calls that let other threads see it before they return themselves, or that
    /// do not return.
    pub fn settle(&self) {
        if let Some((thread, results)) = window::take_results(self.space.id()) {
            // Found writable when it was put there, as in `flush_overlap`.
            let _ = window::flush(self, thread.as_ref(), results);
        }
    }
}

impl Mm {
    fn copy_out_past_window(&self, addr: u64, from: &[u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < from.len() {
            let at = addr.wrapping_add(done as u64);
            let got = self.space.write(at, &from[done..]).unwrap_or(0);
            done += got;
            if done < from.len() && !self.make_present(addr.wrapping_add(done as u64), true) {
                break;
            }
        }
        if done == 0 && !from.is_empty() {
            Err(Errno::EFAULT)
        } else {
            Ok(done)
        }
    }
}

impl Mapper for Mm {
    fn unmap(&self, window: &Window, range: Range<u64>) {
        let cut_off = range.end == u64::MAX;
        let mut areas = self.areas.lock();
        let mut gone = Vec::new();
        for (start, area) in areas.iter() {
            let Mapping::Memory {
                window: of, offset, ..
            } = &area.mapping
            else {
                continue;
            };
            if !core::ptr::eq(of.as_ref(), window) || !(area.shared() || cut_off) {
                continue;
            }
            let from = start + range.start.saturating_sub(*offset);
            let to = area
                .end
                .min(start.saturating_add(range.end.saturating_sub(*offset)));
            if from < to {
                gone.push((from, to, area.shared()));
            }
        }
        for (addr, end, shared) in gone {
            // Where the space is dead, nothing is mapped any more.
            let _ = self.unpatch(addr, end, false);
            let _ = self.space.apply(&[MemOp::Unmap {
                addr,
                len: end - addr,
            }]);
            if !shared {
                areas.change(addr, end, &mut |area| *area = area.clone().without_pages());
            }
        }
    }
}

impl GuestMemory for Mm {
    fn copy_in(&self, addr: u64, to: &mut [u8]) -> Result<usize, Errno> {
        if to.len() <= platform::WINDOW && window::copy_in(self.space.id(), addr, to) {
            return Ok(to.len());
        }
        self.flush_overlap(addr, to.len());
        let mut done = 0;
        while done < to.len() {
            let at = addr.wrapping_add(done as u64);
            let got = self.space.read(at, &mut to[done..]).unwrap_or(0);
            done += got;
            if done < to.len() && !self.make_present(addr.wrapping_add(done as u64), false) {
                break;
            }
        }
        if done == 0 && !to.is_empty() {
            Err(Errno::EFAULT)
        } else {
            Ok(done)
        }
    }

    fn copy_out(&self, addr: u64, from: &[u8]) -> Result<usize, Errno> {
        window::invalidate(self.space.id(), addr, from.len());
        if from.len() <= platform::WINDOW
            && !from.is_empty()
            && self.writable(addr, from.len())
            && window::copy_out(self.space.id(), addr, from)
        {
            return Ok(from.len());
        }
        self.flush_overlap(addr, from.len());
        self.copy_out_past_window(addr, from)
    }
}

impl Mm {
    /// Names the program that is in it, for [`Mm::peek`].
    pub fn program(&self) -> u64 {
        *self.program.read()
    }

    /// Reads the memory of a program, for another who may: how many bytes, 0 once it is another program's, EIO where nothing could be read.
    pub fn peek(&self, program: u64, addr: u64, to: &mut [u8]) -> Result<usize, Errno> {
        self.flush_overlap(addr, to.len());
        self.by_another(program, addr, false, &mut || self.space.read(addr, to))
    }

    /// Writes it, as [`Mm::peek`] reads.
    pub fn poke(&self, program: u64, addr: u64, from: &[u8]) -> Result<usize, Errno> {
        self.flush_overlap(addr, from.len());
        self.by_another(program, addr, true, &mut || self.space.write(addr, from))
    }

    fn by_another(
        &self,
        program: u64,
        addr: u64,
        write: bool,
        access: &mut dyn FnMut() -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        for _ in 0..2 {
            let now = self.program.read();
            if *now != program || self.space.is_dead() {
                return Ok(0);
            }
            if let Ok(moved @ 1..) = access() {
                return Ok(moved);
            }
            drop(now);
            if !self.make_present(addr, write) {
                break;
            }
        }
        Err(Errno::EIO)
    }
}

impl Drop for Mm {
    fn drop(&mut self) {
        self.space.kill();
    }
}
