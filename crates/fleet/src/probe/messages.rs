//! Detects whether a worker takes Anthropic messages itself.
//!
//! The probe is an empty message. A server with the route refuses it before anything is computed,
//! so it costs no tokens.

use bytes::Bytes;
use http::StatusCode;

use super::ProbeClient;
use crate::MessagesMode;

const PATH: &str = "/v1/messages";
const LARGEST_REPLY: usize = 64 << 10;

/// Returns the configured mode, else the detected one; `None`: the worker did not answer, or not
/// now.
pub(super) async fn messages_mode(
    client: &ProbeClient,
    configured: Option<MessagesMode>,
) -> Option<MessagesMode> {
    if configured.is_some() {
        return configured;
    }
    let reply = client
        .post(PATH, Some(Bytes::from_static(b"{}")), LARGEST_REPLY)
        .await
        .ok()?;
    mode_of(reply.status)
}

fn mode_of(status: StatusCode) -> Option<MessagesMode> {
    match status.as_u16() {
        200 | 400 | 401 | 422 | 429 => Some(MessagesMode::Native),
        // The worker is loading, or a proxy before it is away: that is no answer.
        502..=504 => None,
        _ => Some(MessagesMode::Translate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_rejects_an_empty_message_supports_messages_and_one_without_the_route_does_not()
    {
        let mode_of = |status| mode_of(StatusCode::from_u16(status).expect("a status"));
        for status in [200, 400, 401, 422, 429] {
            assert_eq!(mode_of(status), Some(MessagesMode::Native), "{status}");
        }
        // A worker that fails on it may have the route; it takes chats in any case.
        for status in [403, 404, 405, 500, 501] {
            assert_eq!(mode_of(status), Some(MessagesMode::Translate), "{status}");
        }
        for status in [502, 503, 504] {
            assert_eq!(mode_of(status), None, "{status}");
        }
    }
}
