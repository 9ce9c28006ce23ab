//! Which of the host's mounts a sandbox is handed.

use std::path::PathBuf;
use std::process::Command;

use e2e::run;
use sentry::BootSpec;

use super::evil_with;

/// A directory that is removed with this.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("coffer-e2e-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Scratch(path)
    }

    fn text(&self) -> String {
        self.0.to_str().expect("a path in UTF-8").to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left is in the directory for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn places(output: &str) -> Vec<String> {
    let spec: BootSpec = serde_json::from_str(output).expect("the specification");
    let text =
        |path: &sentry::spec::ByteString| String::from_utf8_lossy(path.as_bytes()).into_owned();
    spec.lower.iter().map(|(path, _)| text(path)).collect()
}

#[test]
fn submounts_come_along_and_hidden_ones_do_not() {
    let scratch = Scratch::new("submounts");
    let base = scratch.text();
    // "hidden" lies on a mount that another one covers; "a b" needs escapes in mountinfo; "p" is the host's state.
    let script = r#"set -e
        cd "$0"; mkdir -p 'a b' over p
        mount -t tmpfs none 'a b'; mkdir 'a b/inner'; mount -t tmpfs none 'a b/inner'
        mount -t tmpfs none over; mkdir over/hidden; mount -t tmpfs none over/hidden; mount -t tmpfs none over
        mount -t proc none p
        exec "$1" do -- spec"#;
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "sh",
        "-c",
        script,
        &base,
        env!("CARGO_BIN_EXE_evil"),
    ]);
    let finished = run(&mut command);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let mut ours = places(&finished.stdout);
    assert_eq!(ours[0], "/");
    ours.retain(|place| place.starts_with(&base));
    let expected = ["a b", "a b/inner", "over"].map(|name| format!("{base}/{name}"));
    assert_eq!(ours, expected);
}

#[test]
fn another_root_comes_alone() {
    let scratch = Scratch::new("root");
    let finished = run(&mut evil_with(&["--root", &scratch.text()], &["spec"]));
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(places(&finished.stdout), ["/"]);
    let spec: BootSpec = serde_json::from_str(&finished.stdout).expect("the specification");
    assert_eq!(spec.cwd.as_bytes(), b"/");
}

#[test]
fn a_volume_may_be_a_file() {
    let scratch = Scratch::new("file");
    let file = scratch.0.join("one");
    std::fs::write(&file, "text").expect("a file");
    let volume = format!("{}:/etc/one:ro", file.display());
    let finished = run(&mut evil_with(&["--volume", &volume], &["spec"]));
    assert_eq!(finished.code(), 0, "{finished:?}");
    let spec: BootSpec = serde_json::from_str(&finished.stdout).expect("the specification");
    assert_eq!(spec.volumes[0].target.as_bytes(), b"/etc/one");
    assert!(spec.volumes[0].read_only);
}

#[test]
fn a_volume_of_a_file_is_read_and_written() {
    let scratch = Scratch::new("file-through");
    let file = scratch.0.join("one");
    std::fs::write(&file, "text").expect("a file");
    let script = "cat /mnt/one; (echo more > /mnt/one) 2>/dev/null && echo written";
    for (mode, said, left) in [(":ro", "text", "text"), ("", "textwritten\n", "more\n")] {
        let volume = format!("{}:/mnt/one{mode}", file.display());
        let finished = run(Command::new(e2e::coffer())
            .args(["do", "--volume", &volume, "--", "/bin/sh", "-c", script]));
        assert_eq!(finished.stdout, said, "{finished:?}");
        assert_eq!(std::fs::read_to_string(&file).expect("the file"), left);
    }
}
