//! Tests of files in memory.
