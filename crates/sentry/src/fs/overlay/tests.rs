//! Tests of overlays over real host directories.
