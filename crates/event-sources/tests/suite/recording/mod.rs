//! A recorded session of a real engine, and the blocks that it implies, computed with none of our
//! code but the hash.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use event_sources::StreamReport;
use kv_blocks::{BlockSize, HashScheme, SequenceHash};
use kv_events::{
    frames,
    vllm::{self, EventEncoding, WireEvent, WireRemoved},
};
use kv_index::{DumpCursor, KvIndex};
use serde_json::Value;

/// Tokens per block of the recorded engine.
const BLOCK: usize = 32;

/// A published batch.
#[derive(Clone)]
pub(crate) struct RecordedBatch {
    pub(crate) seq: u64,
    /// The engine's bytes.
    pub(crate) payload: Vec<u8>,
    /// The same batch as decoded by the recorder.
    events: Value,
}

impl RecordedBatch {
    /// A batch of removals as the engine would publish it.
    pub(crate) fn removing(seq: u64, names: &[u64]) -> Self {
        let removed = |name: &u64| WireRemoved {
            hashes: vec![(*name).into()],
            medium: Some("GPU".into()),
        };
        let events: Vec<_> = names
            .iter()
            .map(|name| WireEvent::Removed(removed(name)))
            .collect();
        let payload = vllm::encode(1.0, Some(0), &events, EventEncoding::CURRENT);
        let event = |name| serde_json::json!({"type": "BlockRemoved", "block_hashes": [name]});
        Self {
            seq,
            payload,
            events: names.iter().map(event).collect(),
        }
    }

    /// The engine hashes of the stored blocks.
    pub(crate) fn names(&self) -> Vec<u64> {
        let events = self.events.as_array().unwrap();
        events
            .iter()
            .filter(|event| event["type"] == "BlockStored")
            .flat_map(names)
            .collect()
    }
}

fn names(event: &Value) -> Vec<u64> {
    event["block_hashes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_u64().unwrap())
        .collect()
}

fn lines() -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vllm-real");
    let read = |file| fs::read_to_string(folder.join(file)).unwrap();
    // The second file continues the first.
    let text = read("0.32.0-basic.jsonl") + &read("0.32.0-session.jsonl");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn frames_of(message: &Value) -> Vec<Vec<u8>> {
    let frames = message.as_array().unwrap().iter();
    frames
        .map(|frame| BASE64_STANDARD.decode(frame.as_str().unwrap()).unwrap())
        .collect()
}

/// Returns all batches that one engine process published, from number 0 on.
pub(crate) fn session() -> Vec<RecordedBatch> {
    let published = lines()
        .into_iter()
        .filter(|line| line["kind"] == "pub" && line["engine"] == "vllm0");
    let batch = |line: Value| {
        let message = frames_of(&line["frames"]);
        let live = frames::live(&message).unwrap();
        RecordedBatch {
            seq: live.seq.unwrap(),
            payload: live.payload.to_vec(),
            events: line["batch"][1].clone(),
        }
    };
    let batches: Vec<_> = published.map(batch).collect();
    assert!(
        batches.iter().map(|batch| batch.seq).eq(0..38),
        "the recording is whole"
    );
    batches
}

/// Returns the engine's answer to a replay request for everything, as a DEALER received it.
pub(crate) fn recorded_answer() -> Vec<Vec<Vec<u8>>> {
    let is_request = |line: &Value| {
        line["kind"] == "replay" && line["sent"] == serde_json::json!(["", "AAAAAAAAAAA="])
    };
    let line = lines().into_iter().find(is_request).unwrap();
    line["received"]
        .as_array()
        .unwrap()
        .iter()
        .map(frames_of)
        .collect()
}

/// A block: its salt, and our own hash of all tokens up to its end.
pub(crate) type RecordedBlock = (Option<String>, SequenceHash);

/// The blocks that the decoded batches imply, as a set and as a counter.
#[derive(Default)]
pub(crate) struct ImpliedBlocks {
    /// By engine hash: a block's salt and all tokens up to its end.
    known: BTreeMap<u64, (Option<String>, Vec<u32>)>,
    set: BTreeSet<u64>,
    counter: BTreeMap<u64, u64>,
}

impl ImpliedBlocks {
    pub(crate) fn of(batches: &[RecordedBatch]) -> Self {
        let mut reading = Self::default();
        batches.iter().for_each(|batch| reading.take(batch));
        reading
    }

    pub(crate) fn take(&mut self, batch: &RecordedBatch) {
        for event in batch.events.as_array().unwrap() {
            match event["type"].as_str().unwrap() {
                "BlockStored" => self.store(event),
                "BlockRemoved" => {
                    for name in names(event) {
                        self.set.remove(&name);
                        self.counter
                            .entry(name)
                            .and_modify(|count| *count = count.saturating_sub(1));
                    }
                }
                "AllBlocksCleared" => {
                    self.set.clear();
                    self.counter.clear();
                }
                other => panic!("{other}"),
            }
        }
    }

    fn store(&mut self, event: &Value) {
        let front = match event["parent_block_hash"].as_u64() {
            None => Some((
                event["extra_keys"][0][0].as_str().map(String::from),
                Vec::new(),
            )),
            Some(parent) => self.known.get(&parent).cloned(),
        };
        // The content behind an unknown block is unknown.
        let Some((salt, mut tokens)) = front else {
            return;
        };
        let own: Vec<u32> = event["token_ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_u64().unwrap().try_into().unwrap())
            .collect();
        for (name, own) in names(event).into_iter().zip(own.chunks(BLOCK)) {
            tokens.extend(own);
            self.known.insert(name, (salt.clone(), tokens.clone()));
            self.set.insert(name);
            *self.counter.entry(name).or_default() += 1;
        }
    }

    pub(crate) fn block(&self, name: u64) -> RecordedBlock {
        let (salt, tokens) = &self.known[&name];
        let size = BlockSize::new(BLOCK as u64).unwrap();
        (
            salt.clone(),
            *HashScheme::default()
                .chain(None, tokens, size)
                .last()
                .unwrap(),
        )
    }

    pub(crate) fn as_set(&self) -> BTreeSet<RecordedBlock> {
        self.set.iter().map(|name| self.block(*name)).collect()
    }

    pub(crate) fn as_counter(&self) -> BTreeSet<RecordedBlock> {
        self.counter
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(name, _)| self.block(*name))
            .collect()
    }

    /// Asserts that the index holds at least the set and at most the counter, so exactly both where
    /// they agree.
    pub(crate) fn agrees_with(&self, index: &KvIndex, report: &StreamReport) {
        let resident = memberships(index);
        let (least, most) = (self.as_set(), self.as_counter());
        assert!(
            resident.is_superset(&least),
            "not held after {report:?}: {:?}",
            &least - &resident
        );
        assert!(
            resident.is_subset(&most),
            "held after {report:?}: {:?}",
            &resident - &most
        );
    }
}

/// Returns all memberships of the index.
pub(crate) fn memberships(index: &KvIndex) -> BTreeSet<RecordedBlock> {
    let mut cursor = DumpCursor::default();
    let rows = std::iter::from_fn(|| index.dump(&mut cursor)).flatten();
    rows.map(|row| (row.namespace.salt.as_deref().map(String::from), row.hash))
        .collect()
}
