//! Latency targets: the order of those that wait, early refusals, and what the decision says.

use std::time::Duration;

use kv_blocks::WorkerId;
use proptest::prelude::*;
use routing::{
    Dispatch, JobSlo, Policy, QueueSettings, ReplyMode, ReservationId, RoutingSection,
    RoutingSettings, SloSection, SloTargets, Ticket, WaitBudget,
};

use crate::fleet::{TestFleet, TestRequest, at_ms, test_request, tokens};

const PATIENT: WaitBudget = WaitBudget {
    limit: Duration::from_secs(30),
    waited: Duration::ZERO,
    bytes: 100,
};

/// A request of `blocks` blocks that may wait. At the prior rate a block takes 16/7 ms, and its first
/// token 14 ms more.
fn may_wait(topic: u32, blocks: u32) -> TestRequest {
    TestRequest {
        wait_budget: Some(PATIENT),
        ..test_request(tokens(topic, blocks))
    }
}

fn ttft(ms: u64) -> SloTargets {
    SloTargets {
        ttft: Some(Duration::from_millis(ms)),
        tpot: None,
    }
}

/// The same with a target for the time to first token.
fn aimed(topic: u32, blocks: u32, ms: u64) -> TestRequest {
    TestRequest {
        slo: JobSlo {
            targets: ttft(ms),
            ..JobSlo::default()
        },
        ..may_wait(topic, blocks)
    }
}

fn settings(slo: SloSection) -> RoutingSettings {
    RoutingSettings {
        section: RoutingSection {
            slo,
            ..RoutingSection::default()
        },
        policy: Policy::Warm,
        queue: QueueSettings {
            hold_above: Duration::from_millis(50),
            ..QueueSettings::default()
        },
        ..RoutingSettings::default()
    }
}

fn refusing() -> RoutingSettings {
    settings(SloSection {
        refuse: true,
        ..SloSection::default()
    })
}

/// A fleet of one whose worker has a prompt of 229 ms to compute.
fn busy(settings: RoutingSettings) -> (TestFleet, ReservationId) {
    let fleet = TestFleet::new(1, settings);
    let long = fleet.plan(at_ms(0), &may_wait(1, 100)).reservation;
    (fleet, long)
}

fn queued(dispatch: Dispatch) -> Ticket {
    match dispatch {
        Dispatch::Queued(ticket) => ticket,
        other => panic!("expected a ticket, got {other:?}"),
    }
}

#[test]
fn of_equal_prompts_the_one_with_less_slack_starts_first_though_it_came_later() {
    let (fleet, long) = busy(settings(SloSection::default()));
    queued(fleet.dispatch(at_ms(1), &may_wait(2, 10)));
    queued(fleet.dispatch(at_ms(2), &aimed(3, 10, 20_000)));
    let urgent = queued(fleet.dispatch(at_ms(3), &aimed(4, 10, 2_000)));
    let released = fleet.router.first_token(at_ms(101), long);
    assert_eq!(released[0].ticket, urgent);
}

#[test]
fn a_request_that_cannot_meet_its_target_any_more_lets_others_go_first_and_follows_them() {
    // Its first token needs 37 ms, so it has slack until 164 ms.
    for (then, is_first) in [(101, true), (250, false)] {
        let (fleet, long) = busy(settings(SloSection::default()));
        let own = queued(fleet.dispatch(at_ms(1), &aimed(2, 10, 200)));
        let other = queued(fleet.dispatch(at_ms(2), &may_wait(3, 30)));
        let released = fleet.router.first_token(at_ms(then), long);
        let first = if is_first { own } else { other };
        assert_eq!(released[0].ticket, first, "{then}");
        let reservation = released[0].plan.reservation;
        let mut all: Vec<Ticket> = released.iter().map(|released| released.ticket).collect();
        let rest = fleet.router.first_token(at_ms(then + 90), reservation);
        all.extend(rest.iter().map(|released| released.ticket));
        all.sort_unstable();
        assert_eq!(all, [own, other], "{then}");
    }
}

#[test]
fn a_request_is_refused_only_if_no_worker_can_meet_its_target_and_the_setting_says_so() {
    let slo_miss = |dispatch: Dispatch| match dispatch {
        Dispatch::Refused(refusal) => refusal.slo_miss,
        _ => None,
    };
    let (fleet, _) = busy(refusing());
    let miss = slo_miss(fleet.dispatch(at_ms(1), &aimed(2, 10, 100))).expect("it would miss");
    assert_eq!(miss.targets, ttft(100));
    // About 228 ms of the other prompt and 37 ms of its own.
    let predicted = miss
        .predicted_ttft
        .expect("under a policy with a time model");
    assert!((200..300).contains(&predicted.as_millis()), "{predicted:?}");
    assert_eq!(fleet.router.queued_requests(), 0);
    assert_eq!(fleet.router.open_reservations(), 1);

    let is_refused = |fleet: &TestFleet, request: &TestRequest| {
        slo_miss(fleet.dispatch(at_ms(1), request)).is_some()
    };
    assert!(!is_refused(&fleet, &aimed(2, 10, 2_000)));
    let mut late = aimed(3, 10, 2_000);
    late.slo.spent = Duration::from_millis(1_900);
    assert!(is_refused(&fleet, &late), "its time is nearly over");
    late.slo.is_admitted = true;
    assert!(!is_refused(&fleet, &late), "a worker has failed it");

    let (patient, _) = busy(settings(SloSection::default()));
    assert!(!is_refused(&patient, &aimed(2, 10, 100)));

    let two = TestFleet::new(2, refusing());
    two.plan(at_ms(0), &may_wait(1, 100));
    assert!(!is_refused(&two, &aimed(2, 10, 100)), "another is free");
}

#[test]
fn an_idle_worker_whose_speed_is_unknown_or_old_serves_a_request_whatever_its_target() {
    let fleet = TestFleet::new(1, refusing());
    let is_refused = |topic: u32| {
        let start_ms = u64::from(topic) * 1_000;
        match fleet.dispatch(at_ms(start_ms), &aimed(topic, 100, 1)) {
            Dispatch::Refused(refusal) => refusal.slo_miss.is_some(),
            Dispatch::Plan(plan) => {
                let id = plan.reservation;
                fleet.router.first_token(at_ms(start_ms + 900), id);
                fleet.router.done(at_ms(start_ms + 950), id);
                false
            }
            other => panic!("expected a plan or a refusal, got {other:?}"),
        }
    };
    // Eight first tokens show the speed.
    for topic in 1..=8 {
        assert!(!is_refused(topic), "{topic}");
    }
    assert!(is_refused(9));
    // The last first token was long ago.
    assert!(!is_refused(100));
    assert!(is_refused(101));
}

#[test]
fn a_request_is_refused_for_the_requests_before_it_and_not_for_those_behind_it() {
    let (fleet, _) = busy(refusing());
    for topic in 2..62 {
        queued(fleet.dispatch(at_ms(1), &aimed(topic, 200, 60_000)));
    }
    // All of them together take 27 s, and a short prompt goes before them.
    queued(fleet.dispatch(at_ms(2), &aimed(100, 10, 1_000)));
    let long = aimed(101, 600, 20_000);
    let Dispatch::Refused(refusal) = fleet.dispatch(at_ms(2), &long) else {
        panic!("it would wait for the others");
    };
    assert!(refusal.slo_miss.is_some());
    let (alone, _) = busy(refusing());
    queued(alone.dispatch(at_ms(2), &long));
}

#[test]
fn a_policy_without_a_time_model_predicts_and_refuses_nothing() {
    let fleet = TestFleet::new(
        1,
        RoutingSettings {
            policy: Policy::RoundRobin,
            ..refusing()
        },
    );
    let slo = fleet.plan(at_ms(0), &aimed(1, 100, 1)).decision.winner.slo;
    let slo = slo.expect("it has a target");
    assert_eq!((slo.predicted_ttft, slo.headroom_ms()), (None, None));
}

#[test]
fn a_decision_has_the_requests_own_target_else_the_usual_one_and_the_headroom() {
    let usual = SloSection {
        ttft: Some(Duration::from_millis(500)),
        tpot: Some(Duration::from_millis(40)),
        ..SloSection::default()
    };
    let fleet = TestFleet::new(1, settings(usual));
    let note = |request: &TestRequest| {
        let shown = fleet.preview(at_ms(0), request).expect("a worker is free");
        shown.winner.slo.expect("there is a usual target")
    };
    assert_eq!(note(&may_wait(1, 10)).targets, usual.targets());
    let mut own = aimed(1, 10, 300);
    let first = note(&own);
    assert_eq!(first.targets, ttft(300).or(usual.targets()));
    let headroom_ms = first.headroom_ms().expect("a prediction");
    assert!((200.0..300.0).contains(&headroom_ms), "{headroom_ms}");
    own.slo.spent = Duration::from_millis(400);
    let later = note(&own).headroom_ms().expect("a prediction");
    assert!((headroom_ms - later - 400.0).abs() < 1e-3, "{later}");

    let plain = TestFleet::new(1, settings(SloSection::default()));
    let plan = plain.plan(at_ms(0), &may_wait(1, 10));
    assert_eq!(plan.decision.winner.slo, None);
}

#[test]
fn a_queued_request_has_spent_its_wait_when_it_starts() {
    let (fleet, long) = busy(settings(SloSection::default()));
    queued(fleet.dispatch(at_ms(1), &aimed(2, 10, 1_000)));
    let released = fleet.router.first_token(at_ms(301), long);
    let slo = released[0].plan.decision.winner.slo;
    let slo = slo.expect("it has a target");
    let predicted = slo.predicted_ttft.expect("a prediction");
    assert!((310..360).contains(&predicted.as_millis()), "{predicted:?}");
}

#[test]
fn the_router_compares_its_predictions_with_the_first_tokens_that_it_sees() {
    let fleet = TestFleet::with(1, Policy::Warm);
    let samples = || {
        let ratios = fleet.router.ttft_ratios(WorkerId(1));
        ratios.iter().map(|ratio| ratio.samples).sum::<usize>()
    };
    let mut now = 0;
    for topic in 1..=20 {
        let plan = fleet.plan(at_ms(now), &test_request(tokens(topic, 100)));
        fleet.router.first_token(at_ms(now + 900), plan.reservation);
        fleet.router.done(at_ms(now + 1_000), plan.reservation);
        now += 2_000;
        assert_eq!(samples(), topic as usize);
        if topic == 1 {
            // It was predicted to take 243 ms: the speed is not known yet.
            let first = fleet.router.ttft_ratios(WorkerId(1))[0];
            assert!((0.25..0.30).contains(&first.p50), "{first:?}");
            assert_eq!((first.from_ms, first.margin), (100.0, 1.0));
        }
    }
    // A request that fails, and one whose first token nobody sees, show nothing.
    let failed = fleet.plan(at_ms(now), &test_request(tokens(90, 100)));
    fleet.router.failed(at_ms(now + 10), failed.reservation);
    let whole = TestRequest {
        answer: ReplyMode::Whole,
        ..test_request(tokens(91, 100))
    };
    let whole = fleet.plan(at_ms(now + 20), &whole);
    fleet.router.done(at_ms(now + 900), whole.reservation);
    assert_eq!(samples(), 20);
    fleet.router.forget(WorkerId(1));
    assert!(fleet.router.ttft_ratios(WorkerId(1)).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn whatever_the_targets_each_request_starts_at_the_end_of_its_wait_at_the_latest(
        requests in prop::collection::vec((prop::option::of(0u64..60_000), 0u32..40), 1..40),
    ) {
        let fleet = TestFleet::new(1, settings(SloSection::default()));
        // A prompt of two minutes: nothing starts before it is due.
        fleet.plan(at_ms(0), &may_wait(1, 52_500));
        let mut waiting = Vec::new();
        for (number, (target, blocks)) in (1u64..).zip(&requests) {
            let request = match target {
                Some(ms) => aimed(2, *blocks, *ms),
                None => may_wait(2, *blocks),
            };
            waiting.push(queued(fleet.dispatch(at_ms(number), &request)));
        }
        let (mut order, mut now) = (Vec::new(), at_ms(30_001));
        while let Some(then) = fleet.router.next_release(now)
            && then <= at_ms(30_100)
        {
            now = then;
            let released = fleet.router.take_released(now);
            order.extend(released.iter().map(|released| released.ticket));
        }
        prop_assert_eq!(order, waiting);
    }
}
