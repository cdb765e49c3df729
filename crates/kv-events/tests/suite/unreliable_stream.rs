//! Whatever faults a stream has, the applied batches end in the publisher's order.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use contract_id::contract;
use kv_blocks::{IndexUpdate, Moment};
use kv_events::{
    Action, Input, Sequencer, SequencerSettings, StreamState,
    vllm::{EventEncoding, WireEvent, WireRemoved, encode},
};
use proptest::{collection::vec, prelude::*};

/// The next event of the stream.
#[derive(Clone, Copy, Debug)]
enum StreamStep {
    /// A batch is published and arrives.
    Publish,
    /// This many batches are published and lost.
    Lose(usize),
    /// The previous batch arrives a second time.
    Repeat,
    /// Two batches are published and arrive in reverse order.
    Swap,
    /// The running replay, if any, sends this many of its batches.
    Replay(usize),
    /// The connection breaks and returns after this many lost batches.
    Reconnect(usize),
    /// The engine restarts: connection lost, numbers from 0 again.
    Restart,
    /// A resync is requested.
    Resync,
    /// The running replay, if any, breaks off.
    BreakOff,
}

fn step() -> impl Strategy<Value = StreamStep> {
    prop_oneof![
        5 => Just(StreamStep::Publish),
        2 => Just(StreamStep::Lose(1)),
        1 => Just(StreamStep::Repeat),
        1 => Just(StreamStep::Swap),
        3 => (1..4_usize).prop_map(StreamStep::Replay),
        1 => (0..4_usize).prop_map(StreamStep::Reconnect),
        1 => Just(StreamStep::Restart),
        1 => Just(StreamStep::Resync),
    ]
}

/// The same with histories so long that an answer overflows the publisher's queue.
fn long_step() -> impl Strategy<Value = StreamStep> {
    prop_oneof![
        3 => step(),
        1 => (100..900_usize).prop_map(StreamStep::Lose),
        1 => (200..600_usize).prop_map(StreamStep::Replay),
    ]
}

/// Events of a stream whose publisher never restarts and sends in order and once, but keeps only
/// its latest batches.
fn short_step() -> impl Strategy<Value = StreamStep> {
    prop_oneof![
        5 => Just(StreamStep::Publish),
        2 => (1..4_usize).prop_map(StreamStep::Lose),
        3 => (1..4_usize).prop_map(StreamStep::Replay),
        1 => (0..4_usize).prop_map(StreamStep::Reconnect),
        1 => Just(StreamStep::Resync),
        1 => Just(StreamStep::BreakOff),
    ]
}

/// The losses of an answer that overflows the publisher's queue.
#[derive(Clone, Copy, Debug)]
struct OverflowMode {
    /// Number of messages that always fit.
    messages: usize,
    /// Which later messages fit, in runs of 50: one bit for each run, repeated.
    room: u64,
}

impl OverflowMode {
    const ENDLESS: Self = Self {
        messages: usize::MAX,
        room: 0,
    };

    fn takes(&self, message: usize) -> bool {
        message < self.messages || self.room >> ((message - self.messages) / 50 % 64) & 1 == 1
    }
}

/// Draws a queue from a little above the shortest answer that may lose batches.
fn queue() -> impl Strategy<Value = OverflowMode> {
    (260..400_usize, any::<u64>()).prop_map(|(messages, room)| OverflowMode { messages, room })
}

/// The rest of a running replay's answer.
struct PendingAnswer {
    batches: VecDeque<(u64, u64)>,
    /// Whether the end marker fitted.
    ends: bool,
}

/// A publisher, the sequencer that follows it, and the applied batches.
struct UnreliableWorld {
    /// The batches of this life, each with a unique mark.
    published: Vec<u64>,
    /// Number of them that the publisher keeps.
    retained: usize,
    marks: u64,
    sequencer: Sequencer,
    now: Moment,
    /// The batches applied since the last clear.
    applied: Vec<u64>,
    /// All batches ever applied.
    ever: BTreeSet<u64>,
    /// The publisher answers with its history at the time of the request.
    answer: Option<PendingAnswer>,
    /// Whether that history was empty.
    had_nothing: bool,
    /// Whether that history had the first batch.
    had_beginning: bool,
    queue: OverflowMode,
}

impl UnreliableWorld {
    fn new(max_pending_batches: usize, queue: OverflowMode, retained: usize) -> Self {
        let settings = SequencerSettings {
            replay: true,
            max_pending_batches,
            ..SequencerSettings::default()
        };
        let mut world = Self {
            published: Vec::new(),
            retained,
            marks: 0,
            sequencer: Sequencer::new(settings),
            now: Moment::START,
            applied: Vec::new(),
            ever: BTreeSet::new(),
            answer: None,
            had_nothing: true,
            had_beginning: true,
            queue,
        };
        world.on(Input::Connected);
        world
    }

    fn on(&mut self, input: Input<'_>) {
        for action in self.sequencer.on(self.now, input) {
            match action {
                Action::Apply(IndexUpdate::Removed(removed)) => {
                    self.applied.push(removed.hashes[0].0);
                    self.ever.insert(removed.hashes[0].0);
                }
                other @ (Action::Apply(_) | Action::ApplyLabelled { .. } | Action::Envelope(_)) => {
                    panic!("{other:?}")
                }
                Action::Clear => {
                    assert!(
                        self.applied.is_empty() || self.had_beginning,
                        "the cleared batches cannot be fetched again"
                    );
                    self.applied.clear();
                }
                Action::Loss => {
                    assert!(
                        self.had_nothing || self.retained < usize::MAX,
                        "the publisher still has every batch"
                    );
                }
                Action::Confirm => panic!("nothing was to be resumed"),
                Action::RequestReplay { from } => {
                    let gives_up = matches!(input, Input::ReplayBatch { .. });
                    assert!(
                        self.answer.is_none() || gives_up,
                        "an answer is abandoned only for its content"
                    );
                    let dropped = self.published.len().saturating_sub(self.retained);
                    self.had_beginning = dropped == 0;
                    let retained = (0..).zip(self.published.iter().copied()).skip(dropped);
                    let all: Vec<_> = retained.filter(|(seq, _)| *seq >= from).collect();
                    self.had_nothing = self.published.is_empty();
                    let ends = self.queue.takes(all.len());
                    let taken = all
                        .into_iter()
                        .enumerate()
                        .filter(|(message, _)| self.queue.takes(*message));
                    self.answer = Some(PendingAnswer {
                        batches: taken.map(|(_, batch)| batch).collect(),
                        ends,
                    });
                }
            }
        }
    }

    fn publish(&mut self) -> u64 {
        self.marks += 1;
        self.published.push(self.marks);
        self.published.len() as u64 - 1
    }

    fn deliver(&mut self, seq: u64) {
        let payload = payload(self.published[usize::try_from(seq).unwrap()]);
        self.on(Input::Live {
            seq: Some(seq),
            payload: &payload,
        });
    }

    fn replay(&mut self, batches: usize) {
        for _ in 0..batches {
            let Some(answer) = &mut self.answer else {
                return;
            };
            match (answer.batches.pop_front(), answer.ends) {
                (Some((seq, mark)), _) => self.on(Input::ReplayBatch {
                    seq,
                    payload: &payload(mark),
                }),
                (None, ends) => {
                    self.answer = None;
                    self.on(if ends {
                        Input::ReplayEnd
                    } else {
                        Input::ReplayFailed
                    });
                }
            }
        }
    }

    fn reconnect(&mut self) {
        self.answer = None;
        self.on(Input::Disconnected);
        self.on(Input::Connected);
    }

    fn step(&mut self, step: StreamStep) {
        match step {
            StreamStep::Publish => {
                let seq = self.publish();
                self.deliver(seq);
            }
            StreamStep::Lose(lost) => {
                for _ in 0..lost {
                    self.publish();
                }
            }
            StreamStep::Repeat => {
                if let Some(seq) = self.published.len().checked_sub(1) {
                    self.deliver(seq as u64);
                }
            }
            StreamStep::Swap => {
                let (first, second) = (self.publish(), self.publish());
                self.deliver(second);
                self.deliver(first);
            }
            StreamStep::Replay(batches) => self.replay(batches),
            StreamStep::Reconnect(lost) => {
                for _ in 0..lost {
                    self.publish();
                }
                self.reconnect();
            }
            StreamStep::Resync => self.on(Input::Resync),
            StreamStep::BreakOff => {
                if self.answer.take().is_some() {
                    self.on(Input::ReplayFailed);
                }
            }
            StreamStep::Restart => {
                self.published.clear();
                self.reconnect();
            }
        }
    }

    /// One more batch arrives and every replay is answered to its end, including retried ones.
    fn quiesce(&mut self) {
        self.step(StreamStep::Publish);
        loop {
            while self.answer.is_some() {
                self.replay(1);
            }
            if self.sequencer.state() == StreamState::Live {
                return;
            }
            self.now = self.now + Duration::from_secs(60);
            self.on(Input::Tick);
        }
    }
}

fn payload(mark: u64) -> Vec<u8> {
    let removed = WireRemoved {
        hashes: vec![mark.into()],
        medium: None,
    };
    encode(
        1.0,
        None,
        &[WireEvent::Removed(removed)],
        EventEncoding::CURRENT,
    )
}

fn survives(mut world: UnreliableWorld, steps: Vec<StreamStep>) -> Result<(), TestCaseError> {
    for step in steps {
        world.step(step);
        // At any time: a part of this or an earlier life, in order and without duplicates.
        prop_assert!(
            world.applied.windows(2).all(|two| two[0] < two[1]),
            "{:?}",
            world.applied
        );
    }
    world.quiesce();
    prop_assert_eq!(&world.applied, &world.published);
    prop_assert_eq!(world.sequencer.state(), StreamState::Live);
    prop_assert_eq!(world.sequencer.counts().lost_batches, 0);
    prop_assert_eq!(
        world.sequencer.last_seq(),
        Some(world.published.len() as u64 - 1)
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[contract("MC11", "F57")]
    fn applied_batches_end_in_the_publishers_order(steps in vec(step(), 0..60), max_pending in 1..8_usize) {
        survives(UnreliableWorld::new(max_pending, OverflowMode::ENDLESS, usize::MAX), steps)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[contract("MC11")]
    fn applied_batches_end_in_order_even_if_long_answers_lose_some(
        steps in vec(long_step(), 0..40),
        max_pending in 1..8_usize,
        queue in queue(),
    ) {
        survives(UnreliableWorld::new(max_pending, queue, usize::MAX), steps)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[contract("MC11")]
    fn batches_no_longer_kept_stay_applied_and_the_others_end_in_order(
        steps in vec(short_step(), 0..60),
        max_pending in 1..8_usize,
        retained in 1..8_usize,
    ) {
        let broken = steps.iter().any(|step| matches!(step, StreamStep::BreakOff | StreamStep::Reconnect(_)));
        let mut world = UnreliableWorld::new(max_pending, OverflowMode::ENDLESS, retained);
        for step in steps {
            world.step(step);
        }
        world.quiesce();
        // A batch that was applied again counts at its last position.
        let mut seen = BTreeSet::new();
        let last: Vec<_> = world.applied.iter().rev().filter(|mark| seen.insert(**mark)).copied().collect();
        let in_order = |marks: &[u64]| marks.windows(2).all(|two| two[0] > two[1]);
        let retained: Vec<_> = world.published.iter().rev().take(retained).copied().collect();
        let retained_last: Vec<_> = last.iter().filter(|mark| retained.contains(mark)).copied().collect();
        prop_assert_eq!(retained_last, retained, "{:?}", &world.applied);
        // The rest of an answer that broke off may be dropped when it is requested again: it is
        // lost, as any batch.
        prop_assert!(broken || in_order(&last), "{:?}", world.applied);
        prop_assert!(broken || seen == world.ever, "no batch is forgotten: {:?}", world.applied);
        prop_assert_eq!(world.sequencer.counts().restarts, 0);
    }
}
