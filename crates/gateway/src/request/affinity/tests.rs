use contract_id::contract;
use dialect::{Dialect, view};
use http::HeaderName;

use super::*;
use crate::request::test_gateway::TestGateway;

const FIELDS: &str =
    r#""session_params": {"session_id": "a"}, "user": "b", "session_id": "c", "user_id": "d""#;

fn name(headers: &[(&'static str, &str)], fields: &str) -> Option<String> {
    let body = format!(
        r#"{{"model": "m", "messages": []{}{fields}}}"#,
        if fields.is_empty() { "" } else { ", " }
    );
    let view = view(Dialect::Chat, body.as_bytes()).expect("a good body");
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap()))
        .collect();
    let configured =
        ["x-semantic-cluster-id", "x-session-id", "x-user-id"].map(HeaderName::from_static);
    session_name(&configured, &headers, &view)
        .map(|name| String::from_utf8_lossy(name).into_owned())
}

#[test]
#[contract("V25")]
fn a_session_id_comes_from_headers_before_fields() {
    let all = [
        ("x-user-id", "3"),
        ("x-session-id", "2"),
        ("x-semantic-cluster-id", "1"),
    ];
    for (headers, fields, named) in [
        (&all[..], FIELDS, "1"),
        (&all[..2], FIELDS, "2"),
        (&all[..1], FIELDS, "3"),
        (&[("x-user-id", "")][..], FIELDS, "a"),
        (&[][..], &FIELDS[FIELDS.find("\"user\"").unwrap()..], "b"),
        (&[][..], r#""user_id": "d", "session_id": "c""#, "c"),
        (&[][..], r#""user_id": 7"#, "7"),
    ] {
        assert_eq!(
            name(headers, fields).as_deref(),
            Some(named),
            "{headers:?} {fields}"
        );
    }
    assert_eq!(name(&[], ""), None);
}
async fn keys_of(stage: &AffinityStage, policy: Policy, body: &str) -> AffinityKeys {
    let view = view(Dialect::Chat, body.as_bytes()).expect("a good body");
    let input = AffinityInput {
        policies: RequestPolicies {
            decode: policy,
            prefill: None,
        },
        headers: &HeaderMap::new(),
        body: body.as_bytes(),
        view: &view,
    };
    stage.keys(input, None).await
}

const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"a long beginning"}]}"#;

#[tokio::test]
async fn keys_are_computed_only_for_a_policy_that_uses_them() {
    let test = TestGateway::new();
    let stage = &test.delivery().affinity;
    let plain = keys_of(stage, Policy::RoundRobin, CHAT).await;
    assert!(plain.keys.prefix_key.is_none() && plain.keys.session_key.is_none());
    let keyed = keys_of(stage, Policy::PrefixHash, CHAT).await;
    assert!(keyed.keys.prefix_key.is_some() && keyed.keys.session_key.is_some());
    assert!(keyed.holders.is_none(), "no prefix streams are followed");
}

#[tokio::test]
async fn equal_beginnings_share_a_prefix_key_and_only_equal_requests_a_session_key() {
    let test = TestGateway::new();
    let stage = &test.delivery().affinity;
    let keys = async |body: &str| keys_of(stage, Policy::PrefixHash, body).await.keys;
    let own = keys(CHAT).await;
    let answered = CHAT.replace("}]}", r#"},{"role":"assistant","content":"b"}]}"#);
    let longer = keys(&answered).await;
    assert_eq!(own.prefix_key, longer.prefix_key);
    assert_ne!(own.session_key, longer.session_key);
    let other_model = keys(&CHAT.replace(r#""m""#, r#""n""#)).await;
    assert_ne!(own.prefix_key, other_model.prefix_key);
    let named = |body: &str| body.replacen('{', r#"{"user":"u","#, 1);
    let (one, two) = (keys(&named(CHAT)).await, keys(&named(&answered)).await);
    assert_eq!(
        one.session_key, two.session_key,
        "the client names its session"
    );
}

#[tokio::test]
async fn the_worker_of_an_equal_beginning_is_remembered_where_that_is_configured() {
    use routing::SharedPrefixRouting;

    let mut test = TestGateway::new();
    let unset = keys_of(&test.delivery().affinity, Policy::RoundRobin, CHAT).await;
    test.delivery().affinity.record_served(&unset, WorkerId(1));
    let settings = SharedPrefixRouting {
        prefix_chars: 12,
        max_entries: 10,
        ..SharedPrefixRouting::default()
    };
    let memory = Arc::new(SharedPrefixes::new(settings));
    test.delivery_mut().affinity.shared_prefixes = Some(memory);
    let stage = &test.delivery().affinity;
    let first = keys_of(stage, Policy::RoundRobin, CHAT).await;
    assert_eq!(first.keys.served_by, None);
    stage.record_served(&first, WorkerId(7));
    let same_beginning = CHAT.replace("beginning", "story");
    let second = keys_of(stage, Policy::RoundRobin, &same_beginning).await;
    assert_eq!(second.keys.served_by, Some(WorkerId(7)));
    let other = CHAT.replace("a long", "no");
    let third = keys_of(stage, Policy::RoundRobin, &other).await;
    assert_eq!(third.keys.served_by, None);
}

fn of(mode: SessionMode, headers: &[(&'static str, &str)], body: &str) -> Option<SessionKeys> {
    let dialect = if body.contains("messages") {
        Dialect::Chat
    } else {
        Dialect::Completions
    };
    let view = view(dialect, body.as_bytes()).expect("a good body");
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap()))
        .collect();
    let configured = [HeaderName::from_static("x-session-id")];
    session_keys(mode, session_name(&configured, &headers, &view), &view)
        .map(|keys| (*keys).clone())
}

fn hard(headers: &[(&'static str, &str)], body: &str) -> Option<u64> {
    of(SessionMode::Hard, headers, body).and_then(|keys| keys.name)
}

#[test]
#[contract("V25")]
fn session_headers_of_agent_clients_come_after_the_configured_ones() {
    let body = r#"{"model": "m", "prompt_cache_key": "k", "metadata": {"user_id": "u_session_1"}, "prompt": "x"}"#;
    let named = |headers: &[(&'static str, &str)]| hard(headers, body);
    let a = hard(&[("x-session-id", "a")], body);
    for agent in AGENT_HEADERS {
        let agent: &'static str = agent.as_str().to_owned().leak();
        assert_eq!(named(&[(agent, "a")]), a, "{agent}");
        assert_eq!(named(&[(agent, "b"), ("x-session-id", "a")]), a, "{agent}");
        assert_ne!(named(&[(agent, "b")]), named(&[]), "{agent}");
    }
    assert_eq!(named(&[]), hard(&[("x-session-id", "k")], body));
    let metadata_only = body.replace(r#""prompt_cache_key": "k", "#, "");
    assert_eq!(
        hard(&[], &metadata_only),
        hard(&[("x-session-id", "u_session_1")], body)
    );
}

#[test]
#[contract("V25")]
fn a_session_name_matches_only_as_a_whole_and_within_its_model_and_salt() {
    let body = |model: &str, salt: &str| format!(r#"{{"model": "{model}", {salt} "prompt": "x"}}"#);
    let key = |name, model, salt| hard(&[("x-session-id", name)], &body(model, salt));
    let own = key("session-1", "m", "");
    assert_eq!(own, key("session-1", "m", ""));
    for other in [
        key("session-12", "m", ""),
        key("session-1", "n", ""),
        key("session-1", "m", r#""cache_salt": "s","#),
        key("session-1", "m", r#""cache_salt": "","#),
    ] {
        assert_ne!(own, other);
    }
}

#[test]
fn without_a_name_a_session_is_recognized_by_its_growth() {
    let chat = |more: &str| {
        format!(r#"{{"model": "m", "messages": [{{"role": "user", "content": "one"}}{more}]}}"#)
    };
    let more = r#", {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}"#;
    let growth = |body: &str| of(SessionMode::Soft, &[], body).and_then(|keys| keys.growth);
    let (first, second) = (growth(&chat("")).unwrap(), growth(&chat(more)).unwrap());
    assert!(second.extends(&first));
    assert!(
        !second.extends(&growth(&chat("").replace("\"m\"", "\"n\"")).unwrap()),
        "another model"
    );
    let text = "a".repeat(400);
    let prompt = |text: &str| growth(&format!(r#"{{"model": "m", "prompt": "{text}"}}"#)).unwrap();
    assert!(prompt(&format!("{text} and more")).extends(&prompt(&text)));
    let ids = |count: u32| {
        let ids: Vec<u32> = (0..count).collect();
        growth(&format!(r#"{{"model": "m", "prompt": {ids:?}}}"#)).unwrap()
    };
    assert!(ids(130).extends(&ids(100)));
}

#[test]
fn growth_is_computed_only_without_a_name() {
    let body = r#"{"model": "m", "messages": [{"role": "user", "content": "one"}]}"#;
    let headers = [("x-session-id", "a")];
    assert_eq!(of(SessionMode::Off, &headers, body), None);
    assert_eq!(of(SessionMode::Hard, &headers, body).unwrap().growth, None);
    assert!(of(SessionMode::Hard, &[], body).unwrap().growth.is_some());
    assert_eq!(
        of(SessionMode::Hard, &[], r#"{"model": "m", "messages": []}"#),
        None
    );
}
