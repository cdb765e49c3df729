//! The contents of batches: decoding, normalising, counting.

use std::sync::Arc;

use kv_blocks::{IndexUpdate, Moment, Tier};

use super::{Action, Codec, SequencerCounts};
use crate::{
    EventError,
    standard::{
        self, EventRejection, StandardChange, StandardEvent, StandardStreams,
        StandardStreamsSettings, StreamOutput,
    },
    vllm::{self, Medium, Normaliser, VllmEvent},
};

/// Most media with unknown names of a store that are told apart.
const MAX_LABELS: usize = 64;

/// Decodes batches in order and keeps the properties of the publisher that they name.
#[derive(Debug)]
pub(super) struct Batches {
    codec: Codec,
    /// The time of the current input.
    pub(super) now: Moment,
    normaliser: Normaliser,
    /// Whether the last payload that showed its form was one of envelopes.
    standard: bool,
    /// The order of the envelopes, each stream by its own numbers.
    pub(super) order: StandardStreams,
    /// The media that a store's master has named blocks in: their tiers, and names if unknown. At
    /// most [`MAX_LABELS`], and one for each tier.
    store_media: Vec<(Tier, Option<Arc<str>>)>,
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
            now: Moment::START,
            normaliser: Normaliser::default(),
            standard: false,
            order: StandardStreams::new(StandardStreamsSettings::default()),
            store_media: Vec::new(),
            counts: SequencerCounts::default(),
            ts: None,
            rank: None,
            block_size: None,
            last_error: None,
        }
    }

    pub(super) fn apply(&mut self, payload: &[u8], actions: &mut Vec<Action>) {
        self.counts.batches += 1;
        if self.is_standard(payload) {
            self.apply_standard(payload, actions);
        } else {
            self.apply_vllm(payload, actions);
        }
    }

    fn is_standard(&mut self, payload: &[u8]) -> bool {
        match self.codec {
            Codec::Vllm => false,
            Codec::Mooncake => true,
            Codec::VllmOrStandard => {
                self.standard = standard::is_standard(payload).unwrap_or(self.standard);
                self.standard
            }
        }
    }

    fn apply_standard(&mut self, payload: &[u8], actions: &mut Vec<Action>) {
        let events = match standard::decode(payload) {
            Ok(events) => events,
            Err(error) => return self.fault(error.to_string(), actions),
        };
        for event in events {
            self.counts.events += 1;
            match event {
                Ok(event) => self.take_standard(event, actions),
                Err(error) => self.take_unreadable(error, actions),
            }
        }
        self.counts.add_order(self.order.take_counts());
    }

    /// Counts an unreadable event. Its number is used up: no later event waits for it.
    fn take_unreadable(&mut self, mut error: EventError, actions: &mut Vec<Action>) {
        let number = error.number.take();
        self.fault(error.to_string(), actions);
        if let Some(number) = number {
            let ordered = self.order.take_unreadable(self.now, *number);
            deliver(ordered, actions);
        }
    }

    /// Gives up on envelopes that were missing for too long.
    pub(super) fn tick(&mut self, actions: &mut Vec<Action>) {
        deliver(self.order.tick(self.now), actions);
        self.counts.add_order(self.order.take_counts());
    }

    /// Gives up on envelopes in batches that are lost for good.
    pub(super) fn accept_loss(&mut self, actions: &mut Vec<Action>) {
        deliver(self.order.accept_loss(self.now), actions);
        self.counts.add_order(self.order.take_counts());
    }

    fn take_standard(&mut self, event: StandardEvent, actions: &mut Vec<Action>) {
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
        let medium = event.stream.medium();
        self.counts.kinds.unlisted_media += u64::from(medium == Medium::Unlisted);
        if self.codec == Codec::Mooncake && event.names_only() {
            self.record_names(&event, medium, actions);
        } else {
            deliver(self.order.take(self.now, event), actions);
        }
    }

    /// Takes an event of a store's master, which numbers the events of all media in one sequence.
    fn record_names(&mut self, event: &StandardEvent, medium: Medium, actions: &mut Vec<Action>) {
        let label = event.stream.medium.as_ref();
        let label = label.filter(|label| medium == Medium::Unlisted && self.has_label(label));
        let label = label.cloned();
        if let StandardChange::Cleared = event.change {
            let only = event.stream.medium.as_ref();
            let only = only.map(|_| (medium.tier(), label));
            return self.clear_store(only.as_ref(), actions);
        }
        match standard::to_named(event) {
            Ok(update) => {
                if let IndexUpdate::Named(named) = &update {
                    self.note_store_medium(named.tier, label.as_ref());
                }
                actions.push(labelled(update, label));
            }
            // Well formed, but about objects that the index does not know: a store's other objects
            // have keys of their own.
            Err(why) => {
                self.counts.reject(&why);
                if why != EventRejection::NoNames {
                    self.last_error = Some(why.to_string());
                }
            }
        }
    }

    /// Returns whether a medium of a store with an unknown name is told apart. Those beyond the limit
    /// are one medium, without a name.
    fn has_label(&self, label: &Arc<str>) -> bool {
        let mut labels = self
            .store_media
            .iter()
            .filter_map(|(_, known)| known.as_ref());
        labels.clone().count() < MAX_LABELS || labels.any(|known| known.eq_ignore_ascii_case(label))
    }

    fn note_store_medium(&mut self, tier: Tier, label: Option<&Arc<str>>) {
        let mut known = self.store_media.iter();
        if !known.any(|known| is_medium(known, tier, label)) {
            self.store_media.push((tier, label.cloned()));
        }
    }

    /// Clears the media that the store's master has named blocks in, or one of them.
    fn clear_store(&mut self, only: Option<&(Tier, Option<Arc<str>>)>, actions: &mut Vec<Action>) {
        let before = actions.len();
        for known in &self.store_media {
            let is_meant = only.is_none_or(|(tier, label)| is_medium(known, *tier, label.as_ref()));
            if is_meant {
                let update = IndexUpdate::ClearedTier(known.0);
                actions.push(labelled(update, known.1.clone()));
            }
        }
        // One event: each update that is applied for it is recorded as one.
        match actions.len() - before {
            0 => self.counts.ignored += 1,
            more => self.counts.events += more as u64 - 1,
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
        self.order.reset();
    }

    fn take(&mut self, event: &VllmEvent, actions: &mut Vec<Action>) {
        let location = match event {
            VllmEvent::Stored(event) => {
                self.counts.kinds.stored += 1;
                Some(&event.location)
            }
            VllmEvent::Removed(event) => {
                self.counts.kinds.removed += 1;
                Some(&event.location)
            }
            VllmEvent::Cleared => {
                self.counts.kinds.cleared += 1;
                None
            }
            VllmEvent::Unknown { .. } => None,
        };
        let unlisted = location.filter(|location| Medium::of(location) == Medium::Unlisted);
        self.counts.kinds.unlisted_media += u64::from(unlisted.is_some());
        let label = unlisted.and_then(|location| location.medium.clone());
        match self.normaliser.update(event) {
            Ok(update) => {
                if let IndexUpdate::Stored(stored) = &update
                    && stored.tier == Tier::Device
                {
                    self.block_size = Some(stored.block_size.tokens());
                }
                actions.push(labelled(update, label));
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

fn deliver(ordered: Vec<StreamOutput>, actions: &mut Vec<Action>) {
    actions.extend(ordered.into_iter().map(Action::Envelope));
}

fn is_medium(known: &(Tier, Option<Arc<str>>), tier: Tier, label: Option<&Arc<str>>) -> bool {
    known.0 == tier
        && match (&known.1, label) {
            (Some(known), Some(label)) => known.eq_ignore_ascii_case(label),
            (known, label) => known.is_none() && label.is_none(),
        }
}

fn labelled(update: IndexUpdate, label: Option<Arc<str>>) -> Action {
    match label {
        Some(label) => Action::ApplyLabelled { update, label },
        None => Action::Apply(update),
    }
}
