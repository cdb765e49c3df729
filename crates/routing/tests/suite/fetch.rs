//! Reads of blocks from another worker: the choice among staying, computing and reading, what is learned
//! of reads, and what they displace.

use std::time::Duration;

use kv_blocks::{BlockSize, DpRank, Moment, Namespace, Target, Tier, WorkerId};
use routing::{
    FetchCounts, FetchMode, Pin, Plan, Policy, ReplyMode, ReportedWork, RoutingSection,
    RoutingSettings, ScoredCandidate,
};

use crate::fleet::{BLOCK, TestFleet, TestRequest, at_ms, target, test_request, tokens};

/// Blocks of a prompt of 20,000 tokens: some 2.9 s of prefill at the prior rate, 0.27 s to read.
const PROMPT: u32 = 1250;
/// All blocks but the last, whose last token is computed again.
const READABLE: u32 = (PROMPT - 1) * BLOCK;
/// A cache that has room for any prompt.
const ROOM: u32 = 1_000_000;
/// A cache that has room for two prompts and not for three.
const TIGHT: u32 = 3500;

pub(crate) fn fetching(workers: u32, total_blocks: u32) -> TestFleet {
    let section = RoutingSection {
        fetch: FetchMode::VllmP2p,
        ..RoutingSection::default()
    };
    let mut fleet = TestFleet::new(
        workers,
        RoutingSettings {
            section,
            ..RoutingSettings::default()
        },
    );
    for candidate in &mut fleet.candidates {
        candidate.fetches = true;
        candidate.total_blocks = Some(total_blocks);
    }
    fleet
}

fn pinned(worker: u32, request: TestRequest) -> TestRequest {
    TestRequest {
        pin: Some(Pin {
            worker: WorkerId(worker),
            rank: None,
        }),
        ..request
    }
}

/// Gives a worker a prompt of this many blocks to compute, whose first token does not come.
fn occupy(fleet: &TestFleet, now: Moment, worker: u32, blocks: u32) {
    fleet.plan(
        now,
        &pinned(worker, test_request(tokens(900 + worker, blocks))),
    );
}

fn row(plan: &Plan, worker: u32) -> &ScoredCandidate {
    let mut rows = plan.decision.candidates.iter();
    rows.find(|row| row.target == target(worker))
        .expect("it is a candidate")
}

/// The worker of a request, and that from which it reads.
fn placed(plan: &Plan) -> (u32, Option<u32>) {
    let source = plan.decision.fetch().map(|note| note.source.worker.0);
    (plan.decode.target.worker.0, source)
}

fn report(cached_tokens: u32) -> ReportedWork {
    ReportedWork {
        prompt_tokens: PROMPT * BLOCK,
        cached_tokens: Some(cached_tokens),
        output_tokens: 1,
        shows_decode_steps: false,
    }
}

#[test]
fn a_request_stays_with_its_blocks_while_their_holder_is_idle() {
    let fleet = fetching(2, ROOM);
    fleet.stored(1, &tokens(1, PROMPT), Tier::Device);
    let plan = fleet.plan(at_ms(0), &test_request(tokens(1, PROMPT)));
    assert_eq!(placed(&plan), (1, None));
    // The other one could have read them.
    let other = row(&plan, 2).fetch.as_ref().expect("an offer");
    assert_eq!((other.source, &*other.name), (target(1), "w1"));
    assert_eq!(other.tokens, READABLE);
    assert!((100.0..1000.0).contains(&other.ms), "{other:?}");
    assert_eq!(fleet.router.fetch_counts(), FetchCounts::default());
}

#[test]
fn a_request_reads_its_blocks_where_that_is_cheaper_than_to_wait_and_to_compute() {
    let fleet = fetching(2, ROOM);
    fleet.stored(1, &tokens(1, PROMPT), Tier::Device);
    occupy(&fleet, at_ms(0), 1, PROMPT);
    let plan = fleet.plan(at_ms(1), &test_request(tokens(1, PROMPT)));
    assert_eq!(placed(&plan), (2, Some(1)));
    // The engine reports what it read as cached, and computes the rest.
    assert_eq!(plan.decision.winner.predicted_cached_tokens, READABLE);
    assert_eq!(plan.decision.winner.announced_cached_tokens, 0);
    assert_eq!(plan.decision.winner.reserved.prefill_tokens, BLOCK);
    let load = fleet.router.load(target(2));
    assert_eq!(load.queued_prefill_tokens, u64::from(BLOCK));
    let winner = row(&plan, 2);
    assert_eq!(winner.warm_tokens.total(), 0, "they are not there yet");
    let sum: f64 = winner.terms.iter().map(|(_, value)| value).sum();
    assert!((winner.cost - sum).abs() < 1e-6, "{winner:?}");
    let predicted = winner.predicted_ttft_ms.expect("a time model");
    assert!(predicted < 1000.0, "{predicted}");
}

#[test]
fn a_few_tokens_are_computed_and_not_read() {
    let fleet = fetching(2, ROOM);
    fleet.stored(1, &tokens(1, 2), Tier::Device);
    occupy(&fleet, at_ms(0), 1, PROMPT);
    let plan = fleet.plan(at_ms(1), &test_request(tokens(1, 2)));
    assert_eq!(placed(&plan), (2, None));
}

#[test]
fn nothing_is_read_where_it_is_off_or_another_policy_decides_or_a_worker_cannot() {
    let prompt = || test_request(tokens(1, PROMPT));
    let usual = |change: &dyn Fn(&mut TestFleet)| {
        let mut fleet = fetching(2, ROOM);
        change(&mut fleet);
        fleet.stored(1, &tokens(1, PROMPT), Tier::Device);
        occupy(&fleet, at_ms(0), 1, PROMPT);
        fleet
    };
    let reads = |fleet: &TestFleet, request: &TestRequest| {
        let plan = fleet.plan(at_ms(1), request);
        let mut rows = plan.decision.candidates.iter();
        rows.any(|row| row.fetch.is_some())
    };
    assert!(reads(&usual(&|_| {}), &prompt()));
    let off = usual(&|fleet| fleet.router.reconfigure(RoutingSettings::default()));
    assert!(!reads(&off, &prompt()));
    let dynamo = TestRequest {
        policy: Some(Policy::DynamoCost),
        ..prompt()
    };
    assert!(!reads(&usual(&|_| {}), &dynamo));
    assert!(!reads(&usual(&|_| {}), &pinned(2, prompt())));
    for worker in [0, 1] {
        let unable = usual(&|fleet| fleet.candidates[worker].fetches = false);
        assert!(!reads(&unable, &prompt()), "w{}", worker + 1);
    }
}

#[test]
fn a_pinned_request_reads_nothing_from_another_rank_of_its_worker() {
    let mut fleet = fetching(2, ROOM);
    let second = Target {
        worker: WorkerId(1),
        rank: DpRank(1),
    };
    fleet.candidates[1].target = second;
    fleet.index.register(second, "m".into());
    fleet.stored(1, &tokens(1, PROMPT), Tier::Device);
    let prompt = test_request(tokens(1, PROMPT));
    for (request, reads) in [(prompt.clone(), true), (pinned(1, prompt), false)] {
        let preview = fleet.preview(at_ms(0), &request);
        let decision = preview.expect("a target is eligible");
        let mut rows = decision.candidates.iter();
        assert_eq!(rows.any(|row| row.fetch.is_some()), reads);
    }
}

#[test]
fn reads_are_spread_over_the_workers_that_hold_the_blocks() {
    let fleet = fetching(5, ROOM);
    for holder in [1, 2] {
        for topic in 1..=3 {
            fleet.stored(holder, &tokens(topic, PROMPT), Tier::Device);
        }
        occupy(&fleet, at_ms(0), holder, PROMPT);
    }
    let source = |topic| {
        let plan = fleet.plan(at_ms(1), &test_request(tokens(topic, PROMPT)));
        placed(&plan).1.expect("it reads")
    };
    let sources: Vec<u32> = (1..=3).map(source).collect();
    assert_ne!(sources[0], sources[1], "the first source is in use");
    assert!(sources.iter().all(|source| [1, 2].contains(source)));
}

#[test]
fn the_source_of_a_whole_reply_is_read_until_the_prompt_is_expected_to_be_computed() {
    let fleet = fetching(3, ROOM);
    occupy(&fleet, at_ms(0), 1, PROMPT);
    let offered_ms = |now, topic| {
        fleet.stored(1, &tokens(topic, PROMPT), Tier::Device);
        let whole = TestRequest {
            answer: ReplyMode::Whole,
            ..test_request(tokens(topic, PROMPT))
        };
        let plan = fleet.plan(now, &whole);
        let rows = plan.decision.candidates.iter();
        let offers = rows.filter_map(|row| row.fetch.as_ref());
        offers.map(|fetch| fetch.ms).fold(0.0, f64::max)
    };
    let first = offered_ms(at_ms(1), 1);
    assert!(offered_ms(at_ms(2), 2) > 1.5 * first);
    // No reply has come yet.
    let later = offered_ms(at_ms(60_000), 3);
    assert!((later - first).abs() < 1.0, "{later} {first}");
}

#[test]
fn a_source_that_sends_nothing_gives_way_to_one_that_holds_less() {
    let fleet = fetching(3, ROOM);
    for (holder, topics) in [(1, 950..954), (2, 960..964)] {
        for topic in topics {
            let other = test_request(tokens(topic, PROMPT));
            fleet.plan(at_ms(0), &pinned(holder, other));
        }
    }
    let mut sources = Vec::new();
    for topic in 1..=3 {
        let prompt = tokens(topic, PROMPT);
        fleet.stored(1, &prompt, Tier::Device);
        fleet.stored(2, &tokens(topic, PROMPT - 10), Tier::Device);
        let now = at_ms(10_000 * u64::from(topic));
        let plan = fleet.plan(now, &test_request(prompt));
        let (worker, source) = placed(&plan);
        assert_eq!(worker, 3);
        let (took, cached) = if source == Some(1) {
            (3_200, 0)
        } else {
            (300, plan.decision.winner.predicted_cached_tokens)
        };
        let then = now + Duration::from_millis(took);
        fleet.router.first_token(then, plan.reservation);
        let report = report(cached);
        fleet.router.record_work(then, plan.reservation, report);
        fleet.router.done(then, plan.reservation);
        sources.push(source);
    }
    assert_eq!(sources, [Some(1), Some(2), Some(2)]);
}

#[test]
fn blocks_of_another_model_adapter_salt_or_block_size_are_not_read() {
    let changes: [fn(&mut Namespace); 4] = [
        |namespace| namespace.model = "other".into(),
        |namespace| namespace.lora = Some("a".into()),
        |namespace| namespace.salt = Some("a".into()),
        |namespace| namespace.block_size = BlockSize::new(32).expect("a block size"),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut fleet = fetching(3, ROOM);
        let others = &mut fleet.candidates[1..];
        for candidate in others {
            change(&mut candidate.namespace);
        }
        fleet.stored(1, &tokens(1, PROMPT), Tier::Device);
        occupy(&fleet, at_ms(0), 1, PROMPT);
        let plan = fleet.plan(at_ms(1), &test_request(tokens(1, PROMPT)));
        assert!(row(&plan, 1).warm_tokens.total() > 0, "{number}");
        let mut rows = plan.decision.candidates.iter();
        assert!(rows.all(|row| row.fetch.is_none()), "{number}");
    }
}

#[test]
fn blocks_that_a_worker_is_only_expected_to_hold_are_not_read_from_it() {
    let fleet = fetching(2, ROOM);
    // It computes them now, and nothing of it is announced.
    fleet.plan(at_ms(0), &pinned(1, test_request(tokens(1, PROMPT))));
    let plan = fleet.plan(at_ms(1), &test_request(tokens(1, PROMPT)));
    let mut rows = plan.decision.candidates.iter();
    assert!(rows.all(|row| row.fetch.is_none()));
}

/// Sends prompts that the busy worker holds, one after the other; `end` gets each with the time at
/// which it was sent. Returns whether each was read.
fn read_again_and_again(
    fleet: &TestFleet,
    count: u32,
    pause: Duration,
    end: impl Fn(&TestFleet, Moment, &Plan),
) -> Vec<bool> {
    for topic in 950..954 {
        let other = test_request(tokens(topic, PROMPT));
        fleet.plan(at_ms(0), &pinned(1, other));
    }
    let mut reads = Vec::new();
    let mut now = at_ms(1);
    for topic in 1..=count {
        fleet.stored(1, &tokens(topic, PROMPT), Tier::Device);
        let plan = fleet.plan(now, &test_request(tokens(topic, PROMPT)));
        reads.push(plan.decision.fetch().is_some());
        end(fleet, now, &plan);
        now = now + pause;
    }
    reads
}

#[test]
fn reads_that_take_longer_than_to_compute_are_given_up() {
    let fleet = fetching(2, ROOM);
    let pause = Duration::from_secs(61);
    let reads = read_again_and_again(&fleet, 10, pause, |fleet, now, plan| {
        let took = if plan.decision.fetch().is_some() {
            60_000
        } else {
            2_900
        };
        let then = now + Duration::from_millis(took);
        fleet.router.first_token(then, plan.reservation);
        let report = report(plan.decision.winner.predicted_cached_tokens);
        fleet.router.record_work(then, plan.reservation, report);
        fleet.router.done(then, plan.reservation);
    });
    assert!(reads[0], "{reads:?}");
    assert!(reads.iter().any(|read| !read), "{reads:?}");
    assert_eq!(fleet.router.fetch_counts().missed, 0);
}

#[test]
fn reads_that_bring_nothing_are_given_up_and_tried_again_later() {
    let fleet = fetching(2, ROOM);
    let pause = Duration::from_secs(5);
    let computed = |fleet: &TestFleet, now: Moment, plan: &Plan| {
        let then = now + Duration::from_millis(3_200);
        fleet.router.first_token(then, plan.reservation);
        fleet.router.record_work(then, plan.reservation, report(0));
        fleet.router.done(then, plan.reservation);
    };
    let reads = read_again_and_again(&fleet, 12, pause, computed);
    assert!(reads[0] && !reads[11], "{reads:?}");
    assert!(reads.iter().filter(|read| **read).count() <= 6, "{reads:?}");
    let counts = fleet.router.fetch_counts();
    assert_eq!((counts.sent, counts.arrived), (counts.missed, 0));
    let topic = 99;
    fleet.stored(1, &tokens(topic, PROMPT), Tier::Device);
    let later = fleet.plan(at_ms(3_600_000), &test_request(tokens(topic, PROMPT)));
    assert!(row(&later, 2).fetch.is_some());
}

#[test]
fn a_read_says_nothing_of_the_speed_at_which_a_worker_computes() {
    let fleet = fetching(2, ROOM);
    fleet.stored(1, &tokens(1, PROMPT), Tier::Device);
    occupy(&fleet, at_ms(0), 1, PROMPT);
    let plan = fleet.plan(at_ms(1), &test_request(tokens(1, PROMPT)));
    assert_eq!(placed(&plan), (2, Some(1)));
    fleet.router.first_token(at_ms(300), plan.reservation);
    fleet.router.done(at_ms(400), plan.reservation);
    assert_eq!(fleet.router.rates(WorkerId(2)).samples, 0);
    assert_eq!(fleet.router.fetch_counts().sent, 1);
}

/// A fleet of two on which four sessions have had twelve turns each, two on each worker; then the worker
/// of the first has a prompt of a second to compute. Returns the next turn of that session.
fn turn_of_four_sessions(total_blocks: u32) -> Plan {
    let fleet = fetching(2, total_blocks);
    for turn in 0..12 {
        for session in 1..=4u32 {
            let at = 1000 * u64::from(4 * turn + session - 1);
            let worker = 1 + (session - 1) / 2;
            let request = test_request(tokens(session, PROMPT + 4 * turn));
            let plan = fleet.plan(at_ms(at), &pinned(worker, request.clone()));
            fleet.stored(worker, &request.tokens, Tier::Device);
            fleet.router.done(at_ms(at + 500), plan.reservation);
        }
    }
    let now = at_ms(48_000);
    fleet.plan(now, &pinned(1, test_request(tokens(900, 440))));
    fleet.plan(now, &test_request(tokens(1, PROMPT + 48)))
}

#[test]
fn a_read_is_charged_with_the_blocks_in_use_that_it_displaces() {
    let displaced = |plan: &Plan| row(plan, 2).terms.get("displaced_ms");
    let with_room = turn_of_four_sessions(ROOM);
    assert_eq!(displaced(&with_room), Some(0.0));
    assert_eq!(placed(&with_room), (2, Some(1)));
    let full = turn_of_four_sessions(TIGHT);
    assert!(displaced(&full) > Some(500.0), "{:?}", displaced(&full));
    assert_eq!(
        placed(&full),
        (1, None),
        "another session would lose its blocks"
    );
}
