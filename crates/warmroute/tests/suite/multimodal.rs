//! Prompts with images, as chats and as token ids: their blocks are those that the engine announced
//! for the same images in the same places.

use contract_id::contract;
use serde_json::{Value, json};

use crate::{
    event_publisher::{PublishedWorker, recorded},
    harness::{RawClient, RoutedFleet, RoutedReply, RouterQueries as _, eventually, words},
};

const CHAT: &str = "/v1/chat/completions";
const RENDER: &str = "/v1/chat/completions/render";
/// Engines render in debug builds too, however long that takes.
const PATIENT: &str = "  render_timeout: 60s\n";

/// A request whose second item has this hash.
fn body(second: &str) -> Value {
    json!({
        "model": "sim",
        "token_ids": (1..=40).collect::<Vec<u32>>(),
        "sampling_params": {"max_tokens": 2},
        "features": {
            "mm_hashes": {"image": ["9f2c1d6e0b", second]},
            "mm_placeholders": {"image": [{"offset": 4, "length": 20}, {"offset": 25, "length": 10}]},
            "kwargs_data": null,
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
#[contract("D2", "V6")]
async fn a_prompt_with_images_finds_the_blocks_of_the_same_images_only() {
    let workers = PublishedWorker::start().await;
    let (mut publisher, router) = (workers.publisher, workers.router);
    let dry_run = |body: &Value| {
        let reply = RawClient::post(&router.data(), "/v1/route", body.to_string().as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let decision = reply.json();
        let rows = decision["candidates"].as_array().expect("candidates");
        let row = rows.iter().find(|row| row["target"]["worker"] == "a");
        row.expect("its row")["warm_tokens"]["device"].clone()
    };
    // Blocks of 16 tokens, 1 to 32, with an item from token 4 on and one from 25 on.
    publisher.publish_payload("", &recorded("vllm_0_24_mm_extra_keys"));
    eventually("the blocks to be known", || {
        (dry_run(&body("77aa01b2c3")) == 32).then_some(())
    });
    assert_eq!(dry_run(&body("another")), 16, "the second image is new");
    let mut text = body("77aa01b2c3");
    text["features"] = Value::Null;
    assert_eq!(dry_run(&text), 0, "the same tokens without images");

    for (second, want) in [("77aa01b2c3", "32"), ("another", "16")] {
        let body = body(second).to_string();
        let headers = [("x-warmroute-worker", "a")];
        let path = "/inference/v1/generate";
        let reply = RawClient::post_with(&router.data(), path, &headers, body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let predicted = reply.header("x-warmroute-predicted-cached-tokens");
        assert_eq!(predicted, Some(want));
        let receipt = router.receipt_of(&reply);
        assert_eq!(receipt["prompt"]["source"], "given", "{receipt:#}");
    }
}

/// A content part with an image of this content.
fn image(data: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}})
}

fn text(topic: &str) -> Value {
    json!({"type": "text", "text": words(topic, 40)})
}

fn user(content: &[Value]) -> Value {
    json!({"role": "user", "content": content})
}

fn chat(messages: &[Value]) -> Value {
    json!({"model": "sim", "messages": messages, "max_tokens": 20, "ignore_eos": true})
}

/// The whole blocks of a prompt but its last token, in tokens.
fn whole_blocks(prompt_tokens: u64) -> u64 {
    (prompt_tokens - 1) / 16 * 16
}

/// The places of the images of a chat, by the engine itself.
fn places(routed: &RoutedFleet, body: &Value) -> Vec<(u64, u64)> {
    let body = body.to_string();
    let reply = RawClient::post(&routed.engines[0].data(), RENDER, body.as_bytes()).json();
    let places = reply["features"]["mm_placeholders"]["image"].as_array();
    let number = |place: &Value, key: &str| place[key].as_u64().expect("a number");
    places
        .unwrap_or_else(|| panic!("{reply}"))
        .iter()
        .map(|place| (number(place, "offset"), number(place, "length")))
        .collect()
}

fn source(routed: &RoutedFleet, turn: &RoutedReply) -> Value {
    routed.receipt(turn)["prompt"]["source"].clone()
}

#[test]
#[contract("D2", "I12", "G4")]
fn chats_with_images_are_predicted_as_their_engine_finds_them() {
    let routed = RoutedFleet::with_routing(&[&[], &[]], PATIENT);
    for number in 0..4 {
        let (name, topic) = (format!("picture{number}"), format!("topic{number}"));
        let mut messages = vec![user(&[image(&name), text(&topic)])];
        let first = routed.send(CHAT, &chat(&messages), &[]);
        assert_eq!(first.predicted, first.cached, "{number}");
        let again = routed.send(CHAT, &chat(&messages), &[]);
        assert_eq!(again.worker, first.worker);
        assert_eq!(again.cached, whole_blocks(again.prompt_tokens));
        assert_eq!(again.predicted, again.cached, "{number}");
        assert_eq!(source(&routed, &again), "engine_render");
        let prompt = routed.receipt(&again)["prompt"].clone();
        assert_eq!(
            (&prompt["exact"], &prompt["tokens"], &prompt["new_tokens"]),
            (&json!(true), &json!(again.prompt_tokens), &json!(0))
        );

        // The next turn has another image.
        messages.push(json!({"role": "assistant", "content": again.text}));
        messages.push(user(&[text("and this"), image(&format!("{name}b"))]));
        let next = routed.send(CHAT, &chat(&messages), &[]);
        assert_eq!(next.worker, first.worker);
        assert!(next.cached + 16 > again.prompt_tokens, "{}", next.cached);
        assert_eq!(next.predicted, next.cached, "{number}");
    }
}

#[test]
#[contract("D2", "S54")]
fn another_image_or_another_place_of_it_hits_nothing_from_its_first_block_on() {
    let routed = RoutedFleet::with_routing(&[&[]], PATIENT);
    let of = |data: &str| chat(&[user(&[text("before"), image(data), text("behind")])]);
    let (own, at) = (of("own"), places(&routed, &of("own"))[0]);
    let other = (0..1_000)
        .map(|number| of(&format!("other{number}")))
        .find(|other| places(&routed, other)[0] == at)
        .expect("an image of as many tokens");
    let first = routed.send(CHAT, &own, &[]);
    let other = routed.send(CHAT, &other, &[]);
    assert_eq!(other.prompt_tokens, first.prompt_tokens);
    let before = at.0 / 16 * 16;
    assert_eq!((other.predicted, other.cached), (before, before));

    // Another text before it moves the image.
    let mut moved = own.clone();
    let shorter = words("before", 39);
    moved["messages"][0]["content"][0]["text"] = json!(format!("{shorter}x"));
    assert_ne!(places(&routed, &moved)[0], at);
    let moved = routed.send(CHAT, &moved, &[]);
    assert!(moved.cached <= before && moved.cached > 0);
    assert_eq!(moved.predicted, moved.cached);

    let again = routed.send(CHAT, &own, &[]);
    assert_eq!(again.cached, whole_blocks(again.prompt_tokens));
    assert_eq!(again.predicted, again.cached);
}

#[test]
#[contract("D2")]
fn without_the_route_or_the_time_for_it_a_chat_with_an_image_goes_by_its_text() {
    let body = chat(&[user(&[image("picture"), text("look")])]);
    let without = ["--without", RENDER];
    for (flags, keys) in [
        (&without[..], PATIENT),
        (&without[..0], "  render_timeout: 0s\n"),
        (&without[..0], ""),
    ] {
        let routed = RoutedFleet::with(&[flags], keys, &[]);
        for _ in 0..2 {
            let turn = routed.send(CHAT, &body, &[]);
            assert_eq!(source(&routed, &turn), "text_prefix", "{flags:?} {keys}");
            assert_eq!(routed.receipt(&turn)["prompt"]["exact"], false);
        }
    }
}

#[test]
#[contract("D2", "S43")]
fn an_image_that_the_engine_would_fetch_is_not_rendered() {
    let routed = RoutedFleet::with_routing(&[&[]], PATIENT);
    let part = json!({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}});
    let turn = routed.send(CHAT, &chat(&[user(&[part, text("look")])]), &[]);
    assert_eq!(source(&routed, &turn), "text_prefix");
}
