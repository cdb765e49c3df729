//! The lookup of a prompt at LMCache's controller, for the policy that uses it.
//!
//! It runs after tokenization, since it sends the prompt's tokens; `lmcache` bounds its time. A
//! request with only one candidate skips the lookup. It never fails a request.

use std::sync::Arc;

use ::lmcache::{Controller, MatchedTokens, Occupancy};
use dialect::RequestView;
use fleet::{ModelView, WorkerView};
use routing::LmcacheFacts;
use tokenization::TokenizedPrompt;

/// The controller's answer.
#[derive(Clone, Debug)]
pub(crate) struct LmcacheAnswer {
    occupancy: Option<Arc<Occupancy>>,
    matched: Option<MatchedTokens>,
}

impl LmcacheAnswer {
    /// Returns the answer's facts about one worker.
    pub(super) fn of(&self, worker: &WorkerView) -> LmcacheFacts {
        let (name, host_port) = (&*worker.name, worker.connection.url.authority());
        LmcacheFacts {
            keys: self
                .occupancy
                .as_ref()
                .and_then(|occupancy| occupancy.keys(name, &host_port)),
            matched_tokens: self
                .matched
                .as_ref()
                .map(|matched| matched.tokens(name, &host_port)),
        }
    }
}

/// Whether the request has a choice of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CandidateChoice {
    /// The policy chooses.
    Open,
    /// The request names its worker.
    Pinned,
    /// The controller knows tokens only, and the engines keep the blocks of the salt apart.
    Salted,
}

impl CandidateChoice {
    pub(super) fn of(pin: Option<routing::Pin>, view: &RequestView<'_>) -> Self {
        if pin.is_some() {
            Self::Pinned
        } else if view.cache_salt.is_some() {
            Self::Salted
        } else {
            Self::Open
        }
    }
}

/// Looks up the prompt of a request that has a choice of workers.
pub(super) async fn look_up(
    controller: &Controller,
    model: &ModelView,
    prompt: &TokenizedPrompt,
    choice: CandidateChoice,
) -> LmcacheAnswer {
    let matched = if choice == CandidateChoice::Open && model.candidates.len() > 1 {
        let tokens = prompt.blocks.as_ref().and_then(|blocks| blocks.tokens());
        controller.matched(tokens.map(|tokens| &**tokens)).await
    } else {
        None
    };
    LmcacheAnswer {
        occupancy: controller.occupancy(),
        matched,
    }
}
