//! A router's own changes.

use routing::{LoadChange, ReplyMode, ReservationId};

use super::{Replica, sync};
use crate::{
    fleet::{TestRequest, at_ms, target, test_request, tokens},
    replication::peer,
};

#[test]
fn every_change_of_the_own_load_is_queued_in_order() {
    let here = Replica::with(1);
    let id = here
        .fleet
        .plan(at_ms(0), &test_request(tokens(1, 10)))
        .reservation;
    here.router().first_token(at_ms(30), id);
    here.router().first_token(at_ms(31), id);
    here.router().record_reply_length(20);
    here.router().done(at_ms(60), id);
    here.router().done(at_ms(61), id);
    let (changes, _) = here.take();
    let [
        LoadChange::Opened(opened),
        LoadChange::FirstToken { id: second },
        LoadChange::Sample(sample),
        LoadChange::ReplyLength(20),
        LoadChange::Closed {
            id: last,
            prompt_received: true,
            succeeded: Some(true),
        },
    ] = &changes[..]
    else {
        panic!("{changes:?}")
    };
    assert_eq!((opened.id, *second, *last), (id, id, id));
    assert_eq!(opened.target, Some(target(1)));
    assert_eq!(
        (opened.load.prompt_tokens, opened.load.uncached_tokens),
        (160, 160)
    );
    assert_eq!(sample.first_token_ms, Some(30.0));
    assert_eq!(sample.prefill.map(|prefill| prefill.tokens), Some(160));
}

#[test]
fn the_waker_is_called_when_the_feed_is_no_longer_empty_and_not_for_every_change() {
    let here = Replica::with(1);
    let plan = || {
        here.fleet
            .plan(at_ms(0), &test_request(tokens(1, 2)))
            .reservation
    };
    let first = plan();
    plan();
    here.router().first_token(at_ms(5), first);
    assert_eq!(here.wakes(), 1);
    here.take();
    assert_eq!(here.wakes(), 1);
    here.router().done(at_ms(6), first);
    assert_eq!(here.wakes(), 2);
}

#[test]
fn a_full_feed_says_that_changes_were_lost() {
    let here = Replica::new(1, routing::RoutingSettings::default(), 3);
    for _ in 0..5 {
        here.fleet.plan(at_ms(0), &test_request(tokens(1, 2)));
    }
    let (changes, state) = here.take();
    assert_eq!((changes.len(), state.lost), (3, true));
    assert_eq!(state.digest.open, 5);
    here.fleet.plan(at_ms(0), &test_request(tokens(1, 2)));
    let (changes, state) = here.take();
    assert_eq!((changes.len(), state.lost), (1, false));
}

#[test]
fn a_router_without_a_feed_has_a_digest_and_pages_too() {
    let here = Replica::with(1);
    let alone = crate::fleet::TestFleet::with(1, routing::Policy::Warm);
    for fleet in [&here.fleet, &alone] {
        fleet.plan(at_ms(0), &test_request(tokens(1, 2)));
    }
    assert_eq!(
        here.router().own_load_digest(),
        alone.router.own_load_digest()
    );
    let mut changes = Vec::new();
    let start = ReservationId::default();
    let (page, state) = alone
        .router
        .take_load_page(at_ms(40), start, 10, &mut changes);
    assert_eq!((changes.len(), page.loads.len()), (0, 1));
    assert_eq!(page.loads[0].age_ms, 40.0);
    assert_eq!(state.digest, alone.router.own_load_digest());
}

/// The end of such a prefill is an estimate, and each replica estimates it at another moment.
#[test]
fn an_estimated_end_of_a_prefill_changes_no_digest() {
    let [here, there] = [1, 2].map(|_| Replica::with(1));
    let whole = TestRequest {
        answer: ReplyMode::Whole,
        ..test_request(tokens(1, 70))
    };
    let id = here.fleet.plan(at_ms(0), &whole).reservation;
    sync(at_ms(1), &here, peer(1), &there);
    // 160 ms at the prior.
    here.router().tick(at_ms(200));
    assert_eq!(
        (
            here.load(1).decode_sequences,
            there.load(1).decode_sequences
        ),
        (1, 0)
    );
    sync(at_ms(201), &here, peer(1), &there);
    there.router().tick(at_ms(202));
    assert_eq!(there.load(1).decode_sequences, 1);
    here.router().done(at_ms(300), id);
    sync(at_ms(301), &here, peer(1), &there);
    assert_eq!(there.load(1), routing::TargetLoad::default());
}
