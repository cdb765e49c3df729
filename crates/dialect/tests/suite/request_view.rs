//! The view of a request.

use dialect::{ApiError, Dialect, ErrorCode, PromptPart, view};

fn prompt(value: &str) -> String {
    let body = format!(r#"{{"model":"m","prompt":{value}}}"#);
    format!(
        "{:?}",
        view(Dialect::Completions, body.as_bytes())
            .expect("the body names a model")
            .prompt
    )
}

#[test]
fn a_prompt_is_a_text_token_ids_or_several_of_either() {
    assert_eq!(
        prompt(r#""a\nb""#),
        format!("{:?}", PromptPart::Text("a\nb".into()))
    );
    assert_eq!(
        prompt(r#"["one"]"#),
        format!("{:?}", PromptPart::Text("one".into()))
    );
    assert_eq!(
        prompt("[1, 2,3 ]"),
        format!("{:?}", PromptPart::TokenIds(vec![1, 2, 3]))
    );
    assert_eq!(
        prompt("[[7]]"),
        format!("{:?}", PromptPart::TokenIds(vec![7]))
    );
    assert_eq!(
        prompt(r#"["one","two"]"#),
        format!(
            "{:?}",
            PromptPart::Batch {
                text_bytes: 10,
                ids: 0
            }
        )
    );
    assert_eq!(
        prompt("[[1],[2, 3]]"),
        format!(
            "{:?}",
            PromptPart::Batch {
                text_bytes: 0,
                ids: 3
            }
        )
    );
}

#[test]
fn a_prompt_of_an_unknown_form_is_left_to_the_engine() {
    for other in [
        "null",
        "[]",
        "[[]]",
        "[-1]",
        "[1.5]",
        "[4294967296]",
        "[1,\"a\"]",
        "{}",
        "true",
        "[null]",
        "[{\"a\":1}]",
    ] {
        assert_eq!(prompt(other), "None", "{other}");
    }
    assert_eq!(
        view(Dialect::Completions, br#"{"model":"m"}"#)
            .unwrap()
            .prompt,
        PromptPart::None
    );
}

#[test]
fn messages_are_a_slice_of_the_body() {
    let body = br#"{"messages" : [ {"role":"user"} ] , "model":"m"}"#.to_vec();
    let seen = view(Dialect::Chat, &body).unwrap();
    let PromptPart::Messages(raw) = seen.prompt else {
        panic!("{:?}", seen.prompt)
    };
    assert_eq!(raw.as_str(), r#"[ {"role":"user"} ]"#);
    assert!(body.as_ptr_range().contains(&raw.as_str().as_ptr()));
}

#[test]
fn a_duplicate_routing_key_is_rejected_and_named_in_any_spelling() {
    for (body, key) in [
        (r#"{"model":"a","model":"a"}"#, "model"),
        (r#"{"model":"a","mo\u0064el":"b"}"#, "model"),
        (
            r#"{"model":"a","messages":[],"x":1,"messages":[]}"#,
            "messages",
        ),
        (r#"{"model":"a","prompt":"","prompt":""}"#, "prompt"),
        (r#"{"model":"a","stream":null,"stream":true}"#, "stream"),
        (
            r#"{"model":"a","cache_salt":"1","cache_salt":"2"}"#,
            "cache_salt",
        ),
    ] {
        let error = view(Dialect::Chat, body.as_bytes()).unwrap_err();
        let answer = ApiError::from(error);
        assert_eq!(
            (answer.status, answer.code),
            (400, ErrorCode::DuplicateKey),
            "{body}"
        );
        assert_eq!(answer.param.as_deref(), Some(key));
    }
    assert!(
        view(
            Dialect::Chat,
            br#"{"model":"a","seed":1,"seed":2,"m":{"model":1,"model":2}}"#
        )
        .is_ok()
    );
}

#[test]
fn the_model_of_a_request_is_a_string() {
    for body in [
        r"{}",
        r#"{"model":null}"#,
        r#"{"model":3}"#,
        r#"{"model":["m"]}"#,
        r#"{"model":""}"#,
    ] {
        let answer = ApiError::from(view(Dialect::Chat, body.as_bytes()).unwrap_err());
        assert_eq!(
            (answer.code, answer.param.as_deref()),
            (ErrorCode::InvalidRequest, Some("model")),
            "{body}"
        );
    }
    assert_eq!(
        view(Dialect::Chat, br#"{"model":"org\/caf\u00e9"}"#)
            .unwrap()
            .model,
        "org/café"
    );
}

#[test]
fn a_lone_surrogate_is_accepted() {
    let body = br#"{"model":"m\ud800","prompt":"\udc00x","user":"\ud83d\ud83d\ude00"}"#;
    let seen = view(Dialect::Completions, body).unwrap();
    assert_eq!(seen.model, "m\u{fffd}");
    assert_eq!(seen.prompt, PromptPart::Text("\u{fffd}x".into()));
    assert_eq!(seen.session.key(), Some("\u{fffd}😀"));
}

#[test]
fn session_fields_are_taken_in_order() {
    let key = |body: &str| {
        view(Dialect::Chat, body.as_bytes())
            .unwrap()
            .session
            .key()
            .map(str::to_owned)
    };
    let all = r#"{"model":"m","user_id":"4","session_id":"3","user":"2","session_params":{"session_id":"1"}}"#;
    assert_eq!(key(all).as_deref(), Some("1"));
    assert_eq!(
        key(r#"{"model":"m","user_id":"4","session_id":"3","user":"2"}"#).as_deref(),
        Some("2")
    );
    assert_eq!(
        key(r#"{"model":"m","user_id":"4","session_id":3}"#).as_deref(),
        Some("3")
    );
    assert_eq!(
        key(r#"{"model":"m","user_id":"4","session_id":"","user":null,"session_params":7}"#)
            .as_deref(),
        Some("4")
    );
    assert_eq!(key(r#"{"model":"m"}"#), None);
}

#[test]
fn flags_and_numbers_read_as_lenient_engines_read_them() {
    let stream = |value: &str| {
        view(
            Dialect::Chat,
            format!(r#"{{"model":"m","stream":{value}}}"#).as_bytes(),
        )
        .unwrap()
        .stream
    };
    for on in ["true", "1", "\"true\"", "\"ON\"", "\"1\""] {
        assert!(stream(on), "{on}");
    }
    for off in ["false", "null", "0", "\"false\"", "\"maybe\"", "[]", "2"] {
        assert!(!stream(off), "{off}");
    }
    let max = |fields: &str| {
        view(
            Dialect::Chat,
            format!(r#"{{"model":"m",{fields}}}"#).as_bytes(),
        )
        .unwrap()
        .max_tokens
    };
    assert_eq!(max(r#""max_tokens":5"#), Some(5));
    assert_eq!(max(r#""max_tokens":5,"max_completion_tokens":7"#), Some(7));
    assert_eq!(max(r#""max_tokens":"16""#), Some(16));
    assert_eq!(max(r#""max_tokens":16.0"#), Some(16));
    assert_eq!(max(r#""max_tokens":-1"#), None);
    assert_eq!(max(r#""max_tokens":1.5"#), None);
}

#[test]
fn fields_that_change_the_rendering_are_passed_on_raw() {
    let body = br#"{"model":"m","messages":[],"tools":[{"a":1}],"tool_choice":"auto","documents":null,
        "chat_template_kwargs":{"enable_thinking":false},"add_generation_prompt":false,"continue_final_message":true,
        "stream_options":{"include_usage":true},"priority":-3,"n":2,"truncate_prompt_tokens":-1}"#;
    let seen = view(Dialect::Chat, body).unwrap();
    let rendering = seen.rendering;
    assert_eq!(rendering.tools.unwrap().as_str(), r#"[{"a":1}]"#);
    assert_eq!(
        rendering.chat_template_kwargs.unwrap().as_str(),
        r#"{"enable_thinking":false}"#
    );
    assert!(rendering.documents.is_none() && rendering.chat_template.is_none());
    assert_eq!(
        (
            rendering.add_generation_prompt,
            rendering.continue_final_message
        ),
        (Some(false), Some(true))
    );
    assert_eq!(rendering.truncate_prompt_tokens, Some(-1));
    assert!(seen.include_usage);
    assert_eq!((seen.priority, seen.counts.n), (Some(-3), Some(2)));
}

#[test]
fn prompt_logprobs_and_kv_transfer_skip_the_prefix_cache() {
    for (dialect, fields, skips) in [
        (Dialect::Chat, r#""prompt_logprobs":0"#, true),
        (Dialect::Completions, r#""prompt_logprobs":1"#, true),
        (Dialect::Chat, r#""prompt_logprobs":null"#, false),
        (Dialect::Chat, r#""kv_transfer_params":{}"#, true),
        (Dialect::Completions, r#""echo":true,"logprobs":0"#, true),
        (
            Dialect::Completions,
            r#""echo":true,"logprobs":null"#,
            false,
        ),
        (Dialect::Completions, r#""echo":false,"logprobs":1"#, false),
        // Logprobs of the reply's own tokens.
        (Dialect::Chat, r#""echo":true,"logprobs":true"#, false),
    ] {
        let body = format!(r#"{{"model":"m",{fields}}}"#);
        assert_eq!(
            view(dialect, body.as_bytes())
                .unwrap()
                .kv
                .skips_prefix_cache,
            skips,
            "{dialect:?} {fields}"
        );
    }
}
