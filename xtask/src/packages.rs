//! Debian packages that the tests need, and the source of one.

use std::fs;
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

/// The package whose source a test builds. It looks for it in `target/sources`.
const SOURCE: &str = "bzip2";

/// Fetches the source that a test builds, unless it is there: from where the system's own packages come, by a list of places that is apt's with `deb` turned into
/// `deb-src`.
pub(crate) fn fetch_source() -> anyhow::Result<()> {
    let directory = crate::root().join("target/sources");
    let there = |directory: &Path| {
        let found = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut names = found.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.any(|name| name.starts_with(SOURCE) && name.contains(".orig.tar."))
    };
    if there(&directory) {
        return Ok(());
    }
    let lists = directory.join("lists");
    fs::create_dir_all(lists.join("partial"))?;
    let (mut lines, mut stanzas) = (String::new(), String::new());
    let places = fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten();
    let mut places: Vec<_> = places.flatten().map(|entry| entry.path()).collect();
    places.push("/etc/apt/sources.list".into());
    for place in places {
        let text = fs::read_to_string(&place).unwrap_or_default();
        match place.extension().and_then(|kind| kind.to_str()) {
            Some("list") => text
                .lines()
                .filter_map(|line| line.strip_prefix("deb "))
                .for_each(|rest| lines.push_str(&format!("deb-src {rest}\n"))),
            Some("sources") => {
                for line in text.lines() {
                    let kind = line.starts_with("Types:");
                    stanzas.push_str(if kind { "Types: deb-src" } else { line });
                    stanzas.push('\n');
                }
                stanzas.push('\n');
            }
            _ => {}
        }
    }
    // One of the two forms: apt is told of one list.
    let (name, text) = if stanzas.is_empty() {
        ("places.list", lines)
    } else {
        ("places.sources", stanzas)
    };
    fs::write(directory.join(name), text)?;
    let options = [
        format!("Dir::Etc::sourcelist={}", directory.join(name).display()),
        "Dir::Etc::sourceparts=-".to_owned(),
        format!("Dir::State::Lists={}", lists.display()),
        "APT::Sandbox::User=root".to_owned(),
    ];
    println!("$ apt-get source {SOURCE}");
    for arguments in [&["update"][..], &["source", "--download-only", SOURCE]] {
        let mut command = Command::new("apt-get");
        for option in &options {
            command.args(["-o", option]);
        }
        let status = command
            .arg("--quiet")
            .args(arguments)
            .current_dir(&directory);
        let status = status.status().context("apt-get")?;
        ensure!(
            status.success(),
            "a test builds {SOURCE} from Debian's source package, and apt-get could not fetch it: put its .orig.tar file into {}",
            directory.display()
        );
    }
    fs::remove_dir_all(lists)?;
    ensure!(
        there(&directory),
        "apt-get source {SOURCE} left no .orig.tar file in {}",
        directory.display()
    );
    Ok(())
}

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
