//! A router whose tasks panic, whose log nobody reads, and whose process stands still.

mod leases;
mod logging;
mod panics;
