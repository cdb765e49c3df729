//! The settings that replicas must share, as one number.

use config::Settings;
use xxhash_rust::xxh3::xxh3_64;

/// Returns the digest of the settings without which shared state has no meaning: the names under
/// which it is shared, and how blocks are hashed.
pub fn settings_digest(settings: &Settings) -> u64 {
    let (replicas, events) = (&settings.replicas, &settings.kv_events);
    let text = format!(
        "{}\n{}\n{:?}\n{}",
        replicas.namespace, replicas.component, events.block_hash, events.block_hash_seed
    );
    xxh3_64(text.as_bytes())
}
