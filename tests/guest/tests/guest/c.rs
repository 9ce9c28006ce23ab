//! The C programs, one test each.

use std::path::Path;

macro_rules! programs {
    ($($name:ident)*) => {
        /// All of them.
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(
            #[test]
            fn $name() {
                let program = guest::compile(stringify!($name), Path::new(env!("CARGO_TARGET_TMPDIR")), &[]);
                guest::compare(&program.to_string_lossy(), &[]);
            }
        )*
    };
}

programs! {
    copy_on_write
    events
    faults
    futexes
    locks
    memory
    namespaces
    proc_self
    processes
    signals
    text_busy
    unix_sockets
}

#[test]
fn each_program_has_a_test() {
    let mut found: Vec<String> = std::fs::read_dir(guest::programs())
        .expect("the programs")
        .flatten()
        .filter_map(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .strip_suffix(".c")
                .map(str::to_owned)
        })
        .collect();
    let mut known: Vec<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    found.sort();
    known.sort();
    assert_eq!(found, known);
}
