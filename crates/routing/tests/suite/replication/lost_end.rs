//! The time for which lost messages have an effect.

use std::collections::VecDeque;

use contract_id::contract;
use proptest::prelude::*;
use routing::{LoadChange, LoadDigest, LoadPage, ReservationId};

use super::{Replica, peer};
use crate::fleet::{TestRandom, at_ms, target, test_request, tokens};

const WORKERS: u32 = 3;
/// Time from the sending of a message to its arrival.
const DELAY_MS: u64 = 2;
/// A replica sends its digest this often.
const DIGEST_MS: u64 = 1_000;
/// The promise.
const HEALED_MS: u64 = 2_000;
const END_MS: u64 = 6_000;

/// One request of the replica that sends.
struct Sent {
    worker: u32,
    id: ReservationId,
    opened: u64,
    closed: Option<u64>,
}

enum Message {
    Changes(Vec<LoadChange>, LoadDigest),
    Page(LoadPage, LoadDigest),
    /// The receiver asks for pages.
    Ask,
}

/// One replica that sends and one that receives, in virtual time.
struct Line {
    here: Replica,
    there: Replica,
    sent: Vec<Sent>,
    messages: VecDeque<(u64, Message)>,
    random: TestRandom,
    /// The number of the message that is lost.
    lost: usize,
    posted: usize,
}

impl Line {
    fn post(&mut self, now: u64, message: Message) {
        self.posted += 1;
        if self.lost != self.posted {
            self.messages.push_back((now + DELAY_MS, message));
        }
    }

    fn send(&mut self, now: u64) {
        let (changes, state) = self.here.take();
        if !changes.is_empty() || now.is_multiple_of(DIGEST_MS) {
            self.post(now, Message::Changes(changes, state.digest));
        }
    }

    fn deliver(&mut self, now: u64) {
        while let Some((_, message)) = self.messages.pop_front_if(|(at, _)| *at <= now) {
            let router = self.there.router();
            match message {
                Message::Changes(changes, digest) => {
                    router.apply_peer_changes(at_ms(now), peer(1), changes);
                    if router.peer_load_digest(peer(1)) != digest {
                        self.messages.push_back((now + DELAY_MS, Message::Ask));
                    }
                }
                Message::Page(page, digest) => {
                    router.apply_peer_page(at_ms(now), peer(1), page);
                    assert_eq!(router.peer_load_digest(peer(1)), digest);
                }
                Message::Ask => {
                    let mut changes = Vec::new();
                    let start = ReservationId::default();
                    let (page, state) =
                        self.here
                            .router()
                            .take_load_page(at_ms(now), start, 10_000, &mut changes);
                    self.post(now, Message::Changes(changes, state.digest));
                    self.post(now, Message::Page(page, state.digest));
                }
            }
        }
    }

    fn change(&mut self, now: u64) {
        let open: Vec<usize> = (0..self.sent.len())
            .filter(|position| self.sent[*position].closed.is_none())
            .collect();
        if self.random.below(2) == 0 || open.is_empty() {
            let topic = u32::try_from(self.random.below(9)).expect("small");
            let plan = self
                .here
                .fleet
                .plan(at_ms(now), &test_request(tokens(topic, 2)));
            self.sent.push(Sent {
                worker: plan.decode.target.worker.0,
                id: plan.reservation,
                opened: now,
                closed: None,
            });
        } else {
            let sent = &mut self.sent[open[self.random.below(open.len())]];
            sent.closed = Some(now);
            self.here.router().done(at_ms(now), sent.id);
        }
    }

    /// Nothing is counted that ended long ago, and everything that began long ago is.
    fn check(&self, now: u64) -> Result<(), TestCaseError> {
        let long_ago = now.saturating_sub(HEALED_MS);
        for worker in 1..=WORKERS {
            let of = |holds: &dyn Fn(&Sent) -> bool| {
                let here = self.sent.iter().filter(|sent| sent.worker == worker);
                here.filter(|sent| holds(sent)).count()
            };
            let load = self.there.router().load(target(worker)).peer_in_flight as usize;
            let most = of(&|sent| sent.closed.is_none_or(|closed| closed > long_ago));
            let least = of(&|sent| sent.opened < long_ago && sent.closed.is_none());
            prop_assert!(load <= most, "{now}: {load} of {most}");
            prop_assert!(load >= least, "{now}: {load} of {least}");
        }
        Ok(())
    }
}

proptest! {
    #[test]
    #[contract("DY23")]
    fn a_lost_message_leaves_no_load_behind_for_more_than_two_seconds(
        seed in any::<u64>(),
        busy in any::<bool>(),
        lost in 1usize..60,
    ) {
        let mut line = Line {
            here: Replica::with(WORKERS),
            there: Replica::with(WORKERS),
            sent: Vec::new(),
            messages: VecDeque::new(),
            random: TestRandom(seed),
            lost,
            posted: 0,
        };
        for now in 0..END_MS {
            // Quiet replicas send hardly anything but digests.
            if line.random.below(if busy { 20 } else { 700 }) == 0 {
                line.change(now);
            }
            line.send(now);
            line.deliver(now);
            if now.is_multiple_of(50) {
                line.check(now)?;
            }
        }
    }
}
