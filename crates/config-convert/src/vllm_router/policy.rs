//! Converts that router's policies and their keys.

use config::ROOT;
use settings::{
    Value, ValueKind,
    kinds::{PORT, int},
};

use super::{
    Conversion, KeyMapping,
    keys::{MILLISECONDS, SHARE, TOKENS_OF_A_BLOCK, key},
};
use crate::source_config::{SourceField, UnreadFields};

/// The policy that uses KV events.
const KV_AWARE: &str = "kv_aware";
/// The policy that queries LMCache's controller.
const LMCACHE_AWARE: &str = "lmcache_aware";
/// The policy of a hash ring.
const CONSISTENT_HASH: &str = "consistent_hash";

const KV_AWARE_KEYS: &[KeyMapping] = &[
    key(
        "block_size",
        "models.defaults.block_size",
        TOKENS_OF_A_BLOCK,
    )
    .or("16"),
    key("enable_speculative", "routing.speculative", ValueKind::Bool).or("true"),
    key(
        "speculative_ttl_ms",
        "routing.speculative_ttl",
        MILLISECONDS,
    )
    .unit("ms")
    .or("2000ms"),
];

const KV_EVENTS_KEYS: &[KeyMapping] = &[
    key("topic_filter", "kv_events.topic_filter", ValueKind::Text).or("\"\""),
    key("default_port", "kv_events.default_port", PORT).or("5557"),
];

const WEIGHTS_KEYS: &[KeyMapping] = &[
    key("gpu", "routing.medium_weights.gpu", SHARE),
    key("cpu", "routing.medium_weights.cpu", SHARE),
    key("disk", "routing.medium_weights.disk", SHARE),
];

const RING_KEYS: &[KeyMapping] = &[key(
    "virtual_nodes",
    "prefix_routing.virtual_nodes",
    int(1, u32::MAX as u64),
)];

impl Conversion {
    pub(super) fn policy(&mut self, policy: &SourceField<'_>, ours: &'static str) {
        let Some(mut fields) = self.given.fields(policy) else {
            return;
        };
        let Some(name) = self.given.required(
            &mut fields,
            "type",
            "the name of a policy, such as kv_aware",
        ) else {
            return;
        };
        match self.given.value(&name, &ValueKind::Text) {
            Some(Value::Text(text)) => match policy_of(&text) {
                Some(word) => {
                    self.set(ours, word.to_owned(), &fields.place("type", Some(&name)));
                    match word {
                        KV_AWARE => self.kv_aware(&mut fields),
                        LMCACHE_AWARE => self.lmcache(&mut fields),
                        CONSISTENT_HASH => self.keys(RING_KEYS, &mut fields),
                        _ => {}
                    }
                }
                None => self.given.unused(name),
            },
            _ => return,
        }
        self.given.leave(fields);
    }

    fn kv_aware(&mut self, policy: &mut UnreadFields<'_>) {
        self.keys(KV_AWARE_KEYS, policy);
        let events = self.section(policy, "kv_events");
        let mut events = events.unwrap_or_else(|| policy.absent("kv_events"));
        self.keys(KV_EVENTS_KEYS, &mut events);
        self.given.leave(events);
        self.weights(policy);
    }

    /// Reads the weights, whose place that router's documents do not name: beside the policy and at
    /// the top level.
    pub(super) fn weights(&mut self, fields: &mut UnreadFields<'_>) {
        if let Some(mut weights) = self.section(fields, "medium_weights") {
            self.keys(WEIGHTS_KEYS, &mut weights);
            self.given.leave(weights);
        }
    }
}

/// Returns the policy of ours with this name, also if this version does not support it yet.
fn policy_of(name: &str) -> Option<&'static str> {
    let ValueKind::Section(routing) = ROOT.iter().find(|section| section.name == "routing")?.kind
    else {
        return None;
    };
    let ValueKind::Word(policies) = routing.iter().find(|key| key.name == "policy")?.kind else {
        return None;
    };
    policies
        .iter()
        .find(|policy| policy.matches(name))
        .map(|policy| policy.word)
}
