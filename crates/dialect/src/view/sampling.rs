//! Sampling parameters that stand in an object of their own, or in a list of such objects.

use super::TransferFields;
use crate::{body_counts, json::RawJson};

/// The sampling parameters that routing reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SamplingFields<'a> {
    pub(super) n: Option<RawJson<'a>>,
    pub(super) stop: Option<RawJson<'a>>,
    /// Maximum number of output tokens.
    pub(super) max_tokens: Option<u32>,
    /// Whether the logprobs of the prompt are wanted.
    pub(super) prompt_logprobs: bool,
    pub(super) truncate_prompt_tokens: Option<i64>,
    /// The fields of KV transfer.
    pub(super) transfer_fields: TransferFields,
}

impl<'a> SamplingFields<'a> {
    /// Reads one set of parameters, or a list of them with one for each prompt; `longest` is the
    /// name of the maximum number of output tokens. Of several values of one parameter, also of a
    /// name that stands there twice, the largest counts: engines differ in which one they read.
    pub(super) fn read(sets: RawJson<'a>, longest: &str) -> Self {
        let mut found = Self::default();
        let list = sets.elements().into_iter().flatten();
        for set in list.chain([sets]) {
            for (key, value) in set.members().into_iter().flatten() {
                if !value.is_null() {
                    found.add(&key, value, longest);
                }
            }
        }
        found
    }

    fn add(&mut self, key: &str, value: RawJson<'a>, longest: &str) {
        match key {
            "n" => self.n = larger(self.n, value, body_counts::number),
            "stop" => self.stop = larger(self.stop, value, body_counts::texts),
            "prompt_logprobs" => self.prompt_logprobs = true,
            "truncate_prompt_tokens" => self.truncate_prompt_tokens = value.integer(),
            "extra_args" => {
                let names: Vec<_> = value.members().into_iter().flatten().collect();
                let has = |name: &str| names.iter().any(|(key, it)| key == name && !it.is_null());
                let found = TransferFields::in_sampling(has);
                self.transfer_fields = self.transfer_fields.union(found);
            }
            key if key == longest => {
                let tokens = value
                    .integer()
                    .and_then(|number| u32::try_from(number).ok());
                self.max_tokens = self.max_tokens.max(tokens);
            }
            _ => {}
        }
    }
}

/// Returns the value with the larger size.
fn larger<'a>(
    before: Option<RawJson<'a>>,
    value: RawJson<'a>,
    size: impl Fn(RawJson<'a>) -> u64,
) -> Option<RawJson<'a>> {
    match before {
        Some(before) if size(before) >= size(value) => Some(before),
        _ => Some(value),
    }
}
