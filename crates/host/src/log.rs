//! Lines on standard error.

/// Writes a line to standard error, at once; where that is gone, nowhere.
pub fn line(text: &str) {
    let mut bytes = Vec::with_capacity(text.len() + 1);
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(b'\n');
    let mut done = 0;
    while let Ok(wrote) = rustix::io::write(rustix::stdio::stderr(), &bytes[done..]) {
        done += wrote;
        if wrote == 0 || done >= bytes.len() {
            break;
        }
    }
}
