//! The APIs of generation requests.

/// The API of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChatApi {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
    /// `/v1/chat/completions/batch`.
    ChatBatch,
    /// `/inference/v1/generate`.
    TokenIds,
    /// SGLang's `/generate`.
    SglangGenerate,
}

impl ChatApi {
    /// Returns whether its prompts are texts or token ids, and no chats.
    pub(crate) fn has_plain_prompts(self) -> bool {
        matches!(
            self,
            Self::Completions | Self::TokenIds | Self::SglangGenerate
        )
    }
}
