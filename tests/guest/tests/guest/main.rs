//! Programs native and inside: see the harness.

mod c;
mod real;
