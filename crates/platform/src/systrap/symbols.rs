//! Where the functions of the host's vDSO are, from its ELF image (elf(5), vdso(7)).
//!
//! The image is the host kernel's, read from the zygote's memory before any guest runs; it is parsed as if it were anybody's all the same: every offset is
//! bounded by the image, every loop by its length.

use std::ops::Range;

/// The most that an image is believed to have.
pub(super) const MOST: usize = 64 << 10;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const STT_FUNC: u8 = 2;

/// The functions of the host's vDSO, as addresses in every stub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostVdso {
    /// What of the address space it takes.
    pub(super) range: Range<u64>,
    pub(super) gettime: Option<u64>,
    pub(super) gettimeofday: Option<u64>,
    pub(super) time: Option<u64>,
    pub(super) getres: Option<u64>,
    pub(super) getcpu: Option<u64>,
}

struct Image<'a>(&'a [u8]);

impl Image<'_> {
    fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let at = usize::try_from(at).ok()?;
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn u16(&self, at: u64) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: u64) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: u64) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    /// The string at this offset, up to its NUL.
    fn string(&self, at: u64) -> Option<&[u8]> {
        let rest = self.0.get(usize::try_from(at).ok()?..)?;
        Some(&rest[..rest.iter().position(|byte| *byte == 0)?])
    }
}

/// How many bytes of an image are mapped, from its first page.
pub(super) fn size(head: &[u8]) -> Option<usize> {
    let (_, segment, _) = layout(&Image(head))?;
    usize::try_from(segment.end).ok().filter(|len| *len <= MOST)
}

/// The address that the image is linked for, its one segment's part of the file, and where in the image the dynamic section is.
fn layout(image: &Image<'_>) -> Option<(u64, Range<u64>, u64)> {
    if image.bytes(0)? != *b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, count) = (image.u64(32)?, image.u16(56)?);
    let (mut load, mut dynamic) = (None, None);
    for at in 0..u64::from(count.min(64)) {
        let header = table.checked_add(at * 56)?;
        let (offset, address, len) = (
            image.u64(header + 8)?,
            image.u64(header + 16)?,
            image.u64(header + 32)?,
        );
        match image.u32(header)? {
            PT_LOAD if load.is_none() => {
                load = Some((
                    address.checked_sub(offset)?,
                    offset..offset.checked_add(len)?,
                ));
            }
            PT_DYNAMIC => dynamic = Some(offset),
            _ => {}
        }
    }
    let (linked, segment) = load?;
    Some((linked, segment, dynamic?))
}

/// Finds the functions of the image that lies at `base`. `None` where it is no vDSO.
pub(super) fn find(image: &[u8], base: u64) -> Option<HostVdso> {
    let len = u64::try_from(image.len()).ok()?;
    let image = Image(image);
    let (linked, _, dynamic) = layout(&image)?;
    let (mut strings, mut strings_len, mut symbols) = (None, 0, None);
    for at in 0..len / 16 {
        let entry = dynamic.checked_add(at * 16)?;
        let value = image.u64(entry + 8)?;
        match image.u64(entry)? {
            0 => break,
            DT_STRTAB => strings = Some(value.checked_sub(linked)?),
            DT_SYMTAB => symbols = Some(value.checked_sub(linked)?),
            DT_STRSZ => strings_len = value,
            _ => {}
        }
    }
    let (strings, symbols) = (strings?, symbols?);
    let mut found = HostVdso {
        range: base..base.checked_add(len)?,
        ..HostVdso::default()
    };
    // Nothing says how many symbols there are but the hash tables; the strings follow the symbols in every image there is.
    let count = strings.checked_sub(symbols)? / 24;
    for at in 0..count.min(len / 24) {
        let symbol = symbols.checked_add(at * 24)?;
        let (name, info, section, value) = (
            u64::from(image.u32(symbol)?),
            image.bytes::<1>(symbol + 4)?[0],
            image.u16(symbol + 6)?,
            image.u64(symbol + 8)?,
        );
        if info & 0xf != STT_FUNC || section == 0 || name >= strings_len {
            continue;
        }
        let place = match image.string(strings.checked_add(name)?)? {
            b"__vdso_clock_gettime" => &mut found.gettime,
            b"__vdso_gettimeofday" => &mut found.gettimeofday,
            b"__vdso_time" => &mut found.time,
            b"__vdso_clock_getres" => &mut found.getres,
            b"__vdso_getcpu" => &mut found.getcpu,
            _ => continue,
        };
        let offset = value.checked_sub(linked).filter(|offset| *offset < len)?;
        *place = Some(base + offset);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::{HostVdso, find, size};

    const BASE: u64 = 0x7fff_0000_0000;

    #[test]
    fn our_own_is_parsed() {
        let image = super::super::VDSO;
        let len = size(image).expect("a vDSO");
        assert!(len <= image.len());
        let found = find(&image[..len], BASE).expect("a vDSO");
        for address in [
            found.gettime,
            found.gettimeofday,
            found.time,
            found.getres,
            found.getcpu,
        ] {
            assert!(
                address.is_some_and(|at| found.range.contains(&at)),
                "{found:x?}"
            );
        }
    }

    #[test]
    fn damaged_images_are_refused_or_bounded() {
        let image = super::super::VDSO;
        assert_eq!(find(&[], BASE), None);
        assert_eq!(size(&image[..40]), None);
        let mut seed = 1u64;
        for at in 0..image.len() * 4 {
            let mut damaged = image.to_vec();
            // xorshift: where, and what.
            for _ in 0..3 {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                let place = (seed >> 8) as usize % damaged.len();
                damaged[place] = seed as u8;
            }
            damaged[at % image.len()] ^= 0xff;
            damaged.truncate(size(&damaged).unwrap_or(image.len()));
            if let Some(HostVdso { range, gettime, .. }) = find(&damaged, BASE) {
                assert!(gettime.is_none_or(|at| range.contains(&at)));
            }
        }
    }
}
