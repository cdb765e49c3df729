//! The effects of configuration on the program and on requests, over real sockets.

mod coalescing;
mod events;
mod files;
mod headers;
mod hedging;
mod hooks;
mod logging;
mod model_lists;
mod model_names;
mod retries;
mod unix_workers;
