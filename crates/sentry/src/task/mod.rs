//! Tasks: what runs, and on whose behalf.

pub mod credentials;
