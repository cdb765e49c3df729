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
}
