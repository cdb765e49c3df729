//! The keys of a body that routing reads.

/// Declares the keys: one list for their names and their places in
/// [`BodyFields`](super::body_fields::BodyFields).
macro_rules! keys {
    ($($key:ident $name:literal)*) => {
        /// A key that routing reads.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(super) enum Key { $($key),* }

        impl Key {
            pub(super) const COUNT: usize = [$(Self::$key),*].len();
            pub(super) const ALL: [Self; Self::COUNT] = [$(Self::$key),*];

            pub(super) fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$key),)*
                    _ => None,
                }
            }

            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$key => $name,)*
                }
            }
        }
    };
}

// The last one is not read here yet: it controls where and how a request runs, so two of them are
// two readings.
keys! {
    Model "model"
    Messages "messages"
    Prompt "prompt"
    Stream "stream"
    StreamOptions "stream_options"
    MaxTokens "max_tokens"
    MaxCompletionTokens "max_completion_tokens"
    N "n"
    Stop "stop"
    Priority "priority"
    CacheSalt "cache_salt"
    SessionParams "session_params"
    User "user"
    SessionId "session_id"
    UserId "user_id"
    PromptCache "prompt_cache_key"
    Metadata "metadata"
    AddGenerationPrompt "add_generation_prompt"
    ContinueFinalMessage "continue_final_message"
    AddSpecialTokens "add_special_tokens"
    TruncatePromptTokens "truncate_prompt_tokens"
    ChatTemplateKwargs "chat_template_kwargs"
    ChatTemplate "chat_template"
    Tools "tools"
    ToolChoice "tool_choice"
    Documents "documents"
    ReasoningEffort "reasoning_effort"
    PromptLogprobs "prompt_logprobs"
    Logprobs "logprobs"
    Echo "echo"
    KvTransferParams "kv_transfer_params"
    EcTransferParams "ec_transfer_params"
    BootstrapHost "bootstrap_host"
    BootstrapPort "bootstrap_port"
    BootstrapRoom "bootstrap_room"
    Input "input"
    Query "query"
    Queries "queries"
    Items "items"
    Text1 "text_1"
    Text2 "text_2"
    TokenIds "token_ids"
    Text "text"
    InputIds "input_ids"
    InputEmbeds "input_embeds"
    SamplingParams "sampling_params"
    VllmXargs "vllm_xargs"
    ReturnLogprob "return_logprob"
    LogprobStartLen "logprob_start_len"
    LoraPath "lora_path"
    Extra "extra_key"
    Features "features"
    ImageData "image_data"
    VideoData "video_data"
    AudioData "audio_data"
    BootstrapPair "bootstrap_pair_key"
    DisaggregatedParams "disaggregated_params"
    KvRouterHint "kv_router_hint"
    EncoderUrls "encoder_urls"
    LoraRequest "lora_request"
}
