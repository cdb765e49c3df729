//! What is observed of one publisher.

use std::collections::BTreeSet;

use kv_blocks::BlockSize;
use kv_events::vllm::{Medium, VllmEvent};

/// Most distinct topics, media, group kinds or ranks.
pub(super) const MOST_NAMES: usize = 16;
/// Longest of such names stored, in characters.
pub(super) const LONGEST_NAME: usize = 200;

/// Observations of a publisher so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PublisherObservation {
    pub(crate) link: LinkStatus,
    /// Batches that could be decoded.
    pub(crate) batches: u64,
    /// Batches and events that could not be decoded.
    pub(crate) unreadable: u64,
    /// Stores among the events, of any kind.
    pub(crate) stores: u64,
    /// Stores with token ids per block, which can be credited.
    pub(crate) usable_stores: u64,
    /// Topics, in the order of their first message.
    pub(crate) topics: Vec<String>,
    pub(crate) numbers: BatchNumbers,
    /// Ranks named by batches.
    pub(crate) ranks: BTreeSet<u32>,
    /// Tokens per block of the last device store, or of the first one elsewhere.
    pub(crate) block_size: Option<BlockSize>,
    /// Unknown media.
    pub(crate) unknown_media: BTreeSet<String>,
    /// Kinds of cache groups that do not hold every token.
    pub(crate) partial_groups: BTreeSet<String>,
    /// Age of the last batch by both clocks, in seconds; negative: its time is in the future.
    pub(crate) age_s: Option<f64>,
}

/// The numbers of a publisher's batches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BatchNumbers {
    /// The last batch's.
    pub(crate) last: Option<u64>,
    /// Missing numbers.
    pub(crate) missed: u64,
    /// Batches without a number.
    pub(crate) unnumbered: u64,
}

/// Connection state of a publisher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum LinkStatus {
    /// Not known yet.
    #[default]
    Waiting,
    Connected,
    /// Reason for the failure.
    Unreachable(String),
}

impl BatchNumbers {
    pub(super) fn record(&mut self, seq: Option<u64>) {
        let Some(seq) = seq else {
            self.unnumbered += 1;
            return;
        };
        if let Some(missed) = self
            .last
            .and_then(|last| seq.checked_sub(last.saturating_add(1)))
        {
            self.missed = self.missed.saturating_add(missed);
        }
        self.last = Some(seq);
    }
}

impl PublisherObservation {
    /// Returns a topic's index in the list; `None` if the list is full.
    pub(super) fn topic(&mut self, topic: String) -> Option<u32> {
        let known = self.topics.iter().position(|known| *known == topic);
        let at = known.or_else(|| {
            (self.topics.len() < MOST_NAMES).then(|| {
                self.topics.push(topic);
                self.topics.len() - 1
            })
        });
        u32::try_from(at?).ok()
    }

    pub(super) fn names(&mut self, event: &VllmEvent) {
        let VllmEvent::Stored(stored) = event else {
            return;
        };
        self.stores += 1;
        let cut = |name: &str| name.chars().take(LONGEST_NAME).collect::<String>();
        if Medium::of(&stored.location) == Medium::Unlisted && self.unknown_media.len() < MOST_NAMES
        {
            let medium = stored.location.medium.as_deref();
            self.unknown_media.insert(cut(medium.unwrap_or_default()));
        }
        if let Some(kind) = stored.group.spec_kind.as_deref()
            && !matches!(kind, "full_attention" | "mla_attention")
            && self.partial_groups.len() < MOST_NAMES
        {
            self.partial_groups.insert(cut(kind));
        }
    }
}
