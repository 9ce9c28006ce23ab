//! Debian packages that the tests need.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

/// Programs that tests run, and the packages they come from.
const NEEDED: &[(&str, &str)] = &[
    ("/bin/busybox", "busybox-static"),
    ("/usr/bin/python3", "python3"),
    ("/usr/share/python-wheels", "python3-venv"),
    ("/usr/bin/perl", "perl"),
    ("/usr/bin/git", "git"),
    ("/usr/bin/gcc", "gcc"),
    ("/usr/include/stdio.h", "libc6-dev"),
    ("/usr/bin/make", "make"),
    ("/usr/bin/xz", "xz-utils"),
    ("/usr/bin/zstd", "zstd"),
    ("/usr/bin/rsync", "rsync"),
];

/// Installs what is missing. Without root it is named instead.
pub(crate) fn install() -> anyhow::Result<()> {
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(program, _)| !Path::new(program).exists())
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    println!("$ apt-get install {list}");
    for arguments in [
        &["update", "--quiet"][..],
        &[
            &["install", "--yes", "--quiet", "--no-install-recommends"],
            missing.as_slice(),
        ]
        .concat(),
    ] {
        let status = Command::new("apt-get")
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .status()
            .with_context(|| format!("the tests need these Debian packages: {list}"))?;
        ensure!(
            status.success(),
            "the tests need these Debian packages, and apt-get could not install them: {list}"
        );
    }
    Ok(())
}
