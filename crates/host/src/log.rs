//! Lines on standard error.

/// Writes a line to standard error, at once; where that is gone, nowhere.
pub fn line(text: &str) {
    let mut bytes = Vec::with_capacity(text.len() + 1);
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(b'\n');
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::write(rustix::stdio::stderr(), &bytes[done..]) {
            Ok(0) => break,
            Ok(wrote) => done += wrote,
            // A reader that is slow is waited for a while; one that does not read at all loses the line.
            Err(rustix::io::Errno::AGAIN) if wait_writable() => {}
            Err(_) => break,
        }
    }
}

/// Whether standard error takes more within a second.
fn wait_writable() -> bool {
    let stderr = rustix::stdio::stderr();
    let mut fds = [rustix::event::PollFd::new(
        &stderr,
        rustix::event::PollFlags::OUT,
    )];
    let second = rustix::event::Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut fds, Some(&second)), Ok(1))
}
