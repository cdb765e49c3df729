//! The path from an engine to an index, with its faults.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use kv_blocks::Moment;
use kv_events::{
    Action, Input, Sequencer, SequencerSettings, StreamState,
    frames::{self, ReplayForm, ReplayFrame},
};
use kv_index::{KvIndex, TargetDigest};

use super::{
    engine::{CacheTruth, EngineBehavior, EngineEpoch, TARGET, credited, index, mark_of},
    faults::{MultipartMessage, corrupt, disturb, send},
    random::SplitMix64,
};

/// The faults of a storm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storm {
    pub(crate) behavior: EngineBehavior,
    /// Whether the engine has a replay endpoint.
    pub(crate) replay: bool,
    /// Percentage of replays that are refused or cut; at 0 no resync is requested by hand.
    pub(crate) failing: usize,
    /// Percentage of messages that are corrupted.
    pub(crate) corrupted: usize,
}

/// An engine in its latest life, its earlier lives, and the reader.
pub(crate) struct StormWorld {
    storm: Storm,
    dice: SplitMix64,
    epochs: Vec<EngineEpoch>,
    form: ReplayForm,
    /// Messages in transit on the live connection.
    wire: VecDeque<MultipartMessage>,
    /// The rest of the running replay's answer.
    answer: Option<VecDeque<MultipartMessage>>,
    connected: bool,
    sequencer: Sequencer,
    pub(crate) index: KvIndex,
    now: Moment,
    /// Since the last clear removals may have been lost, and the sequencer reports it.
    doubtful: bool,
    /// A message was read that was never sent. The index is unknown from there on until it is
    /// rebuilt.
    corrupted: bool,
    /// The batches applied since the last clear: life and number.
    applied: BTreeSet<(usize, u64)>,
}

impl StormWorld {
    pub(crate) fn new(seed: u64, storm: Storm) -> Self {
        let mut dice = SplitMix64::new(seed);
        let max_pending_batches = if storm.failing > 0 {
            dice.within(1, 20)
        } else {
            1000
        };
        let settings = SequencerSettings {
            replay: storm.replay,
            max_pending_batches,
            ..SequencerSettings::default()
        };
        Self {
            storm,
            epochs: vec![EngineEpoch::new(&mut dice, storm.behavior)],
            form: *dice.pick(&[ReplayForm::Old, ReplayForm::New]),
            dice,
            wire: VecDeque::new(),
            answer: None,
            connected: false,
            sequencer: Sequencer::new(settings),
            index: index(),
            now: Moment::START,
            doubtful: false,
            corrupted: false,
            applied: BTreeSet::new(),
        }
    }

    /// Runs one random event.
    pub(crate) fn step(&mut self) {
        match self.dice.below(100) {
            0..40 => self.publish(),
            40..62 => self.deliver(),
            62..80 => self.answer(self.storm.failing),
            80..86 => disturb(&mut self.dice, &mut self.wire),
            86..89 => self.disconnect(),
            89..94 => self.connect(),
            94..95 => self.restart(),
            95..97 if self.storm.failing > 0 => self.feed(Input::Resync),
            _ => {
                let time = Duration::from_millis(self.dice.roll() % 3000);
                self.pass(time);
            }
        }
    }

    /// Ends the storm: messages in transit arrive, replays are answered, one more batch is
    /// published.
    ///
    /// Returns the time that this took by the sequencer's clock.
    pub(crate) fn quiesce(&mut self) -> Duration {
        let start = self.now;
        self.storm = Storm {
            failing: 0,
            corrupted: 0,
            behavior: EngineBehavior {
                unsent: 0,
                ..self.storm.behavior
            },
            ..self.storm
        };
        self.epochs.last_mut().unwrap().sends_all();
        self.connect();
        self.calm();
        if self.corrupted {
            self.feed(Input::Resync);
            self.calm();
            self.corrupted = false;
        }
        self.publish_one();
        self.calm();
        while self.sequencer.state() != StreamState::Live {
            assert!(
                self.now.since(start) < Duration::from_secs(60),
                "a retry waits 60 s at most"
            );
            self.pass(Duration::from_secs(1));
            self.calm();
        }
        self.now.since(start)
    }

    /// Restarts the engine; the connection returns before its first batch.
    pub(crate) fn begin_anew(&mut self) {
        self.disconnect();
        let epoch = EngineEpoch::new(
            &mut self.dice,
            EngineBehavior {
                unsent: 0,
                ..self.storm.behavior
            },
        );
        self.epochs.push(epoch);
        self.connect();
        for _ in 0..3 {
            self.publish_one();
        }
        self.calm();
    }

    pub(crate) fn digest(&self) -> Vec<TargetDigest> {
        self.index.digest()
    }

    /// The truth of the latest life.
    pub(crate) fn truth(&self) -> &CacheTruth {
        self.epochs
            .last()
            .and_then(EngineEpoch::newest)
            .expect("a batch was published")
    }

    /// Whether every published batch was applied, as far as possible.
    pub(crate) fn is_quiet(&self) -> bool {
        let newest = self
            .epochs
            .last()
            .and_then(|epoch| epoch.batches().checked_sub(1));
        self.wire.is_empty()
            && self.answer.is_none()
            && self.sequencer.state() == StreamState::Live
            && self.sequencer.last_seq() == newest
            && newest.is_some_and(|newest| self.applied.contains(&(self.epochs.len() - 1, newest)))
    }

    /// Whether one life is followed on top of another. The connection was lost for so long that the
    /// publisher no longer keeps the last applied batch, and nothing else distinguishes a new life
    /// from the old one: the batches between count as a hole, and known blocks stay.
    pub(crate) fn is_unrecognised(&self) -> bool {
        let epoch = |batch: Option<&(usize, u64)>| batch.map(|(epoch, _)| *epoch);
        let mixed =
            self.is_forgetful() && epoch(self.applied.first()) != epoch(self.applied.last());
        // They are in the order of lives: the number that identifies a life was behind none of the
        // later ones.
        assert!(
            !mixed || self.applied.iter().is_sorted_by_key(|(_, seq)| seq),
            "{:?}",
            self.applied
        );
        mixed
    }

    fn is_forgetful(&self) -> bool {
        self.storm.behavior.retained < usize::MAX
    }

    /// Asserts that every wrongly credited block left the engine in a batch that did not arrive.
    pub(crate) fn blame(&self) {
        let lost = |seq: &u64| !self.applied.contains(&(self.epochs.len() - 1, *seq));
        let epoch = self.epochs.last().unwrap();
        for block in credited(&self.index).difference(&self.truth().resident) {
            let removed = |seq: &u64| {
                epoch
                    .truth(*seq)
                    .is_some_and(|truth| truth.removed.contains(block))
            };
            let culprit = (0..epoch.batches()).filter(removed).find(lost);
            assert!(
                culprit.is_some(),
                "{block:?} is credited though its removal came"
            );
        }
    }

    fn publish(&mut self) {
        let Some((seq, payload)) = self.publish_quietly() else {
            return;
        };
        if !self.connected {
            return;
        }
        send(
            &mut self.dice,
            &mut self.wire,
            frames::encode_live(b"kv", seq, &payload),
        );
    }

    fn publish_quietly(&mut self) -> Option<(u64, Vec<u8>)> {
        self.epochs.last_mut().unwrap().publish(&mut self.dice)
    }

    /// Publishes a batch that arrives.
    fn publish_one(&mut self) {
        let (seq, payload) = self
            .publish_quietly()
            .expect("unsent batches belong to the storm");
        self.wire
            .push_back(frames::encode_live(b"kv", seq, &payload));
    }

    fn deliver(&mut self) {
        if let Some(mut message) = self.wire.pop_front() {
            let corrupted = corrupt(&mut self.dice, self.storm.corrupted, &mut message);
            // A message without a valid layout is counted and dropped, and missed as any lost
            // message.
            let Ok(live) = frames::live(&message) else {
                return;
            };
            self.corrupted |= corrupted;
            self.feed(Input::Live {
                seq: live.seq,
                payload: live.payload,
            });
        }
    }

    /// A part of the running replay's answer arrives, or the replay fails.
    fn answer(&mut self, failing: usize) {
        let Some(answer) = &mut self.answer else {
            return;
        };
        let Some(mut message) = answer.pop_front().filter(|_| !self.dice.chance(failing)) else {
            return self.fail();
        };
        self.corrupted |= corrupt(&mut self.dice, self.storm.corrupted, &mut message);
        match frames::replay(&message) {
            Ok(ReplayFrame::Batch { seq, payload }) => {
                self.feed(Input::ReplayBatch { seq, payload })
            }
            Ok(ReplayFrame::End) => {
                self.answer = None;
                self.feed(Input::ReplayEnd);
            }
            Err(_) => self.fail(),
        }
    }

    fn fail(&mut self) {
        self.answer = None;
        // From here on the stream continues without the missing batches, until a replay brings
        // them.
        self.doubtful = true;
        self.feed(Input::ReplayFailed);
    }

    fn disconnect(&mut self) {
        self.wire.clear();
        self.answer = None;
        if std::mem::take(&mut self.connected) {
            self.feed(Input::Disconnected);
        }
    }

    fn connect(&mut self) {
        if !std::mem::replace(&mut self.connected, true) {
            self.feed(Input::Connected);
        }
    }

    /// The process ends and restarts, perhaps with some batches before the reader connects.
    fn restart(&mut self) {
        self.disconnect();
        let epoch = EngineEpoch::new(&mut self.dice, self.storm.behavior);
        self.epochs.push(epoch);
        for _ in 0..self.dice.below(4) {
            self.publish();
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.feed(Input::Tick);
    }

    /// All messages in transit arrive.
    fn calm(&mut self) {
        while self.answer.is_some() || !self.wire.is_empty() {
            self.answer(0);
            self.deliver();
        }
    }

    fn feed(&mut self, input: Input<'_>) {
        for action in self.sequencer.on(self.now, input) {
            match action {
                // A corrupted message may name any medium.
                Action::Apply(update) | Action::ApplyLabelled { update, .. } => {
                    let named = mark_of(&update).and_then(|name| self.marked(name));
                    self.applied.extend(named);
                    let done = self.index.apply(TARGET, &update);
                    self.sequencer
                        .record(done.applied, done.orphans, done.ignored);
                }
                Action::Envelope(output) => panic!("{output:?}"),
                Action::Clear => {
                    self.index.clear(TARGET);
                    self.applied.clear();
                    self.doubtful = false;
                }
                Action::Loss => {
                    self.index.mark_loss(TARGET);
                    self.doubtful = true;
                }
                Action::Confirm => panic!("nothing was to be resumed"),
                Action::RequestReplay { from } => self.answer = Some(self.whole_answer(from)),
            }
        }
        if self.storm.replay && !self.doubtful && !self.corrupted && !self.is_unrecognised() {
            self.is_exact();
        }
    }

    fn marked(&self, name: u64) -> Option<(usize, u64)> {
        let of = |(at, epoch): (usize, &EngineEpoch)| Some((at, epoch.marked(name)?));
        self.epochs.iter().enumerate().find_map(of)
    }

    fn whole_answer(&self, from: u64) -> VecDeque<MultipartMessage> {
        let batches = self.epochs.last().unwrap().history(from);
        let message =
            |(seq, payload): (u64, Vec<u8>)| frames::encode_replay(self.form, b"kv", seq, &payload);
        batches
            .into_iter()
            .map(message)
            .chain([frames::encode_replay_end(self.form)])
            .collect()
    }

    /// Asserts that the index equals one that applied the batches up to the last one, in whichever
    /// life, and credits nothing that the engine did not hold then. If the history's beginning is
    /// gone, only the latter.
    fn is_exact(&self) {
        let (digest, credited) = (self.digest(), credited(&self.index));
        let Some(seq) = self.sequencer.last_seq() else {
            return assert_eq!(digest, [], "no batch of this life arrived");
        };
        let is_so = |truth: &&CacheTruth| {
            credited.is_subset(&truth.resident) && (self.is_forgetful() || truth.digest == digest)
        };
        let truth = self
            .epochs
            .iter()
            .filter_map(|epoch| epoch.truth(seq))
            .find(is_so);
        assert!(
            truth.is_some(),
            "no life was like this after batch {seq}: {credited:?}"
        );
    }
}
