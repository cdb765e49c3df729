//! The stream of an engine's events: ordering, and conversion into actions.

use kv_blocks::{BlockSize, EngineHash, IndexUpdate, NamedBlocks, RemovedBlocks, Tier};

use super::{
    counts::TrtCounts,
    event::{TrtData, TrtEvent, decode},
    groups::{tier, updates},
};
use crate::{BatchError, EventError};

/// Most ranks of one engine; events of further ones are counted as unusable.
const MAX_RANKS: usize = 1_024;

/// An action for one rank of the engine (`None`: it has no ranks), to be carried out in order.
#[derive(Clone, Debug, PartialEq)]
pub enum TrtAction {
    /// Apply this update to the index.
    Apply {
        /// The rank.
        rank: Option<u32>,
        /// The update.
        update: IndexUpdate,
    },
    /// Events were lost, or the engine restarted: drop the known blocks of this rank.
    Clear {
        /// The rank.
        rank: Option<u32>,
    },
    /// An event could not be decoded, and may have been a removal.
    Hole {
        /// The rank; `None` too if it could not be decoded.
        rank: Option<u32>,
    },
}

/// The events of one engine, in the order of its lists.
///
/// ```
/// use kv_blocks::BlockSize;
/// use kv_events::trtllm::{TrtAction, TrtStream};
///
/// let mut stream = TrtStream::new(TrtStream::default_block_size());
/// let removed = br#"[{"event_id": 0, "window_size": 4096,
///     "data": {"type": "removed", "block_hashes": [17]}}]"#;
/// assert!(matches!(stream.take(removed)?[..], [TrtAction::Apply { rank: None, .. }]));
/// let later = br#"[{"event_id": 5, "window_size": 4096,
///     "data": {"type": "removed", "block_hashes": [18]}}]"#;
/// assert!(matches!(stream.take(later)?[..], [TrtAction::Clear { .. }, TrtAction::Apply { .. }]));
/// # Ok::<(), kv_events::BatchError>(())
/// ```
#[derive(Debug)]
pub struct TrtStream {
    block_size: BlockSize,
    ranks: Vec<TrtRank>,
    counts: TrtCounts,
    last_error: Option<EventError>,
}

#[derive(Debug)]
struct TrtRank {
    number: Option<u32>,
    /// The number of the next event; `None` if unknown.
    next: Option<u64>,
    /// The largest attention window so far. Models with several publish each block once per window,
    /// and only the largest holds all tokens.
    window: Option<i64>,
    /// Whether an update was applied that a clear would have to undo.
    has_applied: bool,
    /// The tiers that may contain blocks, in the order of [`Tier::ALL`].
    tiers: [bool; 4],
}

impl TrtStream {
    /// Creates the state before the first list. `block_size` is the engine's `tokens_per_block`.
    pub fn new(block_size: BlockSize) -> Self {
        Self {
            block_size,
            ranks: Vec::new(),
            counts: TrtCounts::default(),
            last_error: None,
        }
    }

    /// Returns the default of `tokens_per_block`: 32.
    pub fn default_block_size() -> BlockSize {
        BlockSize::new(32).expect("32 tokens are a block")
    }

    /// Takes the answer to one poll. On an error the list is lost; the next one's numbers reveal
    /// the loss.
    pub fn take(&mut self, list: &[u8]) -> Result<Vec<TrtAction>, BatchError> {
        let mut actions = Vec::new();
        for event in decode(list)? {
            self.counts.events += 1;
            match event {
                Ok(event) => self.event(event, &mut actions),
                Err(error) => {
                    // The event had a number, but its rank is unknown.
                    for rank in &mut self.ranks {
                        rank.next = None;
                    }
                    self.malformed(None, error, &mut actions);
                }
            }
        }
        Ok(actions)
    }

    /// Returns the totals so far.
    pub fn counts(&self) -> TrtCounts {
        self.counts
    }

    /// Returns the error of the last malformed event.
    pub fn last_error(&self) -> Option<&EventError> {
        self.last_error.as_ref()
    }

    fn malformed(&mut self, rank: Option<u32>, error: EventError, actions: &mut Vec<TrtAction>) {
        self.counts.malformed += 1;
        self.last_error = Some(error);
        actions.push(TrtAction::Hole { rank });
    }

    fn event(&mut self, event: TrtEvent, actions: &mut Vec<TrtAction>) {
        let number = event.rank;
        let Some(at) = self.rank(number) else {
            self.counts.unusable += 1;
            return;
        };
        let rank = &mut self.ranks[at];
        if rank.next.is_some_and(|next| event.event_id != next) {
            let restarted = rank.next > Some(event.event_id);
            *(if restarted {
                &mut self.counts.restarts
            } else {
                &mut self.counts.overflows
            }) += 1;
            if restarted {
                rank.window = None;
            }
            rank.clear(actions);
        }
        rank.next = event.event_id.checked_add(1);
        if event.window < rank.window {
            self.counts.other_window += 1;
            return;
        }
        if event.window > rank.window {
            // The blocks applied until now were of a smaller window.
            if rank.window.is_some() && rank.has_applied {
                rank.clear(actions);
            }
            rank.window = event.window;
        }
        let data = match event.data {
            Ok(data) => data,
            Err(error) => return self.malformed(number, error, actions),
        };
        let Some(updates) = rank.updates(data, self.block_size, &mut self.counts) else {
            return;
        };
        rank.has_applied = true;
        self.counts.applied += 1;
        actions.extend(updates.into_iter().map(|update| TrtAction::Apply {
            rank: number,
            update,
        }));
    }

    fn rank(&mut self, number: Option<u32>) -> Option<usize> {
        let known = self.ranks.iter().position(|rank| rank.number == number);
        if known.is_none() && self.ranks.len() < MAX_RANKS {
            self.ranks.push(TrtRank {
                number,
                next: None,
                window: None,
                has_applied: false,
                tiers: [false; 4],
            });
            return Some(self.ranks.len() - 1);
        }
        known
    }
}

impl TrtRank {
    fn clear(&mut self, actions: &mut Vec<TrtAction>) {
        actions.push(TrtAction::Clear { rank: self.number });
        self.has_applied = false;
        self.tiers = [false; 4];
    }

    fn updates(
        &mut self,
        data: TrtData,
        size: BlockSize,
        counts: &mut TrtCounts,
    ) -> Option<Vec<IndexUpdate>> {
        match data {
            TrtData::Stored { parent, blocks } => {
                for block in &blocks {
                    self.tiers[tier(block.level).index()] = true;
                }
                updates(parent, blocks, size, counts)
            }
            // Removed from every level: the event does not name the level it was on.
            TrtData::Removed { hashes } if !hashes.is_empty() => {
                let may_hold = |tier: &Tier| *tier == Tier::Device || self.tiers[tier.index()];
                Some(
                    Tier::ALL
                        .into_iter()
                        .filter(may_hold)
                        .map(|tier| removed(hashes.clone(), tier))
                        .collect(),
                )
            }
            TrtData::Updated {
                hash,
                level: Some((old, new)),
            } if tier(old) != tier(new) => {
                self.tiers[tier(new).index()] = true;
                // In this order the block is never unknown in between.
                Some(vec![
                    IndexUpdate::Named(NamedBlocks {
                        hashes: vec![hash],
                        tier: tier(new),
                    }),
                    removed(vec![hash], tier(old)),
                ])
            }
            TrtData::Created
            | TrtData::Removed { .. }
            | TrtData::Updated { .. }
            | TrtData::Unknown => {
                counts.no_effect += 1;
                None
            }
        }
    }
}

fn removed(hashes: Vec<EngineHash>, tier: Tier) -> IndexUpdate {
    IndexUpdate::Removed(RemovedBlocks { hashes, tier })
}
