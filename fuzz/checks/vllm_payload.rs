//! A batch in msgpack, as engines publish them.

use kv_blocks::IndexUpdate;
use kv_events::vllm::{Normaliser, decode};

/// Reads it and says what it means.
///
/// # Panics
///
/// If an update promises more than the bytes can hold, or has another number of tokens than its blocks.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(batch) = decode(bytes) else { return };
    assert!(
        batch.events.len() <= bytes.len(),
        "every event takes a byte"
    );
    let mut normaliser = Normaliser::default();
    for event in batch.events.into_iter().flatten() {
        let Ok(update) = normaliser.update(&event) else {
            continue;
        };
        let (hashes, tokens) = match &update {
            IndexUpdate::Stored(stored) => {
                assert_eq!(
                    stored.tokens.len(),
                    stored.hashes.len() * stored.block_size.len()
                );
                (stored.hashes.len(), stored.tokens.len())
            }
            IndexUpdate::Removed(removed) => (removed.hashes.len(), 0),
            IndexUpdate::Named(named) => (named.hashes.len(), 0),
            IndexUpdate::Cleared | IndexUpdate::ClearedTier(_) => (0, 0),
        };
        assert!(
            hashes + tokens <= bytes.len(),
            "every hash and token takes a byte"
        );
    }
}
