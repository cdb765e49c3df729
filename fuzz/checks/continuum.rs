//! Events in the manner of Continuum: the stream's own name on the first line, the data behind it.

use kv_events::continuum::{encode, parse, sse};

/// Reads one event.
///
/// # Panics
///
/// If an event that was read is not the same after being written and read again, or is no single server-sent event.
pub(crate) fn check(bytes: &[u8]) {
    let line = bytes
        .iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(bytes.len());
    let (name, data) = bytes.split_at(line);
    let name = std::str::from_utf8(name).ok();
    let Ok(event) = parse(name, data) else { return };
    assert!((2..=128).contains(&event.prefix_hash.len()));
    let written = encode(&event, "backend", 1);
    assert_eq!(parse(None, written.as_bytes()), Ok(event.clone()));
    let sent = sse("1", event.kind.as_str(), &written);
    assert_eq!(sent.matches("\n\n").count(), 1);
}
