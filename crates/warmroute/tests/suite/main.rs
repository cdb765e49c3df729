//! The integration tests of the crate, linked once, as one program.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]

mod event_publisher;
#[path = "../harness/mod.rs"]
mod harness;
#[cfg(feature = "nats")]
#[path = "../../../nats-client/tests/nats_server/mod.rs"]
mod nats_server;
mod prefix_stream;
#[path = "../../../redis-store/tests/redis_server/mod.rs"]
mod redis_server;
#[path = "../../../response-cache/tests/suite/s3_server.rs"]
mod s3_server;

mod admin_operations;
mod admin_shapes;
mod admission;
mod affinity;
mod agreement;
mod api_surface;
mod attached_store;
mod build_features;
// The script that installs the library is for Linux.
#[cfg(target_os = "linux")]
mod c_publisher;
mod compare;
mod config_convert;
mod content_routing;
mod decision_log;
mod demo;
mod doctor;
mod dynamo_mode;
mod embedded;
mod encryption;
mod engine_load;
mod events;
#[cfg(feature = "nats")]
mod events_relay;
mod exclusions;
mod explain;
mod faults;
mod fetch;
mod hostile_artefacts;
mod http2;
mod index_snapshot;
mod indexer;
mod indexer_examples;
mod indexer_streams;
mod key_validation;
mod kv_events_stream;
mod kv_index;
mod lifecycle;
mod limits;
mod lmcache;
mod lmcache_events;
mod long_warm_up;
mod metrics_listener;
mod model_routing;
mod multimodal;
mod native_generation;
mod openapi;
mod output;
mod parity;
mod prefill_decode;
mod prefix_keys;
mod prometheus;
mod queue;
mod realtime;
#[cfg(feature = "nats")]
mod registrations_over_nats;
mod relay_bytes;
mod replicas;
#[cfg(feature = "nats")]
mod replicas_over_nats;
mod response_cache;
mod route_api;
mod routing;
mod sdk;
mod secrets;
mod security_document;
mod session_hashes;
mod sessions;
mod settings;
mod shared_prefixes;
mod shared_tokens;
mod simulate;
mod slo;
mod startup;
mod strict_isolation;
mod supervision;
mod supply_chain;
mod systemd_unit;
mod tenant_flood;
mod tenant_isolation;
mod tenant_probes;
mod tenant_queue;
mod tenant_tokens;
mod tenants;
mod tokens;
#[cfg(feature = "otel")]
mod traces;
