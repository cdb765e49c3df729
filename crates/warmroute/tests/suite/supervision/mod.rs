//! A router with panicking tasks, an unread log, and a paused process.

mod leases;
mod logging;
mod panics;
