//! `simulate` in virtual time and `warmroute serve` before simulated engines over sockets, given the same workload.

mod fleet;
mod hits;
mod times;
mod workload;
