//! kv-events
