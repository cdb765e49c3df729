//! A tenant that asks one question at a time, beside tenants whose agents all send at the same time.
//!
//! The questions are the same whatever the agents do, so that a run without agents shows what each
//! of them costs when it is alone.

use super::{
    Parameter, WorkloadKind, length,
    parameters::Values,
    prompt::{PlannedRequest, PromptPiece},
    stream,
};

pub(super) const KIND: WorkloadKind = WorkloadKind {
    name: "fanout",
    doc: "a tenant that asks one question at a time beside tenants that send many requests at once",
    parameters: &[
        Parameter {
            name: "agents",
            default: 51,
            range: (0, 10_000),
            doc: "requests that a tenant with agents sends at once",
        },
        Parameter {
            name: "tenants",
            default: 1,
            range: (1, 1_000),
            doc: "tenants with agents",
        },
        Parameter {
            name: "rounds",
            default: 60,
            range: (1, 100_000),
            doc: "times that they send",
        },
        Parameter {
            name: "round_ms",
            default: 2_000,
            range: (1, 3_600_000),
            doc: "time from one to the next",
        },
        Parameter {
            name: "system_tokens",
            default: 8_000,
            range: (1, 100_000),
            doc: "length of the prompt that the agents of a tenant share",
        },
        Parameter {
            name: "task_tokens",
            default: 1_500,
            range: (1, 100_000),
            doc: "what an agent adds, mean",
        },
        Parameter {
            name: "agent_output_tokens",
            default: 120,
            range: (1, 100_000),
            doc: "length of a reply to an agent, mean",
        },
        Parameter {
            name: "questions",
            default: 120,
            range: (0, 1_000_000),
            doc: "questions of the other tenant",
        },
        Parameter {
            name: "question_tokens",
            default: 6_000,
            range: (1, 100_000),
            doc: "length of a question with its conversation, mean",
        },
        Parameter {
            name: "output_tokens",
            default: 250,
            range: (1, 100_000),
            doc: "length of an answer, mean",
        },
    ],
    plan,
};

/// The tenant that asks; those with agents follow.
const ASKING: u64 = 1;

fn plan(values: &Values) -> Box<dyn Iterator<Item = PlannedRequest> + '_> {
    let questions = (0..values.get("questions")).map(move |number| question(values, number));
    let rounds = 0..values.get("rounds");
    let agents = rounds.flat_map(move |round| {
        (0..values.get("tenants"))
            .flat_map(move |tenant| (0..values.get("agents")).map(move |agent| (tenant, agent)))
            .map(move |(tenant, agent)| call(values, round, (tenant, agent)))
    });
    Box::new(questions.chain(agents))
}

/// Returns a question, at some time of the same part of the whole for each.
fn question(values: &Values, number: u64) -> PlannedRequest {
    let mut random = stream(values, number);
    let all_ms = values.get("rounds") * values.get("round_ms");
    let part_ms = all_ms / values.get("questions").max(1);
    let tokens = length::tokens(&mut random, values.tokens("question_tokens"));
    let text = PromptPiece {
        text: values.get("tenants") + number,
        tokens,
    };
    let at_ms = number * part_ms + random.below(part_ms.max(1));
    let parts = [text, PromptPiece { tokens: 0, ..text }];
    planned(values, (at_ms, ASKING), parts, "output_tokens", &mut random)
}

/// Returns the call of an agent.
fn call(values: &Values, round: u64, (tenant, agent): (u64, u64)) -> PlannedRequest {
    let (tenants, agents) = (values.get("tenants"), values.get("agents"));
    let number = values.get("questions") + (round * tenants + tenant) * agents + agent;
    let mut random = stream(values, number);
    let system = PromptPiece {
        text: tenant,
        tokens: values.tokens("system_tokens"),
    };
    let task = PromptPiece {
        text: tenants + number,
        tokens: length::tokens(&mut random, values.tokens("task_tokens")),
    };
    // One in each millisecond: requests of one time stamp would be spread over the time to the next.
    let at_ms = round * values.get("round_ms") + agent;
    let at = (at_ms, ASKING + 1 + tenant);
    planned(
        values,
        at,
        [system, task],
        "agent_output_tokens",
        &mut random,
    )
}

fn planned(
    values: &Values,
    (at_ms, tenant): (u64, u64),
    parts: [PromptPiece; 2],
    output: &str,
    random: &mut crate::random::SplitMix64,
) -> PlannedRequest {
    PlannedRequest {
        at_ms,
        parts,
        output_tokens: length::tokens(random, values.tokens(output)),
        tenant: Some(tenant),
    }
}
