//! Tokens by the engine's own `/tokenize`, for models whose tokenizer is not here.
//!
//! A request waits for this, so everything about it is bounded: how long one question may take, how large it may be, how
//! many workers are asked (one), how many questions a worker has at once, how many answers are remembered and for how
//! long. Equal questions at one moment are one question. A worker that keeps failing is left alone for a while, and
//! prompts go by their text meanwhile. Where routers share what they were told, a worker is asked for what none of them knows.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use fleet::{Fleet, WorkerView};
use net::Clock;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::{
    Asked,
    known::{self, Digest, Known, Teller, TokenCache},
    own,
    question::Question,
    seats::Seats,
    shared::{SharedTokens, Whose},
    standing::{Failed, Failure, Standings},
};
use crate::{
    request::ask::{self, Unanswered},
    upstream::Pools,
};

/// A question over loopback or a rack's network costs some ten times the time of a computation here: 50 ms with the default
/// budget of 2 ms.
const BUDGETS: u32 = 25;
/// Bytes of an answer for each byte of the question: a token has at least one byte, and its id at most seven with a comma.
const ANSWER_FACTOR: usize = 8;
/// Bytes of an answer that do not depend on the question.
const ANSWER_SLACK: usize = 4 << 10;
/// What reading a byte of an answer costs here.
const COST_PER_BYTE: Duration = Duration::from_nanos(6);

/// What engines told.
#[derive(Debug)]
pub(crate) struct ToldTokens {
    /// How it is remembered here.
    pub(crate) here: TokenCache,
    /// Where other routers find it.
    pub(crate) shared: Option<SharedTokens>,
}

/// Token ids, and whether they were told earlier.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) tokens: Arc<[u32]>,
    pub(super) known: bool,
}

/// Asks engines for tokens.
#[derive(Debug)]
pub(crate) struct EngineTokens {
    fleet: Arc<Fleet>,
    pools: Pools,
    clock: Clock,
    longest: Duration,
    connect_timeout: Duration,
    /// How long an answer counts.
    ttl: Duration,
    shared: Option<SharedTokens>,
    /// Workers take turns.
    turn: AtomicUsize,
    book: Mutex<Book>,
}

type Asking = Arc<OnceCell<Option<Told>>>;

#[derive(Debug, Default)]
struct Book {
    known: Known,
    /// Questions on their way: one for each request that waits, at most.
    asking: HashMap<Digest, Asking>,
    standings: Standings,
}

impl EngineTokens {
    /// `budget` is what a computation here may take.
    pub(crate) fn new(
        fleet: Arc<Fleet>,
        pools: Pools,
        clock: Clock,
        budget: Duration,
        connect_timeout: Duration,
        told: ToldTokens,
    ) -> Self {
        let longest = budget.saturating_mul(BUDGETS);
        let ToldTokens { here, shared } = told;
        let book = Mutex::new(Book {
            known: Known::new(here),
            ..Book::default()
        });
        let turn = AtomicUsize::new(0);
        Self {
            fleet,
            pools,
            clock,
            longest,
            connect_timeout,
            ttl: here.ttl,
            shared,
            turn,
            book,
        }
    }

    /// The engine's ids of the prompt, or nothing where they cannot be had in time.
    pub(super) async fn tokens(&self, asked: Asked<'_>) -> Option<Told> {
        let question = asked
            .work(Question::cost(asked.view), Question::about)
            .await
            .flatten()?;
        let digest = question.digest;
        let snapshot = self.fleet.snapshot();
        let known = |teller: &Teller| teller.is_in(&snapshot);
        let asking = {
            let mut book = self.book.lock();
            if let Some(tokens) = book.known.get(&digest, self.clock.now(), known) {
                return Some(Told {
                    tokens,
                    known: true,
                });
            }
            Arc::clone(book.asking.entry(digest).or_default())
        };
        let waiting = Waiting {
            book: &self.book,
            digest,
            asking: Some(asking),
        };
        // Whoever asked first may hang up: the next one who waits asks then.
        let asking = waiting.asking.as_ref()?;
        asking
            .get_or_init(|| self.ask(&asked.view.model, question, asked.seats))
            .await
            .clone()
    }

    /// Whether new answers are kept.
    pub(super) fn take_new(&self, takes: bool) {
        self.book.lock().known.take_new(takes);
    }

    /// Forgets what was not met lately.
    pub(super) fn shrink(&self) {
        self.book.lock().known.shrink();
    }

    async fn ask(&self, model: &str, question: Question, seats: &Seats) -> Option<Told> {
        if let Some(tokens) = self.told_elsewhere(model, &question.digest).await {
            return Some(Told {
                tokens,
                known: true,
            });
        }
        let turn = self.next_worker(model)?;
        let worker = &turn.worker;
        let Question { body, digest } = question;
        let length = body.len();
        let answer = tokio::time::timeout(self.longest, self.ask_worker(worker, body, seats)).await;
        let mut book = self.book.lock();
        let now = self.clock.now();
        let why = match answer.unwrap_or(Err(Failed::Late)) {
            Ok(tokens) => {
                let tokens: Arc<[u32]> = tokens.into();
                book.standings.answered(worker.id);
                let (ids, teller) = (Arc::clone(&tokens), Teller::of(worker));
                book.known.keep(
                    digest,
                    known::Answer {
                        ids,
                        teller,
                        told_at: now,
                        left: Duration::MAX,
                    },
                );
                drop(book);
                if let Some(shared) = &self.shared {
                    shared.keep(&digest, Whose::of(worker, model), &tokens, self.ttl);
                }
                return Some(Told {
                    tokens,
                    known: false,
                });
            }
            Err(why) => why,
        };
        let rest = book.standings.failed(
            worker.id,
            Failure {
                why,
                question: digest,
                length,
            },
            now,
        );
        drop(book);
        tracing::debug!(worker = %worker.name, ?why, ?rest, "no tokens from the engine");
        None
    }

    /// What another router was told, by an engine such as those here are.
    async fn told_elsewhere(&self, model: &str, question: &Digest) -> Option<Arc<[u32]>> {
        let shared = self.shared.as_ref()?;
        let snapshot = self.fleet.snapshot();
        // One stands for all: where their versions differ for a while, some answers are not found.
        let worker = &snapshot
            .model(model)
            .filter(|model| !model.panic)?
            .candidates
            .first()?
            .worker;
        let found = shared.find(question, Whose::of(worker, model)).await?;
        let (ids, teller) = (Arc::clone(&found.ids), Teller::of(worker));
        let answer = known::Answer {
            ids,
            teller,
            told_at: self.clock.now(),
            left: found.left,
        };
        self.book.lock().known.keep(*question, answer);
        Some(found.ids)
    }

    /// The worker whose turn it is, of those that serve the model and may be asked now.
    fn next_worker(&self, model: &str) -> Option<Turn<'_>> {
        let snapshot = self.fleet.snapshot();
        let model = snapshot.model(model).filter(|model| !model.panic)?;
        let now = self.clock.now();
        let mut book = self.book.lock();
        book.standings
            .forget_gone(|worker| snapshot.worker(worker).is_some());
        let may = |worker| book.standings.may_be_asked(worker, now);
        let free: Vec<_> = model
            .candidates
            .iter()
            .filter(|one| may(one.target.worker))
            .collect();
        let turn = self.turn.fetch_add(1, Relaxed).checked_rem(free.len())?;
        let worker = Arc::clone(&free.get(turn)?.worker);
        book.standings.asked(worker.id);
        Some(Turn {
            book: &self.book,
            worker,
        })
    }

    async fn ask_worker(
        &self,
        worker: &WorkerView,
        question: Bytes,
        seats: &Seats,
    ) -> Result<Vec<u32>, Failed> {
        let most = question.len() * ANSWER_FACTOR + ANSWER_SLACK;
        let question = ask::Question {
            worker,
            path: "/tokenize",
            body: question,
            most_bytes: most,
            connect_timeout: self.connect_timeout,
        };
        let answered =
            ask::ask(&self.pools, self.clock, question)
                .await
                .map_err(|why| match why {
                    Unanswered::Unreachable => Failed::Unreachable,
                    Unanswered::Lost => Failed::Late,
                    Unanswered::Broken => Failed::Broken,
                })?;
        match answered.status {
            200 => {
                let cost = own::cost_of(answered.body.len(), COST_PER_BYTE);
                let read = seats
                    .run(cost, move || {
                        serde_json::from_slice::<TokenizeReply>(&answered.body)
                    })
                    .await;
                read.and_then(Result::ok)
                    .map(|reply| reply.tokens)
                    .ok_or(Failed::Broken)
            }
            400 | 413 | 422 => Err(Failed::Refused),
            _ => Err(Failed::Broken),
        }
    }
}

/// A worker that has a question, until this is dropped.
struct Turn<'a> {
    book: &'a Mutex<Book>,
    worker: Arc<WorkerView>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.book.lock().standings.over(self.worker.id);
    }
}

/// A request that waits for an answer. The question is forgotten with the last one that waits.
struct Waiting<'a> {
    book: &'a Mutex<Book>,
    digest: Digest,
    /// There until the drop.
    asking: Option<Asking>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut book = self.book.lock();
        // Given up under the lock, as all are taken under it: whoever is the last one to leave finds only the book's.
        drop(self.asking.take());
        if book
            .asking
            .get(&self.digest)
            .is_some_and(|asking| Arc::strong_count(asking) == 1)
        {
            book.asking.remove(&self.digest);
        }
    }
}

#[derive(Deserialize)]
struct TokenizeReply {
    tokens: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_forgotten_with_the_last_of_those_who_wait_and_not_before() {
        let (book, digest) = (Mutex::new(Book::default()), Digest::default());
        let wait = || {
            let asking = Arc::clone(book.lock().asking.entry(digest).or_default());
            Waiting {
                book: &book,
                digest,
                asking: Some(asking),
            }
        };
        let (first, second) = (wait(), wait());
        drop(first);
        assert_eq!(book.lock().asking.len(), 1);
        let third = wait();
        drop(second);
        assert_eq!(book.lock().asking.len(), 1);
        drop(third);
        assert!(book.lock().asking.is_empty());
    }
}
