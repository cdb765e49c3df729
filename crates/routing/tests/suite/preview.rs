//! A preview equals the decision of the same request sent afterwards, and changes no state.

use contract_id::contract;
use kv_blocks::{Moment, Tier, WorkerId};
use proptest::prelude::*;
use routing::{
    Affinity, CacheSource, Decision, DecisionTiming, Overrides, Pin, Policy, Rates, ReplyMode,
    TargetLoad,
};

use crate::fleet::{
    BLOCK, TestFleet, TestRequest, at_ms, candidate, in_session, target, test_request, tokens,
    with_prefix,
};

/// One step in the history of a fleet.
#[derive(Clone, Debug)]
enum PreviewStep {
    Send {
        topic: u32,
        blocks: u32,
        policy: Policy,
        random: u64,
        whole: bool,
        pin: Option<u32>,
    },
    FirstToken(usize),
    Done(usize),
    Failed(usize),
    Stored {
        worker: u32,
        topic: u32,
        blocks: u32,
    },
    Joins,
}

fn policies() -> impl Strategy<Value = Policy> {
    prop::sample::select(Policy::ALL.to_vec())
}

fn steps() -> impl Strategy<Value = Vec<PreviewStep>> {
    let send = (
        1..4u32,
        0..12u32,
        policies(),
        any::<u64>(),
        any::<bool>(),
        prop::option::of(1..4u32),
    )
        .prop_map(
            |(topic, blocks, policy, random, whole, pin)| PreviewStep::Send {
                topic,
                blocks,
                policy,
                random,
                whole,
                pin,
            },
        );
    let stored =
        (1..4u32, 1..4u32, 1..10u32).prop_map(|(worker, topic, blocks)| PreviewStep::Stored {
            worker,
            topic,
            blocks,
        });
    let index = || 0..8usize;
    prop::collection::vec(
        prop_oneof![
            4 => send,
            1 => index().prop_map(PreviewStep::FirstToken),
            1 => index().prop_map(PreviewStep::Done),
            1 => index().prop_map(PreviewStep::Failed),
            1 => stored,
            1 => Just(PreviewStep::Joins),
        ],
        1..24,
    )
}

/// A decision without its measured times.
fn summary(decision: &Decision) -> String {
    format!(
        "{:?}",
        Decision {
            timing: DecisionTiming::default(),
            ..decision.clone()
        }
    )
}

/// The observable state of a fleet.
fn state(fleet: &TestFleet) -> (usize, Vec<(TargetLoad, Rates)>, String) {
    let of = |worker| {
        (
            fleet.router.load(target(worker)),
            fleet.router.rates(WorkerId(worker)),
        )
    };
    let index = format!("{:?} {:?}", fleet.index.stats(), fleet.index.digest());
    (
        fleet.router.open_reservations(),
        (1..=6).map(of).collect(),
        index,
    )
}

proptest! {
    #[test]
    #[contract("DY28")]
    fn a_preview_is_the_decision_that_follows_and_changes_nothing(
        steps in steps(),
        topic in 1..4u32,
        tail in 0..BLOCK,
        policy in policies(),
        random in any::<u64>(),
        temperature in prop::sample::select(vec![0.0, 0.7]),
    ) {
        // Two fleets with the same history; in one of them a preview precedes every request.
        let [previewed, plain] = [(); 2].map(|()| {
            let mut fleet = TestFleet::with(3, Policy::Warm);
            fleet.candidates[2].cache = CacheSource::Predicted;
            fleet
        });
        let mut fleets = [previewed, plain];
        let mut open = [Vec::new(), Vec::new()];
        for (n, step) in steps.iter().enumerate() {
            let now = at_ms(n as u64 * 37);
            for (which, (fleet, open)) in fleets.iter_mut().zip(&mut open).enumerate() {
                live(fleet, open, now, step, which == 0);
            }
        }
        let now = at_ms(steps.len() as u64 * 37);
        let mut prompt = tokens(topic, 6);
        prompt.extend((0..tail).map(|i| 7_000_000 + i));
        let overrides = Overrides { temperature: Some(temperature), ..Overrides::default() };
        let request = TestRequest { policy: Some(policy), random, overrides, affinity: affinity(topic), ..test_request(prompt) };
        let [previewed, plain] = &fleets;
        // Effects of time happen with and without a preview.
        previewed.router.tick(now);
        plain.router.tick(now);
        let before = state(previewed);
        let preview = previewed.preview(now, &request).expect("all are free");
        previewed.potential_loads(now, &request);
        prop_assert_eq!(&state(previewed), &before);
        let sent = previewed.plan(now, &request).decision;
        prop_assert_eq!(summary(&preview), summary(&sent));
        prop_assert_eq!(summary(&preview), summary(&plain.plan(now, &request).decision));
    }
}

/// The affinity of a topic: a prefix key, a session, or neither.
fn affinity(topic: u32) -> Affinity {
    match topic {
        1 => with_prefix(0x1234_5678 << 32).affinity,
        2 => in_session(7).affinity,
        _ => Affinity::default(),
    }
}

fn live(
    fleet: &mut TestFleet,
    open: &mut Vec<routing::ReservationId>,
    now: Moment,
    step: &PreviewStep,
    previews_first: bool,
) {
    let closed = |open: &mut Vec<_>, index: usize| (index < open.len()).then(|| open.remove(index));
    match step {
        PreviewStep::Send {
            topic,
            blocks,
            policy,
            random,
            whole,
            pin,
        } => {
            let request = TestRequest {
                policy: Some(*policy),
                random: *random,
                answer: if *whole {
                    ReplyMode::Whole
                } else {
                    ReplyMode::Streamed
                },
                pin: pin.map(|worker| Pin {
                    worker: WorkerId(worker),
                    rank: None,
                }),
                affinity: affinity(*topic),
                ..test_request(tokens(*topic, *blocks))
            };
            if previews_first {
                fleet.preview(now, &request).expect("all are free");
            }
            open.push(fleet.plan(now, &request).reservation);
        }
        PreviewStep::FirstToken(index) => {
            if let Some(id) = open.get(*index) {
                fleet.router.first_token(now, *id);
            }
        }
        PreviewStep::Done(index) => {
            if let Some(id) = closed(open, *index) {
                fleet.router.done(now, id);
            }
        }
        PreviewStep::Failed(index) => {
            if let Some(id) = closed(open, *index) {
                fleet.router.failed(now, id);
            }
        }
        PreviewStep::Stored {
            worker,
            topic,
            blocks,
        } => fleet.stored(*worker, &tokens(*topic, *blocks), Tier::Device),
        PreviewStep::Joins => {
            let next = u32::try_from(fleet.candidates.len()).expect("few workers") + 1;
            if next <= 6 {
                fleet.index.register(target(next), "m".into());
                fleet.candidates.push(candidate(next));
            }
        }
    }
}

#[test]
fn a_preview_consumes_no_turn() {
    let fleet = TestFleet::with(3, Policy::RoundRobin);
    let request = test_request(tokens(1, 2));
    for turn in 1..=3 {
        for _ in 0..5 {
            assert_eq!(
                fleet
                    .preview(Moment::START, &request)
                    .expect("free")
                    .winner
                    .target,
                target(turn)
            );
        }
        assert_eq!(fleet.goes_to(Moment::START, &request), turn);
    }
}

#[test]
fn a_preview_is_rejected_like_the_request() {
    let mut fleet = TestFleet::with(1, Policy::DynamoCost);
    fleet.candidates.clear();
    let refusal = fleet
        .preview(Moment::START, &test_request(tokens(1, 2)))
        .expect_err("no target is present");
    assert_eq!(refusal.policy, Policy::DynamoCost);
}
