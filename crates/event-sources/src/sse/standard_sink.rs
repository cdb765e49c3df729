//! The sink of standard-contract envelopes (RFC 1527), for the block index.

use std::{collections::BTreeMap, sync::Arc};

use kv_blocks::{DpRank, HashScheme, Moment, Namespace, Target, WorkerId};
use kv_events::standard::{
    EventRejection, HashKeyedUpdate, StandardEvent, StandardStreams, StandardStreamsSettings,
    StreamKey, StreamOutput, decode_json, to_hashed,
};
use kv_index::{KvIndex, UpdateOutcome};

use super::{EventSink, SinkCounts, StreamMessage};

/// Most ranks of one source; events of further ones are ignored.
const MAX_RANKS: usize = 1_024;

/// The specification of a [`StandardSink`].
#[derive(Clone, Debug)]
pub struct StandardSinkSpec {
    /// The worker whose caches the events describe.
    pub id: WorkerId,
    /// Defaults for the dimensions that envelopes leave open. Events of another model are ignored.
    pub registration: StreamKey,
    /// The index's hash scheme. Events that name blocks by hash only are accepted if it is XXH3.
    pub scheme: HashScheme,
}

/// Enters the events of one source's envelopes into a [`KvIndex`], each stream in the order of its
/// numbers.
#[derive(Debug)]
pub struct StandardSink {
    spec: StandardSinkSpec,
    index: Arc<KvIndex>,
    streams: StandardStreams,
    /// Ranks seen in events, each registered with the index, with its model.
    targets: BTreeMap<u32, (Target, Arc<str>)>,
    /// Counts of `streams` that were already added to the totals.
    reported: ReportedCounts,
}

#[derive(Debug, Default)]
struct ReportedCounts {
    duplicates: u64,
    gaps: u64,
    lost: u64,
    restarts: u64,
}

impl StandardSink {
    /// Creates the sink of one source.
    pub fn new(spec: StandardSinkSpec, index: Arc<KvIndex>) -> Self {
        let streams = StandardStreams::new(StandardStreamsSettings::default());
        Self {
            spec,
            index,
            streams,
            targets: BTreeMap::new(),
            reported: ReportedCounts::default(),
        }
    }

    fn carry_out(&mut self, ordered: Vec<StreamOutput>, tally: &mut SinkCounts) {
        for next in ordered {
            match next {
                StreamOutput::Event(event) => self.apply(&event, tally),
                StreamOutput::Hole(key) => {
                    if let Some((target, _)) = self.targets.get(&rank(&key)) {
                        self.index.mark_loss(*target);
                    }
                }
                StreamOutput::Restarted(key) => self.clear_stream(&key),
            }
        }
    }

    /// Adds the new counts of the streams' order to the totals.
    fn count(&mut self, tally: &mut SinkCounts) {
        let counts = self.streams.counts();
        let told = ReportedCounts {
            duplicates: counts.duplicates + counts.late,
            gaps: counts.lost_events,
            lost: counts.lost,
            restarts: counts.restarts,
        };
        tally.counts.duplicates += told.duplicates - self.reported.duplicates;
        tally.counts.gaps += told.gaps - self.reported.gaps;
        tally.counts.lost_batches = tally
            .counts
            .lost_batches
            .saturating_add(told.lost.saturating_sub(self.reported.lost));
        tally.counts.restarts += told.restarts - self.reported.restarts;
        self.reported = told;
    }

    fn apply(&mut self, event: &StandardEvent, tally: &mut SinkCounts) {
        tally.last_seq = Some(event.event_id);
        let Some((target, namespace)) = self.place(&event.stream) else {
            tally.counts.ignored += 1;
            tally.last_error = Some(
                "an event is of another model than its worker's, or names no model or block_size: expected them in the \
                 event or in the registration"
                    .to_owned(),
            );
            return;
        };
        match to_hashed(event, self.spec.scheme) {
            Ok(update) => self.hand_over(target, &namespace, &update, tally),
            // Contradictory data counts as a decode error: other events of the publisher may be
            // wrong too.
            Err(
                refused @ (EventRejection::Mismatch { .. }
                | EventRejection::TokenCount { .. }
                | EventRejection::Repeated),
            ) => {
                tally.unreadable(refused.to_string());
            }
            Err(refused) => {
                tally.counts.ignored += 1;
                tally.last_error = Some(refused.to_string());
            }
        }
    }

    fn hand_over(
        &self,
        target: Target,
        namespace: &Namespace,
        update: &HashKeyedUpdate,
        tally: &mut SinkCounts,
    ) {
        let done = match update {
            HashKeyedUpdate::Stored {
                parent,
                hashes,
                tier,
            } => {
                tally.stored += 1;
                tally.block_size = Some(namespace.block_size.tokens());
                self.index
                    .store_hashes(target, namespace, *parent, hashes, *tier)
            }
            HashKeyedUpdate::Removed { hashes, tier } => {
                tally.removed += 1;
                self.index.remove_hashes(target, namespace, hashes, *tier)
            }
            HashKeyedUpdate::Cleared { tier } => {
                tally.cleared += 1;
                self.index.clear_stream(target, namespace, *tier);
                UpdateOutcome {
                    applied: 1,
                    ..UpdateOutcome::default()
                }
            }
        };
        if done.orphans > 0 {
            tally.counts.orphans += 1;
        } else if done.applied > 0 {
            tally.counts.applied += 1;
        } else {
            tally.counts.ignored += 1;
        }
    }

    /// Returns the target and namespace of a stream. A target has one model: the registration's, or
    /// else the first one in its events.
    fn place(&mut self, key: &StreamKey) -> Option<(Target, Namespace)> {
        let namespace = key.namespace()?;
        let rank = rank(key);
        if !self.targets.contains_key(&rank) {
            if self.targets.len() >= MAX_RANKS {
                return None;
            }
            let target = Target {
                worker: self.spec.id,
                rank: DpRank(rank),
            };
            let model = Arc::clone(
                self.spec
                    .registration
                    .model
                    .as_ref()
                    .unwrap_or(&namespace.model),
            );
            self.index.register(target, Arc::clone(&model));
            self.targets.insert(rank, (target, model));
        }
        let (target, model) = self.targets.get(&rank)?;
        (*model == namespace.model).then_some((*target, namespace))
    }

    fn clear_stream(&self, key: &StreamKey) {
        let (Some((target, _)), Some(namespace)) = (self.targets.get(&rank(key)), key.namespace())
        else {
            return;
        };
        let tier = kv_events::vllm::Medium::parse(key.medium.as_deref(), None).tier();
        self.index.clear_stream(*target, &namespace, tier);
    }
}

/// Returns the rank of a stream; envelopes without one belong to the only rank.
fn rank(key: &StreamKey) -> u32 {
    key.dp_rank.unwrap_or(0)
}

/// Returns whether the message is a note about the stream itself, such as the end of its current
/// state, and not an event.
fn is_note(name: &str) -> bool {
    !name.is_empty()
        && name != "message"
        && !name.starts_with("cache_")
        && !["stored", "removed", "cleared"].contains(&name)
}

impl EventSink for StandardSink {
    // Events missed while disconnected show as missing numbers, so nothing is dropped here.
    fn connected(&mut self) {}

    fn take(&mut self, message: &StreamMessage, now: Moment, tally: &mut SinkCounts) {
        if message.name.as_deref().is_some_and(is_note) {
            tally.counts.events += 1;
            tally.counts.ignored += 1;
            return;
        }
        let events = match decode_json(&message.data) {
            Ok(events) => events,
            Err(error) => return tally.unreadable(error.to_string()),
        };
        for event in events {
            tally.counts.events += 1;
            match event {
                Ok(mut event) => {
                    event.stream = event.stream.or(&self.spec.registration);
                    let ordered = self.streams.take(now, event);
                    self.carry_out(ordered, tally);
                }
                Err(error) => tally.unreadable(error.to_string()),
            }
        }
        self.count(tally);
    }

    fn tick(&mut self, now: Moment, tally: &mut SinkCounts) {
        let ordered = self.streams.tick(now);
        self.carry_out(ordered, tally);
        self.count(tally);
    }

    fn forget(&mut self) {
        self.targets
            .values()
            .for_each(|(target, _)| self.index.clear(*target));
        self.streams = StandardStreams::new(StandardStreamsSettings::default());
        self.reported = ReportedCounts::default();
    }
}
