//! Privileges: capabilities(7), securebits, ids and no_new_privs, of the calling process.
//!
//! Everything here is for a process that has one thread: the calls change the calling thread alone.

use abi::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySets};

pub use rustix::thread::CapabilitySet;

use crate::error::errno;

/// Becomes this user and group, without supplementary groups, keeping just these capabilities, which survive the next
/// execve as ambient ones; and makes sure that none is ever gained again.
///
/// The bounding set is emptied, the securebits are locked (root is nobody special, no ambient capability is raised
/// again), and no_new_privs is set. Needs SETUID, SETGID and SETPCAP. A pending parent-death signal is forgotten by
/// the kernel: set it afterwards.
pub fn confine(uid: u32, gid: u32, keep: CapabilitySet) -> Result<(), Errno> {
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED;
    rustix::thread::set_capabilities_secure_bits(bits).map_err(errno)?;
    rustix::thread::set_thread_groups(&[]).map_err(errno)?;
    let gid = Gid::from_raw(gid);
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(errno)?;
    let uid = Uid::from_raw(uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(errno)?;
    // While they are in the bounding set: nothing outside it becomes inheritable.
    set(keep | CapabilitySet::SETPCAP, keep)?;
    empty_bounding_set()?;
    for capability in keep.iter() {
        rustix::thread::configure_capability_in_ambient_set(capability, true).map_err(errno)?;
    }
    let bits = bits
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    rustix::thread::set_capabilities_secure_bits(bits).map_err(errno)?;
    set(keep, keep)?;
    rustix::thread::set_no_new_privs(true).map_err(errno)
}

/// Whether this process has all of these capabilities now.
pub fn has(capabilities: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capabilities))
}

/// Keeps at most these capabilities, and lets none survive an execve.
pub fn limit(keep: CapabilitySet) -> Result<(), Errno> {
    rustix::thread::clear_ambient_capability_set().map_err(errno)?;
    let held = rustix::thread::capabilities(None).map_err(errno)?.permitted;
    set(held & keep, CapabilitySet::empty())
}

/// Sets the permitted and effective sets to the first, the inheritable set to the second.
fn set(permitted: CapabilitySet, inheritable: CapabilitySet) -> Result<(), Errno> {
    let sets = CapabilitySets {
        effective: permitted,
        permitted,
        inheritable,
    };
    rustix::thread::set_capabilities(None, sets).map_err(errno)
}

/// Empties the bounding set. Capabilities that the kernel does not know end the walk.
fn empty_bounding_set() -> Result<(), Errno> {
    for bit in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => (),
            Err(rustix::io::Errno::INVAL) => return Ok(()),
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(())
}
