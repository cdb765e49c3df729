//! The reads of open requests, and how they ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use foldhash::fast::FixedState;
use kv_blocks::{Moment, Target, WorkerId};

use super::{FetchOption, rates::FetchRates};
use crate::ReservationId;

/// How reads of blocks from other workers ended, since the start of the router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchCounts {
    /// Requests that were sent with a source.
    pub sent: u64,
    /// Of these, requests whose engine reported the blocks as cached.
    pub arrived: u64,
    /// Requests whose engine reported fewer cached tokens: it computed them. Also those that failed
    /// before a first token.
    pub missed: u64,
}

/// The read of one open request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFetch {
    source: Target,
    target: Target,
    tokens: u32,
    /// Cached tokens that its target would report without the read.
    own_tokens: u32,
    /// Other reads from the source when it began.
    others: u32,
    /// Whether it may be in progress: there is no first token yet.
    reading: bool,
    /// Whether the engine has answered.
    answered: bool,
    /// When it is expected to be over, if no first token will be reported.
    silent_until: Option<Moment>,
    /// Its time, until it is known whether it brought its blocks.
    ms: Option<f64>,
}

impl OpenFetch {
    /// Returns the read of a request on `target`, which holds `own_tokens` of its prompt.
    pub(crate) fn new(option: &FetchOption, target: Target, own_tokens: u32) -> Self {
        Self {
            source: option.source,
            target,
            tokens: option.tokens,
            own_tokens,
            others: 0,
            reading: true,
            answered: false,
            silent_until: None,
            ms: None,
        }
    }

    /// Returns the read of a request whose first token will not be reported.
    pub(crate) fn silent(self, until: Option<Moment>) -> Self {
        Self {
            silent_until: until,
            ..self
        }
    }

    fn pair(&self) -> (WorkerId, WorkerId) {
        (self.source.worker, self.target.worker)
    }

    /// Returns whether a report of cached tokens shows that the blocks came: at least half of them,
    /// since the target's own may have been evicted meanwhile.
    fn arrived(&self, cached_tokens: u32) -> bool {
        let gained = cached_tokens.saturating_sub(self.own_tokens);
        u64::from(gained) * 2 >= u64::from(self.tokens)
    }
}

/// The reads of open requests, and what was learned of earlier ones. Bounded by the open
/// reservations and by the rates' own bounds.
#[derive(Debug, Default)]
pub(crate) struct FetchTable {
    pub(super) rates: FetchRates,
    /// Ordered, because a hash table that grows moves all entries under the lock.
    open: BTreeMap<ReservationId, OpenFetch>,
    /// Reads in progress by source; at most one entry for each of `open`.
    reads: HashMap<Target, u32, FixedState>,
    /// Those that end without a report, by when they are expected to be over.
    silent: BTreeSet<(Moment, ReservationId)>,
    counts: FetchCounts,
}

impl FetchTable {
    /// Returns the number of reads from a target that are in progress.
    pub(crate) fn reads(&self, source: Target) -> u32 {
        self.reads.get(&source).copied().unwrap_or(0)
    }

    /// Records that a request is sent with a source.
    pub(crate) fn open(&mut self, id: ReservationId, fetch: OpenFetch) {
        let others = self.reads(fetch.source);
        self.reads.insert(fetch.source, others + 1);
        self.silent
            .extend(fetch.silent_until.map(|until| (until, id)));
        self.open.insert(id, OpenFetch { others, ..fetch });
        self.counts.sent += 1;
    }

    /// Returns whether a request reads blocks.
    pub(crate) fn has(&self, id: ReservationId) -> bool {
        self.open.contains_key(&id)
    }

    /// Records the first token of a request: a read is over. Returns whether it has one.
    pub(crate) fn first_token(&mut self, id: ReservationId) -> bool {
        let Some(fetch) = self.open.get_mut(&id) else {
            return false;
        };
        fetch.answered = true;
        self.end_read(id);
        true
    }

    /// Ends the reads that are expected to be over by now, where no first token will show it: a whole
    /// reply comes long after its blocks.
    pub(super) fn expire(&mut self, now: Moment) {
        while self.silent.first().is_some_and(|(until, _)| *until <= now)
            && let Some((_, id)) = self.silent.pop_first()
        {
            self.end_read(id);
        }
    }

    /// Records how long the read of a request took. It counts once it is known that it brought its
    /// blocks, or the request ends without a report.
    pub(crate) fn timed(&mut self, id: ReservationId, ms: f64) {
        if let Some(fetch) = self.open.get_mut(&id) {
            fetch.ms = Some(ms);
        }
    }

    /// Records the cached tokens that the engine of a request reported.
    pub(crate) fn reported(&mut self, now: Moment, id: ReservationId, cached_tokens: Option<u32>) {
        let Some((fetch, cached_tokens)) = self.open.get_mut(&id).zip(cached_tokens) else {
            return;
        };
        fetch.answered = true;
        let (arrived, ms) = (fetch.arrived(cached_tokens), fetch.ms.take());
        let (pair, amount) = (fetch.pair(), (fetch.tokens, fetch.others));
        self.rates.record(now, pair, arrived);
        if arrived {
            self.counts.arrived += 1;
            if let Some(ms) = ms {
                self.rates.learn(now, pair, amount, ms);
            }
        } else {
            self.counts.missed += 1;
        }
    }

    /// Records the end of a request; `succeeded`: whether it got a whole reply, if that is a verdict on
    /// its worker.
    pub(crate) fn end(&mut self, now: Moment, id: ReservationId, succeeded: Option<bool>) {
        self.end_read(id);
        let Some(fetch) = self.open.remove(&id) else {
            return;
        };
        // The read may be what the engine failed by.
        if succeeded == Some(false) && !fetch.answered {
            self.counts.missed += 1;
            self.rates.record(now, fetch.pair(), false);
        }
        // Without a report the time alone shows whether the read was worth it.
        if let Some(ms) = fetch.ms.filter(|_| succeeded == Some(true)) {
            self.rates
                .learn(now, fetch.pair(), (fetch.tokens, fetch.others), ms);
        }
    }

    /// Drops what is known of a removed worker. Its open reads end with their requests.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.rates.forget(worker);
    }

    pub(crate) fn counts(&self) -> FetchCounts {
        self.counts
    }

    /// Takes the read of a request off its source, if it is in progress.
    fn end_read(&mut self, id: ReservationId) {
        let fetch = self.open.get_mut(&id);
        let Some(fetch) = fetch.filter(|fetch| fetch.reading) else {
            return;
        };
        fetch.reading = false;
        let (source, until) = (fetch.source, fetch.silent_until);
        if let Some(until) = until {
            self.silent.remove(&(until, id));
        }
        if let Some(reads) = self.reads.get_mut(&source) {
            *reads = reads.saturating_sub(1);
            if *reads == 0 {
                self.reads.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kv_blocks::DpRank;

    use super::*;

    fn target(worker: u32) -> Target {
        Target {
            worker: WorkerId(worker),
            rank: DpRank(0),
        }
    }

    /// A read of 1,000 tokens by a target that holds 160 itself.
    fn fetch() -> OpenFetch {
        let option = FetchOption {
            source: target(1),
            tokens: 1_000,
            ms: 20.0,
            missed: 0.0,
            displaced_tokens: 0.0,
        };
        OpenFetch::new(&option, target(2), 160)
    }

    fn missed(table: &FetchTable) -> f64 {
        let pair = (WorkerId(1), WorkerId(2));
        table.rates.price(Moment::START, pair, 1_000, 0).missed
    }

    #[test]
    fn a_read_is_in_progress_until_the_first_token_or_the_end() {
        let mut table = FetchTable::default();
        for id in 1..=3 {
            table.open(ReservationId(id), fetch());
        }
        assert_eq!((table.reads(target(1)), table.reads(target(2))), (3, 0));
        assert!(table.first_token(ReservationId(1)));
        assert!(table.first_token(ReservationId(1)), "it happens once");
        table.end(Moment::START, ReservationId(2), None);
        assert_eq!(table.reads(target(1)), 1);
        for id in 1..=3 {
            table.end(Moment::START, ReservationId(id), Some(true));
        }
        assert_eq!(table.reads(target(1)), 0);
        assert!(table.reads.is_empty() && table.open.is_empty());
        assert!(!table.first_token(ReservationId(9)), "it reads nothing");
    }

    #[test]
    fn a_read_whose_first_token_is_not_reported_is_over_when_that_is_expected() {
        let at = |ms| Moment::at(Duration::from_millis(ms));
        let mut table = FetchTable::default();
        for (id, until) in [(1, Some(300)), (2, Some(200)), (3, None), (4, Some(250))] {
            table.open(ReservationId(id), fetch().silent(until.map(at)));
        }
        table.end(at(100), ReservationId(4), Some(true));
        for (now, reads) in [(199, 3), (200, 2), (299, 2), (1_000, 1)] {
            table.expire(at(now));
            assert_eq!(table.reads(target(1)), reads, "{now}");
        }
        for id in 1..=3 {
            table.end(at(2_000), ReservationId(id), Some(true));
        }
        assert!(table.reads.is_empty() && table.silent.is_empty());
    }

    #[test]
    fn the_cached_tokens_of_a_report_show_whether_the_blocks_came() {
        for (cached, came) in [
            (0, false),
            (160, false),
            (650, false),
            (660, true),
            (1_160, true),
        ] {
            let mut table = FetchTable::default();
            let id = ReservationId(1);
            table.open(id, fetch());
            table.first_token(id);
            table.timed(id, 20.0);
            table.reported(Moment::START, id, Some(cached));
            table.end(Moment::START, id, Some(true));
            let counts = table.counts();
            let expected = (u64::from(came), u64::from(!came));
            assert_eq!((counts.arrived, counts.missed), expected, "{cached}");
            assert_eq!(missed(&table) > 0.0, !came, "{cached}");
        }
    }

    #[test]
    fn a_request_that_fails_unanswered_counts_as_a_read_that_brought_nothing() {
        let (id, start) = (ReservationId(1), Moment::START);
        for (answered, succeeded, counted) in [
            (false, Some(false), true),
            (true, Some(false), false),
            (false, None, false),
            (false, Some(true), false),
        ] {
            for silent in [None, Some(start)] {
                let mut table = FetchTable::default();
                table.open(id, fetch().silent(silent));
                table.expire(start);
                if answered {
                    table.first_token(id);
                }
                table.end(start, id, succeeded);
                let case = format!("{answered} {succeeded:?} {silent:?}");
                assert_eq!(table.counts().missed, u64::from(counted), "{case}");
                assert_eq!(missed(&table) > 0.0, counted, "{case}");
            }
        }
    }

    #[test]
    fn the_time_of_a_read_counts_unless_its_blocks_were_computed_or_the_reply_broke_off() {
        let price = |table: &FetchTable| {
            let pair = (WorkerId(1), WorkerId(2));
            table.rates.price(Moment::START, pair, 1_000, 0).ms
        };
        let untaught = price(&FetchTable::default());
        for (cached, succeeded, learned) in [
            (Some(1_160), Some(true), true),
            (Some(160), Some(true), false),
            (None, Some(true), true),
            (None, Some(false), false),
            (None, None, false),
        ] {
            let mut table = FetchTable::default();
            for id in (1..=20).map(ReservationId) {
                table.open(id, fetch());
                table.first_token(id);
                table.timed(id, 500.0);
                table.reported(Moment::START, id, cached);
                table.end(Moment::START, id, succeeded);
            }
            assert_eq!(price(&table) > 5.0 * untaught, learned, "{cached:?}");
        }
    }
}
