//! SGLang: both legs at once, with the same three members.
//!
//! They name a room at the prefill worker's bootstrap server, where the two engines meet; the router draws the room.

use dialect::Edit;

use super::{
    super::settle::Settle,
    legs::{Legs, Sent},
};

pub(super) async fn send(legs: &Legs<'_>, settle: &mut Settle) -> Sent {
    // A worker with a role has a host: unix sockets are refused with the configuration.
    let host = serde_json::Value::from(legs.prefill.url.host().unwrap_or_default()).to_string();
    let port = legs
        .prefill
        .bootstrap_port
        .map_or_else(|| "null".to_owned(), |port| port.to_string());
    // Signed at the engine.
    let room = (legs.gateway.ids.draw() >> 1).to_string();
    let mut edits = vec![
        Edit::Set("bootstrap_host", &host),
        Edit::Set("bootstrap_port", &port),
        Edit::Set("bootstrap_room", &room),
    ];
    let decode = legs.body(&edits);
    edits.extend([Edit::Set("stream", "false"), Edit::Remove("stream_options")]);
    match (legs.body(&edits), decode) {
        (Ok(prefill), Ok(decode)) => {
            settle.rewrote(vec!["kv_transfer"]);
            legs.at_once(prefill, decode, settle).await
        }
        (Err(failure), _) | (_, Err(failure)) => {
            settle.prefill_failed(&failure);
            Sent::PrefillFailed
        }
    }
}
