//! Compares `simulate` in virtual time with `warmroute serve` before simulated engines on the same
//! workload.

mod fleet;
mod hits;
mod times;
mod workload;
