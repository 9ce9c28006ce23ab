//! Debian packages that the tests need.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

/// Programs that tests run, and the packages they come from.
const NEEDED: &[(&str, &str)] = &[
    ("/usr/bin/busybox", "busybox-static"),
    ("/usr/bin/python3", "python3"),
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
