use fleet::WorkerView;
use kv_blocks::WorkerId;
use proxy::FakeReply;
use routing::receipt::OutcomeKind;

use super::*;
use crate::{
    request::{
        send::RoutedRequest,
        test_gateway::{ClientReply, ReplyEnding, TestGateway, outcome_kind},
        test_support,
    },
    response_affinity::ResponseHome,
};

const MESSAGE: &str = r#"{"model":"m","max_tokens":9,"system":"Be terse.","messages":[{"role":"user","content":"a"}]}"#;
const UNTRANSLATABLE: &str = r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AA=="}}]}]}"#;
const CHAT_BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#;

fn anthropic(number: u32) -> WorkerView {
    let mut worker = native(number);
    worker.engine.kind = EngineKind::Anthropic;
    worker
}

fn native(number: u32) -> WorkerView {
    let mut worker = test_support::worker(number);
    worker.engine.messages = MessagesMode::Native;
    worker
}

fn call(target: &'static str, body: &str) -> AcceptedRequest {
    let mut call = test_support::call("");
    call.target = PathAndQuery::from_static(target);
    call.body.replace(Bytes::from(body.to_owned()));
    call
}

async fn translator(
    test: &TestGateway,
    dialect: Dialect,
    body: &str,
) -> Result<RequestTranslator, ApiError> {
    let stage = &test.delivery().send.translation;
    RequestTranslator::of(stage, dialect, &mut call("/", body)).await
}

fn context() -> ReplyContext {
    ReplyContext {
        model: "m".into(),
        prompt_tokens: 0,
        include_usage: false,
    }
}

fn reply_worker(view: &WorkerView, gets_prompt: bool) -> ReplyWorker<'_> {
    ReplyWorker { view, gets_prompt }
}

/// The target and body of a request at a worker, with the rewrites.
async fn sent(
    test: &TestGateway,
    dialect: Dialect,
    (target, body): (&'static str, &str),
    worker: &WorkerView,
) -> Result<(String, String, Vec<&'static str>), ErrorCode> {
    let stage = &test.delivery().send.translation;
    let mut call = call(target, body);
    let translator = RequestTranslator::of(stage, dialect, &mut call).await;
    let translator = translator.map_err(|error| error.code)?;
    let built = translator
        .upstream_request(stage, &call, reply_worker(worker, false), &context())
        .await
        .map_err(|error| error.code)?;
    let body = String::from_utf8_lossy(built.call.body.bytes()).into_owned();
    Ok((built.call.target.to_string(), body, built.rewrites))
}

#[tokio::test]
async fn the_workers_that_can_take_a_request_depend_on_its_api() {
    let test = TestGateway::new();
    for (dialect, body, api_support) in [
        (Dialect::Chat, CHAT_BODY, ApiSupport::All),
        (Dialect::Messages, MESSAGE, ApiSupport::All),
        (Dialect::Messages, UNTRANSLATABLE, ApiSupport::Native),
        (
            Dialect::Completions,
            r#"{"model":"m","prompt":"a"}"#,
            ApiSupport::Openai,
        ),
        (
            Dialect::Embeddings,
            r#"{"model":"m","input":"a"}"#,
            ApiSupport::Openai,
        ),
        (
            Dialect::Responses,
            r#"{"model":"m","input":"a"}"#,
            ApiSupport::Openai,
        ),
    ] {
        let translator = translator(&test, dialect, body).await.expect("a good body");
        assert_eq!(translator.api_support, api_support, "{dialect:?} {body}");
    }
    for (support, takes) in [
        (ApiSupport::All, [true, true, true]),
        (ApiSupport::Openai, [true, true, false]),
        (ApiSupport::Native, [false, true, true]),
    ] {
        let workers = [test_support::worker(1), native(2), anthropic(3)];
        assert_eq!(
            workers.map(|worker| support.by(&worker)),
            takes,
            "{support:?}"
        );
    }
}

#[tokio::test]
async fn a_request_whose_api_no_worker_of_its_model_has_is_refused_and_waits_without_any_worker() {
    let test = TestGateway::new();
    let completion = r#"{"model":"m","prompt":"a"}"#;
    let completion = translator(&test, Dialect::Completions, completion)
        .await
        .expect("good");
    let untranslatable = translator(&test, Dialect::Messages, UNTRANSLATABLE)
        .await
        .expect("good");
    for (translator, workers, accepted) in [
        (&completion, vec![anthropic(1)], false),
        (
            &completion,
            vec![anthropic(1), test_support::worker(2)],
            true,
        ),
        (&completion, vec![], true),
        (&untranslatable, vec![test_support::worker(1)], false),
        (
            &untranslatable,
            vec![test_support::worker(1), native(2)],
            true,
        ),
        (&untranslatable, vec![], true),
    ] {
        let model = test_support::model(workers);
        let checked = translator
            .check_supported(&model)
            .map_err(|error| error.code);
        let expected = if accepted {
            Ok(())
        } else {
            Err(ErrorCode::InvalidRequest)
        };
        assert_eq!(checked, expected);
    }
}

#[tokio::test]
async fn a_message_goes_to_a_worker_with_that_api_as_it_came() {
    let test = TestGateway::new();
    for target in ["/v1/messages", "/anthropic/v1/messages"] {
        let sent = sent(&test, Dialect::Messages, (target, MESSAGE), &native(1)).await;
        assert_eq!(
            sent,
            Ok(("/v1/messages".to_owned(), MESSAGE.to_owned(), vec![]))
        );
    }
    let with_query = ("/anthropic/v1/messages?beta=true", MESSAGE);
    let (target, ..) = sent(&test, Dialect::Messages, with_query, &native(1))
        .await
        .expect("good");
    assert_eq!(target, "/v1/messages?beta=true");
}

#[tokio::test]
async fn a_message_becomes_a_chat_for_a_worker_without_that_api() {
    let test = TestGateway::new();
    let message = ("/v1/messages?beta=true", MESSAGE);
    let sent = sent(&test, Dialect::Messages, message, &test_support::worker(1)).await;
    let (target, body, rewrites) = sent.expect("it can be translated");
    assert_eq!(target, "/v1/chat/completions?beta=true");
    assert_eq!(rewrites, ["messages"]);
    let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(body["messages"][0]["role"], "system");
    assert_eq!(body["messages"][1]["content"], "a");
}

#[tokio::test]
async fn a_message_that_a_chat_cannot_express_is_refused_where_only_a_chat_is_left() {
    let test = TestGateway::new();
    let message = ("/v1/messages", UNTRANSLATABLE);
    let refused = sent(&test, Dialect::Messages, message, &test_support::worker(1)).await;
    assert_eq!(refused, Err(ErrorCode::InvalidRequest));
    assert!(
        sent(&test, Dialect::Messages, message, &native(1))
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_prompt_that_another_worker_computes_is_sent_as_a_chat_to_any_worker() {
    let test = TestGateway::new();
    let stage = &test.delivery().send.translation;
    let mut call = call("/v1/messages", MESSAGE);
    let translator = RequestTranslator::of(stage, Dialect::Messages, &mut call).await;
    let translator = translator.expect("a good message");
    for (handed_over, target) in [(false, "/v1/messages"), (true, "/v1/chat/completions")] {
        let native = native(1);
        let worker = reply_worker(&native, handed_over);
        let built = translator
            .upstream_request(stage, &call, worker, &context())
            .await
            .expect("it can be sent");
        assert_eq!(
            (built.call.target.path(), built.is_openai),
            (target, handed_over)
        );
    }
}

#[tokio::test]
async fn a_chat_becomes_a_message_only_for_a_worker_with_nothing_else() {
    let test = TestGateway::new();
    let chat = ("/v1/chat/completions", CHAT_BODY);
    for worker in [test_support::worker(1), native(1)] {
        let (target, body, rewrites) = sent(&test, Dialect::Chat, chat, &worker)
            .await
            .expect("good");
        assert_eq!((&*target, &*body), chat);
        assert!(rewrites.is_empty());
    }
    let (target, body, rewrites) = sent(&test, Dialect::Chat, chat, &anthropic(1))
        .await
        .expect("good");
    assert_eq!((&*target, rewrites), ("/v1/messages", vec!["messages"]));
    assert!(body.contains("max_tokens"), "{body}");
}

#[tokio::test]
async fn system_prompts_are_marked_as_cacheable_only_where_that_is_on() {
    let mut test = TestGateway::new();
    for (on, rewrites) in [(false, vec![]), (true, vec!["cache_control"])] {
        let settings = &mut test.delivery_mut().send.translation.settings;
        settings.anthropic_cache_control_injection = on;
        let message = ("/v1/messages", MESSAGE);
        let sent = sent(&test, Dialect::Messages, message, &anthropic(1))
            .await
            .expect("good");
        assert_eq!((sent.1.contains("ephemeral"), sent.2), (on, rewrites));
    }
}

#[tokio::test]
async fn a_response_that_is_stored_or_continued_keeps_state_at_its_engine() {
    let test = TestGateway::new();
    for (fields, keeps_state) in [
        ("", true),
        (r#","store":true"#, true),
        (r#","store":false"#, false),
        (r#","store":false,"previous_response_id":"resp_1""#, true),
    ] {
        let body = format!(r#"{{"model":"m","input":"a"{fields}}}"#);
        let translator = translator(&test, Dialect::Responses, &body)
            .await
            .expect("good");
        assert_eq!(translator.keeps_state, keeps_state, "{body}");
        assert!(!translator.can_split());
    }
}

#[tokio::test]
async fn a_continued_response_is_pinned_to_its_worker_while_that_is_known_and_present() {
    let test = TestGateway::new();
    let body = r#"{"model":"m","input":"a","previous_response_id":"resp_1"}"#;
    let translator = translator(&test, Dialect::Responses, body)
        .await
        .expect("good");
    let affinity = ResponseAffinity::default();
    let snapshot = |workers: &[u32]| Snapshot {
        workers: workers
            .iter()
            .map(|it| Arc::new(test_support::worker(*it)))
            .collect(),
        ..Snapshot::default()
    };
    let call = test_support::call(body);
    let find = |workers: &[u32]| {
        let found = translator.response_worker(&affinity, &snapshot(workers), &call);
        found.expect("there is one tenant")
    };
    assert_eq!(find(&[1, 2]), None);
    let home = ResponseHome {
        worker: WorkerId(2),
        name: "w2".into(),
    };
    affinity.record(call.response("resp_1"), home, call.received);
    let pin = Pin {
        worker: WorkerId(2),
        rank: None,
    };
    assert_eq!(find(&[1, 2]), Some(pin));
    assert_eq!(find(&[1]), None, "the worker is gone");
}

#[tokio::test]
async fn a_body_that_is_no_request_of_its_dialect_is_refused() {
    let test = TestGateway::new();
    for (dialect, body) in [(Dialect::Messages, "[]"), (Dialect::Responses, "{")] {
        let refused = translator(&test, dialect, body).await.map(drop);
        let code = refused.expect_err(body).code;
        assert!(
            matches!(code, ErrorCode::InvalidRequest | ErrorCode::InvalidJson),
            "{body}: {code:?}"
        );
    }
}

#[tokio::test]
async fn requests_without_a_reply_text_expect_no_output_tokens() {
    let test = TestGateway::new();
    let body = r#"{"model":"m","input":"a"}"#;
    let mut translator = translator(&test, Dialect::Embeddings, body)
        .await
        .expect("good");
    let view = translator
        .request_view(Dialect::Embeddings, body.as_bytes())
        .expect("good");
    assert_eq!(view.max_tokens, Some(0));
}

/// A client of messages whose worker gets chats.
async fn message(test: &TestGateway) -> RoutedRequest {
    let mut request = test.chat(&[1]);
    request.call.target = PathAndQuery::from_static("/v1/messages");
    request
        .call
        .body
        .replace(Bytes::from_static(MESSAGE.as_bytes()));
    let stage = &test.delivery().send.translation;
    let translator = RequestTranslator::of(stage, Dialect::Messages, &mut request.call).await;
    request.translator = translator.expect("a good message");
    request
}

async fn answered(reply: FakeReply) -> (ClientReply, OutcomeKind) {
    let test = TestGateway::new();
    test.script(1, reply);
    let guard = test.guard_of("/v1/messages");
    let id = guard.id();
    let request = message(&test).await;
    let reply = ClientReply::read(test.delivery().run(request, guard).await).await;
    assert_eq!(test.router.open_reservations(), 0);
    (reply, outcome_kind(&test.receipt(id)))
}

fn json(reply: &ClientReply) -> serde_json::Value {
    serde_json::from_str(&reply.text()).expect("JSON")
}

const COMPLETION: &str = r#"{"id":"c1","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#;

#[tokio::test]
async fn a_completion_reaches_a_client_of_messages_as_a_message() {
    let (reply, outcome) = answered(FakeReply::json(200, COMPLETION)).await;
    let message = json(&reply);
    assert_eq!((reply.status, outcome), (200, OutcomeKind::Ok));
    assert_eq!(
        (&message["type"], &message["model"]),
        (&"message".into(), &"m".into())
    );
    assert_eq!(message["content"][0]["text"], "hi");
    assert_eq!(message["usage"]["input_tokens"], 3);
    assert_eq!(reply.headers["content-type"], "application/json");
    assert_eq!(reply.headers["x-warmroute-rewrites"], "messages");
}

#[tokio::test]
async fn a_completion_in_many_pieces_is_translated_when_it_is_whole() {
    let padded = format!("{}{COMPLETION}", " ".repeat(1024 * 1024 + 1));
    let (one, two) = padded.split_at(padded.len() - 9);
    let pieces = [one, two].map(|piece| Ok(Bytes::from(piece.to_owned())));
    let (reply, _) = answered(FakeReply::pieces(http::Response::new(()), pieces)).await;
    assert_eq!(json(&reply)["content"][0]["text"], "hi");
}

#[tokio::test]
async fn an_error_of_the_worker_keeps_its_status_in_the_clients_dialect() {
    let error = r#"{"error":{"message":"too long","type":"invalid_request_error","code":400}}"#;
    for (status, outcome) in [(400, OutcomeKind::ClientError), (429, OutcomeKind::Shed)] {
        let (reply, counted) = answered(FakeReply::json(status, error)).await;
        assert_eq!((reply.status, counted), (status, outcome));
        let body = json(&reply);
        assert_eq!(
            (&body["type"], &body["error"]["message"]),
            (&"error".into(), &"too long".into())
        );
    }
}

#[tokio::test]
async fn a_reply_that_is_no_completion_is_an_error_and_not_an_empty_message() {
    let long = Bytes::from(vec![b' '; 1024 * 1024 + 1]);
    let cut = || FakeReply::pieces(http::Response::new(()), [Ok(long.clone()), Err("reset")]);
    for reply in [
        FakeReply::json(200, "{}"),
        FakeReply::json(200, "hello"),
        cut(),
    ] {
        let (reply, outcome) = answered(reply).await;
        assert_eq!((reply.status, reply.ending), (502, ReplyEnding::Clean));
        assert_eq!(json(&reply)["type"], "error");
        assert_eq!(outcome, OutcomeKind::UpstreamError);
    }
}

#[tokio::test]
async fn a_reply_beyond_sixteen_mebibytes_is_not_translated() {
    let piece = Bytes::from(vec![b' '; 4 * 1024 * 1024]);
    let pieces = std::iter::repeat_n(Ok(piece), 5);
    let (reply, _) = answered(FakeReply::pieces(http::Response::new(()), pieces)).await;
    assert_eq!(reply.status, 502);
    assert!(reply.text().contains("16 MiB"), "{}", reply.text());
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_translated_reply_has_the_requests_time_limit() {
    let long = Bytes::from(vec![b' '; 1024 * 1024 + 1]);
    let reply = FakeReply::pieces(http::Response::new(()), [Ok(long)]).unended();
    let (reply, outcome) = answered(reply).await;
    assert_eq!((reply.status, outcome), (504, OutcomeKind::UpstreamError));
}
