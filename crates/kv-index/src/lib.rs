//! kv-index
