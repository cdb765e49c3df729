use contract_id::contract;
use fleet::WorkerState;
use kv_blocks::{BlockSize, DpRank, Namespace, PromptIdentity, Target};
use kv_index::{IndexSettings, KvIndex};
use net::Clock;
use routing::{
    CacheSource, Candidate, DecisionsSection, Dispatch, ExpectedReply, Job, JobPrompt,
    LmcacheFacts, ReplyMode, Router, RoutingSettings, TargetPool, Tiers,
};

use super::{
    table::{MOST, MOST_BLOCKS},
    *,
};
use crate::request::test_support::worker;

const TTL: Duration = Duration::from_secs(300);

struct ReservationsFixture {
    router: Arc<Router>,
    reservations: Reservations,
}

impl ReservationsFixture {
    fn new() -> Self {
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        let ring = Arc::new(ReceiptRing::new(DecisionsSection::default()));
        Self {
            router: Arc::new(Router::new(RoutingSettings::default(), index)),
            reservations: Reservations::new(TTL, ring),
        }
    }

    fn reserve(&self, id: &str, now: Moment) -> Result<(), ErrorCode> {
        self.reserve_blocks(id, 7, now)
    }

    fn reserve_blocks(&self, id: &str, blocks: u64, now: Moment) -> Result<(), ErrorCode> {
        let open = || Ok((self.open_reservation(DecisionId(1), now), ()));
        self.reservations
            .reserve(&own(id), size(blocks), call(now), open)
            .map_err(|error| error.code)
    }

    fn open_reservation(&self, decision: DecisionId, now: Moment) -> OpenReservation {
        let Dispatch::Plan(plan) = self.router.decide(now, &job(&[candidate()])) else {
            panic!("one is free")
        };
        let lease = Lease::new(
            Arc::new(crate::queue_waiters::QueueWaiters::new(
                Arc::clone(&self.router),
                Clock::system(),
            )),
            plan.reservation,
            plan.decode.target,
        );
        OpenReservation::new(lease, &worker(1), decision, call(now))
    }

    fn tick(&self, now: Moment, workers: &[WorkerView]) {
        let workers = workers.iter().cloned().map(Arc::new).collect();
        self.reservations.tick(
            call(now),
            &Snapshot {
                workers,
                ..Snapshot::default()
            },
        );
    }

    fn complete(&self, id: &str, now: Moment) -> Result<(), ErrorCode> {
        self.reservations
            .prefill_complete(&own(id), call(now))
            .map_err(|error| error.code)
    }

    fn free(&self, id: &str, now: Moment) -> Result<(), ErrorCode> {
        self.reservations
            .free(&own(id), call(now))
            .map_err(|error| error.code)
    }
}

/// The id of a reservation of one tenant.
fn own(id: &str) -> ReservationId {
    ReservationId::of(&"tenant".into(), id)
}

/// The size of a reservation of a tenant without others.
fn size(blocks: u64) -> ReservationSize {
    ReservationSize {
        blocks,
        is_alone: true,
    }
}

/// A call at this moment, in a process that was never suspended.
fn call(now: Moment) -> CallTime {
    CallTime { now, run: now }
}

fn candidate() -> Candidate {
    Candidate {
        target: Target {
            worker: WorkerId(1),
            rank: DpRank(0),
        },
        name: "w1".into(),
        namespace: Namespace {
            model: "m".into(),
            lora: None,
            salt: None,
            block_size: BlockSize::new(16).expect("a size"),
            identity: PromptIdentity::Tokens,
        },
        weight: 1.0,
        cache: CacheSource::Events,
        total_blocks: None,
        tiers: Tiers::default(),
        stream_state: None,
        health: "ready",
        lmcache: LmcacheFacts::default(),
        usage: None,
        fetches: false,
    }
}

fn job(candidates: &[Candidate]) -> Job<'_> {
    Job {
        targets: TargetPool {
            candidates,
            ..TargetPool::default()
        },
        prompt: JobPrompt {
            tokens: 100,
            ..JobPrompt::default()
        },
        reply: ExpectedReply {
            mode: ReplyMode::Elsewhere,
            ..ExpectedReply::default()
        },
        random: 1,
        ..Job::default()
    }
}

fn after(seconds: u64) -> Moment {
    Moment::START + Duration::from_secs(seconds)
}

#[test]
#[contract("DY28", "DY32")]
fn one_id_holds_one_reservation_and_freeing_releases_it() {
    let fixture = ReservationsFixture::new();
    assert_eq!(fixture.reserve("r1", after(0)), Ok(()));
    assert_eq!(
        fixture.reserve("r1", after(1)),
        Err(ErrorCode::ReservationExists)
    );
    assert_eq!(fixture.reserve("r2", after(1)), Ok(()));
    assert_eq!(fixture.router.open_reservations(), 2);
    assert_eq!(fixture.free("r1", after(2)), Ok(()));
    assert_eq!(
        fixture.free("r1", after(2)),
        Err(ErrorCode::ReservationNotFound)
    );
    assert_eq!(fixture.router.open_reservations(), 1);
    assert_eq!(fixture.reserve("r1", after(3)), Ok(()));
}

#[test]
#[contract("DY28")]
fn an_abandoned_decision_ends_its_own_reservation_only() {
    let fixture = ReservationsFixture::new();
    let reserve = |decision| {
        let open = || Ok((fixture.open_reservation(decision, after(0)), ()));
        let reserved = fixture
            .reservations
            .reserve(&own("r1"), size(7), call(after(0)), open);
        reserved.map_err(|error| error.code)
    };
    let abandon = |decision| {
        fixture
            .reservations
            .abandon(&own("r1"), decision, call(after(0)));
    };
    let (first, second) = (DecisionId(1), DecisionId(2));
    assert_eq!(reserve(first), Ok(()));
    assert_eq!(fixture.free("r1", after(0)), Ok(()));
    abandon(first);
    assert_eq!(reserve(second), Ok(()));
    abandon(first);
    assert_eq!(fixture.router.open_reservations(), 1);
    abandon(second);
    assert_eq!(fixture.router.open_reservations(), 0);
    assert_eq!(reserve(first), Ok(()));
}

#[test]
#[contract("DY31")]
fn a_call_keeps_a_reservation_alive_and_silence_ends_it() {
    let fixture = ReservationsFixture::new();
    fixture.reserve("called", after(0)).expect("free");
    fixture.reserve("silent", after(0)).expect("free");
    assert_eq!(fixture.complete("called", after(299)), Ok(()));
    assert_eq!(
        fixture.complete("silent", after(300)),
        Err(ErrorCode::ReservationNotFound)
    );
    assert_eq!(fixture.router.open_reservations(), 1);
    assert_eq!(fixture.complete("called", after(598)), Ok(()));
    assert_eq!(
        fixture.free("called", after(898)),
        Err(ErrorCode::ReservationNotFound)
    );
    fixture
        .reserve("silent", after(900))
        .expect("an expired id may be used again");
    assert_eq!(fixture.router.open_reservations(), 1);
}

#[test]
fn a_tick_ends_expired_reservations_and_those_of_an_ended_process() {
    let fixture = ReservationsFixture::new();
    let mut ended = worker(1);
    ended.health.ended = 1;
    for workers in [&[][..], &[ended]] {
        fixture.reserve("r1", after(0)).expect("free");
        fixture.tick(after(1), workers);
        assert_eq!(fixture.router.open_reservations(), 0);
        assert_eq!(
            fixture.free("r1", after(1)),
            Err(ErrorCode::ReservationNotFound)
        );
    }
    fixture.reserve("r1", after(0)).expect("free");
    fixture.tick(after(300), &[worker(1)]);
    assert_eq!(fixture.router.open_reservations(), 0);
}

#[test]
fn a_worker_that_fails_its_checks_keeps_its_reservations() {
    let fixture = ReservationsFixture::new();
    fixture.reserve("r1", after(0)).expect("free");
    for state in WorkerState::ALL {
        let mut worker = worker(1);
        worker.health.state = state;
        fixture.tick(after(1), &[worker]);
    }
    assert_eq!(fixture.free("r1", after(2)), Ok(()));
}

#[test]
fn reservations_are_bounded_and_a_failed_one_holds_nothing() {
    let fixture = ReservationsFixture::new();
    let nowhere = || Err::<(OpenReservation, ()), _>(ApiError::new(ErrorCode::NoWorker, "nobody"));
    let refused =
        fixture
            .reservations
            .reserve(&own("r0"), size(MOST_BLOCKS), call(after(0)), nowhere);
    assert_eq!(
        refused.map_err(|error| error.code),
        Err(ErrorCode::NoWorker)
    );
    for n in 0..MOST {
        fixture
            .reserve(&format!("r{n}"), after(0))
            .expect("there is room");
    }
    assert_eq!(
        fixture.reserve("one more", after(0)),
        Err(ErrorCode::Overloaded)
    );
    assert_eq!(
        fixture.reserve("r7", after(0)),
        Err(ErrorCode::ReservationExists),
        "known ids are reported as such"
    );
    assert_eq!(
        (
            fixture.router.open_reservations(),
            fixture.reservations.count()
        ),
        (MOST, MOST)
    );
    fixture.free("r7", after(0)).expect("held");
    assert_eq!(fixture.reserve("one more", after(0)), Ok(()));
}

#[test]
fn reserved_prompt_tokens_are_bounded_and_every_end_releases_its_part() {
    let fixture = ReservationsFixture::new();
    for end in ["freed", "silent", "gone"] {
        assert_eq!(
            fixture.reserve_blocks("long", MOST_BLOCKS - 7, after(0)),
            Ok(()),
            "{end}"
        );
        assert_eq!(fixture.reserve_blocks("short", 7, after(0)), Ok(()));
        assert_eq!(
            fixture.reserve_blocks("one more", 1, after(0)),
            Err(ErrorCode::Overloaded)
        );
        assert_eq!(fixture.reserve_blocks("none", 0, after(0)), Ok(()));
        match end {
            "freed" => {
                for id in ["long", "short", "none"] {
                    fixture.free(id, after(0)).expect("held");
                }
            }
            "silent" => {
                for id in ["long", "short", "none"] {
                    assert_eq!(
                        fixture.complete(id, after(300)),
                        Err(ErrorCode::ReservationNotFound)
                    );
                }
            }
            _ => fixture.tick(after(1), &[]),
        }
    }
    assert_eq!(fixture.reserve_blocks("all", MOST_BLOCKS, after(0)), Ok(()));
    assert_eq!(
        fixture.reserve_blocks("too many", u64::MAX, after(0)),
        Err(ErrorCode::Overloaded)
    );
}

#[test]
fn during_placement_the_id_is_taken_and_other_calls_do_not_wait() {
    let fixture = ReservationsFixture::new();
    let open = || {
        assert_eq!(
            fixture.reserve("r1", after(0)),
            Err(ErrorCode::ReservationExists)
        );
        assert_eq!(
            fixture.complete("r1", after(0)),
            Err(ErrorCode::ReservationNotFound)
        );
        assert_eq!(
            fixture.free("r1", after(0)),
            Err(ErrorCode::ReservationNotFound)
        );
        fixture.tick(after(0), &[]);
        assert_eq!(fixture.reserve("r2", after(0)), Ok(()));
        Ok((fixture.open_reservation(DecisionId(1), after(0)), ()))
    };
    fixture
        .reservations
        .reserve(&own("r1"), size(7), call(after(0)), open)
        .expect("free");
    assert_eq!(fixture.free("r1", after(1)), Ok(()));
    assert_eq!(fixture.router.open_reservations(), 1);
}

#[test]
#[contract("S45")]
fn a_reservation_is_known_to_its_own_tenant_only() {
    let fixture = ReservationsFixture::new();
    assert_eq!(fixture.reserve("r1", after(0)), Ok(()));
    let other = ReservationId::of(&"other".into(), "r1");
    let code = |result: Result<(), ApiError>| result.map_err(|error| error.code);
    let missing = Err(ErrorCode::ReservationNotFound);
    let table = &fixture.reservations;
    assert_eq!(code(table.free(&other, call(after(0)))), missing);
    assert_eq!(
        code(table.prefill_complete(&other, call(after(0)))),
        missing
    );
    let open = || Ok((fixture.open_reservation(DecisionId(1), after(0)), ()));
    let second = table.reserve(&other, size(7), call(after(0)), open);
    assert_eq!(code(second), Ok(()), "the id is free for another tenant");
    assert_eq!(code(table.free(&other, call(after(0)))), Ok(()));
    assert_eq!(fixture.free("r1", after(0)), Ok(()));
}

#[test]
#[contract("S72")]
fn one_tenant_among_several_leaves_half_of_the_table_to_others() {
    let fixture = ReservationsFixture::new();
    let reserve = |tenant: &str, n: usize, blocks| {
        let id = ReservationId::of(&tenant.into(), &format!("r{n}"));
        let size = ReservationSize {
            blocks,
            is_alone: false,
        };
        let open = || Ok((fixture.open_reservation(DecisionId(1), after(0)), ()));
        let reserved = fixture
            .reservations
            .reserve(&id, size, call(after(0)), open);
        reserved.map_err(|error| error.code)
    };
    assert_eq!(reserve("a", 0, MOST_BLOCKS / 2), Ok(()));
    assert_eq!(reserve("a", 1, 1), Err(ErrorCode::Overloaded));
    for n in 0..MOST / 2 {
        assert_eq!(reserve("b", n, 1), Ok(()));
    }
    assert_eq!(reserve("b", MOST, 1), Err(ErrorCode::Overloaded));
    assert_eq!(reserve("c", 0, 1), Ok(()));
    // What ends makes room again.
    let first = ReservationId::of(&"a".into(), "r0");
    assert!(fixture.reservations.free(&first, call(after(0))).is_ok());
    assert_eq!(reserve("a", 1, 1), Ok(()));
}
