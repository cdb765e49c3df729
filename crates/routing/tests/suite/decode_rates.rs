//! The time of decode steps is learned from replies, and counts in the choice.

use contract_id::contract;
use kv_blocks::{Moment, WorkerId};
use routing::{AttemptEnd, LearnedState, Pin, Policy, Rates, ReplyMode, ReportedWork};

use crate::fleet::{TestFleet, TestRequest, at_ms, target, test_request, tokens};

/// Tokens of a reply.
const REPLY: u32 = 41;

/// How a reply comes and ends.
#[derive(Clone, Copy)]
struct ReplyKind {
    mode: ReplyMode,
    end: AttemptEnd,
    /// Whether its time is that of its steps; `None`: the engine does not tell its length.
    shows_decode_steps: Option<bool>,
}

const STREAM: ReplyKind = ReplyKind {
    mode: ReplyMode::Streamed,
    end: AttemptEnd::Complete,
    shows_decode_steps: Some(true),
};

/// A fleet with a clock, on which replies follow one another.
struct TimedFleet {
    fleet: TestFleet,
    now_ms: u64,
    served: u32,
}

impl TimedFleet {
    fn new(workers: u32) -> Self {
        Self {
            fleet: TestFleet::with(workers, Policy::Warm),
            now_ms: 1_000,
            served: 0,
        }
    }

    fn now(&self) -> Moment {
        at_ms(self.now_ms)
    }

    /// A prompt of its own.
    fn request(&mut self) -> TestRequest {
        self.served += 1;
        TestRequest {
            random: u64::from(self.served) * 7919,
            ..test_request(tokens(self.served, 4))
        }
    }

    fn serve(&mut self, worker: u32, token_ms: u64, kind: ReplyKind) {
        let request = TestRequest {
            pin: Some(Pin {
                worker: WorkerId(worker),
                rank: None,
            }),
            answer: kind.mode,
            ..self.request()
        };
        let id = self.fleet.plan(self.now(), &request).reservation;
        self.now_ms += 20;
        self.fleet.router.first_token(self.now(), id);
        self.now_ms += token_ms * u64::from(REPLY - 1);
        if let Some(shows_decode_steps) = kind.shows_decode_steps {
            let reported = ReportedWork {
                prompt_tokens: 64,
                cached_tokens: Some(0),
                output_tokens: REPLY,
                shows_decode_steps,
            };
            self.fleet.router.record_work(self.now(), id, reported);
        }
        self.fleet.router.end_attempt(self.now(), id, kind.end);
    }

    /// Three workers alike, but the first takes this time for each token.
    fn taught(token_ms: u64) -> Self {
        let mut timed = Self::new(3);
        for _ in 0..20 {
            timed.serve(1, token_ms, STREAM);
            timed.serve(2, 5, STREAM);
            timed.serve(3, 5, STREAM);
        }
        timed
    }

    fn sequence_ms(&self, worker: u32) -> f64 {
        let rates = self.fleet.router.rates(WorkerId(worker));
        rates.decode_ms_per_sequence
    }

    /// The sequences of each worker after this many requests whose replies do not end.
    fn sequences(&mut self, requests: u32) -> [u32; 3] {
        for _ in 0..requests {
            let request = self.request();
            let id = self.fleet.plan(self.now(), &request).reservation;
            self.now_ms += 20;
            self.fleet.router.first_token(self.now(), id);
        }
        [1, 2, 3].map(|worker| self.fleet.router.load(target(worker)).decode_sequences)
    }
}

#[test]
fn a_worker_that_is_three_times_slower_in_decode_steps_gets_fewer_sequences() {
    let [first, second, third] = TimedFleet::taught(5).sequences(90);
    assert!(
        [first, second, third]
            .iter()
            .all(|own| (25..=35).contains(own)),
        "{first}, {second}, {third}"
    );
    let mut slow = TimedFleet::taught(15);
    let factor = slow.sequence_ms(1) / slow.sequence_ms(2);
    assert!((2.6..=3.4).contains(&factor), "{factor}");
    let [first, second, third] = slow.sequences(90);
    let others = f64::from(second + third) / 2.0;
    let share = f64::from(first) / others;
    assert!((0.25..=0.7).contains(&share), "{first}, {second}, {third}");
    assert!(second.abs_diff(third) <= 6, "{second}, {third}");
}

#[test]
fn a_large_model_costs_more_for_each_sequence() {
    let mut timed = TimedFleet::new(2);
    for _ in 0..20 {
        timed.serve(1, 22, STREAM);
    }
    let found = timed.sequence_ms(1);
    assert!((0.08..=0.12).contains(&found), "{found}");
    // Another worker of the model is taken to be alike.
    assert_eq!(timed.sequence_ms(2), found);
}

#[test]
fn a_reply_that_does_not_show_its_decode_steps_teaches_nothing() {
    for kind in [
        ReplyKind {
            shows_decode_steps: Some(false),
            ..STREAM
        },
        ReplyKind {
            shows_decode_steps: None,
            ..STREAM
        },
        ReplyKind {
            mode: ReplyMode::Whole,
            ..STREAM
        },
        ReplyKind {
            mode: ReplyMode::Elsewhere,
            ..STREAM
        },
        ReplyKind {
            end: AttemptEnd::BrokenOff,
            ..STREAM
        },
        ReplyKind {
            end: AttemptEnd::Cancelled,
            ..STREAM
        },
    ] {
        let mut timed = TimedFleet::new(1);
        for _ in 0..20 {
            timed.serve(1, 100, kind);
        }
        let off = timed.sequence_ms(1) - Rates::PRIOR.decode_ms_per_sequence;
        assert!(off.abs() < 1e-6, "{off}");
    }
}

#[test]
#[contract("DY21")]
fn the_time_of_decode_steps_is_known_to_the_next_process() {
    let before = TimedFleet::taught(15);
    let learned = before.fleet.router.learned(before.now());
    let text = serde_json::to_string(&learned).expect("plain data");
    let learned: LearnedState = serde_json::from_str(&text).expect("what was written");
    let after = TimedFleet::new(3);
    after.fleet.router.take_over(Moment::START, learned);
    for worker in 1..=3 {
        let (was, is) = (before.sequence_ms(worker), after.sequence_ms(worker));
        assert!((was / is - 1.0).abs() < 1e-9, "{was} {is}");
    }
    // A file of a version that learned none.
    let mut older: serde_json::Value = serde_json::from_str(&text).expect("an object");
    let fields = older.as_object_mut().expect("an object");
    assert!(fields.remove("decode_speeds").is_some());
    let older: LearnedState = serde_json::from_value(older).expect("an older state");
    let after = TimedFleet::new(3);
    after.fleet.router.take_over(Moment::START, older);
    let off = after.sequence_ms(2) - Rates::PRIOR.decode_ms_per_sequence;
    assert!(off.abs() < 1e-6, "{off}");
}
