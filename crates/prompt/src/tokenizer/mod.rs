//! Converts text to token ids and back.
//!
//! Two libraries implement one interface. The reference library (`reference`) parses every tokenizer
//! file, decodes, and encodes by default; the fast one encodes if a comparison at load found no
//! difference, and until its first failure.
//!
//! **Invariant**: the ids are the reference library's, whichever library computed them. The model's
//! own truncation and padding settings are off; the engine applies its limits elsewhere.

mod added_token;
mod bounds;
mod cut_points;
mod entry_size;
mod fast_tokenizer;
mod limits;
mod probes;
mod prose;
mod samples;
mod segment_cache;
mod self_test;
mod steps;
mod unique_keys;

use std::fmt;

use serde_json::Value;

pub use self::prose::prose as sample_text;
use self::{
    added_token::AddedToken,
    cut_points::CutPoints,
    fast_tokenizer::{FastTokenizer, guarded},
    segment_cache::SegmentCache,
};
use crate::{LoadError, PromptError, SaltGroup, cancel};

pub(crate) struct Tokenizer {
    reference: tokenizers::Tokenizer,
    fast: Option<FastTokenizer>,
    self_test: SelfTest,
    /// The cut points of a text, and the cached ids of pieces. `None`: no cut is safe for this
    /// model.
    turns: Option<(CutPoints, SegmentCache)>,
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
    /// The cut points of the text, in order. The ids up to one of them are those of any text that
    /// begins the same up to there.
    pub(crate) cuts: Vec<TextCut>,
}

/// A cut point: the bytes and the ids before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextCut {
    pub(crate) bytes: usize,
    pub(crate) tokens: usize,
}

impl Tokenizer {
    pub(crate) fn load(json: &[u8]) -> Result<Self, LoadError> {
        limits::check(json).map_err(|reason| LoadError::Tokenizer { reason })?;
        let reference = guarded(|| {
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
            reference,
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

    pub(crate) fn encode(
        &self,
        group: SaltGroup,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<EncodedText, PromptError> {
        match &self.turns {
            // Special tokens are added to a whole prompt, not to its pieces.
            Some((cuts, cache)) if !add_special_tokens => {
                let (mut tokens, mut new_tokens) = (Vec::with_capacity(text.len() / 4), 0);
                let (mut bytes, mut found) = (0, Vec::new());
                for piece in cuts.split(text) {
                    let ends = cuts.ends(piece);
                    if !cache.append(group, piece, &mut tokens) {
                        let ids = self.encode_whole(piece, false)?;
                        new_tokens += ids.len();
                        tokens.extend_from_slice(&ids);
                        // The last piece ends where the next turn continues: it will not recur.
                        if ends {
                            cache.keep(group, piece, ids);
                        }
                    }
                    bytes += piece.len();
                    if ends {
                        let tokens = tokens.len();
                        found.push(TextCut { bytes, tokens });
                    }
                }
                Ok(EncodedText {
                    tokens,
                    new_tokens,
                    cuts: found,
                })
            }
            _ => {
                let tokens = self.encode_whole(text, add_special_tokens)?;
                Ok(EncodedText {
                    new_tokens: tokens.len(),
                    tokens,
                    cuts: Vec::new(),
                })
            }
        }
    }

    /// Returns whether texts have cut points.
    pub(crate) fn has_cuts(&self) -> bool {
        self.turns.is_some()
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
    pub(crate) fn new_bytes(
        &self,
        group: SaltGroup,
        text: &str,
        add_special_tokens: bool,
    ) -> usize {
        match &self.turns {
            Some((cuts, cache)) if !add_special_tokens => cuts
                .split(text)
                .filter(|piece| !cache.knows(group, piece))
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
            None => self.encode_by_reference(text, add_special_tokens),
        }
    }

    fn encode_by_reference(
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
                .reference
                .encode_fast(text, add_special_tokens)?
                .get_ids()
                .to_vec())
        })
        .map_err(PromptError::Tokenizer)
    }

    pub(crate) fn decode(&self, ids: &[u32]) -> Result<String, PromptError> {
        guarded(|| self.reference.decode(ids, false)).map_err(PromptError::Tokenizer)
    }

    pub(crate) fn spellings(&self, ids: &[u32]) -> Vec<Option<String>> {
        ids.iter()
            .map(|id| self.reference.id_to_token(*id))
            .collect()
    }

    fn fast(&self) -> Option<&FastTokenizer> {
        self.fast.as_ref().filter(|fast| !fast.is_dropped())
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

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("engine", &self.engine())
            .finish_non_exhaustive()
    }
}
