//! Builds the stub, writes down where its labels are, and builds the guest's vDSO.

use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSymbol};

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let source = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../stub/src");
    println!("cargo::rerun-if-changed={}", source.display());
    let stub = out.join("stub.elf");
    let rustc = std::env::var_os("RUSTC").expect("cargo sets RUSTC");
    let status = Command::new(rustc)
        .arg(source.join("main.rs"))
        .args(["--crate-name", "stub", "--crate-type", "bin", "--edition", "2024", "--target", "x86_64-unknown-linux-gnu"])
        .args(["-C", "panic=abort", "-C", "opt-level=s", "-C", "relocation-model=static", "-C", "target-feature=+crt-static"])
        .args(["-C", "link-arg=-nostdlib", "-C", "link-arg=-static", "-C", "link-arg=-no-pie", "-C", "link-arg=-nostartfiles"])
        .args(["-C", "link-arg=-Wl,-Ttext=0x7ff000000000,-z,noseparate-code,-z,max-page-size=4096,--build-id=none,-e,_start"])
        .arg("-o")
        .arg(&stub)
        .status()
        .expect("rustc runs");
    assert!(status.success(), "the stub does not build");

    let bytes = std::fs::read(&stub).expect("the stub was just built");
    let file = object::File::parse(&*bytes).expect("the stub is an ELF file");
    let mut consts = String::new();
    for symbol in file.symbols() {
        let name = symbol.name().unwrap_or_default();
        if name.starts_with("stub_") {
            let line = format!(
                "pub(crate) const {}: u64 = {:#x};\n",
                name.to_uppercase(),
                symbol.address()
            );
            consts.push_str(&line);
        }
    }
    std::fs::write(out.join("labels.rs"), consts).expect("OUT_DIR is writable");
    vdso(&out);
}

/// The vDSO: compiled by rustc, linked by the C compiler, since it is a shared object with a layout and a version of its own.
fn vdso(out: &Path) {
    let source = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../vdso");
    println!("cargo::rerun-if-changed={}", source.display());
    let object = out.join("vdso.o");
    let rustc = std::env::var_os("RUSTC").expect("cargo sets RUSTC");
    let status = Command::new(rustc)
        .arg(source.join("src/lib.rs"))
        .args([
            "--crate-name",
            "vdso",
            "--crate-type",
            "lib",
            "--edition",
            "2024",
            "--target",
            "x86_64-unknown-linux-gnu",
        ])
        .args([
            "--emit",
            "obj",
            "-C",
            "panic=abort",
            "-C",
            "opt-level=s",
            "-C",
            "codegen-units=1",
        ])
        .arg("-o")
        .arg(&object)
        .status()
        .expect("rustc runs");
    assert!(status.success(), "the vDSO does not compile");
    let mut script = std::ffi::OsString::from("-Wl,-T,");
    script.push(source.join("vdso.lds"));
    let image = out.join("vdso.so");
    let status = Command::new("cc")
        .args(["-nostdlib", "-shared", "-Wl,-soname,linux-vdso.so.1", "-Wl,--hash-style=both", "-Wl,--eh-frame-hdr"])
        .args(["-Wl,-Bsymbolic,--build-id=none,-s,-z,max-page-size=4096,-z,noexecstack,--no-warn-rwx-segments"])
        .arg(script)
        .arg("-o")
        .arg(&image)
        .arg(&object)
        .status()
        .expect("cc, which links Rust programs too, runs");
    assert!(status.success(), "the vDSO does not link");
    let len = std::fs::metadata(&image).expect("it was just built").len();
    assert!(len <= 4096, "the vDSO has {len} bytes, more than a page");
}
