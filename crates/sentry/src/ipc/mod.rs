//! Communication between tasks that is not by files: futexes.

pub mod futex;
