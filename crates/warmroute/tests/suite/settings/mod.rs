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
mod prediction;
mod prefix_tiers;
mod retries;
mod single_keys;
mod temperature;
mod unix_workers;
mod worker_checks;
