//! What a router has learned and a later process can use: the speed of workers, sessions, and the
//! length of replies.
//!
//! It is read from files and from other routers, so nothing in it is trusted: what is out of bounds
//! is left out, and what is left only shapes estimates and preferences.

use kv_blocks::{Moment, WorkerId};
use serde::{Deserialize, Serialize};

use crate::{
    Router,
    rates::LearnedSpeeds,
    session::{LearnedSession, SESSION_PARTS},
};

/// The learned state of one router. Workers are named by their numbers in the process that saved it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LearnedState {
    speeds: LearnedSpeeds,
    /// The same of decode steps; `None`: saved by a version that learned none.
    decode_speeds: Option<LearnedSpeeds>,
    /// At most as many as a router remembers.
    sessions: Vec<LearnedSession>,
    /// Mean length of replies, in tokens.
    reply_tokens: Option<f64>,
}

impl LearnedState {
    /// Drops what was learned of other workers.
    pub fn retain(&mut self, is_known: impl Fn(WorkerId) -> bool) {
        self.speeds.retain(&is_known);
        if let Some(speeds) = &mut self.decode_speeds {
            speeds.retain(&is_known);
        }
        self.sessions.retain(|session| is_known(session.worker()));
    }
}

impl Router {
    /// Returns what this router has learned. Decisions wait for a part of it at most: for the speeds,
    /// or for a look at all keys of sessions and the copy of a sixteenth of them.
    pub fn learned(&self, now: Moment) -> LearnedState {
        let ([speeds, decode_speeds], reply_tokens) = {
            let state = &*self.state.lock();
            (state.rates.learned(), state.output.mean())
        };
        let parts = 0..SESSION_PARTS;
        LearnedState {
            speeds,
            decode_speeds: Some(decode_speeds),
            sessions: parts
                .flat_map(|part| self.state.lock().sessions.learned(now, part))
                .collect(),
            reply_tokens: Some(reply_tokens),
        }
    }

    /// Takes over what an earlier process has learned, in place of what this one has.
    pub fn take_over(&self, now: Moment, learned: LearnedState) {
        let state = &mut *self.state.lock();
        state
            .rates
            .restore(now, learned.speeds, learned.decode_speeds);
        state.sessions.restore(now, learned.sessions);
        if let Some(tokens) = learned.reply_tokens {
            state.output.restore(tokens);
        }
    }
}
