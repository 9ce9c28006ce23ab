//! What the launcher tells the sentry: the sandbox's configuration, with numbers of the descriptors it hands over.

use serde::{Deserialize, Serialize};

/// A sandbox's configuration, as the launcher writes it (JSON) and the sentry reads it at its start.
///
/// Descriptors are given by the number that they have in the sentry.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootSpec {
    /// The first process's arguments, the command first; never empty.
    pub args: Vec<ByteString>,
    /// Its environment, `KEY=value` each.
    pub env: Vec<ByteString>,
    /// Its working directory, absolute.
    pub cwd: ByteString,
    /// The host name that the guest sees.
    pub hostname: String,
    /// The root's lower trees: (path below the root, detached mount's descriptor), the root ("/") first, each
    /// submount after what it is mounted on. All read-only. A submount may be of a single file.
    pub lower: Vec<(ByteString, i32)>,
    /// Volumes, mounted over the root in this order.
    pub volumes: Vec<Volume>,
    /// Standard input, output and error: 0, 1 and 2. Pipes and terminals were reopened for the sentry and are
    /// non-blocking; regular files, and whatever could not be reopened, are shared with the launcher's caller, whose
    /// flags they keep.
    pub stdio: [i32; 3],
    /// The control socket to the launcher (a SOCK_SEQPACKET pair's end).
    pub control: i32,
    /// `cgroup.procs` of the guest's cgroups (one per hierarchy), opened for writing: the zygote writes 0 to each.
    pub guest_cgroups: Vec<i32>,
    /// What the sandbox may use.
    pub limits: Limits,
    /// What `/proc/cpuinfo` tells the guest of each CPU, from `vendor_id` on: a line each.
    pub cpu: String,
    /// Whether each call is printed, decoded, to the sentry's standard error.
    pub strace: bool,
    /// What of the host's memory management serves guest memory.
    pub host_mm: HostMm,
}

/// Features of the host's memory management: on, or emulated by copying and refused by the stubs' filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostMm {
    /// mremap(2).
    pub mremap: bool,
    /// Transparent huge pages.
    pub huge_pages: bool,
    /// Private mappings of files.
    pub private_files: bool,
    /// Copy on write between a process and its fork.
    pub cow: bool,
}

impl Default for HostMm {
    /// Everything.
    fn default() -> HostMm {
        HostMm {
            mremap: true,
            huge_pages: true,
            private_files: true,
            cow: true,
        }
    }
}

/// A host directory or file that is mounted in the sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// Where it appears, absolute.
    pub target: ByteString,
    /// The detached mount's descriptor (O_PATH), of a directory or a file.
    pub fd: i32,
    /// Whether writing is refused (the mount itself is read-only too).
    pub read_only: bool,
}

/// What the sandbox may use.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes of memory, guest and sentry together.
    pub memory: u64,
    /// Guest tasks (threads and processes).
    pub pids: u32,
    /// How many CPUs the guest may use at a time.
    pub cpus: u32,
}

/// A string of bytes that need not be UTF-8 (paths, arguments), written in JSON as text where it is and as a list of
/// numbers where it is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ByteString {
    /// UTF-8.
    Text(String),
    /// Anything else.
    Bytes(Vec<u8>),
}

impl ByteString {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            ByteString::Text(text) => text.as_bytes(),
            ByteString::Bytes(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for ByteString {
    fn from(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => ByteString::Text(text),
            Err(error) => ByteString::Bytes(error.into_bytes()),
        }
    }
}

/// A message on the control socket, one JSON document a packet.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Control {
    /// Launcher to sentry: the launcher was sent this signal by a process; pass it to the sandbox's first process.
    Signal(u8),
    /// Launcher to sentry: the launcher was sent this signal by its terminal (Control-C, a new window size, a hangup);
    /// pass it to the terminal's foreground process group in the sandbox.
    TerminalSignal(u8),
    /// Sentry to launcher: the zygote runs, so that the sentry may be made the last to die for want of memory.
    ZygoteStarted,
    /// Sentry to launcher: the first process could not be started; the exit code to use (126 or 127) and why.
    StartFailed(u8, String),
    /// Sentry to launcher: the first process ended with this exit code, or by this signal.
    Exited(ExitStatus),
    /// Sentry to launcher: the sandbox failed for a reason of its own (exit code 125).
    Failed(String),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// By `exit` with this code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}
