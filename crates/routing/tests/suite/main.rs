//! The integration tests of the crate, linked once, as one program.

mod fleet;

mod admission;
mod baselines;
mod cache_use;
mod chat;
mod composite;
mod counting;
mod decisions;
mod decode_rates;
mod dynamo;
mod fairness;
mod fetch;
mod learned;
mod lmcache;
mod load;
mod policies;
mod pools;
mod prefix_hash;
mod preview;
mod queue;
mod queue_bounds;
mod receipts;
mod replication;
mod scoring;
mod session;
mod session_hash;
mod slo;
mod waiting_work;
