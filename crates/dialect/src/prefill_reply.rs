//! The parts of a prefill worker's reply that the decode worker needs.

use crate::{
    Usage,
    chunk::StreamChunk,
    json::{self, RawJson},
};

/// The parts of a whole reply that go on to the decode worker, unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefillReply<'a> {
    /// Where and how to fetch the prompt's KV: an object, if the reply has one.
    pub kv_transfer_params: Option<RawJson<'a>>,
    /// The prompt as the engine tokenised it: a list of ids.
    pub prompt_token_ids: Option<RawJson<'a>>,
    /// TensorRT-LLM's state of the context request: an object, if the choice has one.
    pub disaggregated_params: Option<RawJson<'a>>,
    /// Why the choice ended.
    pub finish_reason: Option<RawJson<'a>>,
    /// Token counts.
    pub usage: Option<Usage>,
}

impl<'a> PrefillReply<'a> {
    /// Reads a reply. `None` if it is not a JSON object, or is an error.
    ///
    /// ```
    /// use dialect::PrefillReply;
    ///
    /// let chat = br#"{"kv_transfer_params":{"remote_host":"h"},"prompt_token_ids":[1, 2],"choices":[]}"#;
    /// let reply = PrefillReply::read(chat).unwrap();
    /// assert_eq!(reply.prompt_token_ids.unwrap().as_str(), "[1, 2]");
    /// let context = br#"{"choices":[{"disaggregated_params":{"ctx_request_id":7},"finish_reason":"length"}]}"#;
    /// let reply = PrefillReply::read(context).unwrap();
    /// assert_eq!(reply.disaggregated_params.unwrap().as_str(), r#"{"ctx_request_id":7}"#);
    /// assert_eq!(reply.finish_reason.unwrap().string().as_deref(), Some("length"));
    /// let completion = br#"{"choices":[{"prompt_token_ids":[3]}]}"#;
    /// assert_eq!(PrefillReply::read(completion).unwrap().prompt_token_ids.unwrap().as_str(), "[3]");
    /// ```
    pub fn read(body: &'a [u8]) -> Option<Self> {
        let chunk = StreamChunk::read(body).filter(|chunk| chunk.error.is_none())?;
        let mut reply = Self {
            usage: chunk.usage,
            ..Self::default()
        };
        for member in json::members(std::str::from_utf8(body).ok()?) {
            let (key, value) = member.ok()?;
            match &*json::decode(key) {
                "kv_transfer_params" => {
                    reply.kv_transfer_params = value.members().is_some().then_some(value)
                }
                "prompt_token_ids" => {
                    reply.prompt_token_ids = ids(value).or(reply.prompt_token_ids)
                }
                // A completion has them in its choice, and only single-choice requests are split.
                "choices" => {
                    if let Some(choice) = value.elements().and_then(|mut choices| choices.next()) {
                        reply.read_choice(choice);
                    }
                }
                _ => {}
            }
        }
        Some(reply)
    }

    fn read_choice(&mut self, choice: RawJson<'a>) {
        let own = choice.member("prompt_token_ids").and_then(ids);
        self.prompt_token_ids = self.prompt_token_ids.or(own);
        self.disaggregated_params = choice
            .member("disaggregated_params")
            .filter(|params| params.members().is_some());
        self.finish_reason = choice
            .member("finish_reason")
            .filter(|reason| !reason.is_null());
    }
}

/// Accepts a list of whole numbers only: it goes to another engine unchanged.
fn ids(value: RawJson<'_>) -> Option<RawJson<'_>> {
    let mut ids = value.elements()?.peekable();
    ids.peek()?;
    ids.all(|id| id.as_str().parse::<u32>().is_ok())
        .then_some(value)
}
