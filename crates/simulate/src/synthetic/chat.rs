//! Conversations: each turn's prompt is the whole conversation so far and new text.

use super::{
    LONGEST_PROMPT, Parameter, WorkloadKind, length,
    parameters::Values,
    prompt::{PlannedRequest, PromptPiece},
    stream,
};

pub(super) const KIND: WorkloadKind = WorkloadKind {
    name: "chat",
    doc: "conversations that grow turn by turn, behind a few system prompts",
    parameters: &[
        Parameter {
            name: "sessions",
            default: 200,
            range: (1, 1_000_000),
            doc: "conversations",
        },
        Parameter {
            name: "turns",
            default: 6,
            range: (1, 1_000),
            doc: "turns of a conversation, mean",
        },
        Parameter {
            name: "assistants",
            default: 4,
            range: (1, 1_000_000),
            doc: "different system prompts",
        },
        Parameter {
            name: "system_tokens",
            default: 1_000,
            range: (1, 100_000),
            doc: "length of a system prompt",
        },
        Parameter {
            name: "user_tokens",
            default: 800,
            range: (1, 100_000),
            doc: "what a turn adds, mean",
        },
        Parameter {
            name: "output_tokens",
            default: 250,
            range: (1, 100_000),
            doc: "length of a reply, mean",
        },
        Parameter {
            name: "think_s",
            default: 30,
            range: (1, 86_400),
            doc: "time from turn to turn, mean",
        },
        Parameter {
            name: "minutes",
            default: 20,
            range: (1, 10_000),
            doc: "time over which conversations begin",
        },
    ],
    plan,
};

fn plan(values: &Values) -> Box<dyn Iterator<Item = PlannedRequest> + '_> {
    Box::new((0..values.get("sessions")).flat_map(|session| conversation(values, session)))
}

fn conversation(values: &Values, session: u64) -> Vec<PlannedRequest> {
    let assistants = values.get("assistants");
    let mut random = stream(values, session);
    let mut at_ms = random.below(values.get("minutes") * 60_000);
    let system = PromptPiece {
        text: random.below(assistants),
        tokens: values.tokens("system_tokens"),
    };
    let mut history = PromptPiece {
        text: assistants + session,
        tokens: 0,
    };
    let mut planned = Vec::new();
    for _ in 0..length::around(&mut random, values.get("turns")) {
        history.tokens += length::tokens(&mut random, values.tokens("user_tokens"));
        if system.tokens + history.tokens > LONGEST_PROMPT {
            break;
        }
        let output_tokens = length::tokens(&mut random, values.tokens("output_tokens"));
        planned.push(PlannedRequest {
            at_ms,
            parts: [system, history],
            output_tokens,
            tenant: None,
        });
        history.tokens += output_tokens;
        at_ms += length::ms(&mut random, values.get("think_s"));
    }
    planned
}
