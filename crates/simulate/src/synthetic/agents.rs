//! Agents: one prompt with all tools in front, which every run shares, and a loop of calls whose
//! results accumulate behind it within seconds.

use super::{
    LONGEST_PROMPT, Parameter, WorkloadKind, length,
    parameters::Values,
    prompt::{PlannedRequest, PromptPiece},
    stream,
};

pub(super) const KIND: WorkloadKind = WorkloadKind {
    name: "agents",
    doc: "tool loops behind one hot prompt that all of them share",
    parameters: &[
        Parameter {
            name: "runs",
            default: 120,
            range: (1, 1_000_000),
            doc: "runs of the agent",
        },
        Parameter {
            name: "steps",
            default: 10,
            range: (1, 1_000),
            doc: "calls of a run, mean",
        },
        Parameter {
            name: "system_tokens",
            default: 8_000,
            range: (1, 100_000),
            doc: "length of the shared prompt",
        },
        Parameter {
            name: "task_tokens",
            default: 2_000,
            range: (1, 100_000),
            doc: "length of a run's task, mean",
        },
        Parameter {
            name: "tool_tokens",
            default: 1_000,
            range: (1, 100_000),
            doc: "what a tool returns, mean",
        },
        Parameter {
            name: "output_tokens",
            default: 120,
            range: (1, 100_000),
            doc: "length of a call, mean",
        },
        Parameter {
            name: "tool_s",
            default: 4,
            range: (1, 86_400),
            doc: "time from call to call, mean",
        },
        Parameter {
            name: "minutes",
            default: 10,
            range: (1, 10_000),
            doc: "time over which runs begin",
        },
    ],
    plan,
};

/// The number of the shared prompt's text; the runs' numbers follow.
const SYSTEM: u64 = 0;

fn plan(values: &Values) -> Box<dyn Iterator<Item = PlannedRequest> + '_> {
    Box::new((0..values.get("runs")).flat_map(|number| run(values, number)))
}

fn run(values: &Values, number: u64) -> Vec<PlannedRequest> {
    let mut random = stream(values, number);
    let mut at_ms = random.below(values.get("minutes") * 60_000);
    let system = PromptPiece {
        text: SYSTEM,
        tokens: values.tokens("system_tokens"),
    };
    let task = length::tokens(&mut random, values.tokens("task_tokens"));
    let mut log = PromptPiece {
        text: SYSTEM + 1 + number,
        tokens: task,
    };
    let mut planned = Vec::new();
    for _ in 0..length::around(&mut random, values.get("steps")) {
        if system.tokens + log.tokens > LONGEST_PROMPT {
            break;
        }
        let output_tokens = length::tokens(&mut random, values.tokens("output_tokens"));
        planned.push(PlannedRequest {
            at_ms,
            parts: [system, log],
            output_tokens,
            tenant: None,
        });
        log.tokens += output_tokens + length::tokens(&mut random, values.tokens("tool_tokens"));
        at_ms += length::ms(&mut random, values.get("tool_s"));
    }
    planned
}
