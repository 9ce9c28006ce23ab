//! The shared object that guests call for the time (vdso(7)).
//!
//! It computes nothing but sums: it calls the host's own vDSO through pointers in the parameter page ([`layout::clocks`]), which only the sentry can
//! write, and adds the sandbox's offset for the clock under the page's sequence count. So there is nothing to calibrate. Clocks that have no offset go
//! straight through; whatever the host's vDSO does not serve is a plain system call.
//!
//! Pure assembly: one page in all, with unwind tables that are exact at every instruction. `vdso.lds` lays it out and says what it exports.
//!
//! Invariant: it writes to nothing but its stack and the results that its caller asked for.
#![no_std]

#[allow(dead_code, reason = "shared with the stub and the platform")]
#[path = "../../stub/src/layout.rs"]
mod layout;
#[path = "x86_64.rs"]
mod arch;
