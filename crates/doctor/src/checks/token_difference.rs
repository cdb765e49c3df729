//! Where the token ids of the engine and of the router differ, in words.

use crate::observe::{self, EngineTokenization, first_difference};

/// Describes where ids differ; `None` if they are equal or cannot be compared.
pub(super) fn difference(one: &observe::TokenCase) -> Option<String> {
    let own = one.own.as_ref().ok()?;
    match &one.engine {
        EngineTokenization::Ids(engine) => {
            let at = first_difference(engine, own)?;
            let pieces = one.pieces.as_ref();
            let texts = pieces.map(|(engine, own)| {
                format!(", the engine goes on with {engine:?}, the router with {own:?}")
            });
            Some(format!(
                "token {at} of {}{}",
                engine.len(),
                texts.unwrap_or_default()
            ))
        }
        EngineTokenization::Count(count) => (*count != own.len())
            .then(|| format!("the engine counts {count} tokens, the router {}", own.len())),
        EngineTokenization::Refused | EngineTokenization::Silent(_) => None,
    }
}

/// Most ids shown of a text.
const SHOWN_IDS: usize = 8;

fn shown(ids: &[u32]) -> String {
    let more = if ids.len() > SHOWN_IDS { ", ..." } else { "" };
    let ids: Vec<String> = ids
        .iter()
        .take(SHOWN_IDS)
        .map(ToString::to_string)
        .collect();
    format!("[{}{more}]", ids.join(", "))
}

pub(super) fn shown_ids(one: &observe::TokenCase) -> String {
    match &one.engine {
        EngineTokenization::Ids(ids) => shown(ids),
        EngineTokenization::Count(count) => format!("{count} tokens"),
        EngineTokenization::Refused | EngineTokenization::Silent(_) => String::new(),
    }
}

pub(super) fn own_ids(one: &observe::TokenCase) -> String {
    one.own.as_ref().map_or_else(Clone::clone, |ids| shown(ids))
}
