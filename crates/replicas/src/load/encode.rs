//! From the router's changes to messages.

use std::{collections::HashMap, sync::Arc};

use kv_blocks::{PromptIdentity, Target, WorkerId};
use prost::Message;
use routing::{
    DispatchLoad, LoadChange, LoadPage, OpenLoad, PredictedPrompt, PromptKnowledge, ReplyMode,
    SequenceBlocks, SessionBinding, SpeedSample,
};

use super::{SharedNote, WorkerDirectory};
use crate::wire::{
    Blocks, ChainMemory, Change, ChangeKind, Changes, Cooldown, FULL_MESSAGE, Namespace,
    OpenRequest, Prefill, RequestEnd, ResponseHome, Sample, Session, StatePage, VERSION,
};

/// Numbers the changes and puts them into messages.
#[derive(Debug)]
pub(crate) struct ChangeEncoder {
    workers: Arc<dyn WorkerDirectory>,
    chains: ChainMemory,
    /// Number of the last change in a message.
    last: u64,
}

impl ChangeEncoder {
    pub(crate) fn new(workers: Arc<dyn WorkerDirectory>) -> Self {
        Self {
            workers,
            chains: ChainMemory::default(),
            last: 0,
        }
    }

    /// Returns the number of the last change.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Leaves a hole in the numbers: changes were lost before they came here.
    pub(crate) fn skip_lost(&mut self) {
        self.last += 1;
    }

    /// Returns messages with these changes, in order.
    pub(crate) fn encode(
        &mut self,
        changes: impl IntoIterator<Item = LoadChange>,
        notes: impl IntoIterator<Item = SharedNote>,
    ) -> Vec<Changes> {
        let mut draft = Draft::new(self.last + 1);
        let mut messages = Vec::new();
        for change in changes {
            let kind = self.kind(change, &mut draft.names);
            self.add(kind, &mut draft, &mut messages);
        }
        for note in notes {
            let kind = note_kind(note, &mut draft.names);
            self.add(kind, &mut draft, &mut messages);
        }
        messages.extend(draft.finish());
        messages
    }

    fn add(&mut self, kind: Option<ChangeKind>, draft: &mut Draft, messages: &mut Vec<Changes>) {
        // A change of a worker without a name concerns nobody else, and needs no number.
        let Some(kind) = kind else { return };
        self.last += 1;
        draft.push(Change { kind: Some(kind) });
        if draft.bytes >= FULL_MESSAGE {
            let full = std::mem::replace(draft, Draft::new(self.last + 1));
            messages.extend(full.finish());
        }
    }

    fn kind(&mut self, change: LoadChange, names: &mut NameTable) -> Option<ChangeKind> {
        let workers = &*self.workers;
        Some(match change {
            LoadChange::Opened(load) => {
                ChangeKind::Opened(opened(&load, workers, names, Some(&mut self.chains)))
            }
            LoadChange::FirstToken { id } => ChangeKind::FirstToken(id.0),
            LoadChange::Closed {
                id,
                prompt_received,
                succeeded,
            } => ChangeKind::Closed(RequestEnd {
                id: id.0,
                prompt_received,
                succeeded,
            }),
            LoadChange::Sample(SpeedSample {
                worker,
                first_token_ms,
                prefill,
            }) => ChangeKind::Sample(Sample {
                worker: names.of(workers, worker)?,
                first_token_ms,
                prefill: prefill.map(|sample| Prefill {
                    cached_tokens: sample.start,
                    computed_tokens: sample.tokens,
                    ms: sample.ms,
                }),
            }),
            LoadChange::Session(SessionBinding {
                id,
                target,
                name,
                growth,
            }) => {
                let (growth, rest) = growth.unzip();
                ChangeKind::Session(Session {
                    worker: names.of(workers, target.worker)?,
                    rank: target.rank.0,
                    id,
                    name,
                    growth,
                    rest_bytes: rest.map_or(0, |rest| rest.bytes as u64),
                    rest_hash: rest.map_or(0, |rest| rest.hash),
                })
            }
            LoadChange::ReplyLength(tokens) => ChangeKind::ReplyLength(tokens),
        })
    }
}

/// Returns the message with a page of open requests. Its prompts are whole: a peer that fetches
/// them may have lost the chains that changes refer to.
pub(crate) fn state_page(
    page: LoadPage,
    as_of: u64,
    sender: u64,
    workers: &dyn WorkerDirectory,
) -> StatePage {
    let mut names = NameTable::default();
    let (mut open, mut bytes) = (Vec::new(), 0);
    let mut through = page.through.map(|id| id.0);
    for (at, load) in page.loads.iter().enumerate() {
        let load = opened(load, workers, &mut names, None);
        bytes += load.encoded_len();
        let id = load.id;
        open.push(load);
        if bytes >= FULL_MESSAGE && at + 1 < page.loads.len() {
            through = Some(id);
            break;
        }
    }
    StatePage {
        version: VERSION,
        sender,
        as_of,
        workers: names.names,
        open,
        after: page.after.0,
        through,
    }
}

/// A message under construction.
#[derive(Debug)]
struct Draft {
    first: u64,
    names: NameTable,
    changes: Vec<Change>,
    bytes: usize,
}

impl Draft {
    fn new(first: u64) -> Self {
        Self {
            first,
            names: NameTable::default(),
            changes: Vec::new(),
            bytes: 0,
        }
    }

    fn push(&mut self, change: Change) {
        self.bytes += change.encoded_len();
        self.changes.push(change);
    }

    fn finish(self) -> Option<Changes> {
        (!self.changes.is_empty()).then_some(Changes {
            first: self.first,
            workers: self.names.names,
            changes: self.changes,
        })
    }
}

/// The names of workers in one message.
#[derive(Debug, Default)]
struct NameTable {
    names: Vec<String>,
    positions: HashMap<Arc<str>, u32>,
}

impl NameTable {
    fn of(&mut self, workers: &dyn WorkerDirectory, worker: WorkerId) -> Option<u32> {
        Some(self.position(workers.name(worker)?))
    }

    fn position(&mut self, name: Arc<str>) -> u32 {
        let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        *self.positions.entry(name).or_insert_with_key(|name| {
            self.names.push(name.to_string());
            next
        })
    }
}

fn note_kind(note: SharedNote, names: &mut NameTable) -> Option<ChangeKind> {
    Some(match note {
        SharedNote::ResponseHome { key, worker } => ChangeKind::ResponseHome(ResponseHome {
            #[expect(clippy::cast_possible_truncation, reason = "the low half")]
            low: key as u64,
            high: u64::try_from(key >> 64).unwrap_or_default(),
            worker: names.position(worker),
        }),
        SharedNote::Cooldown { worker, wait } => ChangeKind::Cooldown(Cooldown {
            worker: names.position(worker),
            ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
        }),
    })
}

fn opened(
    load: &OpenLoad,
    workers: &dyn WorkerDirectory,
    names: &mut NameTable,
    chains: Option<&mut ChainMemory>,
) -> OpenRequest {
    let worker = |target: Target| names.of(workers, target.worker);
    let DispatchLoad {
        prompt_tokens,
        uncached_tokens,
        prefill_ms,
        interleave_ms,
        blocks,
        reply,
        prompt,
        predicted,
    } = &*load.load;
    OpenRequest {
        id: load.id.0,
        // A worker without a name has left: its load counts nowhere, but is part of the digest.
        worker: load.target.and_then(worker).unwrap_or(u32::MAX),
        rank: load.target.map_or(0, |target| target.rank.0),
        prompt_tokens: *prompt_tokens,
        uncached_tokens: *uncached_tokens,
        prefill_ms: *prefill_ms,
        interleave_ms: *interleave_ms,
        streamed: *reply == ReplyMode::Streamed,
        blocks_known: *prompt == PromptKnowledge::Blocks,
        blocks: Some(sequence(blocks, predicted.as_ref(), chains)),
        first_token: load.first_token,
        age_ms: load.age_ms,
        predicted: predicted.as_ref().and_then(namespace),
    }
}

fn sequence(
    blocks: &SequenceBlocks,
    predicted: Option<&PredictedPrompt>,
    chains: Option<&mut ChainMemory>,
) -> Blocks {
    // Active blocks may be off while blocks are predicted.
    let chain = blocks.chain.as_ref().or(predicted.map(|of| &of.chain));
    let Some(chain) = chain else {
        return Blocks {
            fingerprint: blocks.fingerprint,
            unshared: blocks.unshared,
            ..Blocks::default()
        };
    };
    let known = match chains {
        Some(chains) => {
            let known = chains.known_blocks(chain);
            chains.insert(chain);
            known
        }
        None => 0,
    };
    Blocks {
        fingerprint: blocks.fingerprint,
        unshared: blocks.unshared,
        known: u32::try_from(known).unwrap_or(0),
        known_end: known.checked_sub(1).map_or(0, |end| chain[end].0),
        hashes: chain[known..].iter().map(|hash| hash.0).collect(),
        hashed: true,
        active: blocks.chain.is_some(),
    }
}

/// Returns the namespace of predicted blocks. Salts are secrets: salted blocks are not shared.
fn namespace(predicted: &PredictedPrompt) -> Option<Namespace> {
    let kv_blocks::Namespace {
        model,
        lora,
        salt,
        block_size,
        identity,
    } = &predicted.namespace;
    salt.is_none().then(|| Namespace {
        model: model.to_string(),
        lora: lora.as_ref().map(ToString::to_string),
        block_size: block_size.tokens(),
        text: *identity == PromptIdentity::TextPrefix,
    })
}
