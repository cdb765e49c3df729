//! What a replica makes of its peers' messages.

use std::time::Duration;

use contract_id::contract;
use proptest::prelude::*;

use super::*;
use crate::wire::{Change, ChangeKind, VERSION};

const OWN: OwnIdentity = OwnIdentity {
    id: 1,
    settings: 77,
    shares_load: true,
};
const PEER: u64 = 2;
const TTL: Duration = Duration::from_secs(15);

fn at(ms: u64) -> Moment {
    Moment::START + Duration::from_millis(ms)
}

fn digest(sum: u64) -> LoadDigest {
    LoadDigest { open: sum, sum }
}

fn presence(last_change: u64, sum: u64) -> Envelope {
    Envelope {
        version: VERSION,
        sender: PEER,
        presence: Some(Presence {
            settings: OWN.settings,
            last_change,
            open: sum,
            load_digest: sum,
            shares_load: true,
            ..Presence::default()
        }),
        ..Envelope::default()
    }
}

fn changes(first: u64, count: u64) -> Envelope {
    let change = |number| Change {
        kind: Some(ChangeKind::FirstToken(number)),
    };
    Envelope {
        version: VERSION,
        sender: PEER,
        changes: Some(Changes {
            first,
            workers: Vec::new(),
            changes: (first..first + count).map(change).collect(),
        }),
        ..Envelope::default()
    }
}

/// A table, and the peer's changes that it let through.
struct TableFixture {
    table: PeerTable,
    applied: Vec<u64>,
    fetches: usize,
    repairs: usize,
    drops: usize,
}

impl TableFixture {
    fn new() -> Self {
        Self {
            table: PeerTable::new(OWN, TTL),
            applied: Vec::new(),
            fetches: 0,
            repairs: 0,
            drops: 0,
        }
    }

    /// A table whose peer is live, with its changes up to `as_of` fetched.
    fn live(as_of: u64) -> Self {
        let mut fixture = Self::new();
        fixture.take(at(0), presence(as_of, 5), 0);
        fixture.state(as_of);
        assert_eq!((fixture.fetches, fixture.repairs), (1, 0));
        fixture.fetches = 0;
        fixture
    }

    fn take(&mut self, now: Moment, message: Envelope, believed: u64) {
        let taken = self.table.on_message(now, message, |_| digest(believed));
        self.carry_out(taken.expect("a usable message"));
    }

    fn state(&mut self, as_of: u64) {
        let peer = self.number();
        let actions = self.table.on_state(peer, as_of);
        self.carry_out(actions);
    }

    fn number(&self) -> PeerId {
        self.table.all().next().expect("a peer").number
    }

    fn state_name(&self) -> &'static str {
        self.table.all().next().expect("a peer").state().as_str()
    }

    fn carry_out(&mut self, actions: Vec<PeerAction>) {
        for action in actions {
            match action {
                PeerAction::Apply { changes, skip, .. } => {
                    let numbers = changes.first..changes.first + changes.changes.len() as u64;
                    self.applied.extend(numbers.skip(skip));
                }
                PeerAction::Fetch { repairs, .. } => {
                    self.fetches += 1;
                    self.repairs += usize::from(repairs);
                }
                PeerAction::Drop(_) => self.drops += 1,
                PeerAction::Changed(_) => {}
            }
        }
    }
}

#[test]
#[contract("DY24")]
fn a_new_peers_whole_load_is_fetched_first_and_later_changes_follow_it() {
    let mut fixture = TableFixture::new();
    fixture.take(at(0), presence(10, 5), 0);
    assert_eq!((fixture.fetches, fixture.state_name()), (1, "joining"));
    fixture.take(at(1), changes(11, 2), 0);
    fixture.take(at(2), changes(13, 1), 0);
    assert_eq!(
        fixture.applied, [0_u64; 0],
        "nothing is applied before the load"
    );
    fixture.state(11);
    assert_eq!(fixture.applied, [12, 13], "the load contains change 11");
    assert_eq!(fixture.state_name(), "live");
}

#[test]
#[contract("DY23")]
fn consecutive_changes_are_applied_once() {
    let mut fixture = TableFixture::live(10);
    fixture.take(at(1), changes(11, 3), 0);
    fixture.take(at(2), changes(11, 3), 0);
    fixture.take(at(3), changes(12, 4), 0);
    assert_eq!(fixture.applied, [11, 12, 13, 14, 15]);
    assert_eq!(fixture.fetches, 0);
}

#[test]
#[contract("DY23")]
fn a_missing_number_makes_the_whole_load_be_fetched() {
    let mut fixture = TableFixture::live(10);
    fixture.take(at(1), changes(12, 1), 0);
    assert_eq!((fixture.fetches, fixture.applied.len()), (1, 0));
    fixture.take(at(2), changes(13, 1), 0);
    fixture.state(12);
    assert_eq!(fixture.applied, [13]);
}

#[test]
#[contract("DY23")]
fn a_lost_last_change_is_found_by_the_next_presence() {
    let mut fixture = TableFixture::live(10);
    fixture.take(at(1), changes(11, 1), 0);
    // Change 12 was lost, and nothing followed it.
    fixture.take(at(1000), presence(12, 5), 5);
    assert_eq!(fixture.fetches, 1);
}

#[test]
#[contract("DY23")]
fn a_digest_that_differs_makes_the_whole_load_be_fetched() {
    let mut fixture = TableFixture::live(10);
    fixture.take(at(1000), presence(10, 5), 5);
    assert_eq!(fixture.fetches, 0, "equal digests");
    fixture.take(at(2000), presence(10, 5), 6);
    assert_eq!((fixture.fetches, fixture.repairs), (1, 1));
    fixture.take(at(3000), presence(10, 5), 6);
    assert_eq!(fixture.fetches, 1, "one fetch at a time");
}

#[test]
fn a_presence_that_changes_have_overtaken_says_nothing_of_them() {
    let mut fixture = TableFixture::live(10);
    fixture.take(at(1), changes(11, 5), 0);
    fixture.take(at(2), presence(10, 5), 6);
    assert_eq!(fixture.fetches, 0);
}

#[test]
fn a_failed_fetch_is_repeated_after_a_pause() {
    let mut fixture = TableFixture::new();
    fixture.take(at(0), presence(10, 5), 0);
    let peer = fixture.number();
    fixture.table.on_fetch_failed(at(100), peer);
    let early = fixture.table.tick(at(200));
    assert_eq!(early, []);
    let actions = fixture.table.tick(at(100) + PeerTable::FETCH_PAUSE);
    let again = PeerAction::Fetch {
        peer,
        repairs: false,
    };
    assert_eq!(actions, [again]);
    assert_eq!(fixture.table.tick(at(1000)), [], "it is running");
}

#[test]
#[contract("F90")]
fn a_silent_peer_is_dropped_after_its_time_to_live_and_returns_with_its_load() {
    let mut fixture = TableFixture::live(10);
    let actions = fixture.table.tick(at(14_999));
    fixture.carry_out(actions);
    assert_eq!(fixture.drops, 0);
    let actions = fixture.table.tick(at(15_000));
    fixture.carry_out(actions);
    assert_eq!((fixture.drops, fixture.state_name()), (1, "lost"));
    let again = fixture.table.tick(at(16_000));
    assert_eq!(again, [], "once");
    fixture.take(at(17_000), changes(11, 1), 0);
    assert_eq!(
        fixture.applied, [0_u64; 0],
        "it is unknown until its next presence"
    );
    fixture.take(at(18_000), presence(11, 5), 0);
    assert_eq!((fixture.fetches, fixture.state_name()), (1, "joining"));
}

#[test]
#[contract("F90")]
fn a_silent_peer_is_dropped_early_if_another_has_its_address() {
    let mut fixture = TableFixture::live(10);
    let sender = |sender| Envelope {
        sender,
        ..presence(0, 0)
    };
    fixture.take(at(500), sender(PEER + 1), 0);
    // Both are there: they only report the same address.
    fixture.take(at(1000), presence(10, 5), 5);
    let actions = fixture.table.tick(at(4100));
    fixture.carry_out(actions);
    assert_eq!(
        fixture.drops, 0,
        "the other one appeared before its last message"
    );
    fixture.take(at(4200), sender(PEER + 2), 0);
    let actions = fixture.table.tick(at(4300));
    fixture.carry_out(actions);
    // Both silent ones may have been its predecessor.
    assert_eq!((fixture.drops, fixture.state_name()), (2, "lost"));
}

#[test]
#[contract("F93")]
fn a_silent_peer_keeps_its_share_of_the_limits_for_a_while_and_one_that_leaves_does_not() {
    let leaving = || {
        let mut last = presence(10, 5);
        if let Some(presence) = &mut last.presence {
            presence.leaving = true;
        }
        last
    };
    let mut fixture = TableFixture::new();
    assert_eq!(fixture.table.serving(at(0), true), 1, "it is alone");
    fixture.take(at(0), presence(10, 5), 0);
    assert_eq!(
        fixture.table.serving(at(0), true),
        2,
        "a joining one counts"
    );
    let lost = fixture.table.tick(at(15_000));
    fixture.carry_out(lost);
    assert_eq!(fixture.state_name(), "lost");
    assert_eq!(fixture.table.serving(at(59_999), true), 2);
    assert_eq!(fixture.table.serving(at(60_000), true), 1);
    assert_eq!(
        fixture.table.serving(at(60_000), false),
        2,
        "nobody is heard"
    );
    fixture.take(at(70_000), presence(11, 5), 0);
    assert_eq!(fixture.table.serving(at(70_000), true), 2);
    fixture.take(at(71_000), leaving(), 0);
    assert_eq!(fixture.table.serving(at(71_000), true), 1);
}

#[test]
#[contract("F93")]
fn a_peer_of_another_version_shares_the_limits_and_one_of_another_fleet_does_not() {
    for (version, settings, serving) in [
        (VERSION + 1, OWN.settings, 2),
        (VERSION, OWN.settings + 1, 1),
    ] {
        let mut message = presence(10, 5);
        message.version = version;
        if let Some(presence) = &mut message.presence {
            presence.settings = settings;
        }
        let mut fixture = TableFixture::new();
        fixture.take(at(0), message, 0);
        assert_eq!(
            fixture.table.serving(at(0), true),
            serving,
            "{version} {settings}"
        );
    }
}

#[test]
fn a_peer_that_leaves_is_dropped_at_once() {
    let mut fixture = TableFixture::live(10);
    let mut last = presence(10, 5);
    last.presence.as_mut().expect("a presence").leaving = true;
    fixture.take(at(1), last, 5);
    assert_eq!((fixture.drops, fixture.state_name()), (1, "lost"));
}

#[test]
#[contract("F91")]
fn a_peer_of_another_version_is_refused_and_contributes_nothing() {
    let mut fixture = TableFixture::live(10);
    let other = |mut message: Envelope| {
        message.version = VERSION + 1;
        message
    };
    fixture.take(at(1), other(presence(10, 5)), 5);
    assert_eq!((fixture.drops, fixture.state_name()), (1, "refused"));
    let repeated = fixture
        .table
        .on_message(at(2), other(changes(11, 1)), |_| digest(0));
    assert_eq!(repeated, Err(IgnoredMessage::Version));
    assert_eq!(fixture.applied, [0_u64; 0]);
    fixture.take(at(3), presence(11, 5), 0);
    assert_eq!(fixture.state_name(), "joining", "it was replaced");
}

#[test]
fn a_peer_with_other_settings_is_refused() {
    let mut fixture = TableFixture::new();
    let mut message = presence(10, 5);
    message.presence.as_mut().expect("a presence").settings = 78;
    fixture.take(at(0), message.clone(), 0);
    assert_eq!(fixture.state_name(), "refused");
    let again = fixture.table.on_message(at(1), message, |_| digest(0));
    assert_eq!(again, Err(IgnoredMessage::Settings));
    fixture.take(at(2), changes(1, 1), 0);
    assert_eq!(fixture.applied, [0_u64; 0]);
}

#[test]
fn a_message_with_the_own_id_is_of_another_process_and_not_used() {
    let mut fixture = TableFixture::new();
    let message = Envelope {
        sender: OWN.id,
        ..presence(1, 1)
    };
    let taken = fixture.table.on_message(at(0), message, |_| digest(0));
    assert_eq!(taken, Err(IgnoredMessage::DuplicateId));
}

#[test]
fn the_number_of_peers_is_bounded_and_lost_ones_make_room() {
    let mut fixture = TableFixture::new();
    let message = |sender| Envelope {
        sender,
        ..presence(0, 0)
    };
    let most = PeerTable::MOST as u64;
    for sender in 2..2 + most {
        fixture.take(at(0), message(sender), 0);
    }
    let full = fixture
        .table
        .on_message(at(1), message(9999), |_| digest(0));
    assert_eq!(full, Err(IgnoredMessage::TooManyPeers));
    let _lost = fixture.table.tick(at(15_000));
    fixture.take(at(15_001), message(9999), 0);
    assert_eq!(fixture.table.all().count(), PeerTable::MOST);
}

proptest! {
    /// Any messages may be lost, repeated or overtake others: nothing is applied twice, nothing
    /// before what precedes it, and a fetch begins wherever something is missing.
    #[test]
    #[contract("DY23", "F53")]
    fn changes_are_applied_in_order_and_never_twice(
        received in prop::collection::vec((1u64..40, 1u64..4), 0..60),
        last in 1u64..44,
    ) {
        let mut fixture = TableFixture::live(0);
        for (first, count) in received {
            fixture.take(at(1), changes(first, count), 0);
        }
        let expected: Vec<u64> = (1..=fixture.applied.len() as u64).collect();
        prop_assert_eq!(&fixture.applied, &expected);
        let applied = fixture.applied.len() as u64;
        fixture.take(at(2), presence(last, 5), 5);
        if applied < last {
            prop_assert!(fixture.fetches > 0);
            fixture.state(last);
            let peer = fixture.table.all().next().expect("a peer");
            prop_assert_eq!(peer.state(), PeerState::Live);
        }
    }
}
