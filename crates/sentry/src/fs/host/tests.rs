//! Tests over real host directories.
