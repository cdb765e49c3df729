//! Message layouts of KV-event sockets, as lists of frames.
//!
//! Defines the meaning of each frame, not of the payload. The publisher's half of each layout is
//! here too, so that the simulated engine and the reader cannot drift apart.

/// A message of the live socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveFrame<'a> {
    /// The publisher's topic; may be empty.
    pub topic: &'a [u8],
    /// Sequence number of the batch; hand-written publishers may send none.
    pub seq: Option<u64>,
    /// The encoded batch.
    pub payload: &'a [u8],
}

/// A message of a replay answer, as a DEALER receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayFrame<'a> {
    /// One batch from the publisher's buffer.
    Batch {
        /// Its sequence number.
        seq: u64,
        /// The encoded batch.
        payload: &'a [u8],
    },
    /// The end of the answer: all requested batches that are still buffered have been sent.
    End,
}

/// The two layouts of replay answers; a reader distinguishes them by the number of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayForm {
    /// `["", seq, payload]`: vLLM up to 0.25, SGLang up to 0.5.20.
    Old,
    /// `["", topic, seq, payload]`: later releases.
    New,
}

/// A message that has no known layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Wrong number of frames.
    #[error(
        "message has {found} frames: expected {expected}; check that the endpoint is a kv event publisher"
    )]
    Count {
        /// Frames in the message.
        found: usize,
        /// The expected layout.
        expected: &'static str,
    },
    /// A sequence number of the wrong length.
    #[error("sequence frame has {found} bytes: expected 8, big-endian")]
    Sequence {
        /// Its length.
        found: usize,
    },
    /// The first frame is not empty.
    #[error("delimiter frame has {found} bytes: expected none")]
    Delimiter {
        /// Its length.
        found: usize,
    },
}

/// The sequence number of end markers: minus one, as the publishers write it.
const END: u64 = u64::MAX;

/// Parses a live message: `[topic, seq, payload]`, or `[topic, payload]` from hand-written
/// publishers.
pub fn live<F: AsRef<[u8]>>(frames: &[F]) -> Result<LiveFrame<'_>, FrameError> {
    match frames {
        [topic, payload] => Ok(LiveFrame {
            topic: topic.as_ref(),
            seq: None,
            payload: payload.as_ref(),
        }),
        [topic, seq, payload] => Ok(LiveFrame {
            topic: topic.as_ref(),
            seq: Some(sequence(seq.as_ref())?),
            payload: payload.as_ref(),
        }),
        _ => Err(FrameError::Count {
            found: frames.len(),
            expected: "3 (topic, sequence, payload) or 2",
        }),
    }
}

/// Builds the frames with which a DEALER requests all batches from `start` on.
pub fn replay_request(start: u64) -> [Vec<u8>; 2] {
    [Vec::new(), start.to_be_bytes().to_vec()]
}

/// Parses a message of a replay answer, as a DEALER receives it.
pub fn replay<F: AsRef<[u8]>>(frames: &[F]) -> Result<ReplayFrame<'_>, FrameError> {
    let (delimiter, seq, payload) = match frames {
        [delimiter, seq, payload] | [delimiter, _, seq, payload] => {
            (delimiter.as_ref(), seq.as_ref(), payload.as_ref())
        }
        _ => {
            return Err(FrameError::Count {
                found: frames.len(),
                expected: "3, or 4 with a topic",
            });
        }
    };
    no_bytes(delimiter)?;
    let seq = sequence(seq)?;
    Ok(if seq == END && payload.is_empty() {
        ReplayFrame::End
    } else {
        ReplayFrame::Batch { seq, payload }
    })
}

/// Builds a publisher's live message.
pub fn encode_live(topic: &[u8], seq: u64, payload: &[u8]) -> Vec<Vec<u8>> {
    vec![topic.to_vec(), seq.to_be_bytes().to_vec(), payload.to_vec()]
}

/// Builds a publisher's replay message, without the leading identity frame of a ROUTER.
pub fn encode_replay(form: ReplayForm, topic: &[u8], seq: u64, payload: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = vec![Vec::new()];
    if form == ReplayForm::New {
        frames.push(topic.to_vec());
    }
    frames.push(seq.to_be_bytes().to_vec());
    frames.push(payload.to_vec());
    frames
}

/// Builds a publisher's end marker, without the leading identity frame of a ROUTER.
pub fn encode_replay_end(form: ReplayForm) -> Vec<Vec<u8>> {
    encode_replay(form, &[], END, &[])
}

/// Parses a replay request as a ROUTER receives it behind the identity frame: `["", start]`.
///
/// Engines read the start as a number of any length, so an empty one requests all batches; this
/// function does the same for up to eight bytes.
pub fn parse_replay_request<F: AsRef<[u8]>>(frames: &[F]) -> Result<u64, FrameError> {
    let [delimiter, start] = frames else {
        return Err(FrameError::Count {
            found: frames.len(),
            expected: "2 (empty, start)",
        });
    };
    no_bytes(delimiter.as_ref())?;
    let start = start.as_ref();
    if start.len() > 8 {
        return Err(FrameError::Sequence { found: start.len() });
    }
    Ok(start
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn sequence(frame: &[u8]) -> Result<u64, FrameError> {
    frame
        .try_into()
        .map(u64::from_be_bytes)
        .map_err(|_| FrameError::Sequence { found: frame.len() })
}

fn no_bytes(frame: &[u8]) -> Result<(), FrameError> {
    if frame.is_empty() {
        Ok(())
    } else {
        Err(FrameError::Delimiter { found: frame.len() })
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use serde_json::Value;

    use super::*;

    fn examples() -> Value {
        serde_json::from_str(include_str!(
            "../../../tests/fixtures/kv_events/frames.json"
        ))
        .unwrap()
    }

    fn frames(list: &Value) -> Vec<Vec<u8>> {
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        list.as_array()
            .unwrap()
            .iter()
            .map(|hex| {
                hex.as_str()
                    .unwrap()
                    .as_bytes()
                    .chunks(2)
                    .map(byte)
                    .collect()
            })
            .collect()
    }

    #[test]
    #[contract("V11")]
    fn live_messages_have_two_or_three_frames() {
        let live_examples = &examples()["live"];
        let first = frames(&live_examples["sub_receives"]);
        let read = live(&first).unwrap();
        assert_eq!(
            (read.topic, read.seq, read.payload),
            (&b""[..], Some(0), &first[2][..])
        );
        assert_eq!(encode_live(b"", 0, &first[2]), first);

        let with_topic = frames(&live_examples["with_topic"]);
        let read = live(&with_topic).unwrap();
        assert_eq!((read.topic, read.seq), (&b"kv-events"[..], Some(41)));
        assert_eq!(encode_live(b"kv-events", 41, &with_topic[2]), with_topic);

        let long_topic = frames(&live_examples["llm_d_topic"]);
        assert!(
            live(&long_topic)
                .unwrap()
                .topic
                .starts_with(b"kv@10.0.0.1:8000@")
        );

        let two = frames(&live_examples["legacy_two_frames"]);
        assert_eq!(
            live(&two).unwrap(),
            LiveFrame {
                topic: b"",
                seq: None,
                payload: &two[1]
            }
        );
    }

    #[test]
    fn every_malformed_example_is_refused() {
        let malformed = examples()["malformed"].clone();
        let malformed = malformed.as_object().unwrap();
        assert_eq!(malformed.len(), 4);
        for (name, list) in malformed {
            assert!(live(&frames(list)).is_err(), "{name}");
        }
        assert_eq!(
            live(&frames(&malformed["seq_7_bytes"])),
            Err(FrameError::Sequence { found: 7 })
        );
        assert!(live::<Vec<u8>>(&[]).is_err());
        assert!(replay::<Vec<u8>>(&[]).is_err());
        assert_eq!(
            replay(&[&b"x"[..], &[0; 8], b"p"]),
            Err(FrameError::Delimiter { found: 1 })
        );
    }

    #[test]
    #[contract("MC11")]
    fn both_forms_of_replay_answers_are_decoded_and_encoded() {
        let replay_examples = &examples()["replay"];
        let mut seen = 0;
        for (name, form) in [
            ("reply_old", ReplayForm::Old),
            ("reply_new", ReplayForm::New),
        ] {
            let batch = frames(&replay_examples[name]["dealer_receives"]);
            let payload = batch.last().unwrap();
            assert_eq!(
                replay(&batch).unwrap(),
                ReplayFrame::Batch { seq: 0x26, payload },
                "{name}"
            );
            let topic: &[u8] = if form == ReplayForm::New {
                b"kv-events"
            } else {
                b""
            };
            assert_eq!(encode_replay(form, topic, 0x26, payload), batch, "{name}");

            let end = frames(&replay_examples[name]["end"]);
            assert_eq!(replay(&end).unwrap(), ReplayFrame::End, "{name}");
            assert_eq!(encode_replay_end(form), end, "{name}");
            seen += 1;
        }
        assert_eq!(seen, 2);
    }

    #[test]
    fn a_replay_request_is_an_empty_frame_and_a_number() {
        let expected = frames(&examples()["replay"]["request_sent_by_dealer"]);
        assert_eq!(replay_request(0x26).to_vec(), expected);
        assert_eq!(parse_replay_request(&expected), Ok(0x26));
        // As in engines: up to eight bytes are a number, zero bytes are 0.
        assert_eq!(parse_replay_request(&[&b""[..], &[0, 0, 0, 2]]), Ok(2));
        assert_eq!(parse_replay_request(&[&b""[..], b""]), Ok(0));
        assert_eq!(
            parse_replay_request(&[&b""[..], &[1; 9]]),
            Err(FrameError::Sequence { found: 9 })
        );
        let without_delimiter =
            frames(&examples()["replay"]["request_rejected_no_delimiter_dealer"]);
        assert!(parse_replay_request(&without_delimiter).is_err());
    }
}
