//! Asks an engine for the token ids of texts and chats.

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use prompt::PromptModel;
use serde_json::{Value, json};

use super::{
    Budget,
    budget::NO_TIME,
    engine_client::{EngineCallError, EngineClient},
    probe_reply::{ProbeReply, ids_in},
    token_case::{EngineTokenization, TokenCase},
};

/// Concurrent requests to one engine.
pub(super) const AT_ONCE: usize = 4;

/// Returns the engine's ids of a text or chat, a body of `/tokenize` without its model, if it
/// reports them.
pub(super) async fn ids_of(
    engine: &EngineClient,
    model: &str,
    query: Value,
    budget: Budget,
) -> Option<Vec<u32>> {
    match (TokenizeProbe {
        engine,
        model,
        budget,
    })
    .tokenize(query)
    .await
    {
        EngineTokenization::Ids(ids) => Some(ids),
        _ => None,
    }
}

/// Asks an engine for token ids.
pub(super) struct TokenizeProbe<'a> {
    pub(super) engine: &'a EngineClient,
    pub(super) model: &'a str,
    pub(super) budget: Budget,
}

impl TokenizeProbe<'_> {
    pub(super) async fn texts(
        &self,
        own: &PromptModel,
        texts: &[(&'static str, &'static str)],
        special: bool,
    ) -> Vec<TokenCase> {
        let cases: Vec<BoxFuture<'_, TokenCase>> = texts
            .iter()
            .map(|&(name, text)| {
                async move {
                    let ids = own
                        .text_tokens(text, special)
                        .map_err(|error| error.to_string());
                    TokenCase {
                        name,
                        plain: true,
                        engine: self.text(text, special).await,
                        own: ids,
                        pieces: None,
                    }
                }
                .boxed()
            })
            .collect();
        stream::iter(cases).buffered(AT_ONCE).collect().await
    }

    pub(super) async fn text(&self, text: &str, special: bool) -> EngineTokenization {
        self.tokenize(json!({"prompt": text, "add_special_tokens": special}))
            .await
    }

    pub(super) async fn chat(&self, chat: &Value) -> EngineTokenization {
        self.tokenize(chat.clone()).await
    }

    async fn tokenize(&self, mut body: Value) -> EngineTokenization {
        body["model"] = self.model.into();
        if self.budget.is_spent() {
            return EngineTokenization::Silent(NO_TIME.to_owned());
        }
        let limit = self.budget.at_most(self.budget.request);
        match self.engine.post("/tokenize", &body, None, limit).await {
            Ok(reply) => match ids_in(&reply["tokens"]) {
                // Another route of that name, which expects its text elsewhere: no text here has
                // zero tokens.
                Some(ids) if ids.is_empty() => EngineTokenization::Refused,
                Some(ids) => EngineTokenization::Ids(ids),
                None => EngineTokenization::Silent("its reply has no tokens".to_owned()),
            },
            Err(EngineCallError::NoRoute(_) | EngineCallError::Bad(_)) => {
                EngineTokenization::Refused
            }
            Err(EngineCallError::Failed(reason)) => EngineTokenization::Silent(reason),
        }
    }

    /// Compares a chat without `/tokenize`: sends a real request and reads the ids of its prompt,
    /// or at least their number.
    pub(super) async fn chat_by_request(&self, chat: &Value) -> EngineTokenization {
        let mut body = chat.clone();
        body["model"] = self.model.into();
        body["max_tokens"] = 1.into();
        body["temperature"] = 0.into();
        let mut with_ids = body.clone();
        with_ids["return_token_ids"] = true.into();
        let mut result = self.chat_request(&with_ids).await;
        if result == EngineTokenization::Refused {
            // Strict servers reject unknown fields.
            result = self.chat_request(&body).await;
        }
        result
    }

    async fn chat_request(&self, body: &Value) -> EngineTokenization {
        if self.budget.is_spent() {
            return EngineTokenization::Silent(NO_TIME.to_owned());
        }
        let limit = self.budget.at_most(self.budget.request);
        match self
            .engine
            .post("/v1/chat/completions", body, None, limit)
            .await
            .map(|reply| ProbeReply::read(&reply))
        {
            Ok(ProbeReply { ids: Some(ids), .. }) => EngineTokenization::Ids(ids),
            Ok(ProbeReply {
                prompt_tokens: Some(count),
                ..
            }) => EngineTokenization::Count(usize::try_from(count).unwrap_or(0)),
            Ok(_) => EngineTokenization::Silent("its reply has no usage".to_owned()),
            Err(EngineCallError::NoRoute(_) | EngineCallError::Bad(_)) => {
                EngineTokenization::Refused
            }
            Err(EngineCallError::Failed(reason)) => EngineTokenization::Silent(reason),
        }
    }
}
