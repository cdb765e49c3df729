//! Prints a line for each batch.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use bytes::Bytes;
use kv_events::{
    frames::{self, ReplayFrame},
    standard::{self, StandardChange},
    vllm::{self, VllmEvent},
};
use net::Clock;
use serde_json::{Value, json};

use super::{
    PayloadFormat,
    feed::{EventHandler, HistoryReply},
};

/// Prints batches.
pub(super) struct Tap<W> {
    out: W,
    format: PayloadFormat,
    json: bool,
    clock: Clock,
}

/// Summary of one event.
#[derive(Debug, PartialEq, Eq)]
struct EventSummary {
    kind: &'static str,
    blocks: usize,
    tokens: usize,
    medium: Option<String>,
    error: Option<String>,
}

/// Summary of one payload.
#[derive(Debug, Default)]
struct PayloadSummary {
    ts: Option<f64>,
    rank: Option<u32>,
    events: Vec<EventSummary>,
    error: Option<String>,
}

/// One batch and its origin.
struct ReceivedBatch<'a> {
    source: &'static str,
    topic: &'a [u8],
    seq: Option<u64>,
    payload: &'a [u8],
}

impl<W: Write> Tap<W> {
    pub(super) fn new(out: W, format: PayloadFormat, json: bool) -> Self {
        Self {
            out,
            format,
            json,
            clock: Clock::system(),
        }
    }

    fn show(&mut self, batch: &ReceivedBatch<'_>) -> io::Result<()> {
        let content = read(self.format, batch.payload);
        let at = net::rfc3339(self.clock.wall());
        let line = if self.json {
            object(&at, batch, &content).to_string()
        } else {
            text(&at, batch, &content)
        };
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }

    fn unreadable(&mut self, error: &frames::FrameError) -> io::Result<()> {
        let at = net::rfc3339(self.clock.wall());
        if self.json {
            let line = json!({"schema": SCHEMA, "at": at, "error": error.to_string()});
            writeln!(self.out, "{line}")?;
        } else {
            writeln!(self.out, "{at} {error}")?;
        }
        self.out.flush()
    }
}

const SCHEMA: &str = "warmroute.event_batch/1";

impl<W: Write> EventHandler for Tap<W> {
    fn live(&mut self, message: &[Bytes]) -> io::Result<()> {
        match frames::live(message) {
            Ok(live) => self.show(&ReceivedBatch {
                source: "live",
                topic: live.topic,
                seq: live.seq,
                payload: live.payload,
            }),
            Err(error) => self.unreadable(&error),
        }
    }

    fn history(&mut self, history: &HistoryReply, most: u64) -> io::Result<()> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let batches = history
            .received
            .iter()
            .filter_map(|message| match frames::replay(message) {
                Ok(ReplayFrame::Batch { seq, payload }) => Some((message, seq, payload)),
                _ => None,
            });
        for (message, seq, payload) in batches.take(most) {
            // Only the newer of the two layouts has the topic.
            let topic: &[u8] = if message.len() == 4 { &message[1] } else { &[] };
            self.show(&ReceivedBatch {
                source: "replay",
                topic,
                seq: Some(seq),
                payload,
            })?;
        }
        Ok(())
    }
}

fn read(format: PayloadFormat, payload: &[u8]) -> PayloadSummary {
    match format {
        PayloadFormat::Vllm => match vllm::decode(payload) {
            Ok(batch) => PayloadSummary {
                ts: batch.ts,
                rank: batch.dp_rank,
                events: batch
                    .events
                    .into_iter()
                    .map(|event| event.map_or_else(bad, |event| engine(&event)))
                    .collect(),
                error: None,
            },
            Err(error) => PayloadSummary {
                error: Some(error.to_string()),
                ..PayloadSummary::default()
            },
        },
        PayloadFormat::Mooncake => match standard::decode_msgpack(payload) {
            Ok(events) => {
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "a clock: the last millisecond does not matter"
                )]
                let ts = events
                    .iter()
                    .flatten()
                    .find_map(|event| event.timestamp_ms)
                    .map(|ms| ms as f64 / 1e3);
                let events = events
                    .into_iter()
                    .map(|event| event.map_or_else(bad, |event| store(&event)))
                    .collect();
                PayloadSummary {
                    ts,
                    events,
                    ..PayloadSummary::default()
                }
            }
            Err(error) => PayloadSummary {
                error: Some(error.to_string()),
                ..PayloadSummary::default()
            },
        },
    }
}

fn engine(event: &VllmEvent) -> EventSummary {
    let medium = |name: &Option<std::sync::Arc<str>>| name.as_deref().map(str::to_owned);
    let (kind, blocks, tokens, medium) = match event {
        VllmEvent::Stored(event) => (
            "stored",
            event.block_hashes.len(),
            event.token_ids.len(),
            medium(&event.location.medium),
        ),
        VllmEvent::Removed(event) => (
            "removed",
            event.block_hashes.len(),
            0,
            medium(&event.location.medium),
        ),
        VllmEvent::Cleared => ("cleared", 0, 0, None),
        VllmEvent::Unknown { tag } => {
            return EventSummary {
                error: Some(format!("unknown tag {tag:?}")),
                ..of("unknown", 0, 0, None)
            };
        }
    };
    of(kind, blocks, tokens, medium)
}

fn store(event: &standard::StandardEvent) -> EventSummary {
    let medium = event.stream.medium.as_deref().map(str::to_owned);
    let (blocks, tokens) = match &event.change {
        StandardChange::Stored {
            seq_hashes,
            token_ids,
            ..
        } => (seq_hashes.len(), token_ids.as_ref().map_or(0, Vec::len)),
        StandardChange::Removed { seq_hashes, .. } => (seq_hashes.len(), 0),
        StandardChange::Cleared => (0, 0),
    };
    // An object known by its key only is one block, too.
    let blocks = if event.object_key.is_some() {
        blocks.max(1)
    } else {
        blocks
    };
    of(event.change.as_str(), blocks, tokens, medium)
}

fn bad(error: impl ToString) -> EventSummary {
    EventSummary {
        error: Some(error.to_string()),
        ..of("malformed", 0, 0, None)
    }
}

fn of(kind: &'static str, blocks: usize, tokens: usize, medium: Option<String>) -> EventSummary {
    EventSummary {
        kind,
        blocks,
        tokens,
        medium,
        error: None,
    }
}

fn object(at: &str, batch: &ReceivedBatch<'_>, content: &PayloadSummary) -> Value {
    let events: Vec<_> = content
        .events
        .iter()
        .map(|event| {
            json!({
                "kind": event.kind,
                "blocks": event.blocks,
                "tokens": event.tokens,
                "medium": event.medium,
                "error": event.error,
            })
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "at": at,
        "source": batch.source,
        "topic": String::from_utf8_lossy(batch.topic),
        "seq": batch.seq,
        "ts": content.ts,
        "dp_rank": content.rank,
        "bytes": batch.payload.len(),
        "events": events,
        "error": content.error,
    })
}

/// Formats a batch; events of one kind and medium are added up.
fn text(at: &str, batch: &ReceivedBatch<'_>, content: &PayloadSummary) -> String {
    let mut line = format!(
        "{at} {}",
        if batch.source == "replay" {
            "replay "
        } else {
            ""
        }
    );
    line += &batch
        .seq
        .map_or("no seq".to_owned(), |seq| format!("seq {seq}"));
    if !batch.topic.is_empty() {
        // Quoted and escaped: the terminal must not interpret a publisher's bytes.
        line += &format!(" topic {:?}", String::from_utf8_lossy(batch.topic));
    }
    if let Some(rank) = content.rank {
        line += &format!(" rank {rank}");
    }
    let mut sums: BTreeMap<(&str, Option<&str>), (usize, usize, usize)> = BTreeMap::new();
    for event in &content.events {
        let sum = sums
            .entry((event.kind, event.medium.as_deref()))
            .or_default();
        *sum = (sum.0 + 1, sum.1 + event.blocks, sum.2 + event.tokens);
    }
    let parts = sums
        .into_iter()
        .map(|((kind, medium), (events, blocks, tokens))| {
            let mut part = format!("{kind} {events}");
            if blocks > 0 {
                part += &format!(" ({blocks} blocks");
                part += &if tokens > 0 {
                    format!(", {tokens} tokens)")
                } else {
                    ")".to_owned()
                };
            }
            part + &medium.map_or_else(String::new, |medium| {
                format!(" {}", medium.escape_default())
            })
        });
    let parts = parts.collect::<Vec<_>>().join(", ");
    let error = content.error.as_deref().or_else(|| {
        content
            .events
            .iter()
            .find_map(|event| event.error.as_deref())
    });
    let error = error.map(|error| format!("[{}]", error.escape_debug()));
    let text: Vec<_> = Some(parts)
        .filter(|parts| !parts.is_empty())
        .into_iter()
        .chain(error)
        .collect();
    format!("{line}: {}", text.join(" "))
}
