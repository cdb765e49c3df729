//! Which members of a chunk become one value, and how.
//!
//! What is known of the two dialects is in these tables and nowhere else; members that nobody here knows have a rule too.

/// How the pieces of one member are put together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// Pieces of one text, in their order.
    Text,
    /// Said once, or several times in the same words.
    Same,
    /// Lists that continue each other.
    List,
    /// An object whose members have rules of their own.
    Object(Table),
    /// A list of objects, each of which says by its `index` which one it continues.
    Indexed(Table),
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
pub(super) type Table = fn(&str) -> Rule;

/// Members of a chat's message that are texts, beside its content: they are sent before it, but for the last.
pub(super) const TEXTS: [&str; 3] = ["reasoning", "reasoning_content", "refusal"];

/// A choice of a chat.
pub(super) fn chat_choice(name: &str) -> Rule {
    match name {
        "delta" => Rule::Object(delta),
        "message" | "text" => Rule::Refused,
        name => choice(name),
    }
}

/// A choice of a completion.
pub(super) fn completion_choice(name: &str) -> Rule {
    match name {
        "text" => Rule::Text,
        "message" | "delta" => Rule::Refused,
        name => choice(name),
    }
}

fn choice(name: &str) -> Rule {
    match name {
        "index" => Rule::Skipped,
        "finish_reason" => Rule::Same,
        "logprobs" => Rule::Object(logprobs),
        "token_ids" => Rule::List,
        "error" => Rule::Error,
        _ => Rule::Unknown,
    }
}

fn delta(name: &str) -> Rule {
    match name {
        "role" | "type" => Rule::Same,
        "content" => Rule::Text,
        "tool_calls" => Rule::Indexed(tool_call),
        "function_call" => Rule::Object(function),
        "annotations" => Rule::List,
        // Sound is sent in pieces of another format.
        "audio" => Rule::Refused,
        "error" => Rule::Error,
        name if TEXTS.contains(&name) => Rule::Text,
        _ => Rule::Unknown,
    }
}

fn tool_call(name: &str) -> Rule {
    match name {
        "index" => Rule::Skipped,
        "id" | "type" => Rule::Same,
        "function" | "custom" => Rule::Object(function),
        _ => Rule::Unknown,
    }
}

/// A function's name is `Unknown` on purpose: some engines send it in pieces, some again and again.
fn function(name: &str) -> Rule {
    match name {
        "arguments" | "input" => Rule::Text,
        _ => Rule::Unknown,
    }
}

fn logprobs(name: &str) -> Rule {
    match name {
        "content" | "refusal" | "tokens" | "token_logprobs" | "top_logprobs" | "text_offset" => {
            Rule::List
        }
        _ => Rule::Unknown,
    }
}
