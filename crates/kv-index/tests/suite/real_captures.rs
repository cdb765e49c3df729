//! A captured session of a real vLLM 0.32: the index holds the blocks that the frames announce.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use contract_id::contract;
use kv_blocks::{BlockSize, DpRank, HashScheme, Moment, SequenceHash, Target, WorkerId};
use kv_events::{Action, Input, Sequencer, SequencerSettings, frames};
use kv_index::{DumpCursor, IndexSettings, KvIndex};
use serde_json::Value;

/// One block of one engine in a plain reading of the capture.
#[derive(Clone)]
struct CapturedBlock {
    salt: Option<String>,
    tokens: Vec<u32>,
}

/// A plain reading of the capture.
#[derive(Default)]
struct CaptureReading {
    blocks: BTreeMap<u64, CapturedBlock>,
    resident: BTreeSet<u64>,
}

impl CaptureReading {
    fn take(&mut self, event: &Value) {
        let names = || {
            event["block_hashes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|name| name.as_u64().unwrap())
        };
        match event["type"].as_str().unwrap() {
            "BlockStored" => {
                let parent = event["parent_block_hash"].as_u64();
                let mut front = parent.map_or_else(
                    || CapturedBlock {
                        salt: event["extra_keys"][0][0].as_str().map(String::from),
                        tokens: Vec::new(),
                    },
                    |parent| self.blocks[&parent].clone(),
                );
                let tokens: Vec<u32> = event["token_ids"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|token| token.as_u64().unwrap().try_into().unwrap())
                    .collect();
                for (name, tokens) in names().zip(tokens.chunks(32)) {
                    front.tokens.extend(tokens);
                    self.blocks.insert(name, front.clone());
                    self.resident.insert(name);
                }
            }
            "BlockRemoved" => names().for_each(|name| {
                self.resident.remove(&name);
            }),
            "AllBlocksCleared" => self.resident.clear(),
            other => panic!("{other}"),
        }
    }

    fn resident_set(&self) -> BTreeSet<(Option<String>, SequenceHash)> {
        let size = BlockSize::new(32).unwrap();
        let hash = |block: &CapturedBlock| {
            *HashScheme::default()
                .chain(None, &block.tokens, size)
                .last()
                .unwrap()
        };
        self.resident
            .iter()
            .map(|name| &self.blocks[name])
            .map(|block| (block.salt.clone(), hash(block)))
            .collect()
    }
}

fn replay(file: &str) -> (KvIndex, Vec<(Target, CaptureReading)>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vllm-real");
    let index = KvIndex::new(IndexSettings::default());
    let mut engines: Vec<(String, Target, Sequencer, CaptureReading)> = Vec::new();
    for line in fs::read_to_string(folder.join(file)).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if line["kind"] != "pub" {
            continue;
        }
        let engine = line["engine"].as_str().unwrap();
        let position = engines
            .iter()
            .position(|(name, ..)| name == engine)
            .unwrap_or_else(|| {
                let target = Target {
                    worker: WorkerId(u32::try_from(engines.len()).unwrap()),
                    rank: DpRank(0),
                };
                index.register(target, Arc::from("tiny"));
                let mut sequencer = Sequencer::new(SequencerSettings::default());
                assert!(sequencer.on(Moment::START, Input::Connected).is_empty());
                engines.push((
                    engine.to_owned(),
                    target,
                    sequencer,
                    CaptureReading::default(),
                ));
                engines.len() - 1
            });
        let (_, target, sequencer, reading) = &mut engines[position];
        let message: Vec<Vec<u8>> = line["frames"]
            .as_array()
            .unwrap()
            .iter()
            .map(|frame| BASE64_STANDARD.decode(frame.as_str().unwrap()).unwrap())
            .collect();
        let live = frames::live(&message).unwrap();
        for action in sequencer.on(
            Moment::START,
            Input::Live {
                seq: live.seq,
                payload: live.payload,
            },
        ) {
            let Action::Apply(update) = action else {
                panic!("{action:?}")
            };
            let applied = index.apply(*target, &update);
            assert_eq!(applied.orphans, 0, "{update:?}");
            sequencer.record(applied.applied, applied.orphans, applied.ignored);
        }
        line["batch"][1]
            .as_array()
            .unwrap()
            .iter()
            .for_each(|event| reading.take(event));
    }
    for (name, _, sequencer, _) in &engines {
        let counts = sequencer.counts();
        assert_eq!(
            (counts.decode_errors, counts.gaps, counts.restarts),
            (0, 0, 0),
            "{name}"
        );
        assert_eq!(counts.applied + counts.ignored, counts.events, "{name}");
    }
    (
        index,
        engines
            .into_iter()
            .map(|(_, target, _, reading)| (target, reading))
            .collect(),
    )
}

#[test]
#[contract("V9", "V12", "V19")]
fn memberships_equal_those_implied_by_the_frames() {
    for file in ["0.32.0-basic.jsonl", "0.32.0-session.jsonl"] {
        let (index, engines) = replay(file);
        let mut rows: BTreeMap<Target, BTreeSet<_>> = BTreeMap::new();
        let mut salts = BTreeMap::new();
        let mut cursor = DumpCursor::default();
        for row in std::iter::from_fn(|| index.dump(&mut cursor)).flatten() {
            let salt = row.namespace.salt.as_deref().map(String::from);
            salts.insert(salt.clone(), row.salt_digest.as_deref().map(String::from));
            rows.entry(row.target).or_default().insert((salt, row.hash));
        }
        assert!(!engines.is_empty());
        for (target, reading) in &engines {
            let expected = reading.resident_set();
            assert!(!expected.is_empty(), "{file}: nothing to compare");
            assert_eq!(rows.remove(target).unwrap(), expected, "{file}, {target}");
            assert_eq!(
                index.blocks_per_tier(*target),
                [expected.len() as u64, 0, 0, 0]
            );
        }
        assert!(rows.is_empty());
    }
}
