//! Sends one-token requests to an engine, in any form in which it takes prompts.

use serde_json::{Value, json};

use super::{
    ProbeSession,
    engine_client::{EngineCallError, EngineClient},
    probe_reply::ProbeReply,
    tokenize_probe, tokens,
};

/// Form in which prompts are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PromptForm {
    /// A plain completion.
    #[default]
    Text,
    /// The only message of a chat, for engines without completions.
    Chat,
}

/// A form, and whether the request asks for the prompt's token ids: strict servers reject unknown
/// fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PromptOptions {
    form: PromptForm,
    ids: bool,
}

/// Options in the order in which they are tried.
const MANNERS: [PromptOptions; 4] = [
    PromptOptions {
        form: PromptForm::Text,
        ids: true,
    },
    PromptOptions {
        form: PromptForm::Text,
        ids: false,
    },
    PromptOptions {
        form: PromptForm::Chat,
        ids: true,
    },
    PromptOptions {
        form: PromptForm::Chat,
        ids: false,
    },
];

/// Sends prompts to one engine.
#[derive(Clone, Copy)]
pub(super) struct Prober<'a> {
    engine: &'a EngineClient,
    pub(super) session: ProbeSession<'a>,
    /// Whether the engine answers `/tokenize`.
    tokenizes: bool,
    /// Rank of all requests, if there are several ranks.
    rank: Option<u32>,
    options: PromptOptions,
}

impl<'a> Prober<'a> {
    pub(super) fn new(
        engine: &'a EngineClient,
        session: ProbeSession<'a>,
        tokenizes: bool,
        rank: Option<u32>,
    ) -> Self {
        Self {
            engine,
            session,
            tokenizes,
            rank,
            options: MANNERS[0],
        }
    }

    pub(super) fn for_rank(self, rank: u32) -> Self {
        Self {
            rank: Some(rank),
            ..self
        }
    }

    pub(super) fn form(&self) -> PromptForm {
        self.options.form
    }

    /// Sends the first request, which finds the form of prompts that this engine takes. Fails only
    /// if it takes none.
    pub(super) async fn begin(&mut self, text: &str) -> Result<ProbeReply, EngineCallError> {
        let mut refused = None;
        let mut missing = None;
        for manner in MANNERS {
            if missing == Some(manner.form) {
                continue;
            }
            self.options = manner;
            match self.send_prompt(text, json!({})).await {
                Err(refusal @ (EngineCallError::NoRoute(_) | EngineCallError::Bad(_))) => {
                    if matches!(refusal, EngineCallError::NoRoute(_)) {
                        missing = Some(manner.form);
                    }
                    // A rejection says more than a missing path.
                    if refused.is_none()
                        || matches!(
                            (&refused, &refusal),
                            (Some(EngineCallError::NoRoute(_)), EngineCallError::Bad(_))
                        )
                    {
                        refused = Some(refusal);
                    }
                }
                answer => return answer,
            }
        }
        Err(refused.unwrap_or_else(|| EngineCallError::Failed("no request was sent".to_owned())))
    }

    /// Sends a request for one token, with further fields.
    pub(super) async fn send_prompt(
        &self,
        text: &str,
        extra: Value,
    ) -> Result<ProbeReply, EngineCallError> {
        let mut body =
            json!({"model": &*self.session.worker_probe.base, "max_tokens": 1, "temperature": 0});
        let path = match self.options.form {
            PromptForm::Text => {
                body["prompt"] = text.into();
                "/v1/completions"
            }
            PromptForm::Chat => {
                body["messages"] = messages(text);
                "/v1/chat/completions"
            }
        };
        if self.options.ids {
            body["return_token_ids"] = true.into();
        }
        if let (Value::Object(body), Value::Object(extra)) = (&mut body, extra) {
            body.extend(extra);
        }
        let limit = self.session.budget.at_most(self.session.budget.request);
        self.engine
            .post(path, &body, self.rank, limit)
            .await
            .map(|reply| ProbeReply::read(&reply))
    }

    /// Returns the engine's ids of a prompt: from its reply, else from its `/tokenize`.
    pub(super) async fn engine_ids(&self, reply: &ProbeReply, text: &str) -> Option<Vec<u32>> {
        if reply.ids.is_some() {
            return reply.ids.clone();
        }
        if !self.tokenizes {
            return None;
        }
        let query = match self.options.form {
            PromptForm::Text => json!({"prompt": text, "add_special_tokens": true}),
            PromptForm::Chat => json!({"messages": messages(text)}),
        };
        tokenize_probe::ids_of(
            self.engine,
            &self.session.worker_probe.base,
            query,
            self.session.budget,
        )
        .await
    }

    /// Returns the ids of a prompt by our tokenizer and template.
    pub(super) fn own_ids(&self, text: &str) -> Option<Vec<u32>> {
        let own = self.session.worker_probe.artefacts.prompt.as_deref()?;
        match self.options.form {
            PromptForm::Text => own.text_tokens(text, true).ok(),
            PromptForm::Chat => tokens::own_chat(
                own,
                &json!({"messages": messages(text)}),
                self.session.clock.unix_s(),
            )
            .ok(),
        }
    }
}

fn messages(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_reply_fields_are_read_as_absent() {
        let reply = ProbeReply::read(&json!({
            "choices": [{"prompt_token_ids": [1, 2]}],
            "usage": {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}},
        }));
        assert_eq!(
            reply,
            ProbeReply {
                prompt_tokens: Some(2),
                cached_tokens: Some(0),
                ids: Some(vec![1, 2])
            }
        );
        let plain = ProbeReply::read(
            &json!({"usage": {"prompt_tokens": 2, "prompt_tokens_details": null}}),
        );
        assert_eq!(
            plain,
            ProbeReply {
                prompt_tokens: Some(2),
                cached_tokens: None,
                ids: None
            }
        );
        assert_eq!(ProbeReply::read(&json!({"prompt_token_ids": []})).ids, None);
        assert_eq!(ProbeReply::read(&json!([])), ProbeReply::default());
    }
}
