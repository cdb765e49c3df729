//! Converts text to token ids and back.
//!
//! Two libraries implement one interface. The reference library (`referee`) parses every tokenizer
//! file, decodes, and encodes by default; the fast one encodes if a comparison at load found no
//! difference, and until its first failure.
//!
//! **Invariant**: the ids are the reference library's, whichever library computed them. The model's
//! own truncation and padding settings are off; the engine applies its limits elsewhere.

mod added_token;
mod cut_points;
mod limits;
mod probes;
mod segment_cache;
mod steps;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use serde_json::Value;

pub use self::probes::prose as sample_text;
use self::{added_token::AddedToken, cut_points::CutPoints, segment_cache::SegmentCache};
use crate::{LoadError, PromptError, cancel};

pub(crate) struct Tokenizer {
    referee: tokenizers::Tokenizer,
    fast: Option<FastTokenizer>,
    self_test: SelfTest,
    /// The cut points of a text, and the cached ids of pieces. `None`: no cut is safe for this
    /// model.
    turns: Option<(CutPoints, SegmentCache)>,
}

struct FastTokenizer {
    tokenizer: fastokens::Tokenizer,
    /// Whether it panicked on a text: the library is young, and the state of its thread-local
    /// caches after a panic is unverified.
    dropped: AtomicBool,
}

/// The result of the fast library's comparison at load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SelfTest {
    Ok,
    Failed,
    Skipped,
}

/// Token ids, and how many of them were computed by this call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EncodedText {
    pub(crate) tokens: Vec<u32>,
    pub(crate) new_tokens: usize,
}

impl Tokenizer {
    pub(crate) fn load(json: &[u8]) -> Result<Self, LoadError> {
        limits::check(json).map_err(|reason| LoadError::Tokenizer { reason })?;
        let referee = guarded(|| {
            let mut tokenizer = tokenizers::Tokenizer::from_bytes(json)?;
            tokenizer.with_truncation(None)?;
            tokenizer.with_padding(None);
            Ok(tokenizer)
        })
        .map_err(|reason| LoadError::Tokenizer { reason })?;
        // The reference library has parsed it, so a failure here is a difference in what the two
        // call JSON.
        let described: Value = serde_json::from_slice(json).unwrap_or(Value::Null);
        let added = AddedToken::read(&described);
        let cuts = CutPoints::find(&described, &added);
        let mut tokenizer = Self {
            referee,
            fast: None,
            self_test: SelfTest::Skipped,
            turns: None,
        };
        tokenizer.engage_fast(described, &added);
        tokenizer.turns = cuts
            .filter(|cuts| tokenizer.cuts_are_exact(cuts))
            .map(|cuts| (cuts, SegmentCache::default()));
        if cancel::is_cancelled() {
            Err(LoadError::Cancelled)
        } else {
            Ok(tokenizer)
        }
    }

    /// Enables the fast library if its ids equal the reference's on every probe.
    fn engage_fast(&mut self, described: Value, added: &[AddedToken]) {
        // The fast library also matches such tokens inside words, as it documents.
        if added.iter().any(|token| token.single_word) {
            return;
        }
        let Ok(tokenizer) = guarded(|| {
            let mut tokenizer = fastokens::Tokenizer::from_json(described)?;
            tokenizer.set_truncation(None);
            tokenizer.set_padding(None);
            // This crate's cache is bounded, counted and serves both libraries.
            tokenizer.enable_segment_cache(0);
            Ok(tokenizer)
        }) else {
            return;
        };
        let fast = FastTokenizer {
            tokenizer,
            dropped: AtomicBool::new(false),
        };
        let probes = probes::all(added, &self.vocabulary_text());
        let agree = |probe: &str, special: bool| {
            let expected = self.encode_by_referee(probe, special);
            matches!((fast.encode(probe, special), expected), (Some(fast), Ok(referee)) if fast == referee)
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
        let size = u32::try_from(self.referee.get_vocab_size(true)).unwrap_or(u32::MAX);
        let step = (size as usize).div_ceil(TOKENS).max(1);
        let ids: Vec<u32> = (0..size).step_by(step).collect();
        ids.chunks(AT_ONCE)
            .filter_map(|ids| self.decode(ids).ok())
            .collect()
    }

    /// Returns whether cutting makes no difference on texts with many cut points.
    fn cuts_are_exact(&self, cuts: &CutPoints) -> bool {
        probes::around_cuts(cuts.tokens()).iter().all(|probe| {
            let mut tokens = Vec::new();
            let pieces = cuts.split(probe).try_for_each(|piece| {
                tokens.extend(self.encode_by_referee(piece, false)?);
                Ok::<_, PromptError>(())
            });
            matches!((pieces, self.encode_by_referee(probe, false)), (Ok(()), Ok(whole)) if tokens == whole)
        })
    }

    pub(crate) fn encode(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<EncodedText, PromptError> {
        match &self.turns {
            // Special tokens are added to a whole prompt, not to its pieces.
            Some((cuts, cache)) if !add_special_tokens => {
                let (mut tokens, mut new_tokens) = (Vec::with_capacity(text.len() / 4), 0);
                for piece in cuts.split(text) {
                    if !cache.append(piece, &mut tokens) {
                        let ids = self.encode_whole(piece, false)?;
                        new_tokens += ids.len();
                        tokens.extend_from_slice(&ids);
                        // The last piece ends where the next turn continues: it will not recur.
                        if cuts.ends(piece) {
                            cache.keep(piece, ids);
                        }
                    }
                }
                Ok(EncodedText { tokens, new_tokens })
            }
            _ => {
                let tokens = self.encode_whole(text, add_special_tokens)?;
                Ok(EncodedText {
                    new_tokens: tokens.len(),
                    tokens,
                })
            }
        }
    }

    /// Sets whether the ids of new pieces are cached.
    pub(crate) fn take_new(&self, takes: bool) {
        if let Some((_, cache)) = &self.turns {
            cache.take_new(takes);
        }
    }

    /// Evicts pieces without recent use.
    pub(crate) fn shrink(&self) {
        if let Some((_, cache)) = &self.turns {
            cache.shrink();
        }
    }

    /// Returns the bytes whose ids [`Self::encode`] would have to compute.
    pub(crate) fn new_bytes(&self, text: &str, add_special_tokens: bool) -> usize {
        match &self.turns {
            Some((cuts, cache)) if !add_special_tokens => cuts
                .split(text)
                .filter(|piece| !cache.knows(piece))
                .map(str::len)
                .sum(),
            _ => text.len(),
        }
    }

    fn encode_whole(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, PromptError> {
        if cancel::is_cancelled() {
            return Err(PromptError::Cancelled);
        }
        match self
            .fast()
            .and_then(|fast| fast.encode(text, add_special_tokens))
        {
            Some(ids) => Ok(ids),
            None => self.encode_by_referee(text, add_special_tokens),
        }
    }

    fn encode_by_referee(
        &self,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, PromptError> {
        if cancel::is_cancelled() {
            return Err(PromptError::Cancelled);
        }
        // Without offsets: they are not used.
        guarded(|| {
            Ok(self
                .referee
                .encode_fast(text, add_special_tokens)?
                .get_ids()
                .to_vec())
        })
        .map_err(PromptError::Tokenizer)
    }

    pub(crate) fn decode(&self, ids: &[u32]) -> Result<String, PromptError> {
        guarded(|| self.referee.decode(ids, false)).map_err(PromptError::Tokenizer)
    }

    pub(crate) fn spellings(&self, ids: &[u32]) -> Vec<Option<String>> {
        ids.iter().map(|id| self.referee.id_to_token(*id)).collect()
    }

    fn fast(&self) -> Option<&FastTokenizer> {
        self.fast
            .as_ref()
            .filter(|fast| !fast.dropped.load(Relaxed))
    }

    /// Returns the library that encodes.
    pub(crate) fn engine(&self) -> &'static str {
        if self.fast().is_some() {
            "fastokens"
        } else {
            "tokenizers"
        }
    }

    pub(crate) fn self_test(&self) -> &'static str {
        match self.self_test {
            SelfTest::Ok if self.fast().is_some() => "ok",
            SelfTest::Ok | SelfTest::Failed => "failed",
            SelfTest::Skipped => "skipped",
        }
    }
}

impl FastTokenizer {
    /// Returns the ids, or `None` if the library fails or panics.
    fn encode(&self, text: &str, add_special_tokens: bool) -> Option<Vec<u32>> {
        match catch_unwind(AssertUnwindSafe(|| {
            self.tokenizer
                .encode_with_special_tokens(text, add_special_tokens)
        })) {
            Ok(ids) => ids.ok(),
            Err(_) => {
                self.dropped.store(true, Relaxed);
                None
            }
        }
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("engine", &self.engine())
            .finish_non_exhaustive()
    }
}

/// Runs a library; a panic inside it fails only this call. Its state is caches that stay valid
/// between their steps.
fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the tokenizer library panicked".to_owned()),
    }
}
