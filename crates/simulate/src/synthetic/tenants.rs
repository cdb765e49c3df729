//! Tenants: each has a long prompt of its own in front of every request, and some send far more
//! requests than others.

use super::{
    Parameter, WorkloadKind, length,
    parameters::Values,
    prompt::{PlannedRequest, PromptPiece},
    stream,
};

pub(super) const KIND: WorkloadKind = WorkloadKind {
    name: "tenants",
    doc: "questions behind a few long prompts, one for each tenant",
    parameters: &[
        Parameter {
            name: "requests",
            default: 1_500,
            range: (1, 1_000_000),
            doc: "questions",
        },
        Parameter {
            name: "tenants",
            default: 60,
            range: (1, 100_000),
            doc: "tenants",
        },
        Parameter {
            name: "skew",
            default: 1,
            range: (0, 3),
            doc: "0: all ask alike; n: the one of rank r asks 1/r^n as often as the first",
        },
        Parameter {
            name: "prefix_tokens",
            default: 6_000,
            range: (1, 100_000),
            doc: "length of a tenant's prompt",
        },
        Parameter {
            name: "question_tokens",
            default: 1_200,
            range: (1, 20_000),
            doc: "length of a question, mean",
        },
        Parameter {
            name: "output_tokens",
            default: 200,
            range: (1, 100_000),
            doc: "length of a reply, mean",
        },
        Parameter {
            name: "minutes",
            default: 10,
            range: (1, 10_000),
            doc: "time over which they come",
        },
    ],
    plan,
};

/// Weight of the tenant of rank 1; the least weight of a tenant is 1.
const FIRST: u64 = 1 << 32;

fn plan(values: &Values) -> Box<dyn Iterator<Item = PlannedRequest> + '_> {
    let tenants = Tenants::new(values);
    let prefix_tokens = values.tokens("prefix_tokens");
    let plan_request = move |request: u64| {
        let mut random = stream(values, request);
        let at_ms = random.below(values.get("minutes") * 60_000);
        let prefix = PromptPiece {
            text: tenants.of(random.below(tenants.total_weight())),
            tokens: prefix_tokens,
        };
        let tokens = length::tokens(&mut random, values.tokens("question_tokens"));
        let request_piece = PromptPiece {
            text: values.get("tenants") + request,
            tokens,
        };
        let output_tokens = length::tokens(&mut random, values.tokens("output_tokens"));
        PlannedRequest {
            at_ms,
            parts: [prefix, request_piece],
            output_tokens,
            tenant: None,
        }
    };
    Box::new((0..values.get("requests")).map(plan_request))
}

/// The tenants' weights as running sums, so that a number below the last one selects a tenant.
struct Tenants(Vec<u64>);

impl Tenants {
    fn new(values: &Values) -> Self {
        let skew = u32::try_from(values.get("skew")).unwrap_or(0);
        let weight = |rank: u64| (FIRST / rank.saturating_pow(skew)).max(1);
        let sums = (1..=values.get("tenants")).scan(0, |sum, rank| {
            *sum += weight(rank);
            Some(*sum)
        });
        Self(sums.collect())
    }

    fn total_weight(&self) -> u64 {
        self.0.last().copied().unwrap_or(0)
    }

    fn of(&self, number: u64) -> u64 {
        self.0.partition_point(|sum| *sum <= number) as u64
    }
}
