//! Loading of programs: ELF executables, their interpreters, and scripts (execve(2), elf(5)).

use std::sync::Arc;

use abi::Errno;
use platform::USER_TOP;

use super::area::Prot;
use super::{MIN_ADDR, MapFlags, MapRequest, Mm, PAGE, page_down, page_up};
use crate::io::Sink;
use crate::task::credentials::Credentials;
use crate::vfs::OpenFile;

/// How often a script may name another script.
const MAX_SCRIPTS: usize = 4;
/// The longest first line of a script that counts (`BINPRM_BUF_SIZE`).
const FIRST_LINE: usize = 256;
/// The most that arguments and environment may take (`MAX_ARG_STRLEN` each, a quarter of the stack together).
const MAX_ARG: usize = 128 << 10;
/// Where a position-independent program goes, before it is shifted at random.
const PIE_BASE: u64 = 0x5555_5555_4000;

const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;
const EM_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_GNU_STACK: u32 = 0x6474_e551;

/// What can be opened by path for execution; the task's view of the file system.
pub type OpenExecutable<'a> = &'a dyn Fn(&[u8]) -> Result<Arc<OpenFile>, Errno>;

/// A program that was read and found loadable, before anything of the old one is touched.
pub struct Program {
    elf: Elf,
    interpreter: Option<Elf>,
    /// The executable's file.
    pub file: Arc<OpenFile>,
    /// Its arguments; a script's interpreter comes first.
    pub args: Vec<Vec<u8>>,
    env: Vec<Vec<u8>>,
    /// The path it was called by (`AT_EXECFN`).
    name: Vec<u8>,
}

/// Where a loaded program begins.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The first instruction.
    pub rip: u64,
    /// The stack pointer.
    pub rsp: u64,
}

struct Elf {
    file: Arc<OpenFile>,
    entry: u64,
    dynamic: bool,
    headers: u64,
    header_count: u64,
    segments: Vec<Segment>,
    executable_stack: bool,
}

struct Segment {
    addr: u64,
    offset: u64,
    file_size: u64,
    size: u64,
    prot: Prot,
}

impl Program {
    /// Reads the program at `path` (or the file that is open already), following scripts to their interpreters.
    pub fn read(
        path: &[u8],
        file: Option<Arc<OpenFile>>,
        mut args: Vec<Vec<u8>>,
        env: Vec<Vec<u8>>,
        open: OpenExecutable<'_>,
    ) -> Result<Program, Errno> {
        if args
            .iter()
            .chain(&env)
            .any(|string| string.len() >= MAX_ARG)
        {
            return Err(Errno::E2BIG);
        }
        let mut file = match file {
            Some(file) => file,
            None => open(path)?,
        };
        let mut path = path.to_vec();
        for _ in 0..=MAX_SCRIPTS {
            let mut head = Vec::new();
            read_at(&file, 0, FIRST_LINE, &mut head)?;
            if !head.starts_with(b"#!") {
                let elf = Elf::read(&file, &head)?;
                let interpreter = match elf.interpreter(&head)? {
                    Some(path) => {
                        let file = open(&path)?;
                        let mut head = Vec::new();
                        read_at(&file, 0, FIRST_LINE, &mut head)?;
                        Some(Elf::read(&file, &head).map_err(|error| {
                            if error == Errno::ENOEXEC {
                                Errno::ELIBBAD
                            } else {
                                error
                            }
                        })?)
                    }
                    None => None,
                };
                return Ok(Program {
                    elf,
                    interpreter,
                    file,
                    args,
                    env,
                    name: path,
                });
            }
            let (interpreter, argument) = script_line(&head)?;
            if !args.is_empty() {
                args.remove(0);
            }
            args.insert(0, path);
            if let Some(argument) = argument {
                args.insert(0, argument);
            }
            args.insert(0, interpreter.clone());
            file = open(&interpreter)?;
            path = interpreter;
        }
        Err(Errno::ELOOP)
    }

    /// Maps the program into an empty address space, and makes its stack.
    pub fn load(&self, mm: &Mm, creds: &Credentials, secure: bool) -> Result<Entry, Errno> {
        let random =
            |bits: u32| -> u64 { host::machine::random().unwrap_or(0) & ((1 << bits) - 1) };
        let stack_top = USER_TOP - PAGE - (random(22) << 12);
        let limit = mm
            .limit_stack
            .load(std::sync::atomic::Ordering::Relaxed)
            .clamp(128 << 20, USER_TOP / 6 * 5);
        let mmap_base = page_down(stack_top - limit - (256 << 12)) - (random(24) << 12);
        mm.set_layout(|layout| {
            *layout = super::Layout {
                mmap_base,
                stack: stack_top,
                ..super::Layout::default()
            };
        });
        let bias = if self.elf.dynamic {
            if self.interpreter.is_some() {
                PIE_BASE + (random(28) << 12)
            } else {
                mmap_base - (1 << 32)
            }
        } else {
            0
        };
        let end = self.elf.map(mm, bias)?;
        let (mut rip, mut base) = (self.elf.entry.wrapping_add(bias), 0);
        if let Some(interpreter) = &self.interpreter {
            base = if interpreter.dynamic {
                let (low, high) = interpreter.span()?;
                let at = mm.map(&MapRequest {
                    addr: 0,
                    len: high - low,
                    prot: Prot::empty(),
                    flags: MapFlags::PRIVATE | MapFlags::ANONYMOUS,
                    file: None,
                    name: None,
                })?;
                mm.unmap(at, high - low)?;
                at - low
            } else {
                0
            };
            interpreter.map(mm, base)?;
            rip = interpreter.entry.wrapping_add(base);
        }
        let brk = page_up(end).ok_or(Errno::ENOMEM)?
            + if self.elf.dynamic || random(1) == 0 {
                random(13) << 12
            } else {
                0
            };
        let first = self
            .elf
            .segments
            .iter()
            .find(|segment| segment.prot.contains(Prot::EXEC))
            .or(self.elf.segments.first());
        let code = first.map_or((0, 0), |segment| {
            (segment.addr + bias, segment.addr + bias + segment.file_size)
        });
        mm.set_layout(|layout| {
            layout.brk = (brk, brk);
            layout.code = code;
            layout.data = (code.1, end);
        });
        let stack_prot = if self.elf.executable_stack {
            Prot::READ | Prot::WRITE | Prot::EXEC
        } else {
            Prot::READ | Prot::WRITE
        };
        let vdso = mm.host().vdso.map(mm, stack_top, random(32))?;
        let rsp = self.stack(mm, creds, secure, bias, base, stack_top, stack_prot, vdso)?;
        Ok(Entry { rip, rsp })
    }

    /// Makes the stack: strings, auxiliary vector, environment, arguments.
    #[allow(
        clippy::too_many_arguments,
        reason = "one caller, each a fact of the program just mapped"
    )]
    fn stack(
        &self,
        mm: &Mm,
        creds: &Credentials,
        secure: bool,
        bias: u64,
        base: u64,
        top: u64,
        prot: Prot,
        vdso: u64,
    ) -> Result<u64, Errno> {
        let strings: u64 = self
            .args
            .iter()
            .chain(&self.env)
            .map(|string| string.len() as u64 + 9)
            .sum();
        let most = (mm.limit_stack.load(std::sync::atomic::Ordering::Relaxed) / 4)
            .clamp(128 << 10, 6 << 20);
        if strings > most {
            return Err(Errno::E2BIG);
        }
        let room = page_up(strings + 8192).ok_or(Errno::E2BIG)?;
        let initial = room + (128 << 10);
        mm.map(&MapRequest {
            addr: top - initial,
            len: initial,
            prot,
            flags: MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED | MapFlags::GROWSDOWN,
            file: None,
            name: Some("[stack]"),
        })?;
        // Built as one image of the top of the stack, written at once.
        let mut image = vec![0u8; usize::try_from(room).map_err(|_| Errno::E2BIG)?];
        let low = top - room;
        let mut at = image.len() - 8;
        let mut put = |bytes: &[u8], nul: bool| -> u64 {
            at -= bytes.len() + usize::from(nul);
            image[at..at + bytes.len()].copy_from_slice(bytes);
            low + at as u64
        };
        let name = put(&self.name, true);
        let env_end = name;
        let mut env: Vec<u64> = self
            .env
            .iter()
            .rev()
            .map(|string| put(string, true))
            .collect();
        env.reverse();
        let env_start = env.first().copied().unwrap_or(env_end);
        let mut args: Vec<u64> = self
            .args
            .iter()
            .rev()
            .map(|string| put(string, true))
            .collect();
        args.reverse();
        let args_start = args.first().copied().unwrap_or(env_start);
        let platform = put(b"x86_64", true);
        let mut entropy = [0; 16];
        entropy[..8].copy_from_slice(&host::machine::random().unwrap_or(0).to_ne_bytes());
        entropy[8..].copy_from_slice(&host::machine::random().unwrap_or(0).to_ne_bytes());
        let entropy = put(&entropy, false);
        let aux: Vec<(u64, u64)> = vec![
            // AT_HWCAP, AT_PAGESZ, AT_CLKTCK, AT_PHDR, AT_PHENT, AT_PHNUM, AT_BASE, AT_FLAGS, AT_ENTRY
            (16, host::machine::auxv(16)),
            (6, PAGE),
            (17, 100),
            (3, self.elf.headers.wrapping_add(bias)),
            (4, 56),
            (5, self.elf.header_count),
            (7, base),
            (8, 0),
            (9, self.elf.entry.wrapping_add(bias)),
            // AT_UID, AT_EUID, AT_GID, AT_EGID, AT_SECURE, AT_RANDOM, AT_HWCAP2, AT_EXECFN, AT_PLATFORM, AT_MINSIGSTKSZ
            (11, u64::from(creds.uid.real)),
            (12, u64::from(creds.uid.effective)),
            (13, u64::from(creds.gid.real)),
            (14, u64::from(creds.gid.effective)),
            (23, u64::from(secure)),
            (25, entropy),
            (26, host::machine::auxv(26)),
            (31, name),
            (15, platform),
            (51, host::machine::auxv(51).max(2048)),
            // AT_SYSINFO_EHDR, AT_NULL
            (33, vdso),
            (0, 0),
        ];
        let words = 1 + args.len() + 1 + env.len() + 1 + aux.len() * 2;
        let start = (at - words * 8) & !15;
        let mut vector: Vec<u8> = Vec::with_capacity(words * 8);
        let mut word = |value: u64| vector.extend_from_slice(&value.to_ne_bytes());
        word(args.len() as u64);
        args.iter().for_each(|arg| word(*arg));
        word(0);
        env.iter().for_each(|var| word(*var));
        word(0);
        for (key, value) in &aux {
            word(*key);
            word(*value);
        }
        let auxv = vector[vector.len() - aux.len() * 16..].to_vec();
        image[start..start + vector.len()].copy_from_slice(&vector);
        mm.write(low + start as u64, &image[start..])?;
        mm.set_layout(|layout| {
            layout.args = (args_start, env_start);
            layout.env = (env_start, env_end);
            layout.auxv = auxv;
        });
        Ok(low + start as u64)
    }
}

/// Interpreter and argument of a script's first line.
fn script_line(head: &[u8]) -> Result<(Vec<u8>, Option<Vec<u8>>), Errno> {
    let line = &head[2..];
    let line = match line.iter().position(|byte| *byte == b'\n') {
        Some(end) => &line[..end],
        // A line that is cut off counts only where its interpreter is whole.
        None if head.len() < FIRST_LINE => line,
        None => {
            let begun = line
                .iter()
                .position(|byte| !matches!(byte, b' ' | b'\t'))
                .ok_or(Errno::ENOEXEC)?;
            if !line[begun..]
                .iter()
                .any(|byte| matches!(byte, b' ' | b'\t'))
            {
                return Err(Errno::ENOEXEC);
            }
            line
        }
    };
    let line = line.trim_ascii();
    if line.is_empty() {
        return Err(Errno::ENOEXEC);
    }
    let end = line
        .iter()
        .position(|byte| matches!(byte, b' ' | b'\t'))
        .unwrap_or(line.len());
    let argument = line[end..].trim_ascii();
    Ok((
        line[..end].to_vec(),
        (!argument.is_empty()).then(|| argument.to_vec()),
    ))
}

/// Reads up to `len` bytes at an offset.
fn read_at(file: &OpenFile, at: u64, len: usize, to: &mut Vec<u8>) -> Result<(), Errno> {
    let at = i64::try_from(at).map_err(|_| Errno::ENOEXEC)?;
    file.pread(&mut Sink::vec(to, len), at)?;
    Ok(())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

impl Elf {
    fn read(file: &Arc<OpenFile>, head: &[u8]) -> Result<Elf, Errno> {
        if head.len() < 64 || !head.starts_with(b"\x7fELF\x02\x01") || u16_at(head, 18) != EM_X86_64
        {
            return Err(Errno::ENOEXEC);
        }
        let kind = u16_at(head, 16);
        if !matches!(kind, ET_EXEC | ET_DYN) || u16_at(head, 54) != 56 {
            return Err(Errno::ENOEXEC);
        }
        let count = usize::from(u16_at(head, 56));
        let offset = u64_at(head, 32);
        if count == 0 || count * 56 > 65_536 {
            return Err(Errno::ENOEXEC);
        }
        let mut table = Vec::new();
        read_at(file, offset, count * 56, &mut table)?;
        if table.len() < count * 56 {
            return Err(Errno::ENOEXEC);
        }
        let mut elf = Elf {
            file: Arc::clone(file),
            entry: u64_at(head, 24),
            dynamic: kind == ET_DYN,
            headers: 0,
            header_count: count as u64,
            segments: Vec::new(),
            executable_stack: false,
        };
        for header in table.chunks_exact(56) {
            let flags = u32_at(header, 4);
            match u32_at(header, 0) {
                PT_LOAD => {
                    let mut prot = Prot::empty();
                    prot.set(Prot::READ, flags & 4 != 0);
                    prot.set(Prot::WRITE, flags & 2 != 0);
                    prot.set(Prot::EXEC, flags & 1 != 0);
                    let segment = Segment {
                        offset: u64_at(header, 8),
                        addr: u64_at(header, 16),
                        file_size: u64_at(header, 32),
                        size: u64_at(header, 40),
                        prot,
                    };
                    let sane = segment.size >= segment.file_size
                        && segment
                            .addr
                            .checked_add(segment.size)
                            .is_some_and(|end| end < USER_TOP)
                        && segment
                            .offset
                            .checked_add(segment.file_size)
                            .is_some_and(|end| i64::try_from(end).is_ok())
                        && segment.addr % PAGE == segment.offset % PAGE
                        && elf
                            .segments
                            .last()
                            .is_none_or(|last| last.addr <= segment.addr);
                    if !sane {
                        return Err(Errno::ENOEXEC);
                    }
                    if segment.offset <= offset && offset < segment.offset + segment.file_size {
                        elf.headers = segment.addr + (offset - segment.offset);
                    }
                    if segment.size > 0 {
                        elf.segments.push(segment);
                    }
                }
                PT_GNU_STACK => elf.executable_stack = flags & 1 != 0,
                _ => {}
            }
        }
        if elf.segments.is_empty() {
            return Err(Errno::ENOEXEC);
        }
        Ok(elf)
    }

    /// The path of the interpreter, where the program names one.
    fn interpreter(&self, head: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        let count = usize::from(u16_at(head, 56));
        let mut table = Vec::new();
        read_at(&self.file, u64_at(head, 32), count * 56, &mut table)?;
        for header in table.chunks_exact(56) {
            if u32_at(header, 0) != PT_INTERP {
                continue;
            }
            let len = usize::try_from(u64_at(header, 32)).unwrap_or(usize::MAX);
            if !(2..=4096).contains(&len) {
                return Err(Errno::ENOEXEC);
            }
            let mut path = Vec::new();
            read_at(&self.file, u64_at(header, 8), len, &mut path)?;
            if path.pop() != Some(0) || path.len() + 1 != len {
                return Err(Errno::ENOEXEC);
            }
            return Ok(Some(path));
        }
        Ok(None)
    }

    /// The whole pages from the first segment's start to the last one's end.
    fn span(&self) -> Result<(u64, u64), Errno> {
        let first = self.segments.first().ok_or(Errno::ENOEXEC)?;
        let last = self.segments.last().ok_or(Errno::ENOEXEC)?;
        Ok((
            page_down(first.addr),
            page_up(last.addr + last.size).ok_or(Errno::ENOEXEC)?,
        ))
    }

    /// Maps the segments, shifted by `bias`; where the last one ends.
    fn map(&self, mm: &Mm, bias: u64) -> Result<u64, Errno> {
        let mut end = 0;
        for segment in &self.segments {
            let addr = segment.addr.checked_add(bias).ok_or(Errno::ENOEXEC)?;
            if addr < MIN_ADDR {
                return Err(Errno::EPERM);
            }
            let start = page_down(addr);
            let file_end = addr + segment.file_size;
            let file_pages = if segment.file_size == 0 {
                start
            } else {
                page_up(file_end).ok_or(Errno::ENOEXEC)?
            };
            if file_pages > start {
                mm.map(&MapRequest {
                    addr: start,
                    len: file_pages - start,
                    prot: segment.prot,
                    flags: MapFlags::PRIVATE | MapFlags::FIXED,
                    file: Some((Arc::clone(&self.file), page_down(segment.offset))),
                    name: None,
                })?;
            }
            let mem_end = addr + segment.size;
            if segment.size > segment.file_size {
                if segment.prot.contains(Prot::WRITE) && file_end < file_pages {
                    // To the page's end: ld.so takes what is behind its data for its first allocations.
                    let zero = vec![0; usize::try_from(file_pages - file_end).unwrap_or(0)];
                    mm.write(file_end, &zero)?;
                }
                let bss_end = page_up(mem_end).ok_or(Errno::ENOEXEC)?;
                if bss_end > file_pages {
                    mm.map(&MapRequest {
                        addr: file_pages,
                        len: bss_end - file_pages,
                        prot: segment.prot,
                        flags: MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED,
                        file: None,
                        name: None,
                    })?;
                }
            }
            end = mem_end;
        }
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::script_line;
    use abi::Errno;

    #[test]
    fn first_lines_of_scripts() {
        let line = |text: &str| script_line(text.as_bytes());
        assert_eq!(line("#!/bin/sh\n"), Ok((b"/bin/sh".to_vec(), None)));
        assert_eq!(
            line("#! /usr/bin/env  python3 -u \nx"),
            Ok((b"/usr/bin/env".to_vec(), Some(b"python3 -u".to_vec())))
        );
        assert_eq!(line("#!   \n"), Err(Errno::ENOEXEC));
        assert_eq!(
            line(&format!("#!/{}", "a".repeat(300)).as_str()[..256]),
            Err(Errno::ENOEXEC)
        );
    }
}
