//! The load of peers.

use std::time::Duration;

use contract_id::contract;
use routing::{Dispatch, LoadChange, OpenLoad, ReservationId, TargetLoad, WaitBudget};

use super::{Replica, of_all, peer, repair, sync, targets};
use crate::fleet::{TestRequest, at_ms, target, test_request, tokens};

/// A request that waits if it must.
fn waiting_request() -> TestRequest {
    TestRequest {
        wait_budget: Some(WaitBudget {
            limit: Duration::from_secs(30),
            waited: Duration::ZERO,
            bytes: 0,
        }),
        ..test_request(tokens(200, 4))
    }
}

#[test]
#[contract("DY23")]
fn a_peers_reservation_counts_as_an_own_one_from_its_start_to_its_end() {
    let [here, there] = [1, 2].map(|_| Replica::with(1));
    let id = here
        .fleet
        .plan(at_ms(0), &test_request(tokens(1, 10)))
        .reservation;
    let steps: [&dyn Fn(); 3] = [
        &|| (),
        &|| {
            here.router().first_token(at_ms(30), id);
        },
        &|| {
            here.router().done(at_ms(60), id);
        },
    ];
    for step in steps {
        step();
        sync(at_ms(61), &here, peer(1), &there);
        assert_eq!(of_all(there.load(1)), here.load(1));
        assert_eq!(there.load(1).peer_in_flight, here.load(1).in_flight);
    }
    assert_eq!(there.load(1), TargetLoad::default());
}

#[test]
#[contract("DY23")]
fn a_peers_reservations_are_in_neither_the_own_feed_nor_digest_nor_pages() {
    let [here, there] = [1, 2].map(|_| Replica::with(1));
    here.fleet.plan(at_ms(0), &test_request(tokens(1, 10)));
    sync(at_ms(0), &here, peer(1), &there);
    let mut changes = Vec::new();
    let (page, state) =
        there
            .router()
            .take_load_page(at_ms(1), ReservationId::default(), 10, &mut changes);
    assert_eq!((changes.len(), page.loads.len()), (0, 0));
    assert_eq!((state.digest.open, there.wakes()), (0, 0));
    assert_eq!(there.router().open_reservations(), 0);
    // The number by which it is counted there is no id of a request there.
    for id in 1..5 {
        there.router().done(at_ms(2), ReservationId(id));
    }
    assert_eq!(there.load(1).in_flight, 1);
}

#[test]
fn blocks_that_a_peers_request_shares_with_own_ones_count_once() {
    let [here, there] = [1, 2].map(|_| Replica::with(1));
    let request = test_request(tokens(1, 10));
    let id = here.fleet.plan(at_ms(0), &request).reservation;
    there.fleet.plan(at_ms(0), &request);
    sync(at_ms(1), &here, peer(1), &there);
    assert_eq!(
        (there.load(1).in_flight, there.load(1).decode_blocks),
        (2, 10)
    );
    here.router().done(at_ms(2), id);
    sync(at_ms(3), &here, peer(1), &there);
    assert_eq!(
        (there.load(1).in_flight, there.load(1).decode_blocks),
        (1, 10)
    );
}

#[test]
fn the_blocks_of_a_peers_running_request_are_credited_as_cached() {
    let [here, there] = [1, 2].map(|_| Replica::with(2));
    let request = test_request(tokens(1, 10));
    let first = here.fleet.plan(at_ms(0), &request);
    sync(at_ms(1), &here, peer(1), &there);
    let decision = there.fleet.plan(at_ms(1), &request).decision;
    assert_eq!(decision.winner.target, first.decode.target);
    assert_eq!(decision.winner.predicted_cached_tokens, 9 * 16);
    let load = decision.winning().expect("a winner").load;
    assert_eq!((load.in_flight, load.peer_in_flight), (1, 1));
}

#[test]
fn repeated_and_unknown_changes_are_ignored() {
    let [here, there] = [1, 2].map(|_| Replica::with(1));
    let ids: Vec<_> = (0..3)
        .map(|topic| {
            let request = test_request(tokens(topic, 4));
            here.fleet.plan(at_ms(0), &request).reservation
        })
        .collect();
    here.router().first_token(at_ms(5), ids[0]);
    here.router().done(at_ms(6), ids[1]);
    let (changes, state) = here.take();
    let unknown = [
        LoadChange::FirstToken {
            id: ReservationId(77),
        },
        LoadChange::Closed {
            id: ReservationId(78),
            prompt_received: true,
            succeeded: Some(true),
        },
    ];
    for changes in [&changes[..], &changes[..], &unknown[..], &changes[..1]] {
        there
            .router()
            .apply_peer_changes(at_ms(7), peer(1), changes.to_vec());
        assert_eq!(there.router().peer_load_digest(peer(1)), state.digest);
        assert_eq!(of_all(there.load(1)), here.load(1));
    }
}

/// A worker that only the peer knows yet counts nowhere; it does once it is known.
#[test]
fn a_reservation_on_an_unknown_worker_is_in_the_digest_and_on_no_target() {
    let [here, there] = [1, 2].map(|_| Replica::with(1));
    let id = here
        .fleet
        .plan(at_ms(0), &test_request(tokens(1, 4)))
        .reservation;
    here.router().first_token(at_ms(1), id);
    let (changes, state) = here.take();
    let unknown = changes.into_iter().map(|change| match change {
        LoadChange::Opened(load) => LoadChange::Opened(OpenLoad {
            target: None,
            ..load
        }),
        other => other,
    });
    there
        .router()
        .apply_peer_changes(at_ms(2), peer(1), unknown.collect());
    assert_eq!(there.router().peer_load_digest(peer(1)), state.digest);
    assert_eq!(there.load(1), TargetLoad::default());
    repair(at_ms(3), here.router(), peer(1), there.router(), 10);
    assert_eq!(of_all(there.load(1)), here.load(1));
    assert_eq!(there.router().peer_load_digest(peer(1)), state.digest);
    here.router().done(at_ms(4), id);
    sync(at_ms(5), &here, peer(1), &there);
    assert_eq!(there.load(1), TargetLoad::default());
}

#[test]
#[contract("DY24")]
fn a_new_replica_starts_without_load_and_takes_over_the_state_of_all_others() {
    let old = [1, 2].map(|_| Replica::with(3));
    for (topic, replica) in (0..400).zip(old.iter().cycle()) {
        let request = test_request(tokens(topic, 3));
        let id = replica.fleet.plan(at_ms(0), &request).reservation;
        if topic % 3 == 0 {
            replica.router().first_token(at_ms(5), id);
        }
    }
    sync(at_ms(5), &old[0], peer(1), &old[1]);
    sync(at_ms(5), &old[1], peer(2), &old[0]);
    let new = Replica::with(3);
    for target in targets(3) {
        assert_eq!(new.router().load(target), TargetLoad::default());
    }
    for (number, replica) in (1..).zip(&old) {
        let digest = repair(at_ms(9), replica.router(), peer(number), new.router(), 64);
        assert_eq!(new.router().peer_load_digest(peer(number)), digest);
    }
    for target in targets(3) {
        let load = new.router().load(target);
        assert_eq!(of_all(load), of_all(old[0].router().load(target)));
        assert_eq!(load.peer_in_flight, load.in_flight);
    }
}

#[test]
fn the_prefill_of_a_peers_old_request_has_run_for_its_age() {
    let [here, there] = [1, 2].map(|_| Replica::with(1));
    // 1,120 tokens: 174 ms at the prior.
    here.fleet.plan(at_ms(0), &test_request(tokens(1, 70)));
    here.take();
    repair(at_ms(100), here.router(), peer(1), there.router(), 10);
    let ttft = |replica: &Replica| {
        let request = test_request(tokens(2, 1));
        let decision = replica.fleet.preview(at_ms(100), &request);
        let decision = decision.expect("a decision");
        decision.winning().and_then(|row| row.predicted_ttft_ms)
    };
    assert_eq!(ttft(&there), ttft(&here));
}

#[test]
#[contract("F90")]
fn a_dropped_peer_leaves_no_load_and_releases_what_waited_for_it() {
    let [here, there] = [1, 2].map(|_| Replica::with(2));
    for topic in 0..100 {
        here.fleet.plan(at_ms(0), &test_request(tokens(topic, 60)));
    }
    sync(at_ms(1), &here, peer(1), &there);
    let dispatch = there.fleet.dispatch(at_ms(2), &waiting_request());
    assert!(matches!(dispatch, Dispatch::Queued(_)), "{dispatch:?}");
    let released = there.router().drop_peer(at_ms(3), peer(1));
    assert_eq!(released.len(), 1);
    there.router().done(at_ms(9), released[0].plan.reservation);
    for target in targets(2) {
        assert_eq!(there.router().load(target), TargetLoad::default());
    }
    assert_eq!(there.router().peer_load_digest(peer(1)).open, 0);
    // The restarted replica is another peer, and its ids start from 1.
    let restarted = Replica::with(2);
    restarted.fleet.plan(at_ms(20), &test_request(tokens(1, 1)));
    sync(at_ms(21), &restarted, peer(2), &there);
    assert_eq!(there.load(1).in_flight + there.load(2).in_flight, 1);
}

#[test]
fn the_accounts_of_a_removed_worker_end_with_the_peers_requests_on_it() {
    let [here, there] = [1, 2].map(|_| Replica::with(1));
    let id = here
        .fleet
        .plan(at_ms(0), &test_request(tokens(1, 4)))
        .reservation;
    sync(at_ms(1), &here, peer(1), &there);
    there.router().forget(target(1).worker);
    assert_eq!(there.load(1).in_flight, 1);
    here.router().done(at_ms(2), id);
    sync(at_ms(3), &here, peer(1), &there);
    assert_eq!(there.load(1), TargetLoad::default());
}

/// Without its share of the fleet's cold work it would be flooded.
#[test]
fn a_worker_that_is_new_to_the_fleet_is_no_idle_one_because_a_peer_used_it_first() {
    let cost_of_the_new_worker = |peer_was_first: bool| {
        let [mut here, mut there] = [1, 2].map(|_| Replica::with(3));
        here.fleet.candidates.drain(..2);
        let new = there.fleet.candidates.pop().expect("three");
        for topic in 0..20 {
            let request = test_request(tokens(topic, 40));
            let id = there.fleet.plan(at_ms(0), &request).reservation;
            there.router().done(at_ms(0), id);
        }
        if peer_was_first {
            let request = test_request(tokens(100, 1));
            let id = here.fleet.plan(at_ms(0), &request).reservation;
            here.router().done(at_ms(0), id);
            sync(at_ms(0), &here, peer(1), &there);
        }
        there.fleet.candidates.push(new);
        let request = test_request(tokens(500, 40));
        let decision = there.fleet.preview(at_ms(1), &request).expect("a decision");
        let mut rows = decision.candidates.into_iter();
        let row = rows.find(|row| row.target == target(3));
        row.expect("a candidate").cost
    };
    let (second, first) = (cost_of_the_new_worker(true), cost_of_the_new_worker(false));
    assert!(second >= first, "{second} {first}");
}

#[test]
fn prompts_that_two_routers_sent_to_one_worker_at_once_are_no_samples_of_its_speed() {
    let samples = |peers_delay: u64| {
        let [here, there] = [1, 2].map(|_| Replica::with(1));
        here.fleet.plan(at_ms(0), &test_request(tokens(1, 70)));
        let own = there
            .fleet
            .plan(at_ms(1), &test_request(tokens(2, 70)))
            .reservation;
        sync(at_ms(peers_delay), &here, peer(1), &there);
        there.router().first_token(at_ms(300), own);
        there.router().rates(target(1).worker).samples
    };
    assert_eq!((samples(3), samples(200)), (0, 1));
}

/// Each replica sees the same worker become free.
#[test]
fn with_peers_a_worker_may_have_the_backlog_of_one_more_request_for_each() {
    let waits_behind = |prompts: u32, peers: usize| {
        let there = Replica::with(1);
        for number in 0..peers {
            let other = Replica::with(1);
            let id = other
                .fleet
                .plan(at_ms(0), &test_request(tokens(9, 1)))
                .reservation;
            other.router().done(at_ms(0), id);
            sync(at_ms(0), &other, peer(number), &there);
        }
        // 21 ms each; the bound is 25 ms for each router.
        for topic in 0..prompts {
            there.fleet.plan(at_ms(0), &test_request(tokens(topic, 9)));
        }
        let dispatch = there.fleet.dispatch(at_ms(0), &waiting_request());
        matches!(dispatch, Dispatch::Queued(_))
    };
    assert_eq!((waits_behind(1, 0), waits_behind(2, 0)), (false, true));
    assert_eq!((waits_behind(3, 2), waits_behind(4, 2)), (false, true));
}
