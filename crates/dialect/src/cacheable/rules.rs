//! Which members of a chunk become one value, and how.
//!
//! What is known of the two dialects is in these tables and nowhere else; members that nobody here knows have a rule too.

/// How the pieces of one member are put together.
#[derive(Clone, Copy, Debug)]
pub(super) enum JoinRule {
    /// Pieces of one text, in their order.
    Text,
    /// Said once, or several times in the same words.
    Same,
    /// Lists that continue each other.
    List,
    /// An object whose members have rules of their own.
    Object(JoinRules),
    /// A list of objects, each of which says by its `index` which one it continues.
    Indexed(JoinRules),
    /// It says that something went wrong.
    Error,
    /// Its pieces are something else than pieces of the whole reply's.
    Refused,
    /// It belongs to the chunk and not to the reply.
    Skipped,
    /// Nobody here knows it. Texts continue each other, and everything else is said once. What is said twice in the same
    /// words can be either, unless it is one value.
    Unknown,
}

/// The rule of each member of an object. Tables name each other only downwards, four deep.
pub(super) type JoinRules = fn(&str) -> JoinRule;

/// Members of a chat's message that are texts, beside its content: they are sent before it, but for the last.
pub(super) const TEXTS: [&str; 3] = ["reasoning", "reasoning_content", "refusal"];

/// A choice of a chat.
pub(super) fn chat_choice(name: &str) -> JoinRule {
    match name {
        "delta" => JoinRule::Object(delta),
        "message" | "text" => JoinRule::Refused,
        name => choice(name),
    }
}

/// A choice of a completion.
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
        // Sound is sent in pieces of another format.
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

/// A function's name is `Unknown` on purpose: some engines send it in pieces, some again and again.
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
