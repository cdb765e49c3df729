//! The closed loop: sessions whose next request comes a while after the reply before it.
//!
//! A run is one play of a session of the trace. Its blocks are its own, except those that several
//! sessions of the trace have: runs share what sessions share. The first runs begin anywhere in
//! their sessions, as in a fleet that has been busy for long, later ones at the first request.
//!
//! Which session a run plays, and its pauses, depend on the seed and on the run's number alone: every
//! policy gets the same work.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    time::Duration,
};

use kv_blocks::{EngineHash, Moment};

use super::prompt::PlayedPrompt;
use crate::{SessionPlan, Trace, random::SplitMix64, trace::SessionTurn};

/// Separates the random numbers drawn here from the others, and from each other.
const ORDER: u64 = 5;
const PAUSES: u64 = 6 << 56;
const KEYS: u64 = 7 << 56;

/// Time over which the first runs begin.
const FIRST_ARRIVALS: Duration = Duration::from_secs(60);

/// Most requests of a run of the simulation, and most different blocks of their prompts: no further
/// request follows beyond them, to protect the memory.
const MOST_TURNS: usize = 1 << 24;
const MOST_BLOCKS: usize = 1 << 26;

/// Pauses from here on were cut when the trace was recorded.
const LONGEST_RECORDED_PAUSE: Duration = Duration::from_secs(60);

/// The sessions of a trace in a closed loop.
pub(super) struct SessionLoop<'a> {
    pub(super) trace: &'a Trace,
    pub(super) plan: SessionPlan,
    seed: u64,
    /// The rows of each session of the trace, in order.
    sessions: Vec<Vec<usize>>,
    /// For each row of the trace, its leading blocks that another session has too.
    shared_blocks: Vec<usize>,
    random: SplitMix64,
    /// The sessions that are played next, last first.
    upcoming: Vec<usize>,
    pub(super) runs: Vec<SessionRun>,
    /// One for each request.
    pub(super) turns: Vec<PlayedTurn>,
    /// All blocks of the prompts that arrived.
    seen: HashSet<EngineHash>,
    /// Whether the warm-up is over.
    is_measuring: bool,
}

/// One play of a session.
pub(super) struct SessionRun {
    session: usize,
    pub(super) started: Moment,
    pub(super) ended: Option<Moment>,
}

/// A request of a run.
pub(super) struct PlayedTurn {
    pub(super) run: usize,
    /// Its position in the session.
    position: usize,
    /// Leading tokens of its prompt that a cache without end would hold at its arrival.
    pub(super) reusable_tokens: u32,
    /// Time from its reply to the run's next request; `None` before the reply and for the last.
    pub(super) pause: Option<Duration>,
}

impl<'a> SessionLoop<'a> {
    pub(super) fn new(trace: &'a Trace, plan: SessionPlan, seed: u64) -> Self {
        let sessions = sessions(trace);
        Self {
            shared_blocks: shared_blocks(trace, &sessions),
            sessions,
            trace,
            plan,
            seed,
            random: SplitMix64::new(seed, ORDER),
            upcoming: Vec::new(),
            runs: Vec::new(),
            turns: Vec::new(),
            seen: HashSet::new(),
            is_measuring: false,
        }
    }

    /// Starts the first runs; returns the arrivals of their first requests.
    pub(super) fn start(&mut self) -> Vec<Moment> {
        let mut positions = vec![(0, 0); self.trace.requests.len()];
        for (session, rows) in self.sessions.iter().enumerate() {
            for (position, row) in rows.iter().enumerate() {
                positions[*row] = (session, position);
            }
        }
        let mut arrivals = Vec::new();
        for _ in 0..self.plan.concurrent {
            let drawn = self.random.below(positions.len() as u64);
            let row = usize::try_from(drawn).unwrap_or(0);
            let Some((session, position)) = positions.get(row).copied() else {
                break;
            };
            let at = Moment::at(FIRST_ARRIVALS.mul_f64(self.random.unit()));
            self.begin(session, position, at);
            arrivals.push(at);
        }
        arrivals
    }

    /// Returns whether the measured time begins with an event at `now`: true once.
    pub(super) fn begins_to_measure(&mut self, now: Moment) -> bool {
        let begins = !self.is_measuring && now >= Moment::at(self.plan.warm_up);
        self.is_measuring |= begins;
        begins
    }

    /// Returns the row of the trace that a request is played from.
    pub(super) fn row(&self, request: usize) -> Option<usize> {
        let turn = self.turns.get(request)?;
        let rows = self.sessions.get(self.runs[turn.run].session)?;
        rows.get(turn.position).copied()
    }

    /// Returns the content of a request.
    pub(super) fn prompt(&self, request: usize) -> Option<PlayedPrompt> {
        let row = self.row(request)?;
        let (turn, traced) = (&self.turns[request], &self.trace.requests[row]);
        let run = turn.run as u64;
        let (shared, own) = traced.names.split_at(self.shared_blocks[row]);
        let own = own
            .iter()
            .map(|name| EngineHash(SplitMix64::new(name.0, run + 1).next()));
        Some(PlayedPrompt::of_session(
            (self.trace.block_size, traced.prompt_tokens),
            shared.iter().copied().chain(own).collect(),
            SessionTurn {
                session: run,
                number: turn.position as u64,
            },
            SplitMix64::new(self.seed, KEYS | run).next(),
        ))
    }

    /// Records the part of an arriving request's prompt that a cache without end would hold.
    pub(super) fn arrived(&mut self, request: usize) {
        let Some((row, prompt)) = self.row(request).zip(self.prompt(request)) else {
            return;
        };
        let size = self.trace.block_size;
        // An engine computes the last token of a prompt again.
        let most = size.whole_blocks(self.trace.requests[row].prompt_tokens - 1) as usize;
        let known = prompt
            .names
            .iter()
            .take(most)
            .take_while(|name| self.seen.contains(name))
            .count();
        self.seen.extend(&*prompt.names);
        // At most the blocks of a prompt, whose tokens are a u32.
        let known = u32::try_from(known).unwrap_or(0);
        self.turns[request].reusable_tokens = known * size.tokens();
    }

    /// Records the end of a request's reply; returns the arrival of the next request: of the same
    /// run, or of the next one. `None` if none follows.
    pub(super) fn ended(&mut self, now: Moment, request: usize) -> Option<Moment> {
        if self.turns.len() >= MOST_TURNS || self.seen.len() >= MOST_BLOCKS {
            return None;
        }
        let PlayedTurn { run, position, .. } = *self.turns.get(request)?;
        let session = self.runs[run].session;
        let next = position + 1;
        if next < self.sessions[session].len() {
            let pause = self.pause(run, next);
            self.turns[request].pause = Some(pause);
            self.turns.push(PlayedTurn::new(run, next));
            return Some(now + pause);
        }
        self.runs[run].ended = Some(now);
        let session = self.next_session()?;
        self.begin(session, 0, now);
        Some(now)
    }

    fn begin(&mut self, session: usize, position: usize, started: Moment) {
        self.turns.push(PlayedTurn::new(self.runs.len(), position));
        self.runs.push(SessionRun {
            session,
            started,
            ended: None,
        });
    }

    /// Takes the next session; all of them are played in a drawn order before one is played again.
    fn next_session(&mut self) -> Option<usize> {
        if self.upcoming.is_empty() {
            self.upcoming = (0..self.sessions.len()).collect();
            for last in (1..self.upcoming.len()).rev() {
                let drawn = self.random.below(last as u64 + 1);
                self.upcoming
                    .swap(last, usize::try_from(drawn).unwrap_or(last));
            }
        }
        self.upcoming.pop()
    }

    /// Returns the time from a reply to the run's request at `position`: recorded, or else the time
    /// between the two arrivals.
    fn pause(&self, run: usize, position: usize) -> Duration {
        let rows = &self.sessions[self.runs[run].session];
        let at = |position: usize| &self.trace.requests[rows[position]];
        let pause = at(position).pause.unwrap_or_else(|| {
            let seconds = at(position).arrival_s - at(position - 1).arrival_s;
            Duration::try_from_secs_f64(seconds).unwrap_or_default()
        });
        if self.plan.mean_tail.is_zero() || pause < LONGEST_RECORDED_PAUSE {
            return pause;
        }
        let number = ((run as u64) << 24) ^ position as u64;
        let unit = SplitMix64::new(self.seed, PAUSES ^ number).unit();
        LONGEST_RECORDED_PAUSE + self.plan.mean_tail.mul_f64(-(1.0 - unit).ln())
    }
}

impl PlayedTurn {
    fn new(run: usize, position: usize) -> Self {
        Self {
            run,
            position,
            reusable_tokens: 0,
            pause: None,
        }
    }
}

/// Returns the rows of each session, by the order of their first ones. A row without a session is
/// one of its own.
fn sessions(trace: &Trace) -> Vec<Vec<usize>> {
    let mut sessions: Vec<Vec<usize>> = Vec::new();
    let mut known: HashMap<u64, usize> = HashMap::new();
    for (row, request) in trace.requests.iter().enumerate() {
        let session = match request.turn {
            Some(turn) => *known.entry(turn.session).or_insert(sessions.len()),
            None => sessions.len(),
        };
        match sessions.get_mut(session) {
            Some(rows) => rows.push(row),
            None => sessions.push(vec![row]),
        }
    }
    sessions
}

/// Returns, for each row, its leading blocks that another session has too: a name stands for its
/// block and for all before it.
fn shared_blocks(trace: &Trace, sessions: &[Vec<usize>]) -> Vec<usize> {
    let mut owners: HashMap<EngineHash, usize> = HashMap::new();
    let mut shared: HashSet<EngineHash> = HashSet::new();
    for (session, rows) in sessions.iter().enumerate() {
        for name in rows.iter().flat_map(|row| &*trace.requests[*row].names) {
            match owners.entry(*name) {
                Entry::Vacant(free) => {
                    free.insert(session);
                }
                Entry::Occupied(owner) if *owner.get() != session => {
                    shared.insert(*name);
                }
                Entry::Occupied(_) => {}
            }
        }
    }
    let leading = |names: &[EngineHash]| {
        let of_several = names.iter().take_while(|name| shared.contains(name));
        of_several.count()
    };
    trace
        .requests
        .iter()
        .map(|request| leading(&request.names))
        .collect()
}
