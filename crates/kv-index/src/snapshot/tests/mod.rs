//! A snapshot is equal after reading; any other file is refused.

mod damage;
mod foreign;
mod hostile;
mod round_trip;

use std::sync::Arc;

use kv_blocks::{
    BlockSize, DpRank, EngineHash, HashScheme, Namespace, PromptIdentity, SequenceHash,
    StreamPosition, Target, Tier, WorkerId,
};

use super::{records::kind, *};

/// More than the size of any snapshot here.
const ROOM: u64 = 64 << 20;

/// The content of an index, to be written.
#[derive(Clone, Debug, Default)]
struct SampleContent {
    spaces: Vec<NamespaceRecord>,
    targets: Vec<TargetRecord>,
    runs: Vec<OwnRun>,
}

/// A run that owns its blocks.
#[derive(Clone, Debug, PartialEq)]
struct OwnRun {
    id: u32,
    space: u32,
    parent: Option<ParentLink>,
    depth: u32,
    hashes: Vec<SequenceHash>,
    holders: Vec<HolderRecord>,
    names: Vec<NameStretch>,
    engine: Vec<EngineHash>,
    copies: Vec<CopyRecord>,
}

impl OwnRun {
    fn record(&self) -> RunRecord<'_> {
        let Self {
            id,
            space,
            parent,
            depth,
            hashes,
            holders,
            names,
            engine,
            copies,
        } = self;
        RunRecord {
            id: *id,
            space: *space,
            parent: *parent,
            depth: *depth,
            hashes,
            holders,
            names,
            engine,
            copies,
        }
    }
}

impl From<RunRecord<'_>> for OwnRun {
    fn from(run: RunRecord<'_>) -> Self {
        Self {
            id: run.id,
            space: run.space,
            parent: run.parent,
            depth: run.depth,
            hashes: run.hashes.to_vec(),
            holders: run.holders.to_vec(),
            names: run.names.to_vec(),
            engine: run.engine.to_vec(),
            copies: run.copies.to_vec(),
        }
    }
}

fn written(sample: &SampleContent, scheme: HashScheme) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = SnapshotWriter::new(&mut file, scheme).unwrap();
    for space in &sample.spaces {
        writer.space(space).unwrap();
    }
    for target in &sample.targets {
        writer.target(target).unwrap();
    }
    for run in &sample.runs {
        writer.run(&run.record()).unwrap();
    }
    let bytes = writer.finish().unwrap();
    assert_eq!(bytes, file.len() as u64);
    file
}

fn loaded(mut file: &[u8]) -> Result<SnapshotContent, SnapshotError> {
    read(&mut file, HashScheme::default(), ROOM)
}

fn size(tokens: u64) -> BlockSize {
    BlockSize::new(tokens).unwrap()
}

/// Returns two namespaces, two targets, a chain of two runs with a hole in the held blocks, and one
/// of each other record.
fn small() -> SampleContent {
    let namespace = |salt: Option<&str>| Namespace {
        model: "qwen".into(),
        lora: salt.map(|_| "sql".into()),
        salt: salt.map(Arc::from),
        block_size: size(16),
        identity: PromptIdentity::Tokens,
    };
    let target = |slot: u32, member| TargetRecord {
        slot,
        target: Target {
            worker: WorkerId(slot + 10),
            rank: DpRank(1),
        },
        model: Some("qwen".into()),
        block_size: (slot == 0).then(|| size(16)),
        block_sizes: vec![size(16), size(64)],
        member,
        position: (slot == 3).then_some(PositionRecord {
            batch: StreamPosition {
                seq: 9,
                digest: u64::MAX - 1,
            },
            within_next: true,
        }),
    };
    let root = OwnRun {
        id: 5,
        space: 1,
        parent: None,
        depth: 0,
        hashes: (100..104).map(SequenceHash).collect(),
        holders: vec![
            HolderRecord {
                slot: 0,
                tier: Tier::Device,
                start: 0,
                end: 1,
            },
            HolderRecord {
                slot: 0,
                tier: Tier::Device,
                start: 2,
                end: 4,
            },
            HolderRecord {
                slot: 0,
                tier: Tier::Remote,
                start: 0,
                end: 4,
            },
            HolderRecord {
                slot: 3,
                tier: Tier::Disk,
                start: 0,
                end: 2,
            },
        ],
        names: vec![
            NameStretch {
                group: 7,
                size: size(16),
                at: 0,
                count: 4,
            },
            NameStretch {
                group: 7,
                size: size(16),
                at: 1,
                count: 1,
            },
        ],
        engine: [1, 2, 3, 4, 22].map(EngineHash).to_vec(),
        copies: vec![
            CopyRecord {
                slot: 0,
                at: 0,
                spare: 1,
                lapses_after: None,
            },
            CopyRecord {
                slot: 0,
                at: 3,
                spare: 0,
                lapses_after: Some(300),
            },
        ],
    };
    let branch = OwnRun {
        id: 2,
        parent: Some(ParentLink { run: 5, attach: 3 }),
        depth: 3,
        hashes: vec![SequenceHash(u64::MAX)],
        holders: vec![HolderRecord {
            slot: 3,
            tier: Tier::Host,
            start: 0,
            end: 1,
        }],
        names: Vec::new(),
        engine: Vec::new(),
        copies: Vec::new(),
        ..root.clone()
    };
    SampleContent {
        spaces: vec![
            NamespaceRecord {
                number: 1,
                namespace: namespace(None),
            },
            NamespaceRecord {
                number: 0,
                namespace: namespace(Some("tenant")),
            },
        ],
        targets: vec![
            target(
                0,
                Some(MemberRecord {
                    group: 7,
                    common: false,
                    proven: true,
                }),
            ),
            target(3, None),
        ],
        runs: vec![root, branch],
    }
}
