//! The format of messages: see the table of the parent module.

use async_nats::{HeaderMap, Message, StatusCode};
use bytes::Bytes;

const SEQ: &str = "Warmroute-Seq";
const TOPIC: &str = "Warmroute-Topic";
const NOTE: &str = "Warmroute-Note";
const END: &str = "Warmroute-End";
const ERROR: &str = "Warmroute-Error";

/// Exclusive bound of batch numbers. A publisher of a million batches a second reaches it after
/// nine years; a forged number beyond it would count as that many missing batches.
const SEQ_END: u64 = 1 << 48;
/// Start number of a liveness check.
pub(crate) const PING_SEQ: u64 = u64::MAX;
/// Longest topic that is relayed, bytes.
const MAX_TOPIC: usize = 1_024;
/// Longest error text that is sent or read, bytes.
const MAX_ERROR: usize = 256;

/// State of the relay's connection to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineLinkNote {
    Connected,
    Disconnected,
}

/// A message on the subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayMessage<'a> {
    Batch {
        seq: u64,
        topic: &'a str,
        payload: &'a Bytes,
    },
    Note(EngineLinkNote),
}

/// A message in the inbox of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RelayReply<'a> {
    Batch {
        seq: u64,
        topic: &'a str,
        payload: &'a Bytes,
    },
    End,
    /// The relay's refusal, with its reason.
    Refused(String),
    /// The server's reply that the subject has no listener.
    Nobody,
}

/// A message of unknown form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error(
        "message on the subject has no {SEQ}: check that only `warmroute events relay` publishes there"
    )]
    NoSeq,
    #[error("{SEQ} is {found:?}: expected a decimal number below 2^48")]
    Seq { found: String },
    #[error("{NOTE} is {found:?}: expected connected or disconnected, and no payload")]
    Note { found: String },
    #[error("{bytes} bytes are no replay request: expected a decimal number")]
    Request { bytes: usize },
}

pub(crate) fn published(message: &Message) -> Result<RelayMessage<'_>, WireError> {
    if let Some(note) = header(message, NOTE) {
        return match note {
            "connected" if message.payload.is_empty() => {
                Ok(RelayMessage::Note(EngineLinkNote::Connected))
            }
            "disconnected" if message.payload.is_empty() => {
                Ok(RelayMessage::Note(EngineLinkNote::Disconnected))
            }
            other => Err(WireError::Note {
                found: excerpt(other),
            }),
        };
    }
    let (seq, topic) = batch(message)?;
    Ok(RelayMessage::Batch {
        seq,
        topic,
        payload: &message.payload,
    })
}

pub(crate) fn reply(message: &Message) -> Result<RelayReply<'_>, WireError> {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Ok(RelayReply::Nobody);
    }
    if header(message, END).is_some() {
        return Ok(RelayReply::End);
    }
    if let Some(text) = header(message, ERROR) {
        return Ok(RelayReply::Refused(excerpt(text)));
    }
    let (seq, topic) = batch(message)?;
    Ok(RelayReply::Batch {
        seq,
        topic,
        payload: &message.payload,
    })
}

fn batch(message: &Message) -> Result<(u64, &str), WireError> {
    let text = header(message, SEQ).ok_or(WireError::NoSeq)?;
    let seq = number(text.as_bytes())
        .filter(|seq| *seq < SEQ_END)
        .ok_or_else(|| WireError::Seq {
            found: excerpt(text),
        })?;
    Ok((seq, header(message, TOPIC).unwrap_or_default()))
}

/// Parses the first number of a request.
pub(crate) fn request(body: &[u8]) -> Result<u64, WireError> {
    number(body).ok_or(WireError::Request { bytes: body.len() })
}

/// Parses digits only: no sign, no space.
fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok()
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    Some(message.headers.as_ref()?.get(name)?.as_str())
}

/// Makes a foreign text safe for the log.
fn excerpt(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .take(MAX_ERROR)
        .collect()
}

/// Builds the headers of a batch; `None`: its number or topic does not fit in headers.
pub(crate) fn batch_headers(seq: u64, topic: &[u8]) -> Option<HeaderMap> {
    let topic = std::str::from_utf8(topic)
        .ok()
        .filter(|topic| topic.len() <= MAX_TOPIC)?;
    if seq >= SEQ_END || topic.chars().any(char::is_control) || topic.trim() != topic {
        return None;
    }
    let mut headers = one(SEQ, &seq.to_string());
    if !topic.is_empty() {
        headers.insert(TOPIC, topic);
    }
    Some(headers)
}

pub(crate) fn note_headers(note: EngineLinkNote) -> HeaderMap {
    one(
        NOTE,
        if note == EngineLinkNote::Connected {
            "connected"
        } else {
            "disconnected"
        },
    )
}

pub(crate) fn end_headers() -> HeaderMap {
    one(END, "1")
}

pub(crate) fn error_headers(text: &str) -> HeaderMap {
    one(ERROR, &excerpt(text))
}

fn one(name: &'static str, value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(name, value);
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(headers: Option<HeaderMap>, payload: &'static [u8]) -> Message {
        let payload = Bytes::from_static(payload);
        Message {
            subject: "s".into(),
            reply: None,
            payload,
            headers,
            status: None,
            description: None,
            length: 0,
        }
    }

    #[test]
    fn messages_survive_a_round_trip_from_relay_to_source() {
        let sent = message(batch_headers(7, b"kv@a"), b"batch");
        let payload = &sent.payload;
        assert_eq!(
            published(&sent),
            Ok(RelayMessage::Batch {
                seq: 7,
                topic: "kv@a",
                payload
            })
        );
        assert_eq!(
            reply(&sent),
            Ok(RelayReply::Batch {
                seq: 7,
                topic: "kv@a",
                payload
            })
        );
        let sent = message(batch_headers(0, b""), b"");
        assert!(matches!(
            published(&sent),
            Ok(RelayMessage::Batch {
                seq: 0,
                topic: "",
                ..
            })
        ));
        for note in [EngineLinkNote::Connected, EngineLinkNote::Disconnected] {
            assert_eq!(
                published(&message(Some(note_headers(note)), b"")),
                Ok(RelayMessage::Note(note))
            );
        }
        assert_eq!(
            reply(&message(Some(end_headers()), b"")),
            Ok(RelayReply::End)
        );
        let refused = message(Some(error_headers("busy\r\n: \x1b[2J")), b"");
        assert_eq!(
            reply(&refused),
            Ok(RelayReply::Refused("busy: [2J".to_owned()))
        );
        let nobody = Message {
            status: Some(StatusCode::NO_RESPONDERS),
            ..message(None, b"")
        };
        assert_eq!(reply(&nobody), Ok(RelayReply::Nobody));
    }

    #[test]
    fn messages_of_other_publishers_are_refused() {
        assert_eq!(published(&message(None, b"x")), Err(WireError::NoSeq));
        assert_eq!(
            published(&message(Some(one("Other", "1")), b"x")),
            Err(WireError::NoSeq)
        );
        for seq in [
            "",
            "-1",
            "+1",
            " 1",
            "0x1",
            "1.0",
            "one",
            "281474976710656",
            "18446744073709551616",
        ] {
            let error = published(&message(Some(one(SEQ, seq)), b"x")).unwrap_err();
            assert!(error.to_string().contains("below 2^48"), "{seq}: {error}");
        }
        assert!(published(&message(Some(one(SEQ, "281474976710655")), b"x")).is_ok());
        for (note, payload) in [("gone", &b""[..]), ("connected", b"x"), ("", b"")] {
            assert!(matches!(
                published(&message(Some(one(NOTE, note)), payload)),
                Err(WireError::Note { .. })
            ));
        }
    }

    #[test]
    fn a_request_is_a_decimal_number() {
        assert_eq!(
            (request(b"0"), request(b"18446744073709551615")),
            (Ok(0), Ok(PING_SEQ))
        );
        for body in [&b"-1"[..], b"1\n", b"\xff", b"18446744073709551616"] {
            assert_eq!(request(body), Err(WireError::Request { bytes: body.len() }));
        }
        assert!(request(b"").is_err());
    }

    #[test]
    fn a_topic_that_does_not_fit_a_header_is_not_relayed() {
        for topic in [&b"\xff"[..], b"a\r\nb", b" a", &[b'a'; 1_025]] {
            assert!(batch_headers(0, topic).is_none(), "{topic:?}");
        }
        assert!(batch_headers(1 << 48, b"").is_none());
    }
}
