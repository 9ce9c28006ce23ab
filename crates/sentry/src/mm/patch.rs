//! Call sites that are replaced by jumps, so that a call need not trap.
//!
//! A site that has trapped a few times, in text that is a private, unwritable mapping of a file, gets a jump through a table into a
//! trampoline, which enters the stub with the number in RAX and the place to return to in RCX. Table and trampolines lie at
//! [`TABLE`], low enough for an absolute 32-bit address.
//!
//! Three forms are known: `mov $number,%eax; syscall` (the jump takes the place of both) and `syscall` with a comparison of RAX or EAX behind it, which moves
//! into the trampoline. The bytes are such that a thread which is in the middle of a site meets an instruction that faults at
//! once: `06` is none, `e5` may not be executed by a user. [`Mm::caught_in_site`] says how it goes on.
//!
//! The guest's vDSO is text like any other; the host's, above the guest's addresses, is in no area and is never touched. A patch is undone before its page can be written. Lock class: `Leaf`, never held across an answer of a helper.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use abi::Errno;
use platform::MemOp;

use super::area::{Area, AreaFlags, Mapping, Prot};
use super::{Mm, PAGE, page_down};

/// Where table and trampolines are.
const TABLE: u64 = 0x6_0000;
/// How many pages they have: the first is the table.
const PAGES: u64 = 8;
/// The size of a trampoline.
const SIZE: u64 = 64;
/// How many fit: as many as the table has entries.
const MOST: u64 = 7 * PAGE / SIZE;
/// How often a site traps before it is replaced. Replacing costs about as much as this many traps, and a site that was used so often is likely to be used
/// as often again.
const TRAPS: u8 = 8;
/// How many sites are counted at a time.
const COUNTED: usize = 4096;

/// How a site looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `mov $number,%eax; syscall`
    Number,
    /// `syscall; cmp $imm,%rax`
    Compare,
    /// `syscall; cmp $imm,%eax`
    CompareShort,
}

#[derive(Clone, Copy, Debug)]
struct Site {
    form: Form,
    /// The bytes that were there, eight at the most.
    bytes: [u8; 8],
    /// Its trampoline.
    trampoline: u64,
}

impl Site {
    /// From the site's start: where the SYSCALL was.
    fn call_offset(&self) -> u64 {
        if self.form == Form::Number { 5 } else { 0 }
    }

    fn len(&self) -> usize {
        if self.form == Form::Compare { 8 } else { 7 }
    }

    /// Where the trampoline goes on after the call: for a comparison in itself, else behind the site.
    fn after(&self, start: u64) -> u64 {
        match self.form {
            Form::Number => start + 7,
            Form::Compare | Form::CompareShort => self.trampoline + TAIL,
        }
    }
}

/// Within a trampoline that compares: where the comparison is.
const TAIL: u64 = 23;

/// Bytes to be put at an address.
type Edit<'a> = (u64, &'a [u8]);

/// The pages that edits touch, each once.
fn pages_of(edits: &[Edit<'_>]) -> BTreeSet<u64> {
    edits
        .iter()
        .flat_map(|(at, bytes)| {
            let last = page_down(at + bytes.len() as u64 - 1);
            [page_down(*at), last]
        })
        .collect()
}

fn protect(page: u64, prot: u32) -> MemOp {
    MemOp::Protect {
        addr: page,
        len: PAGE,
        prot,
    }
}

/// What is known of an address space's sites.
#[derive(Clone, Default)]
pub(super) struct Patches {
    traps: HashMap<u64, u8>,
    /// By their start.
    sites: BTreeMap<u64, Site>,
    used: u64,
    off: bool,
}

/// How a thread that met a patched site in an unusual way goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caught {
    /// At this address.
    At(u64),
    /// It makes the call that RAX names, and goes on at this address.
    Call(u64),
}

impl Mm {
    /// A call has trapped at the instruction before `rip`. Replaces its site where it is time; then says where this thread goes on. `alone` says whether no
    /// other thread executes this memory.
    pub fn trapped_at(&self, rip: u64, number: u64, alone: &dyn Fn() -> bool) -> Option<u64> {
        let site = rip.checked_sub(2)?;
        {
            let mut patches = self.patches.lock();
            if patches.off || patches.used >= MOST {
                return None;
            }
            if patches.traps.len() >= COUNTED {
                patches.traps.clear();
            }
            let count = patches.traps.entry(site).or_insert(0);
            // Saturates: a site that can't be replaced is looked at once.
            *count = count.saturating_add(1);
            if *count != TRAPS {
                return None;
            }
        }
        self.patch(site, number, alone())
    }

    fn patch(&self, call: u64, number: u64, alone: bool) -> Option<u64> {
        let mut areas = self.areas.lock();
        let (area_start, area) = areas.find(call)?;
        let text =
            matches!(area.mapping, Mapping::Host { .. } | Mapping::Memory { .. }) && !area.shared();
        if !text
            || area.prot != Prot::READ | Prot::EXEC
            || call < area_start + 6
            || call + 10 > area.end
        {
            return None;
        }
        let mut bytes = [0; 16];
        if self.space.read(call - 6, &mut bytes) != Ok(16) || bytes[6..8] != [0x0f, 0x05] {
            return None;
        }
        let named = u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
        let (form, start) =
            if bytes[1] == 0xb8 && u64::from(named) == number && !(0x40..=0x4f).contains(&bytes[0])
            {
                (Form::Number, call - 5)
            } else if bytes[8..10] == [0x48, 0x3d] {
                (Form::Compare, call)
            } else if bytes[8] == 0x3d {
                (Form::CompareShort, call)
            } else {
                return None;
            };
        let first = self.patches.lock().used == 0;
        if first && !self.make_table(&mut areas) {
            self.patches.lock().off = true;
            return None;
        }
        let index = self.patches.lock().used;
        let trampoline = TABLE + PAGE + index * SIZE;
        let mut site = Site {
            form,
            bytes: [0; 8],
            trampoline,
        };
        let offset = usize::try_from(start - (call - 6)).ok()?;
        let len = site.len();
        site.bytes[..len].copy_from_slice(&bytes[offset..offset + len]);
        let after = site.after(start);
        let mut code = Vec::with_capacity(64);
        if form == Form::Number {
            code.push(0xb8);
            code.extend_from_slice(&named.to_le_bytes());
        }
        // movabs $after,%rcx; movabs $entry,%r11; jmp *%r11
        code.extend_from_slice(&[0x48, 0xb9]);
        code.extend_from_slice(&after.to_le_bytes());
        code.extend_from_slice(&[0x49, 0xbb]);
        code.extend_from_slice(&platform::systrap::ENTRY.to_le_bytes());
        code.extend_from_slice(&[0x41, 0xff, 0xe3]);
        if form != Form::Number {
            // The comparison, then a jump behind the site.
            code.extend_from_slice(&site.bytes[2..len]);
            code.extend_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
            code.extend_from_slice(&(start + len as u64).to_le_bytes());
        }
        let mut jump = [
            0xff,
            0x24,
            if form == Form::Number { 0x25 } else { 0xe5 },
            0,
            0,
            0,
            0,
            0x90,
        ];
        let slot = TABLE + index * 8;
        jump[3..7].copy_from_slice(&u32::try_from(slot).ok()?.to_le_bytes());
        let entry = trampoline.to_le_bytes();
        let table: [Edit<'_>; 2] = [(trampoline, &code), (slot, &entry)];
        let mut patches = self.patches.lock();
        patches.sites.insert(start, site);
        patches.used += 1;
        drop(patches);
        if self.replace(&table, start, &jump[..len], alone).is_err() {
            self.patches.lock().sites.remove(&start);
            return None;
        }
        drop(areas);
        self.host.platform.count_patch();
        Some(after)
    }

    /// Maps table and trampolines; false where the guest has something there.
    fn make_table(&self, areas: &mut super::Areas) -> bool {
        let end = TABLE + PAGES * PAGE;
        if !areas.is_free(TABLE, end) {
            return false;
        }
        let op = MemOp::Map {
            addr: TABLE,
            len: PAGES * PAGE,
            prot: 5,
            backing: platform::Backing::Anonymous,
        };
        if self.space.apply(&[op]).is_err() {
            return false;
        }
        let area = Area {
            end,
            prot: Prot::READ | Prot::EXEC,
            flags: AreaFlags::empty(),
            mapping: Mapping::Anonymous,
            file: None,
            name: Some("[trampolines]"),
        };
        areas.insert(TABLE, area);
        true
    }

    /// Writes to pages that the guest can't write, one step after another. Between two steps the protection changes, which makes every processor that runs
    /// this address space look at the bytes anew.
    fn write_text(&self, steps: &[&[Edit<'_>]]) -> Result<(), Errno> {
        let mut done = Ok(());
        let mut ops: Vec<MemOp> = Vec::new();
        for step in steps {
            let pages = pages_of(step);
            ops.extend(pages.iter().map(|page| protect(*page, 7)));
            self.space.apply(&ops).map_err(|(_, error)| error)?;
            for (at, bytes) in *step {
                if self.space.write(*at, bytes) != Ok(bytes.len()) {
                    done = Err(Errno::EFAULT);
                }
            }
            ops = pages.iter().map(|page| protect(*page, 5)).collect();
            if done.is_err() {
                break;
            }
        }
        self.space.apply(&ops).map_err(|(_, error)| error)?;
        done
    }

    /// Replaces instructions, after other edits. Where other threads may be executing them: a breakpoint first, then the rest, then the first byte.
    fn replace(
        &self,
        others: &[Edit<'_>],
        at: u64,
        bytes: &[u8],
        alone: bool,
    ) -> Result<(), Errno> {
        let mut first = others.to_vec();
        if alone {
            first.push((at, bytes));
            return self.write_text(&[&first]);
        }
        first.push((at, &[0xcc]));
        self.write_text(&[&first, &[(at + 1, &bytes[1..])], &[(at, &bytes[..1])]])
    }

    /// The thread faulted at `rip`, where a patched site is: how it goes on.
    pub fn caught_in_site(&self, rip: u64) -> Option<Caught> {
        let patches = self.patches.lock();
        let (&start, site) = patches.sites.range(..=rip).next_back()?;
        let call = start + site.call_offset();
        if rip == start + 1 {
            // A breakpoint: the site was being replaced.
            return Some(Caught::At(start));
        }
        match site.form {
            Form::Number if rip == call => Some(Caught::Call(call + 2)),
            Form::Compare | Form::CompareShort if rip == call + 2 => {
                Some(Caught::At(site.after(start)))
            }
            _ => None,
        }
    }

    /// What a guest is shown of an address in a trampoline: the place in its own code that stands for it.
    pub fn shown_rip(&self, rip: u64) -> u64 {
        if !(TABLE..TABLE + PAGES * PAGE).contains(&rip) {
            return rip;
        }
        let patches = self.patches.lock();
        let found = patches
            .sites
            .iter()
            .find(|(_, site)| rip >= site.trampoline && rip < site.trampoline + SIZE);
        match found {
            None => rip,
            Some((start, site)) if site.form == Form::Number || rip < site.trampoline + TAIL => {
                *start
            }
            Some((start, site)) if rip == site.trampoline + TAIL => start + 2,
            Some((start, site)) => start + site.len() as u64,
        }
    }

    /// Where the call that returns to `rip` is made again.
    pub fn restart_rip(&self, rip: u64) -> u64 {
        let shown = self.shown_rip(rip);
        let patches = self.patches.lock();
        let site = patches
            .sites
            .range(..shown)
            .next_back()
            .filter(|(start, site)| *start + site.call_offset() + 2 == shown);
        site.map_or(shown.wrapping_sub(2), |(start, _)| *start)
    }

    /// Sites in the range are as they were from now on: before it is written, or once it is gone (`undo` false).
    pub(super) fn unpatch(&self, from: u64, to: u64, undo: bool) -> Result<(), Errno> {
        loop {
            let mut patches = self.patches.lock();
            if patches.sites.is_empty() {
                return Ok(());
            }
            let from = from.saturating_sub(8).min(to);
            let found = patches
                .sites
                .range(from..to)
                .map(|(start, site)| (*start, *site))
                .next();
            let Some((start, site)) = found else {
                return Ok(());
            };
            patches.sites.remove(&start);
            drop(patches);
            if undo {
                self.replace(&[], start, &site.bytes[..site.len()], false)?;
            }
        }
    }

    /// No site is replaced from now on, and all are as they were: the guest uses the register that the stub needs.
    pub fn stop_patching(&self) -> Result<(), Errno> {
        let areas = self.areas.lock();
        self.patches.lock().off = true;
        let done = self.unpatch(0, u64::MAX, true);
        drop(areas);
        done
    }

    pub(super) fn forget_patches(&self) {
        *self.patches.lock() = Patches::default();
    }
}
