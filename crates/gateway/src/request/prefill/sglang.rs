//! SGLang: both legs at once, with the same three members.
//!
//! They name a room at the prefill worker's bootstrap server, where the two engines rendezvous; the
//! router draws the room.

use dialect::Edit;

use super::{
    super::record::RequestGuard,
    legs::{LegsOutcome, PrefillDecodeLegs},
};

pub(super) async fn send(legs: &PrefillDecodeLegs<'_>, guard: &mut RequestGuard) -> LegsOutcome {
    // A worker with a role has a host: unix sockets are refused with the configuration.
    let host = serde_json::Value::from(
        legs.prefill
            .worker
            .connection
            .url
            .host()
            .unwrap_or_default(),
    )
    .to_string();
    let port = legs
        .prefill
        .worker
        .bootstrap_port
        .map_or_else(|| "null".to_owned(), |port| port.to_string());
    // The engine reads it as a signed number.
    let room = (legs.ids.next_number() >> 1).to_string();
    let mut edits = vec![
        Edit::Set("bootstrap_host", &host),
        Edit::Set("bootstrap_port", &port),
        Edit::Set("bootstrap_room", &room),
    ];
    let decode = legs.body(&edits);
    edits.extend([Edit::Set("stream", "false"), Edit::Remove("stream_options")]);
    match (legs.body(&edits), decode) {
        (Ok(prefill), Ok(decode)) => {
            guard.record_rewrite(vec!["kv_transfer"]);
            legs.at_once(prefill, decode, guard).await
        }
        (Err(failure), _) | (_, Err(failure)) => {
            guard.fail_prefill(&failure);
            LegsOutcome::PrefillFailed
        }
    }
}
