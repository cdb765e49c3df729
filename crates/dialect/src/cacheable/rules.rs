//! The rules for joining the members of chunks.
//!
//! These tables hold all knowledge about the two dialects; unknown members have a rule too.

/// The rule for joining the pieces of one member.
#[derive(Clone, Copy, Debug)]
pub(super) enum JoinRule {
    /// Pieces of one text, in their order.
    Text,
    /// One value, perhaps repeated unchanged.
    Same,
    /// Lists that continue each other.
    List,
    /// An object whose members have rules of their own.
    Object(JoinRules),
    /// A list of objects; the `index` of each names the object that it continues.
    Indexed(JoinRules),
    /// The member reports an error.
    Error,
    /// Its pieces cannot form the member of the whole reply.
    Refused,
    /// The member belongs to the chunk and not to the reply.
    Skipped,
    /// An unknown member. Texts continue each other, and other values occur once. A repetition in
    /// the same words can be either, unless it is one value.
    Unknown,
}

/// The rule of each member of an object. Tables refer only downwards, four deep.
pub(super) type JoinRules = fn(&str) -> JoinRule;

/// Text members of a chat's message beside its content: all but the last are sent before it.
pub(super) const TEXTS: [&str; 3] = ["reasoning", "reasoning_content", "refusal"];

/// Returns the rule for a member of a chat's choice.
pub(super) fn chat_choice(name: &str) -> JoinRule {
    match name {
        "delta" => JoinRule::Object(delta),
        "message" | "text" => JoinRule::Refused,
        name => choice(name),
    }
}

/// Returns the rule for a member of a completion's choice.
pub(super) fn completion_choice(name: &str) -> JoinRule {
    match name {
        "text" => JoinRule::Text,
        "message" | "delta" => JoinRule::Refused,
        name => choice(name),
    }
}

fn choice(name: &str) -> JoinRule {
    match name {
        "index" => JoinRule::Skipped,
        "finish_reason" => JoinRule::Same,
        "logprobs" => JoinRule::Object(logprobs),
        "token_ids" => JoinRule::List,
        "error" => JoinRule::Error,
        _ => JoinRule::Unknown,
    }
}

fn delta(name: &str) -> JoinRule {
    match name {
        "role" | "type" => JoinRule::Same,
        "content" => JoinRule::Text,
        "tool_calls" => JoinRule::Indexed(tool_call),
        "function_call" => JoinRule::Object(function),
        "annotations" => JoinRule::List,
        // Audio is sent in pieces of another format.
        "audio" => JoinRule::Refused,
        "error" => JoinRule::Error,
        name if TEXTS.contains(&name) => JoinRule::Text,
        _ => JoinRule::Unknown,
    }
}

fn tool_call(name: &str) -> JoinRule {
    match name {
        "index" => JoinRule::Skipped,
        "id" | "type" => JoinRule::Same,
        "function" | "custom" => JoinRule::Object(function),
        _ => JoinRule::Unknown,
    }
}

/// Returns the rule for a member of a function. Its name is `Unknown` on purpose: some engines send
/// it in pieces, others repeat it.
fn function(name: &str) -> JoinRule {
    match name {
        "arguments" | "input" => JoinRule::Text,
        _ => JoinRule::Unknown,
    }
}

fn logprobs(name: &str) -> JoinRule {
    match name {
        "content" | "refusal" | "tokens" | "token_logprobs" | "top_logprobs" | "text_offset" => {
            JoinRule::List
        }
        _ => JoinRule::Unknown,
    }
}
