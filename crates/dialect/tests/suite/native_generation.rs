//! The views of the engines' own generation APIs, and of chats in a batch.

use dialect::{Dialect, ErrorCode, Fidelity, MediaPlaceholder, PromptPart, RequestView, view};

const NATIVE: [Dialect; 2] = [Dialect::TokenIds, Dialect::SglangGenerate];

fn read(dialect: Dialect, body: &str) -> RequestView<'_> {
    view(dialect, body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

#[test]
fn token_ids_are_the_prompt_as_they_stand() {
    let body = r#"{"request_id":"r","token_ids":[1, 2,4294967295],"model":"m","stream":true,
        "stream_options":{"include_usage":true},"cache_salt":"s","priority":-3,
        "sampling_params":{"max_tokens":7,"n":2,"temperature":0.5}}"#;
    let view = read(Dialect::TokenIds, body);
    assert_eq!(view.prompt, PromptPart::TokenIds(vec![1, 2, u32::MAX]));
    assert_eq!(
        (&*view.model, view.stream, view.include_usage),
        ("m", true, true)
    );
    assert_eq!(
        (view.max_tokens, view.counts.n, view.priority),
        (Some(7), Some(2), Some(-3))
    );
    assert_eq!(view.cache_salt.as_deref(), Some("s"));
    assert_eq!(view.fidelity, Fidelity::Exact);
    assert!(!view.kv.skips_prefix_cache);
}

#[test]
fn token_ids_of_another_form_are_left_to_the_engine() {
    for ids in [
        "[]",
        "[-1]",
        "[1.5]",
        "[4294967296]",
        "[\"1\"]",
        "[[1]]",
        "\"1\"",
        "null",
        "{}",
        "7",
    ] {
        let body = format!(r#"{{"model":"m","token_ids":{ids}}}"#);
        assert_eq!(
            read(Dialect::TokenIds, &body).prompt,
            PromptPart::None,
            "{ids}"
        );
    }
    // The prompt of another API is none of this one.
    let body = r#"{"model":"m","prompt":"a","messages":[],"text":"b"}"#;
    assert_eq!(read(Dialect::TokenIds, body).prompt, PromptPart::None);
}

#[test]
fn sglangs_prompts_are_texts_or_token_ids_and_lists_of_them() {
    for (fields, want) in [
        (r#""text":"once""#, PromptPart::Text("once".into())),
        (r#""text":["once"]"#, PromptPart::Text("once".into())),
        (r#""input_ids":[5,6]"#, PromptPart::TokenIds(vec![5, 6])),
        (r#""input_ids":[[5,6]]"#, PromptPart::TokenIds(vec![5, 6])),
        (
            r#""text":"once","input_ids":[5]"#,
            PromptPart::TokenIds(vec![5]),
        ),
        (
            r#""text":"once","input_ids":null"#,
            PromptPart::Text("once".into()),
        ),
        (
            r#""text":["a","b"]"#,
            PromptPart::Batch {
                text_bytes: 6,
                ids: 0,
            },
        ),
        (
            r#""input_ids":[[1],[2,3]]"#,
            PromptPart::Batch {
                text_bytes: 0,
                ids: 3,
            },
        ),
        (r#""text":"once","input_embeds":[[0.5]]"#, PromptPart::None),
        (r#""prompt":"once""#, PromptPart::None),
        (r#""text":7"#, PromptPart::None),
    ] {
        let body = format!("{{{fields}}}");
        assert_eq!(
            read(Dialect::SglangGenerate, &body).prompt,
            want,
            "{fields}"
        );
    }
}

#[test]
fn sampling_params_have_the_length_in_the_name_of_their_engine() {
    for (dialect, sampling, want) in [
        (
            Dialect::TokenIds,
            r#"{"max_tokens":5,"max_new_tokens":9}"#,
            Some(5),
        ),
        (
            Dialect::SglangGenerate,
            r#"{"max_tokens":5,"max_new_tokens":9}"#,
            Some(9),
        ),
        (
            Dialect::SglangGenerate,
            r#"[{"max_new_tokens":9},{"max_new_tokens":4}]"#,
            Some(9),
        ),
        (Dialect::SglangGenerate, r#"{"max_new_tokens":-1}"#, None),
        (Dialect::TokenIds, "[]", None),
        (Dialect::TokenIds, "null", None),
        (Dialect::TokenIds, "\"x\"", None),
    ] {
        let body = format!(r#"{{"max_tokens":1,"sampling_params":{sampling}}}"#);
        assert_eq!(read(dialect, &body).max_tokens, want, "{sampling}");
    }
    let body = r#"{"token_ids":[1],"sampling_params":{"truncate_prompt_tokens":4}}"#;
    assert_eq!(
        read(Dialect::TokenIds, body)
            .rendering
            .truncate_prompt_tokens,
        Some(4)
    );
}

#[test]
fn an_engines_own_api_needs_no_model_and_its_adapter_takes_the_models_place() {
    for dialect in NATIVE {
        assert_eq!(read(dialect, "{}").model, "");
        assert_eq!(read(dialect, r#"{"model":null}"#).model, "");
        for model in ["7", "\"\"", "[]"] {
            let body = format!(r#"{{"model":{model}}}"#);
            let error = view(dialect, body.as_bytes()).unwrap_err();
            assert_eq!(error.param(), Some("model"), "{model}");
        }
    }
    let adapter = |body| read(Dialect::SglangGenerate, body).model.into_owned();
    assert_eq!(adapter(r#"{"model":"m","lora_path":"a"}"#), "a");
    assert_eq!(adapter(r#"{"model":"m","lora_path":""}"#), "m");
    assert_eq!(adapter(r#"{"model":"m","lora_path":["a"]}"#), "m");
    assert_eq!(
        read(Dialect::TokenIds, r#"{"model":"m","lora_path":"a"}"#).model,
        "m"
    );
    assert!(view(Dialect::Completions, b"{}").is_err());
}

#[test]
fn sglang_separates_blocks_by_salt_and_extra_key() {
    let salt = |fields: &str| {
        let body = format!("{{{fields}}}");
        read(Dialect::SglangGenerate, &body)
            .cache_salt
            .map(std::borrow::Cow::into_owned)
    };
    assert_eq!(salt(r#""cache_salt":"s""#).as_deref(), Some("s"));
    assert_eq!(salt(r#""extra_key":"k""#).as_deref(), Some("k"));
    assert_eq!(
        salt(r#""extra_key":"k","cache_salt":"s""#).as_deref(),
        Some("sk")
    );
    assert_eq!(salt(r#""text":"a""#), None);
    let vllm = r#"{"extra_key":"k"}"#;
    assert_eq!(read(Dialect::TokenIds, vllm).cache_salt, None);
}

#[test]
#[contract_id::contract("D2")]
fn the_places_of_pictures_are_read_with_the_token_ids() {
    let body = r#"{"token_ids":[1,2,3],"features":{
        "kwargs_data":{"image":["AAAA",null]},
        "mm_placeholders":{"image":[{"offset":1,"length":1},{"length":1,"offset":2}],"audio":[]},
        "mm_hashes":{"image":["a1","b\u0032"],"audio":[]}}}"#;
    let view = read(Dialect::TokenIds, body);
    let place = |identifier: &'static str, offset| MediaPlaceholder {
        identifier: identifier.into(),
        offset,
        length: 1,
    };
    let (ids, media) = (vec![1, 2, 3], vec![place("a1", 1), place("b2", 2)]);
    assert_eq!(view.prompt, PromptPart::TokenIdsWithMedia { ids, media });
    assert_eq!(view.fidelity, Fidelity::Exact);

    let none = r#"{"token_ids":[1],"features":{"mm_hashes":{},"mm_placeholders":{}}}"#;
    let view = read(Dialect::TokenIds, none);
    assert_eq!(view.prompt, PromptPart::TokenIds(vec![1]));
    assert_eq!(view.fidelity, Fidelity::Exact);
}

#[test]
fn features_beyond_their_limits_are_of_unknown_form() {
    let features = |modalities: usize, name: usize| {
        let list = |value: &str| {
            let one = |at| format!(r#""m{at}":[{value}]"#);
            (0..modalities).map(one).collect::<Vec<_>>().join(",")
        };
        // Each place is behind the last one's.
        let places = (0..modalities)
            .map(|at| format!(r#""m{at}":[{{"offset":{at},"length":1}}]"#))
            .collect::<Vec<_>>()
            .join(",");
        let hashes = list(&format!("\"{}\"", "a".repeat(name)));
        format!(
            r#"{{"token_ids":[1],"features":{{"mm_hashes":{{{hashes}}},"mm_placeholders":{{{places}}}}}}}"#
        )
    };
    for (modalities, name, fidelity) in [
        (16, 1024, Fidelity::Exact),
        (17, 1, Fidelity::Likeness),
        (1, 1025, Fidelity::Likeness),
    ] {
        let body = features(modalities, name);
        assert_eq!(read(Dialect::TokenIds, &body).fidelity, fidelity);
    }
}

#[test]
fn pictures_in_unknown_places_are_part_of_the_blocks() {
    for (dialect, fields) in [
        (
            Dialect::TokenIds,
            r#""token_ids":[1],"features":{"mm_hashes":{}}"#,
        ),
        (
            Dialect::SglangGenerate,
            r#""input_ids":[1],"image_data":"x""#,
        ),
        (Dialect::SglangGenerate, r#""text":"a","audio_data":["x"]"#),
    ] {
        let body = format!("{{{fields}}}");
        assert_eq!(
            read(dialect, &body).fidelity,
            Fidelity::Likeness,
            "{fields}"
        );
    }
    let none = r#"{"input_ids":[1],"image_data":null}"#;
    assert_eq!(
        read(Dialect::SglangGenerate, none).fidelity,
        Fidelity::Exact
    );
}

#[test]
fn logprobs_of_the_prompt_keep_the_engine_from_its_cache() {
    for (dialect, fields, skips) in [
        (
            Dialect::TokenIds,
            r#""sampling_params":{"prompt_logprobs":1}"#,
            true,
        ),
        (
            Dialect::TokenIds,
            r#""sampling_params":{"prompt_logprobs":null,"logprobs":1}"#,
            false,
        ),
        (
            Dialect::SglangGenerate,
            r#""return_logprob":true,"logprob_start_len":0"#,
            true,
        ),
        (
            Dialect::SglangGenerate,
            r#""return_logprob":true,"logprob_start_len":-1"#,
            false,
        ),
        (
            Dialect::SglangGenerate,
            r#""return_logprob":false,"logprob_start_len":0"#,
            false,
        ),
        (Dialect::SglangGenerate, r#""return_logprob":true"#, false),
    ] {
        let body = format!("{{{fields}}}");
        assert_eq!(
            read(dialect, &body).kv.skips_prefix_cache,
            skips,
            "{fields}"
        );
    }
}

#[test]
#[contract_id::contract("S43")]
fn fields_that_name_other_engines_are_found_wherever_an_engine_reads_them() {
    for (dialect, fields, field) in [
        (
            Dialect::TokenIds,
            r#""sampling_params":{"extra_args":{"kv_transfer_params":{"remote_host":"h"}}}"#,
            "sampling_params.extra_args.kv_transfer_params",
        ),
        (
            Dialect::TokenIds,
            r#""sampling_params":{"extra_args":{},"extra_args":{"ec_transfer_params":{}}}"#,
            "sampling_params.extra_args.ec_transfer_params",
        ),
        (
            Dialect::TokenIds,
            r#""kv_transfer_params":{}"#,
            "kv_transfer_params",
        ),
        (
            Dialect::SglangGenerate,
            r#""bootstrap_room":[1]"#,
            "bootstrap_room",
        ),
        (
            Dialect::Chat,
            r#""model":"m","disaggregated_params":{"request_type":"generation_only"}"#,
            "disaggregated_params",
        ),
        (
            Dialect::SglangGenerate,
            r#""kv_router_hint":{"source_control_endpoint":"h"}"#,
            "kv_router_hint",
        ),
        (
            Dialect::SglangGenerate,
            r#""encoder_urls":["http://h"]"#,
            "encoder_urls",
        ),
        (
            Dialect::Chat,
            r#""model":"m","vllm_xargs":{"a":1,"kv_transfer_params":"text"}"#,
            "vllm_xargs.kv_transfer_params",
        ),
        (
            Dialect::TokenIds,
            r#""sampling_params":{"extra_args":{"bootstrap_host":"10.0.0.9"}}"#,
            "sampling_params.extra_args.bootstrap_host",
        ),
        (
            Dialect::Responses,
            r#""model":"m","vllm_xargs":{"ec_transfer_\u0070arams":[1]}"#,
            "vllm_xargs.ec_transfer_params",
        ),
        (
            Dialect::Completions,
            r#""model":"m","vllm_xargs":{"bootstrap_room":null,"bootstrap_room":3}"#,
            "vllm_xargs.bootstrap_room",
        ),
    ] {
        let body = format!("{{{fields}}}");
        let found: Vec<_> = read(dialect, &body).kv.transfer_fields.paths().collect();
        assert_eq!(found, [field], "{fields}");
    }
    let several = r#"{"encoder_urls":[],"kv_transfer_params":{},"bootstrap_host":null,
        "sampling_params":{"extra_args":{"ec_transfer_params":1}},"vllm_xargs":{"bootstrap_room":3}}"#;
    let view = read(Dialect::TokenIds, several);
    let found: Vec<_> = view.kv.transfer_fields.paths().collect();
    let expected = [
        "kv_transfer_params",
        "encoder_urls",
        "sampling_params.extra_args.ec_transfer_params",
        "vllm_xargs.bootstrap_room",
    ];
    assert_eq!(found, expected, "none hides another");
    let harmless = r#"{"sampling_params":{"extra_args":{"kv_transfer_params":null,"x":1}}}"#;
    let view = read(Dialect::TokenIds, harmless);
    assert_eq!(view.kv.transfer_fields.paths().next(), None);
}

#[test]
fn a_batch_is_routed_by_its_first_conversation_and_the_others_are_load() {
    let body = r#"{"model":"m","messages":[[{"role":"user","content":"a"}], [{"role":"user","content":"bb"}],[]],"max_tokens":3}"#;
    let view = read(Dialect::ChatBatch, body);
    let PromptPart::Messages(first) = &view.prompt else {
        panic!("{:?}", view.prompt)
    };
    assert_eq!(first.as_str(), r#"[{"role":"user","content":"a"}]"#);
    assert_eq!(view.counts.prompts, 3);
    let others = r#"[{"role":"user","content":"bb"}][]"#.len();
    assert_eq!(
        (view.counts.further_bytes, view.max_tokens),
        (others, Some(3))
    );
    for messages in ["[]", "{}", "7", "null"] {
        let body = format!(r#"{{"model":"m","messages":{messages}}}"#);
        let view = read(Dialect::ChatBatch, &body);
        assert_eq!(
            (view.prompt, view.counts.further_bytes),
            (PromptPart::None, 0),
            "{messages}"
        );
    }
}

#[test]
fn a_field_that_decides_the_prompt_may_not_stand_twice() {
    for (dialect, field) in [
        (Dialect::TokenIds, "token_ids"),
        (Dialect::TokenIds, "sampling_params"),
        (Dialect::SglangGenerate, "text"),
        (Dialect::SglangGenerate, "input_ids"),
        (Dialect::SglangGenerate, "lora_path"),
        (Dialect::SglangGenerate, "extra_key"),
        (Dialect::ChatBatch, "messages"),
    ] {
        let body = format!(r#"{{"{field}":[1],"{field}":[2],"model":"m"}}"#);
        let error = view(dialect, body.as_bytes()).unwrap_err();
        assert_eq!(
            (error.code(), error.param()),
            (ErrorCode::DuplicateKey, Some(field))
        );
    }
}
