//! Synthetic workloads.

use kv_blocks::BlockSize;
use simulate::{KINDS, Synthetic, SyntheticError, Trace, infinite_hit_ratio};

fn text(name: &str) -> String {
    name.parse::<Synthetic>()
        .unwrap()
        .text(BlockSize::new(512).unwrap())
        .unwrap()
}

fn trace(name: &str) -> Trace {
    super::read(&text(name))
}

/// FNV-1a, sufficient to distinguish two texts.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn the_same_name_gives_the_same_bytes_everywhere_and_another_seed_does_not() {
    for (name, bytes, expected) in [
        ("chat", 161_237, 0x1217_61d6_1f52_9afe),
        ("agents", 274_397, 0xb450_7396_7639_f61c),
        ("tenants", 229_057, 0x4ec2_e7f7_36b5_876d),
    ] {
        let text = text(name);
        assert_eq!((text.len(), digest(&text)), (bytes, expected), "{name}");
        assert_ne!(text, self::text(&format!("{name}?seed=2")));
    }
}

#[test]
fn a_synthetic_trace_reads_like_a_recorded_one_in_order_of_arrival() {
    for kind in KINDS {
        let text = text(kind.name);
        let trace = super::read(&text);
        assert_eq!(trace.requests.len(), text.lines().count(), "{}", kind.name);
        let times: Vec<u64> = text
            .lines()
            .map(|line| {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["timestamp"]
                    .as_u64()
                    .unwrap()
            })
            .collect();
        assert!(times.is_sorted(), "{}", kind.name);
    }
}

#[test]
fn a_turn_repeats_all_earlier_turns() {
    let trace = trace("chat?sessions=1&turns=10&seed=3");
    assert!(trace.requests.len() > 2);
    for pair in trace.requests.windows(2) {
        let whole_blocks = pair[0].prompt_tokens as usize / 512;
        assert_eq!(pair[0].names[..whole_blocks], pair[1].names[..whole_blocks]);
        assert!(pair[1].prompt_tokens > pair[0].prompt_tokens + pair[0].output_tokens);
    }
}

#[test]
fn all_runs_of_an_agent_share_only_the_leading_prompt() {
    let trace = trace("agents?runs=2&steps=1&system_tokens=8192");
    let [first, .., last] = &trace.requests[..] else {
        panic!("two runs at least")
    };
    assert_eq!(first.names[..16], last.names[..16]);
    assert_ne!(first.names[16], last.names[16]);
}

#[test]
fn questions_share_only_their_tenants_prompt() {
    let trace = trace("tenants?tenants=3&requests=300&prefix_tokens=5120&skew=0");
    let mut prefixes: Vec<_> = trace
        .requests
        .iter()
        .map(|request| request.names[9])
        .collect();
    prefixes.sort();
    prefixes.dedup();
    assert_eq!(prefixes.len(), 3);
    let mut texts: Vec<_> = trace
        .requests
        .iter()
        .map(|request| request.names[10])
        .collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 300);
}

#[test]
fn skewed_tenants_have_a_higher_hit_ratio() {
    let hits = |skew| infinite_hit_ratio(&trace(&format!("tenants?requests=200&skew={skew}")));
    assert!(hits(2) > hits(0), "{} and {}", hits(2), hits(0));
}

#[test]
fn additional_sessions_leave_the_others_unchanged() {
    let lengths = |name| {
        let mut lengths: Vec<_> = trace(name)
            .requests
            .iter()
            .map(|request| request.output_tokens)
            .collect();
        lengths.sort_unstable();
        lengths
    };
    let (few, more) = (lengths("chat?sessions=5"), lengths("chat?sessions=6"));
    let mut left = few.iter().peekable();
    more.iter().for_each(|length| {
        left.next_if_eq(&length);
    });
    assert_eq!(left.next(), None, "{few:?} are among {more:?}");
}

#[test]
fn a_workload_beyond_the_memory_limit_is_rejected() {
    let much = "agents?runs=1000000&steps=1000&system_tokens=100000"
        .parse::<Synthetic>()
        .unwrap();
    assert_eq!(
        much.text(BlockSize::new(512).unwrap()).unwrap_err(),
        SyntheticError::TooLong
    );
}

#[test]
fn the_manual_has_every_parameter_with_its_default_range_and_meaning() {
    let manual = include_str!("../../../../../docs/simulate.md");
    for kind in KINDS {
        assert!(
            manual.contains(&format!("`synthetic:{}`: {}.", kind.name, kind.doc)),
            "{}",
            kind.name
        );
        for simulate::Parameter {
            name,
            default,
            range: (least, most),
            doc,
        } in kind.parameters
        {
            let row = format!("| `{name}` | {default} | {least}, {most} | {doc} |");
            assert!(manual.contains(&row), "{row}");
        }
    }
}
