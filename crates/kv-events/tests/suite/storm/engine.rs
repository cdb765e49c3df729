//! An engine with known content: a pool of blocks with copies and two tiers, and a batch for each
//! change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kv_blocks::{BlockSize, DpRank, HashScheme, IndexUpdate, SequenceHash, Target, Tier, WorkerId};
use kv_events::vllm::{
    self, EventEncoding, EventLayout, HashForm, Normaliser, WireEvent, WireHash, WireRemoved,
    WireStored,
};
use kv_index::{DumpCursor, IndexSettings, KvIndex, TargetDigest};

use super::random::{SplitMix64, mix};

pub(crate) const MODEL: &str = "m";
pub(crate) const TARGET: Target = Target {
    worker: WorkerId(7),
    rank: DpRank(0),
};
const BLOCK: u32 = 4;
/// Number of copies of blocks that fit on the device.
const POOL: usize = 20;
const HOST: usize = 12;
/// Longest sequence, in blocks.
const DEEPEST: usize = 6;
const GPU: &str = "GPU";
const CPU: &str = "CPU";

/// A block and all blocks before it, one letter per block. The first letter also selects the
/// namespace.
type BlockPath = Vec<u8>;

/// The content of a cache: tier, adapter, salt, sequence hash.
pub(crate) type ResidentBlocks = BTreeSet<(Tier, Option<Arc<str>>, Option<Arc<str>>, SequenceHash)>;

/// The state after a published batch.
pub(crate) struct CacheTruth {
    /// Digest of an index that applied every batch up to this one, each once and in order.
    pub(crate) digest: Vec<TargetDigest>,
    /// The blocks that the engine held.
    pub(crate) resident: ResidentBlocks,
    /// The blocks removed in this batch, perhaps held again at its end.
    pub(crate) removed: ResidentBlocks,
}

/// The behaviour of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineBehavior {
    /// Percentage of batches that get a number but are never sent.
    pub(crate) unsent: usize,
    /// Batches kept for replay.
    pub(crate) retained: usize,
}

/// One life of an engine, from its start to its restart.
pub(crate) struct EngineEpoch {
    behavior: EngineBehavior,
    /// Each life hashes its blocks differently, as engines with a random seed.
    naming: u64,
    encoding: EventEncoding,
    /// Copies of each block.
    device: BTreeMap<BlockPath, usize>,
    host: BTreeSet<BlockPath>,
    /// Blocks removed since the last batch.
    removed: Vec<(Tier, BlockPath)>,
    /// Batches by number; `None` was never sent.
    published: Vec<Option<Vec<u8>>>,
    truths: Vec<CacheTruth>,
    reference: KvIndex,
    normaliser: Normaliser,
}

pub(crate) fn index() -> KvIndex {
    let index = KvIndex::new(IndexSettings {
        memory_budget: 1 << 20,
        ..IndexSettings::default()
    });
    index.register(TARGET, Arc::from(MODEL));
    index
}

/// Returns the blocks that an index credits to the engine.
pub(crate) fn credited(index: &KvIndex) -> ResidentBlocks {
    let mut cursor = DumpCursor::default();
    let rows = std::iter::from_fn(|| index.dump(&mut cursor)).flatten();
    rows.map(|row| {
        (
            row.tier,
            row.namespace.lora.clone(),
            row.namespace.salt.clone(),
            row.hash,
        )
    })
    .collect()
}

impl EngineEpoch {
    pub(crate) fn new(dice: &mut SplitMix64, behavior: EngineBehavior) -> Self {
        Self {
            behavior,
            naming: dice.roll(),
            encoding: EventEncoding {
                layout: *dice.pick(&[EventLayout::Map, EventLayout::Array]),
                hash_form: *dice.pick(&[HashForm::Int, HashForm::Bytes]),
            },
            device: BTreeMap::new(),
            host: BTreeSet::new(),
            removed: Vec::new(),
            published: Vec::new(),
            truths: Vec::new(),
            reference: index(),
            normaliser: Normaliser::default(),
        }
    }

    /// Does a little work and publishes the changes. Returns the batch, unless it is not sent.
    pub(crate) fn publish(&mut self, dice: &mut SplitMix64) -> Option<(u64, Vec<u8>)> {
        let mut events = vec![self.mark()];
        for _ in 0..dice.within(1, 3) {
            self.work(dice, &mut events);
        }
        let payload = vllm::encode(1.0, Some(0), &events, self.encoding);
        self.update_reference(&payload);
        let removed = keys_of(std::mem::take(&mut self.removed));
        self.truths.push(CacheTruth {
            digest: self.reference.digest(),
            resident: self.resident(),
            removed,
        });
        let seq = self.batches();
        let sent = !dice.chance(self.behavior.unsent);
        self.published.push(sent.then(|| payload.clone()));
        sent.then_some((seq, payload))
    }

    /// From now on every batch is sent.
    pub(crate) fn sends_all(&mut self) {
        self.behavior.unsent = 0;
    }

    /// Batches published so far, unsent ones included.
    pub(crate) fn batches(&self) -> u64 {
        self.published.len() as u64
    }

    /// Returns the kept history from this number on.
    pub(crate) fn history(&self, from: u64) -> Vec<(u64, Vec<u8>)> {
        let dropped = self.published.len().saturating_sub(self.behavior.retained);
        let all = (0..).zip(&self.published).skip(dropped);
        all.filter(|(seq, _)| *seq >= from)
            .filter_map(|(seq, sent)| Some((seq, sent.clone()?)))
            .collect()
    }

    pub(crate) fn truth(&self, seq: u64) -> Option<&CacheTruth> {
        self.truths.get(usize::try_from(seq).ok()?)
    }

    /// The truth now; `None` before the first batch.
    pub(crate) fn newest(&self) -> Option<&CacheTruth> {
        self.truths.last()
    }

    /// Returns the batch that a removal of this block marks: every batch begins with the removal of
    /// a block that does not exist.
    pub(crate) fn marked(&self, name: u64) -> Option<u64> {
        name.checked_sub(self.naming & MARKS)
            .filter(|seq| *seq < self.batches())
    }

    fn mark(&self) -> WireEvent {
        let name = (self.naming & MARKS) + self.batches();
        WireEvent::Removed(WireRemoved {
            hashes: vec![name.into()],
            medium: Some(CPU.into()),
        })
    }

    fn work(&mut self, dice: &mut SplitMix64, events: &mut Vec<WireEvent>) {
        match dice.below(100) {
            0..56 => self.request(dice, events),
            56..72 => self.evict(dice, events),
            72..86 => self.offload(dice, events),
            86..96 => self.forget_offloaded(dice, events),
            _ => {
                let dropped = std::mem::take(&mut self.device).into_keys();
                self.removed
                    .extend(dropped.map(|block| (Tier::Device, block)));
                events.push(WireEvent::Cleared);
            }
        }
    }

    /// Serves a prompt: stores its missing blocks, and copies of held ones behind them.
    fn request(&mut self, dice: &mut SplitMix64, events: &mut Vec<WireEvent>) {
        let prompt = prompt(dice);
        let resident = (1..=prompt.len())
            .take_while(|end| self.device.contains_key(&prompt[..*end]))
            .count();
        // The prompt is fully held: its last block is computed again, unless it is the only one,
        // which would look like a repetition.
        let from = if resident < prompt.len() {
            resident
        } else {
            prompt.len() - 1
        };
        if from == 0 && resident > 0 {
            return;
        }
        for end in from + 1..=prompt.len() {
            *self.device.entry(prompt[..end].to_vec()).or_default() += 1;
        }
        events.push(WireEvent::Stored(self.stored(&prompt, from, GPU)));
        while self.device.values().sum::<usize>() > POOL {
            self.evict(dice, events);
        }
    }

    /// Evicts one copy of any block, also from the middle of a sequence.
    fn evict(&mut self, dice: &mut SplitMix64, events: &mut Vec<WireEvent>) {
        let resident: Vec<_> = self.device.keys().cloned().collect();
        if resident.is_empty() {
            return;
        }
        let block = dice.pick(&resident);
        let copies = self.device.get_mut(block).unwrap();
        *copies -= 1;
        if *copies == 0 {
            self.device.remove(block);
            self.removed.push((Tier::Device, block.clone()));
        }
        events.push(self.removed(block, GPU));
    }

    /// Copies the beginning of a prompt to the host; the event has the tokens or only the hashes.
    fn offload(&mut self, dice: &mut SplitMix64, events: &mut Vec<WireEvent>) {
        let prompt = prompt(dice);
        let resident = (1..=prompt.len())
            .take_while(|end| self.device.contains_key(&prompt[..*end]))
            .count();
        if resident == 0 || self.host.len() + resident > HOST {
            return;
        }
        self.host
            .extend((1..=resident).map(|end| prompt[..end].to_vec()));
        let mut stored = self.stored(&prompt[..resident], 0, CPU);
        if dice.chance(30) {
            stored = WireStored {
                tokens: Vec::new(),
                lora_name: None,
                extra_keys: None,
                ..stored
            };
        }
        events.push(WireEvent::Stored(stored));
    }

    fn forget_offloaded(&mut self, dice: &mut SplitMix64, events: &mut Vec<WireEvent>) {
        let resident: Vec<_> = self.host.iter().cloned().collect();
        if resident.is_empty() {
            return;
        }
        let block = dice.pick(&resident);
        self.host.remove(block);
        self.removed.push((Tier::Host, block.clone()));
        events.push(self.removed(block, CPU));
    }

    fn stored(&self, prompt: &[u8], from: usize, medium: &str) -> WireStored {
        let (lora, salt) = keys(prompt);
        let mut extra_keys = vec![None; prompt.len() - from];
        extra_keys[0] = salt
            .filter(|_| from == 0)
            .map(|salt| vec![salt.to_owned().into()]);
        WireStored {
            hashes: (from + 1..=prompt.len())
                .map(|end| self.name(&prompt[..end]))
                .collect(),
            parent: (from > 0).then(|| self.name(&prompt[..from])),
            tokens: tokens(&prompt[from..]),
            block_size: BLOCK,
            lora_name: lora.map(str::to_owned),
            medium: Some(medium.into()),
            extra_keys: salt.is_some().then_some(extra_keys),
            ..WireStored::default()
        }
    }

    fn removed(&self, block: &[u8], medium: &str) -> WireEvent {
        WireEvent::Removed(WireRemoved {
            hashes: vec![self.name(block)],
            medium: Some(medium.into()),
        })
    }

    /// Returns the engine hash of a block: never a mark, which is smaller.
    fn name(&self, prefix: &[u8]) -> WireHash {
        WireHash::from(
            prefix
                .iter()
                .fold(self.naming, |name, letter| mix(name ^ u64::from(*letter)))
                | 1 << 63,
        )
    }

    fn update_reference(&mut self, payload: &[u8]) {
        for event in vllm::decode(payload).unwrap().events {
            // Events of no use to an index are ignored here too.
            let Ok(update) = self.normaliser.update(&event.unwrap()) else {
                continue;
            };
            self.reference.apply(TARGET, &update);
        }
    }

    fn resident(&self) -> ResidentBlocks {
        let device = self
            .device
            .keys()
            .map(|block| (Tier::Device, block.clone()));
        keys_of(device.chain(self.host.iter().map(|block| (Tier::Host, block.clone()))))
    }
}

fn keys_of(blocks: impl IntoIterator<Item = (Tier, BlockPath)>) -> ResidentBlocks {
    let key = |(tier, block): (Tier, BlockPath)| {
        let (lora, salt) = keys(&block);
        let chain = HashScheme::default().chain(
            None,
            &tokens(&block),
            BlockSize::new(BLOCK.into()).unwrap(),
        );
        (
            tier,
            lora.map(Arc::from),
            salt.map(Arc::from),
            *chain.last().unwrap(),
        )
    };
    blocks.into_iter().map(key).collect()
}

/// The bits in which the marks of two lives differ.
const MARKS: u64 = 0x3fff_ffff_ffff_0000;

/// Returns the number that identifies a batch.
pub(crate) fn mark_of(update: &IndexUpdate) -> Option<u64> {
    let IndexUpdate::Removed(removed) = update else {
        return None;
    };
    removed
        .hashes
        .first()
        .map(|hash| hash.0)
        .filter(|name| name >> 63 == 0)
}

fn prompt(dice: &mut SplitMix64) -> BlockPath {
    let first = u8::try_from(dice.below(4)).unwrap();
    let mut prompt = vec![first];
    let more = dice.below(DEEPEST);
    prompt.extend((0..more).map(|_| u8::try_from(dice.below(2)).unwrap()));
    prompt
}

/// Returns the adapter and the salt.
fn keys(prefix: &[u8]) -> (Option<&'static str>, Option<&'static str>) {
    match prefix[0] {
        2 => (Some("adapter"), None),
        3 => (None, Some("salt")),
        _ => (None, None),
    }
}

/// Returns equal tokens for equal letters: blocks differ by the blocks before them and by
/// namespace.
fn tokens(letters: &[u8]) -> Vec<u32> {
    letters
        .iter()
        .flat_map(|letter| [u32::from(*letter) % 2; BLOCK as usize])
        .collect()
}
