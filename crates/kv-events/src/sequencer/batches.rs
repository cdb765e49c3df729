//! The contents of batches: decoding, normalising, counting.

use kv_blocks::{IndexUpdate, Tier};

use super::{Action, Codec, SequencerCounts};
use crate::{
    standard::{self, StandardChange, StandardEvent},
    vllm::{self, Medium, Normaliser, VllmEvent},
};

/// Decodes batches in order and keeps the properties of the publisher that they name.
#[derive(Debug, Default)]
pub(super) struct Batches {
    codec: Codec,
    normaliser: Normaliser,
    pub(super) counts: SequencerCounts,
    pub(super) ts: Option<f64>,
    pub(super) rank: Option<u32>,
    pub(super) block_size: Option<u32>,
    pub(super) last_error: Option<String>,
}

impl Batches {
    pub(super) fn new(codec: Codec) -> Self {
        Self {
            codec,
            ..Self::default()
        }
    }

    pub(super) fn apply(&mut self, payload: &[u8], actions: &mut Vec<Action>) {
        self.counts.batches += 1;
        match self.codec {
            Codec::Vllm => self.apply_vllm(payload, actions),
            Codec::Mooncake => self.apply_mooncake(payload, actions),
        }
    }

    fn apply_mooncake(&mut self, payload: &[u8], actions: &mut Vec<Action>) {
        let events = match standard::decode_msgpack(payload) {
            Ok(events) => events,
            Err(error) => return self.fault(error.to_string(), actions),
        };
        for event in events {
            self.counts.events += 1;
            match event {
                Ok(event) => self.take_standard(&event, actions),
                Err(error) => self.fault(error.to_string(), actions),
            }
        }
    }

    fn take_standard(&mut self, event: &StandardEvent, actions: &mut Vec<Action>) {
        match event.change {
            StandardChange::Stored { .. } => self.counts.kinds.stored += 1,
            StandardChange::Removed { .. } => self.counts.kinds.removed += 1,
            StandardChange::Cleared => self.counts.kinds.cleared += 1,
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "a clock: the last millisecond does not matter"
        )]
        if let Some(ms) = event.timestamp_ms {
            self.ts = Some(ms as f64 / 1e3);
        }
        let medium = Medium::parse(event.stream.medium.as_deref(), None);
        self.counts.kinds.unlisted_media += u64::from(medium == Medium::Unlisted);
        match standard::to_named(event) {
            Ok(update) => actions.push(Action::Apply(update)),
            // Well formed, but about objects that the index does not know: a store's other objects
            // have keys of their own.
            Err(_) => self.counts.ignored += 1,
        }
    }

    fn apply_vllm(&mut self, payload: &[u8], actions: &mut Vec<Action>) {
        let batch = match vllm::decode(payload) {
            Ok(batch) => batch,
            Err(error) => return self.fault(error.to_string(), actions),
        };
        self.ts = batch.ts.or(self.ts);
        self.rank = batch.dp_rank.or(self.rank);
        for event in batch.events {
            self.counts.events += 1;
            match event {
                Ok(event) => self.take(&event, actions),
                Err(error) => self.fault(error.to_string(), actions),
            }
        }
    }

    /// Resets the state for another life of the publisher, maybe with another model.
    pub(super) fn forget(&mut self) {
        self.normaliser = Normaliser::default();
    }

    fn take(&mut self, event: &VllmEvent, actions: &mut Vec<Action>) {
        let medium = match event {
            VllmEvent::Stored(event) => {
                self.counts.kinds.stored += 1;
                Medium::of(&event.place)
            }
            VllmEvent::Removed(event) => {
                self.counts.kinds.removed += 1;
                Medium::of(&event.place)
            }
            VllmEvent::Cleared => {
                self.counts.kinds.cleared += 1;
                Medium::Known(Tier::Device)
            }
            VllmEvent::Unknown { .. } => Medium::Known(Tier::Device),
        };
        self.counts.kinds.unlisted_media += u64::from(medium == Medium::Unlisted);
        match self.normaliser.update(event) {
            Ok(update) => {
                if let IndexUpdate::Stored(stored) = &update
                    && stored.tier == Tier::Device
                {
                    self.block_size = Some(stored.block_size.tokens());
                }
                actions.push(Action::Apply(update));
            }
            Err(ignored) => self.counts.ignore(ignored.reason),
        }
    }

    /// Records an undecodable batch; it may have contained removals.
    fn fault(&mut self, error: String, actions: &mut Vec<Action>) {
        self.counts.decode_errors += 1;
        self.last_error = Some(error);
        if actions.last() != Some(&Action::Loss) {
            actions.push(Action::Loss);
        }
    }
}
