//! What configuration makes of the program and of requests, on real sockets.

#[path = "../harness/mod.rs"]
mod harness;

mod files;
mod headers;
mod hooks;
mod logging;
mod model_names;
