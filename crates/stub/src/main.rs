//! The stub: the few kilobytes that live in every guest address space.
//!
//! Pure assembly over the layout in `layout.rs`; no stack of its own but the alternate stacks, no state but registers and the shared
//! pages. Three parts: the *helper*, which executes the sentry's orders from a page that nothing in this process can write;
//! the *trap path*, which reports a guest thread's state and waits for the answer; and the *start* of zygote and threads.
//!
//! Invariant: a host call is made at one of the labelled instructions alone, and the filters (platform's `filter.rs`)
//! allow each of them only what it is for. Nothing here decides anything: the sentry does.
#![no_std]
#![no_main]

#[path = "layout.rs"]
mod layout;
#[path = "x86_64.rs"]
mod arch;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
