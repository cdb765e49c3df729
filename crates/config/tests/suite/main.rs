//! The integration tests of the crate, linked once, as one program.

mod sources;

mod effects;
mod hostile;
mod kv_events;
mod lmcache;
mod loading;
mod problems;
mod redis;
mod reload;
mod response_cache;
mod schema;
mod sections;
mod seed_configs;
mod starter;
mod tenants;
mod tls;
