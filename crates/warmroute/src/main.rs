//! The `warmroute` program: its allocator, and the call of the library.

use std::{env, process::ExitCode};

use tikv_jemallocator::Jemalloc;

// Bodies and futures of requests are large and short-lived: docs/decisions/0008-jemalloc.md.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    warmroute::run(env::args_os()).into()
}
