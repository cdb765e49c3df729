//! Log probabilities: made up, equal for equal tokens, the likeliest first.

use serde_json::{Map, Value, json};

use crate::tokenizer::SimTokenizer;

use super::{SimApiError, chat_api::ChatApi, request::GenerationBody};

/// Maximum number of alternatives, as in vLLM by default.
const MOST: u64 = 20;

/// The number of alternatives reported for each token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logprobs {
    top: usize,
}

impl Logprobs {
    /// Reads the request's options; `None`: no logprobs.
    pub(crate) fn of(body: &GenerationBody, dialect: ChatApi) -> Result<Option<Self>, SimApiError> {
        let number = |value: &Option<Value>| value.as_ref().and_then(Value::as_u64);
        let (enabled, top) = match dialect {
            ChatApi::Completions => (
                number(&body.logprobs).is_some(),
                number(&body.logprobs).unwrap_or(0),
            ),
            _ => {
                let enabled = body.logprobs == Some(Value::Bool(true))
                    || number(&body.logprobs).is_some_and(|on| on > 0);
                (enabled, number(&body.top_logprobs).unwrap_or(0))
            }
        };
        if top > 0 && !enabled {
            return Err(SimApiError::bad_request(
                "when using `top_logprobs`, `logprobs` must be set to true.",
                "top_logprobs",
            ));
        }
        let field = if dialect == ChatApi::Completions {
            "logprobs"
        } else {
            "top_logprobs"
        };
        match usize::try_from(top) {
            Ok(top) if top as u64 <= MOST => Ok(enabled.then_some(Self { top })),
            _ => Err(SimApiError::bad_request(
                format!(
                    "Requested sample logprobs of {top}, which is greater than max allowed: {MOST}"
                ),
                field,
            )),
        }
    }

    /// Returns them in the form of chats.
    pub(crate) fn chat(self, tokenizer: &SimTokenizer, tokens: &[u32]) -> Value {
        let content = tokens.iter().map(|token| {
            let mut entry = entry(&text(tokenizer, *token), logprob(*token));
            let top = self.likeliest(tokenizer, *token);
            entry["top_logprobs"] = top
                .iter()
                .map(|(text, logprob)| self::entry(text, *logprob))
                .collect();
            entry
        });
        json!({"content": content.collect::<Value>()})
    }

    /// Returns them in the form of completions; the first token's text starts at `offset`.
    pub(crate) fn completion(
        self,
        tokenizer: &SimTokenizer,
        tokens: &[u32],
        mut offset: usize,
    ) -> Value {
        let (mut offsets, mut logprobs, mut texts, mut tops) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for token in tokens {
            let text = text(tokenizer, *token);
            let top: Map<String, Value> = self
                .likeliest(tokenizer, *token)
                .into_iter()
                .map(|(text, logprob)| (text, json!(logprob)))
                .collect();
            offsets.push(offset);
            offset += text.len();
            logprobs.push(logprob(*token));
            texts.push(text);
            tops.push(if self.top > 0 {
                Value::Object(top)
            } else {
                Value::Null
            });
        }
        json!({"text_offset": offsets, "token_logprobs": logprobs, "tokens": texts, "top_logprobs": tops})
    }

    /// Returns the token itself and its neighbours in the alphabet.
    fn likeliest(self, tokenizer: &SimTokenizer, token: u32) -> Vec<(String, f64)> {
        let alphabet = &tokenizer.alphabet;
        let at = alphabet.iter().position(|own| *own == token).unwrap_or(0);
        let others = (1..alphabet.len())
            .map(|step| alphabet[(at + step) % alphabet.len()])
            .filter(|one| *one != token);
        let own = logprob(token);
        let less = |index: usize| own - 1.0 - f64::from(u32::try_from(index).unwrap_or(u32::MAX));
        std::iter::once((text(tokenizer, token), own))
            .chain(
                others
                    .enumerate()
                    .map(|(index, other)| (text(tokenizer, other), less(index))),
            )
            .take(self.top)
            .collect()
    }
}

fn text(tokenizer: &SimTokenizer, token: u32) -> String {
    tokenizer.model.decode(&[token]).unwrap_or_default()
}

/// Returns a value between -1 and 0, in sixty-fourths: exact in any notation.
fn logprob(token: u32) -> f64 {
    -f64::from(token.wrapping_mul(0x9e37_79b9) >> 26) / 64.0
}

fn entry(text: &str, logprob: f64) -> Value {
    json!({"token": text, "logprob": logprob, "bytes": text.as_bytes()})
}
