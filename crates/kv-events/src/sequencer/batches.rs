//! What is in the batches: decoding, normalising, counting.

use kv_blocks::{IndexUpdate, Tier};

use super::{Action, Counts};
use crate::vllm::{self, Event, Medium, Normaliser};

/// Reads batches one after the other and remembers what they said about their publisher.
#[derive(Debug, Default)]
pub(super) struct Batches {
    normaliser: Normaliser,
    pub(super) counts: Counts,
    pub(super) ts: Option<f64>,
    pub(super) rank: Option<u32>,
    pub(super) block_size: Option<u32>,
    pub(super) last_error: Option<String>,
}

impl Batches {
    pub(super) fn apply(&mut self, payload: &[u8], actions: &mut Vec<Action>) {
        self.counts.batches += 1;
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

    /// The next batch comes from another life of the publisher, maybe with another model.
    pub(super) fn forget(&mut self) {
        self.normaliser = Normaliser::default();
    }

    fn take(&mut self, event: &Event, actions: &mut Vec<Action>) {
        let medium = match event {
            Event::Stored(event) => {
                self.counts.stored += 1;
                Medium::parse(event.medium.as_deref(), None)
            }
            Event::Removed(event) => {
                self.counts.removed += 1;
                Medium::parse(event.medium.as_deref(), None)
            }
            Event::Cleared => {
                self.counts.cleared += 1;
                Medium::Known(Tier::Device)
            }
            Event::Unknown { .. } => Medium::Known(Tier::Device),
        };
        self.counts.unlisted_media += u64::from(medium == Medium::Unlisted);
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

    /// Nobody knows what it said; it may have been removals.
    fn fault(&mut self, error: String, actions: &mut Vec<Action>) {
        self.counts.decode_errors += 1;
        self.last_error = Some(error);
        if actions.last() != Some(&Action::Hole) {
            actions.push(Action::Hole);
        }
    }
}
