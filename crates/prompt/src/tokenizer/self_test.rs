//! Compares the two libraries, and cut with whole texts, when a model is loaded.

use serde_json::Value;

use super::{
    SelfTest, Tokenizer, added_token::AddedToken, cut_points::CutPoints,
    fast_tokenizer::FastTokenizer, probes,
};
use crate::PromptError;

impl Tokenizer {
    /// Enables the fast library if its ids equal the reference's on every probe.
    pub(super) fn engage_fast(&mut self, described: Value, added: &[AddedToken]) {
        // The fast library also matches such tokens inside words, as it documents.
        if added.iter().any(|token| token.single_word) {
            return;
        }
        let Some(fast) = FastTokenizer::load(described) else {
            return;
        };
        let probes = probes::all(added, &self.vocabulary_text());
        let agree = |probe: &str, special: bool| {
            let expected = self.encode_by_reference(probe, special);
            matches!((fast.encode(probe, special), expected), (Some(fast), Ok(reference)) if fast == reference)
        };
        // Tokens added around a prompt do not depend on its length.
        let equal = probes
            .iter()
            .all(|probe| agree(probe, false) && (probe.len() > 1_000 || agree(probe, true)));
        self.self_test = if equal {
            SelfTest::Ok
        } else {
            SelfTest::Failed
        };
        self.fast = equal.then_some(fast);
    }

    /// Returns texts of tokens from the whole vocabulary, so that the comparison covers rare merges
    /// too.
    fn vocabulary_text(&self) -> Vec<String> {
        const TOKENS: usize = 8_192;
        const AT_ONCE: usize = 64;
        let size = u32::try_from(self.reference.get_vocab_size(true)).unwrap_or(u32::MAX);
        let step = (size as usize).div_ceil(TOKENS).max(1);
        let ids: Vec<u32> = (0..size).step_by(step).collect();
        ids.chunks(AT_ONCE)
            .filter_map(|ids| self.decode(ids).ok())
            .collect()
    }

    /// Returns whether cutting makes no difference on texts with many cut points.
    pub(super) fn cuts_are_exact(&self, cuts: &CutPoints) -> bool {
        probes::around_cuts(cuts.tokens()).iter().all(|probe| {
            let mut tokens = Vec::new();
            let pieces = cuts.split(probe).try_for_each(|piece| {
                tokens.extend(self.encode_by_reference(piece, false)?);
                Ok::<_, PromptError>(())
            });
            matches!((pieces, self.encode_by_reference(probe, false)), (Ok(()), Ok(whole)) if tokens == whole)
        })
    }
}
