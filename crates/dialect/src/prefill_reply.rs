//! What a prefill worker's reply says to the worker that will generate.

use crate::{
    Usage,
    chunk::StreamChunk,
    json::{self, RawJson},
};

/// The parts of a whole reply that go on to the decode worker, as they stand there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefillReply<'a> {
    /// Where and how the prompt's KV is fetched: an object, or the reply says nothing of it.
    pub kv_transfer_params: Option<RawJson<'a>>,
    /// The prompt as the engine tokenised it: a list of ids.
    pub prompt_token_ids: Option<RawJson<'a>>,
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
                // A completion has them in its choice, and only one choice is split.
                "choices" => {
                    let first = value.elements().and_then(|mut choices| choices.next());
                    let own = first
                        .and_then(|choice| choice.member("prompt_token_ids"))
                        .and_then(ids);
                    reply.prompt_token_ids = reply.prompt_token_ids.or(own);
                }
                _ => {}
            }
        }
        Some(reply)
    }
}

/// A list of whole numbers, and nothing else: it goes to another engine as it stands.
fn ids(value: RawJson<'_>) -> Option<RawJson<'_>> {
    let mut ids = value.elements()?.peekable();
    ids.peek()?;
    ids.all(|id| id.as_str().parse::<u32>().is_ok())
        .then_some(value)
}
