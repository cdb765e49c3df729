//! From messages to changes of the router.

use std::{sync::Arc, time::Duration};

use kv_blocks::{BlockSize, DpRank, Namespace, PromptIdentity, SequenceHash, Target, WorkerId};
use routing::{
    DispatchLoad, LoadChange, LoadPage, OpenLoad, PredictedPrompt, PrefillSample, PromptKnowledge,
    PromptTail, ReplyMode, ReservationId, SequenceBlocks, SessionBinding, SpeedSample,
};

use super::{SharedNote, WorkerDirectory};
use crate::wire::{self, Blocks, ChainMemory, ChangeKind, Changes, OpenRequest, StatePage};

/// Changes of one message.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct DecodedChanges {
    pub(crate) load: Vec<LoadChange>,
    pub(crate) notes: Vec<SharedNote>,
    /// Changes of unknown kinds, or without meaning.
    pub(crate) unknown: u64,
}

/// Reads one peer's messages.
#[derive(Debug)]
pub(crate) struct LoadDecoder<'a> {
    pub(crate) workers: &'a dyn WorkerDirectory,
    /// The chains that the peer's messages may refer to.
    pub(crate) chains: &'a mut ChainMemory,
}

impl LoadDecoder<'_> {
    /// Reads the changes of a message, all but the first `skip`.
    pub(crate) fn changes(&mut self, message: Changes, skip: usize) -> DecodedChanges {
        let names = Names::of(message.workers, self.workers);
        let mut decoded = DecodedChanges::default();
        for change in message.changes.into_iter().skip(skip) {
            match change.kind {
                Some(ChangeKind::ResponseHome(home)) => match names.name(home.worker) {
                    Some(worker) => decoded.notes.push(SharedNote::ResponseHome {
                        key: u128::from(home.high) << 64 | u128::from(home.low),
                        worker,
                    }),
                    None => decoded.unknown += 1,
                },
                Some(ChangeKind::Cooldown(cooldown)) => match names.name(cooldown.worker) {
                    Some(worker) => decoded.notes.push(SharedNote::Cooldown {
                        worker,
                        wait: Duration::from_millis(cooldown.ms),
                    }),
                    None => decoded.unknown += 1,
                },
                Some(kind) => decoded.load.extend(self.load(kind, &names)),
                None => decoded.unknown += 1,
            }
        }
        decoded
    }

    /// Reads a page of open requests.
    pub(crate) fn page(&mut self, page: StatePage) -> LoadPage {
        let names = Names::of(page.workers, self.workers);
        let open = page.open.into_iter();
        LoadPage {
            after: ReservationId(page.after),
            through: page.through.map(ReservationId),
            loads: open.map(|load| self.opened(load, &names)).collect(),
        }
    }

    /// Returns the change; `None`: it is of a worker that is unknown here.
    fn load(&mut self, kind: ChangeKind, names: &Names) -> Option<LoadChange> {
        Some(match kind {
            ChangeKind::Opened(load) => LoadChange::Opened(self.opened(load, names)),
            ChangeKind::FirstToken(id) => LoadChange::FirstToken {
                id: ReservationId(id),
            },
            ChangeKind::Closed(closed) => LoadChange::Closed {
                id: ReservationId(closed.id),
                prompt_received: closed.prompt_received,
                succeeded: closed.succeeded,
            },
            ChangeKind::Sample(sample) => LoadChange::Sample(SpeedSample {
                worker: names.worker(sample.worker)?,
                first_token_ms: sample.first_token_ms.filter(|ms| is_time(*ms)),
                prefill: sample
                    .prefill
                    .filter(|prefill| is_time(prefill.ms))
                    .map(|prefill| PrefillSample {
                        start: prefill.cached_tokens,
                        tokens: prefill.computed_tokens,
                        ms: prefill.ms,
                    }),
            }),
            ChangeKind::Session(session) => {
                let rest = PromptTail {
                    bytes: usize::try_from(session.rest_bytes).unwrap_or(usize::MAX),
                    hash: session.rest_hash,
                };
                LoadChange::Session(SessionBinding {
                    id: session.id,
                    target: Target {
                        worker: names.worker(session.worker)?,
                        rank: DpRank(session.rank),
                    },
                    name: session.name,
                    growth: session.growth.map(|key| (key, rest)),
                })
            }
            ChangeKind::ReplyLength(tokens) => LoadChange::ReplyLength(tokens),
            ChangeKind::ResponseHome(_) | ChangeKind::Cooldown(_) => return None,
        })
    }

    fn opened(&mut self, load: OpenRequest, names: &Names) -> OpenLoad {
        let (blocks, chain) = self.blocks(load.blocks.unwrap_or_default());
        let namespace = load.predicted.and_then(namespace);
        let target = names.worker(load.worker).map(|worker| Target {
            worker,
            rank: DpRank(load.rank),
        });
        OpenLoad {
            id: ReservationId(load.id),
            target,
            load: Arc::new(DispatchLoad {
                prompt_tokens: load.prompt_tokens,
                uncached_tokens: load.uncached_tokens.min(load.prompt_tokens),
                prefill_ms: time(load.prefill_ms),
                interleave_ms: time(load.interleave_ms),
                blocks,
                reply: match load.streamed {
                    true => ReplyMode::Streamed,
                    false => ReplyMode::Whole,
                },
                prompt: match load.blocks_known {
                    true => PromptKnowledge::Blocks,
                    false => PromptKnowledge::Length,
                },
                predicted: namespace
                    .zip(chain)
                    .map(|(namespace, chain)| PredictedPrompt { namespace, chain }),
            }),
            first_token: load.first_token,
            age_ms: time(load.age_ms),
        }
    }

    /// Returns the blocks to count, and the whole chain if it is known here.
    fn blocks(&mut self, blocks: Blocks) -> (SequenceBlocks, Option<Arc<[SequenceHash]>>) {
        let known = usize::try_from(blocks.known).unwrap_or(usize::MAX);
        let found = self.chains.find(SequenceHash(blocks.known_end), known);
        let lost = known > 0 && found.is_none();
        let chain: Option<Arc<[SequenceHash]>> = (blocks.hashed && !lost).then(|| {
            let beginning = found.into_iter().flat_map(|chain| chain.iter().copied());
            beginning
                .chain(blocks.hashes.iter().copied().map(SequenceHash))
                .collect()
        });
        if let Some(chain) = &chain {
            self.chains.insert(chain);
        }
        // The number of blocks stays right where their hashes are not known.
        let unknown = match lost {
            true => known as u64 + blocks.hashes.len() as u64,
            false => 0,
        };
        let counted = SequenceBlocks {
            chain: chain.clone().filter(|_| blocks.active),
            fingerprint: blocks.fingerprint,
            unshared: blocks.unshared.saturating_add(unknown),
        };
        (counted, chain)
    }
}

/// The names of one message, with this process's workers.
struct Names(Vec<(Arc<str>, Option<WorkerId>)>);

impl Names {
    fn of(names: Vec<String>, workers: &dyn WorkerDirectory) -> Self {
        let known = |name: String| {
            let id = workers.id(&name);
            (name.into(), id)
        };
        Self(names.into_iter().map(known).collect())
    }

    fn worker(&self, position: u32) -> Option<WorkerId> {
        self.0.get(position as usize)?.1
    }

    fn name(&self, position: u32) -> Option<Arc<str>> {
        Some(Arc::clone(&self.0.get(position as usize)?.0))
    }
}

fn namespace(namespace: wire::Namespace) -> Option<Namespace> {
    Some(Namespace {
        model: namespace.model.into(),
        lora: namespace.lora.map(Into::into),
        salt: None,
        block_size: BlockSize::new(u64::from(namespace.block_size)).ok()?,
        identity: match namespace.text {
            true => PromptIdentity::TextPrefix,
            false => PromptIdentity::Tokens,
        },
    })
}

/// Longest believable time: beyond it a load would hold up every decision.
const LONGEST_MS: f64 = 3_600_000.0;

fn is_time(ms: f64) -> bool {
    (0.0..=LONGEST_MS).contains(&ms)
}

/// Returns a time within its range; 0 if it is none.
fn time(ms: f64) -> f64 {
    if ms.is_finite() {
        ms.clamp(0.0, LONGEST_MS)
    } else {
        0.0
    }
}
