//! Builds the stub and writes down where its labels are.

use std::path::PathBuf;
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
}
