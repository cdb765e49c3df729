//! Answers to polls of TensorRT-LLM, one a line.

use kv_blocks::{BlockSize, IndexUpdate};
use kv_events::trtllm::{TrtAction, TrtStream};

/// Reads one answer after the other.
///
/// # Panics
///
/// If a store has another number of tokens than its blocks, or if more is stored than the bytes can hold.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(block_size) = BlockSize::new(4) else {
        return;
    };
    let mut stream = TrtStream::new(block_size);
    for list in bytes.split(|byte| *byte == b'\n') {
        let Ok(actions) = stream.take(list) else {
            continue;
        };
        let mut tokens = 0;
        for action in actions {
            let TrtAction::Apply {
                update: IndexUpdate::Stored(stored),
                ..
            } = action
            else {
                continue;
            };
            assert_eq!(
                stored.tokens.len(),
                stored.hashes.len() * stored.block_size.len()
            );
            tokens += stored.tokens.len();
        }
        assert!(tokens <= list.len(), "every token takes a byte");
    }
    let _ = (stream.counts(), stream.last_error());
}
