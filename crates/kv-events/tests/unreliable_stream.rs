//! However a stream is mistreated, what is applied in the end is the publisher's own order.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use contract_id::contract;
use kv_blocks::{IndexUpdate, Moment};
use kv_events::{
    Action, Input, Sequencer, SequencerSettings, StreamState,
    vllm::{HashForm, Shape, WireEvent, WireRemoved, encode},
};
use proptest::{collection::vec, prelude::*};

/// What happens to the stream next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A batch is published and arrives.
    Publish,
    /// A batch is published and lost.
    Lose,
    /// The batch before arrives a second time.
    Repeat,
    /// Two batches are published and arrive the wrong way round.
    Swap,
    /// The running replay, if any, sends so many of its batches.
    Replay(usize),
    /// The connection breaks and comes back after so many lost batches.
    Reconnect(usize),
    /// The engine restarts: connection lost, numbers from 0 again.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => Just(Step::Publish),
        2 => Just(Step::Lose),
        1 => Just(Step::Repeat),
        1 => Just(Step::Swap),
        3 => (1..4_usize).prop_map(Step::Replay),
        1 => (0..4_usize).prop_map(Step::Reconnect),
        1 => Just(Step::Restart),
    ]
}

/// A publisher, the sequencer that follows it, and what the sequencer had applied.
struct World {
    /// The batches of this life; each is told apart by a mark.
    published: Vec<u64>,
    marks: u64,
    sequencer: Sequencer,
    applied: Vec<u64>,
    /// The rest of a running replay's answer. The publisher answers with what it had when asked.
    answer: Option<Vec<(u64, u64)>>,
}

impl World {
    fn new(max_pending_batches: usize) -> Self {
        let settings = SequencerSettings { replay: true, max_pending_batches, ..SequencerSettings::default() };
        let mut world = Self {
            published: Vec::new(),
            marks: 0,
            sequencer: Sequencer::new(settings),
            applied: Vec::new(),
            answer: None,
        };
        world.on(Input::Connected);
        world
    }

    fn on(&mut self, input: Input<'_>) {
        for action in self.sequencer.on(Moment::START, input) {
            match action {
                Action::Apply(IndexUpdate::Removed(removed)) => self.applied.push(removed.hashes[0].0),
                Action::Apply(other) => panic!("{other:?}"),
                Action::Clear => self.applied.clear(),
                Action::RequestReplay { from } => {
                    assert!(self.answer.is_none(), "one replay at a time");
                    let numbered = (0..).zip(self.published.iter().copied());
                    self.answer = Some(numbered.filter(|(seq, _)| *seq >= from).collect());
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
        self.on(Input::Live { seq: Some(seq), payload: &payload });
    }

    fn replay(&mut self, batches: usize) {
        for _ in 0..batches {
            let Some(answer) = &mut self.answer else { return };
            if answer.is_empty() {
                self.answer = None;
                self.on(Input::ReplayEnd);
            } else {
                let (seq, mark) = answer.remove(0);
                self.on(Input::ReplayBatch { seq, payload: &payload(mark) });
            }
        }
    }

    fn reconnect(&mut self) {
        self.answer = None;
        self.on(Input::Disconnected);
        self.on(Input::Connected);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Publish => {
                let seq = self.publish();
                self.deliver(seq);
            }
            Step::Lose => {
                self.publish();
            }
            Step::Repeat => {
                if let Some(seq) = self.published.len().checked_sub(1) {
                    self.deliver(seq as u64);
                }
            }
            Step::Swap => {
                let (first, second) = (self.publish(), self.publish());
                self.deliver(second);
                self.deliver(first);
            }
            Step::Replay(batches) => self.replay(batches),
            Step::Reconnect(lost) => {
                for _ in 0..lost {
                    self.publish();
                }
                self.reconnect();
            }
            Step::Restart => {
                self.published.clear();
                self.reconnect();
            }
        }
    }

    /// One more batch arrives and every replay is answered to its end.
    fn settle(&mut self) {
        self.step(Step::Publish);
        while self.answer.is_some() {
            self.replay(1);
        }
    }
}

fn payload(mark: u64) -> Vec<u8> {
    let removed = WireRemoved { hashes: vec![mark.into()], medium: None };
    encode(1.0, None, &[WireEvent::Removed(removed)], Shape::Map, HashForm::Int)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[contract("MC11")]
    fn what_is_applied_ends_as_the_publishers_own_order(steps in vec(step(), 0..60), max_pending in 1..8_usize) {
        let mut world = World::new(max_pending);
        for step in steps {
            world.step(step);
            // At any time: a part of this or an earlier life, in order and nothing twice.
            prop_assert!(world.applied.windows(2).all(|two| two[0] < two[1]), "{:?}", world.applied);
        }
        world.settle();
        prop_assert_eq!(&world.applied, &world.published);
        prop_assert_eq!(world.sequencer.state(), StreamState::Live);
        prop_assert_eq!(world.sequencer.counts().holes, 0);
        prop_assert_eq!(world.sequencer.last_seq(), Some(world.published.len() as u64 - 1));
    }
}
