//! Events of the standard contract, in JSON and in msgpack.

use std::time::Duration;

use kv_blocks::{HashScheme, Moment};
use kv_events::standard::{
    HashKeyedUpdate, StandardEvent, StandardStreams, StandardStreamsSettings, StreamOutput,
    decode_json, decode_msgpack, encode_json, encode_msgpack, is_standard, to_hashed, to_named,
};

/// Reads JSON, orders the events and says what they mean.
///
/// # Panics
///
/// If an event that was read is not the same after being written and read again.
pub(crate) fn check_json(bytes: &[u8]) {
    let Ok(events) = decode_json(bytes) else {
        return;
    };
    let events: Vec<_> = events.into_iter().flatten().collect();
    for event in &events {
        let again = decode_json(encode_json(event).as_bytes());
        assert_eq!(
            again
                .ok()
                .and_then(|mut events| events.pop()?.ok())
                .as_ref(),
            Some(event)
        );
    }
    follow(events, bytes.len());
}

/// The same with msgpack.
///
/// # Panics
///
/// If events that were read are not the same after being written and read again.
pub(crate) fn check_msgpack(bytes: &[u8]) {
    let _ = is_standard(bytes);
    let Ok(events) = decode_msgpack(bytes) else {
        return;
    };
    assert!(events.len() <= bytes.len(), "every event takes a byte");
    let events: Vec<_> = events.into_iter().flatten().collect();
    let again = decode_msgpack(&encode_msgpack(&events))
        .map(|events| events.into_iter().flatten().collect::<Vec<_>>());
    assert_eq!(again.ok().as_ref(), Some(&events));
    follow(events, bytes.len());
}

/// Puts events in order and says what each means.
///
/// # Panics
///
/// If more comes out than went in, or an update is larger than the `bytes` its event came in.
fn follow(events: Vec<StandardEvent>, bytes: usize) {
    let settings = StandardStreamsSettings {
        max_streams: 4,
        max_waiting_events: 8,
        ..StandardStreamsSettings::default()
    };
    let (mut streams, mut left) = (StandardStreams::new(settings), events.len());
    let now = Moment::START;
    let mut ordered = Vec::new();
    for event in events {
        ordered.extend(streams.take(now, event));
    }
    ordered.extend(streams.tick(now + Duration::from_secs(3600)));
    for event in ordered {
        let StreamOutput::Event(event) = event else {
            continue;
        };
        left = left.checked_sub(1).expect("no event comes out twice");
        let _ = to_named(&event);
        let hashes = match to_hashed(&event, HashScheme::default()) {
            Ok(
                HashKeyedUpdate::Stored { hashes, .. } | HashKeyedUpdate::Removed { hashes, .. },
            ) => hashes.len(),
            Ok(HashKeyedUpdate::Cleared { .. }) | Err(_) => 0,
        };
        assert!(hashes <= bytes, "every hash takes a byte");
    }
}
