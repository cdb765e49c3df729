//! `warmroute doctor` names what is wrong between router and engines, exactly that, and the way to mend it.

mod harness;

use std::path::Path;

use contract_id::contract;
use harness::{Program, RawClient, Reply, Router, ScriptedEngine, Sim, assert_shape, eventually, json_reply};
use serde_json::{Value, json};

/// The checks of a worker, in the documented order.
const WORKER: [&str; 27] = [
    "reachable",
    "model_listed",
    "engine_version",
    "model_agrees",
    "block_size",
    "prefix_caching",
    "tokenizer",
    "chat_template",
    "special_tokens",
    "usage_details",
    "events_enabled",
    "events_endpoint",
    "events_arriving",
    "events_age",
    "replay",
    "sequence",
    "dp_ranks",
    "dp_offset",
    "identity_unique",
    "hash_alias",
    "lora",
    "salt_honoured",
    "medium_known",
    "hybrid_groups",
    "role_pairing",
    "health_endpoint",
    "clock",
];

/// The checks of the router, in the documented order.
const ROUTER: [&str; 9] =
    ["config", "listener_exposed", "admin_exposed", "tenants_salted", "redis", "nats", "s3", "limits_fd", "timers"];

/// A report and the exit code that came with it.
#[derive(Debug)]
struct Seen {
    code: Option<i32>,
    report: Value,
}

/// Runs `doctor --json` with these arguments.
fn doctor(args: &[&str]) -> Seen {
    let end = Program::finish(&[&["doctor", "--json"], args].concat());
    let report = serde_json::from_str(&end.stdout)
        .unwrap_or_else(|error| panic!("{args:?}: stdout is one JSON object ({error}): {end:?}"));
    Seen { code: end.code, report }
}

/// A quick engine.
fn engine(flags: &[&str]) -> Program {
    Program::engine(&[&["--speed", "20"], flags].concat())
}

/// Looks at `engine` as the worker `w1`, with further arguments.
fn look_at(engine: &Program, args: &[&str]) -> Seen {
    let worker = format!("w1={}", engine.url());
    doctor(&[&["-w", &worker], args].concat())
}

/// Looks at `engine` as the worker `w1` with these keys of its own and these sections of configuration.
fn look_with(engine: &Program, keys: &str, sections: &str) -> Seen {
    let dir = tempfile::tempdir().expect("a directory");
    let yaml = format!("{sections}\nworkers:\n  - {{name: w1, url: \"{}\", {keys}}}\n", engine.url());
    let file = write(dir.path(), "warmroute.yaml", &yaml);
    doctor(&["-c", &file])
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("a file can be written");
    path.display().to_string()
}

impl Seen {
    /// Every check of the report: whose it is, and the check.
    fn checks(&self) -> Vec<(&str, &Value)> {
        let router = self.report["checks"].as_array().into_iter().flatten().map(|check| ("router", check));
        let workers = self.report["workers"].as_array().into_iter().flatten().flat_map(|worker| {
            let name = worker["name"].as_str().expect("a worker has a name");
            worker["checks"].as_array().into_iter().flatten().map(move |check| (name, check))
        });
        router.chain(workers).collect()
    }

    /// Those with this status, as `owner id`.
    fn with(&self, status: &str) -> Vec<String> {
        let checks = self.checks().into_iter().filter(|(_, check)| check["status"] == status);
        checks.map(|(owner, check)| format!("{owner} {}", check["id"].as_str().expect("an id"))).collect()
    }

    /// The one check of that id at the worker of that name.
    fn check(&self, owner: &str, id: &str) -> &Value {
        let found = self.checks().into_iter().find(|(whose, check)| *whose == owner && check["id"] == id);
        found.unwrap_or_else(|| panic!("no {owner} {id} in {}", self.report)).1
    }

    /// Asserts that nothing failed and nothing is worth a look, and that it says so.
    fn green(self) -> Self {
        assert_eq!(self.with("fail"), [""; 0], "{}", self.report);
        assert_eq!(self.with("warn"), [""; 0], "{}", self.report);
        assert_eq!((self.code, &self.report["ok"]), (Some(0), &json!(true)));
        self
    }

    /// Asserts that exactly this check failed at `w1`, that nothing else is worth a look, and that its fix has all of
    /// `words`. Answers the check.
    fn only(&self, id: &str, words: &[&str]) -> &Value {
        assert_eq!(self.with("fail"), [format!("w1 {id}")], "{:#}", self.report);
        assert_eq!(self.with("warn"), [""; 0], "{:#}", self.report);
        assert_eq!((self.code, &self.report["ok"]), (Some(1), &json!(false)));
        let check = self.check("w1", id);
        let fix = check["fix"].as_str().unwrap_or_else(|| panic!("no fix in {check}"));
        for word in words {
            assert!(fix.contains(word), "no {word:?} in {fix:?}");
        }
        check
    }
}

#[test]
fn a_healthy_engine_passes_every_check_that_applies_in_the_documented_shape_and_order() {
    let engine = engine(&[]);
    let seen = look_at(&engine, &[]).green();
    let check = json!({
        "id": "string", "status": "string", "found": "null|string", "expected": "null|string", "message": "string",
        "fix": "null|string",
    });
    let shape = json!({
        "schema": "string", "ok": "bool", "checks": [check],
        "workers": [{"name": "string", "url": "string", "ok": "bool", "checks": [check]}],
    });
    assert_shape(&seen.report, &shape);
    assert_eq!(seen.report["schema"], "warmroute.doctor/1");
    let ids = |checks: &Value| -> Vec<String> {
        let checks = checks.as_array().expect("a list of checks").iter();
        checks.map(|check| check["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(ids(&seen.report["checks"]), ROUTER);
    assert_eq!(ids(&seen.report["workers"][0]["checks"]), WORKER);
    let skipped: Vec<String> = seen.with("skip");
    let not_there = ["router tenants_salted", "router redis", "router nats", "router s3"];
    let one_of_a_kind = ["w1 model_agrees", "w1 dp_offset", "w1 lora", "w1 role_pairing"];
    assert_eq!(skipped, [not_there, one_of_a_kind].concat());
}

#[test]
fn every_form_of_events_ranks_adapters_and_sockets_passes() {
    let dir = tempfile::tempdir().expect("a directory");
    let ipc = |name: &str| format!("ipc://{}", dir.path().join(name).display());
    let (events, replay) = (ipc("events"), ipc("replay"));
    for flags in [
        &["--event-format", "array", "--hash-format", "bytes", "--replay-format", "old"][..],
        &["--topic", "kv@here", "--block-size", "1"],
        &["--block-size", "256", "--max-num-batched-tokens", "128"],
        &["--loras", "ad1,ad2", "--host-blocks", "16"],
        &["--kv-events", &events, "--replay", &replay],
    ] {
        look_at(&engine(flags), &[]).green();
    }
    let ranks = look_at(&engine(&["--dp-size", "2"]), &[]).green();
    assert_eq!(ranks.check("w1", "dp_ranks")["found"], "2");
    assert_eq!(ranks.check("w1", "dp_offset")["status"], "ok");
}

#[test]
fn workers_of_different_models_and_block_sizes_pass_side_by_side() {
    let (one, two) = (engine(&["--model", "a"]), engine(&["--model", "b", "--block-size", "64"]));
    let (first, second) = (format!("w1={}", one.url()), format!("w2={}", two.url()));
    let seen = doctor(&["-w", &first, "-w", &second]).green();
    assert_eq!(seen.check("w1", "block_size")["found"], "16");
    assert_eq!(seen.check("w2", "block_size")["found"], "64");
    assert_eq!(seen.check("w2", "model_agrees")["status"], "skip");
}

#[test]
#[contract("G28")]
fn wrong_block_size() {
    let engine = engine(&["--block-size", "32"]);
    let seen = look_at(&engine, &["--block-size", "16"]);
    let check = seen.only("block_size", &["--block-size 16", "workers[0].block_size: 32"]);
    assert_eq!((&check["found"], &check["expected"]), (&json!("32"), &json!("16")));
}

#[test]
#[contract("G28")]
fn events_off() {
    look_at(&engine(&["--no-kv-events"]), &[])
        .only("events_enabled", &["--kv-events-config", "enable_kv_cache_events"]);
    let fine = engine(&[]);
    look_at(&fine, &["--no-kv-events"]).only("events_enabled", &["kv_events.enabled: true"]);
    look_with(&fine, "kv_events: {source: none}", "").only("events_enabled", &["workers[0].kv_events.source: auto"]);
}

#[test]
#[contract("G28")]
fn wrong_port_of_events() {
    let (engine, other) = (engine(&[]), engine(&[]));
    let there = engine.ready["kv_events"][0].as_str().expect("the engine says where it publishes");
    let replay = engine.ready["replay"][0].as_str().expect("and where it replays");
    let elsewhere = other.ready["kv_events"][0].as_str().expect("so does the other");
    let http = format!("tcp://{}", engine.data());
    // Nobody listens; something that is no publisher; another engine's publisher; the engine's own replay socket.
    for wrong in ["tcp://127.0.0.1:1", &http, elsewhere, replay] {
        let seen = look_at(&engine, &["--kv-events", &format!("w1={wrong}")]);
        let check = seen.only("events_endpoint", &["workers[0].kv_events.endpoint", there]);
        assert_eq!((&check["found"], &check["expected"]), (&json!(wrong), &json!(there)));
    }
}

#[test]
#[contract("G28")]
fn wrong_topic() {
    let engine = engine(&["--topic", "kv@here"]);
    let wrong = look_with(&engine, "kv_events: {topic: \"kv@elsewhere\"}", "");
    let check = wrong.only("events_arriving", &["workers[0].kv_events.topic: \"kv@here\""]);
    assert_eq!(check["found"], "\"kv@here\"");
    look_with(&engine, "", "kv_events: {topic_filter: x}")
        .only("events_arriving", &["kv_events.topic_filter: \"kv@here\""]);
    look_with(&engine, "kv_events: {topic: \"kv@\"}", "").green();
}

#[test]
#[contract("G28")]
fn tokenizer_of_another_model() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vllm-real/tiny-qwen");
    let other = format!("sim={}", dir.display());
    let engine = engine(&[]);
    let seen = look_at(&engine, &["--tokenizer", &other]);
    let check = seen.only("tokenizer", &["models.entries[\"sim\"].tokenizer", "--tokenizer sim=DIR"]);
    assert!(check["message"].as_str().is_some_and(|message| message.contains("tiny-qwen")), "{check}");
    assert_eq!(seen.check("w1", "chat_template")["status"], "skip");
    // The same directory on both sides is the right one.
    let dir = dir.display().to_string();
    look_at(&Program::engine(&["--speed", "20", "--tokenizer", &dir]), &[]).green();
}

#[test]
#[contract("G28")]
fn altered_template() {
    let dir = tempfile::tempdir().expect("a directory");
    let template = "{%- for message in messages -%}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') \
                    + '<|im_end|>\\n' }}{%- endfor -%}";
    let file = write(dir.path(), "altered.jinja", template);
    let altered = engine(&["--chat-template", &file]);
    let seen = look_at(&altered, &[]);
    let check = seen.only("chat_template", &["models.entries[\"sim\"].chat_template", "--chat-template"]);
    assert!(check["message"].as_str().is_some_and(|message| message.contains("a user message")), "{check}");
    // Once the router knows it, they agree; an engine with its own template then differs.
    let known = format!("models: {{defaults: {{chat_template: \"{file}\"}}}}");
    look_with(&altered, "", &known).green();
    look_with(&engine(&[]), "", &known).only("chat_template", &["--chat-template", &file]);
}

#[test]
#[contract("G28")]
fn prefix_caching_off() {
    look_at(&engine(&["--no-prefix-caching"]), &[]).only("prefix_caching", &["--enable-prefix-caching"]);
}

#[test]
#[contract("G28")]
fn usage_details_off() {
    look_at(&engine(&["--no-usage-details"]), &[]).only("usage_details", &["--enable-prompt-tokens-details"]);
}

#[test]
#[contract("G28")]
fn replay_off() {
    look_at(&engine(&["--no-replay"]), &[]).only("replay", &["\"replay_endpoint\": \"tcp://*:5558\""]);
    let fine = engine(&[]);
    look_with(&fine, "", "kv_events: {replay: false}").only("replay", &["kv_events.replay: true"]);
    let none = look_with(&fine, "kv_events: {replay_endpoint: none}", "");
    none.only("replay", &["workers[0].kv_events.replay_endpoint: auto"]);
    let wrong = look_with(&fine, "kv_events: {replay_endpoint: \"tcp://127.0.0.1:1\"}", "");
    wrong.only("replay", &["workers[0].kv_events.replay_endpoint"]);
}

#[test]
#[contract("G28")]
fn ranks_miscounted() {
    let (one, two) = (engine(&[]), engine(&["--dp-size", "2"]));
    look_with(&one, "dp_ranks: 2", "").only("dp_ranks", &["workers[0].dp_ranks: 1"]);
    let seen = look_with(&two, "dp_ranks: 1", "");
    let check = seen.only("dp_ranks", &["workers[0].dp_ranks: 2"]);
    assert_eq!((&check["found"], &check["expected"]), (&json!("2"), &json!("1")));
    // With its endpoint spelled out the second rank's port would be guessed at.
    let place = one.ready["kv_events"][0].as_str().expect("the engine says where it publishes");
    let spelled = format!("dp_ranks: 2, kv_events: {{endpoint: \"{place}\"}}");
    look_with(&one, &spelled, "").only("dp_ranks", &["workers[0].dp_ranks: 1"]);
}

/// An engine without these routes, looked at with its publisher and replay socket spelled out.
fn look_at_older(flags: &[&str], without: &str, keys: &str) -> Seen {
    let engine = engine(&[&["--without", without], flags].concat());
    let place = |what: &str| engine.ready[what][0].as_str().expect("the engine says where it publishes").to_owned();
    let (events, replay) = (place("kv_events"), place("replay"));
    let keys = format!("{keys} kv_events: {{endpoint: \"{events}\", replay_endpoint: \"{replay}\"}}");
    look_with(&engine, &keys, "")
}

#[test]
#[contract("G28")]
fn engines_that_tell_less_are_as_healthy() {
    for flags in [
        // Chats only; with ids in the replies, with ids by /tokenize, with neither.
        &["--without", "/v1/completions"][..],
        &["--without", "/v1/completions", "--no-token-ids"],
        &["--without", "/v1/completions,/tokenize", "--no-token-ids"],
        &["--without", "/v1/completions,/tokenize"],
        &["--without", "/tokenize", "--no-token-ids"],
        &["--without", "/metrics"],
        &["--details-on-hits-only"],
        &["--dp-size", "2", "--without", "/tokenize", "--no-token-ids"],
    ] {
        let seen = look_at(&engine(flags), &[]).green();
        for id in ["tokenizer", "prefix_caching", "events_arriving", "hash_alias"] {
            assert_eq!(seen.check("w1", id)["status"], "ok", "{flags:?} {id}");
        }
    }
    look_at_older(&[], "/kv_event_sources", "").green();
}

#[test]
#[contract("G28")]
fn one_wrong_setting_is_one_failure_also_of_an_engine_that_tells_less() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vllm-real/tiny-qwen");
    let other = format!("sim={}", dir.display());
    for without in ["/tokenize", "/v1/completions,/tokenize"] {
        for flags in [&["--without", without][..], &["--without", without, "--no-token-ids"]] {
            let seen = look_at(&engine(flags), &["--tokenizer", &other]);
            seen.only("tokenizer", &["models.entries[\"sim\"].tokenizer"]);
        }
    }
    look_at_older(&["--block-size", "128"], "/metrics", "block_size: 16,")
        .only("block_size", &["--block-size 16", "workers[0].block_size: 128"]);
    let off = ["--no-prefix-caching", "--details-on-hits-only"];
    look_at(&engine(&off), &[]).only("prefix_caching", &["--enable-prefix-caching"]);
    let blind = look_at(&engine(&[&off[..], &["--without", "/metrics"]].concat()), &[]);
    assert_eq!(blind.with("fail"), ["w1 events_arriving"], "nobody tells why");
    let fix = blind.check("w1", "events_arriving")["fix"].to_string();
    assert!(fix.contains("--enable-prefix-caching"), "{fix}");
}

#[test]
fn a_worker_that_is_not_there_is_one_failure_and_does_not_hide_the_other_one() {
    let engine = engine(&[]);
    let other = format!("w2={}", engine.url());
    let seen = doctor(&["-w", "w1=http://127.0.0.1:1", "-w", &other]);
    seen.only("reachable", &["workers[0].url"]);
    assert_eq!(seen.check("w2", "hash_alias")["status"], "ok");
    assert!(seen.with("skip").contains(&"w1 clock".to_owned()));
}

#[test]
fn a_wrong_key_and_a_wrong_model_are_named() {
    let locked = engine(&["--api-key", "k"]);
    look_at(&locked, &[]).only("model_listed", &["workers[0].api_key"]);
    look_with(&locked, "api_key: k", "").green();
    look_with(&engine(&[]), "models: [other]", "").only("model_listed", &["workers[0].models"]);
}

#[test]
fn a_server_without_events_tokenize_and_details_is_looked_at_as_far_as_it_tells() {
    let counts = json!({"choices": [{"text": "x"}], "usage": {"prompt_tokens": 5}}).to_string();
    let engine = ScriptedEngine::start(Reply::whole(json_reply("200 OK", "", &counts)));
    let worker = format!("w1={}", engine.url());
    let look = |args: &[&str]| {
        // The first question is for its `/tokenize`.
        engine.once(Reply::whole(json_reply("404 Not Found", "", "{}")));
        doctor(&[&["-w", &worker], args].concat())
    };
    let seen = look(&[]);
    assert_eq!((seen.code, seen.with("fail")), (Some(0), Vec::new()), "{:#}", seen.report);
    assert_eq!(seen.with("warn"), ["w1 block_size", "w1 tokenizer"], "both are only guessed");
    for id in ["prefix_caching", "usage_details", "events_enabled", "replay", "hash_alias", "salt_honoured"] {
        assert_eq!(seen.check("w1", id)["status"], "skip", "{id}");
    }
    // With a tokenizer of our own its counts are compared, and they are not those of its prompts.
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vllm-real/tiny-qwen");
    let seen = look(&["--tokenizer", &format!("m={}", dir.display())]);
    assert_eq!(seen.with("fail"), ["w1 tokenizer"]);
    let message = &seen.check("w1", "tokenizer")["message"];
    assert!(message.as_str().is_some_and(|message| message.contains("counts 5 tokens in a prompt of ")), "{message}");
}

#[test]
fn two_workers_behind_one_publisher_are_named() {
    let engine = engine(&[]);
    let (one, two) = (format!("w1={}", engine.url()), format!("w2={}", engine.url()));
    let seen = doctor(&["-w", &one, "-w", &two]);
    assert_eq!(seen.with("fail"), ["w1 identity_unique", "w2 identity_unique"]);
}

#[test]
fn without_probes_no_request_reaches_the_engine() {
    let engine = engine(&[]);
    let seen = look_at(&engine, &["--no-probe"]).green();
    assert_eq!(engine.stats()["requests"], 0);
    for id in ["usage_details", "events_arriving", "hash_alias", "salt_honoured"] {
        assert_eq!(seen.check("w1", id)["status"], "skip", "{id}");
    }
    for id in ["block_size", "tokenizer", "chat_template", "events_endpoint", "replay"] {
        assert_eq!(seen.check("w1", id)["status"], "ok", "{id}");
    }
}

#[test]
fn an_engine_that_hangs_ends_the_look_in_time() {
    let engine = engine(&[]);
    engine.fault("hang", 100);
    look_at(&engine, &["--timeout", "3"]).only("reachable", &["--timeout"]);
}

#[test]
fn people_read_what_failed_with_its_fix_and_a_summary() {
    let engine = engine(&["--block-size", "32"]);
    let worker = format!("w1={}", engine.url());
    let args = ["doctor", "-w", &worker, "--block-size", "16"];
    let end = Program::finish(&args);
    assert_eq!(end.code, Some(1));
    let lines: Vec<&str> = end.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert!(lines[1].starts_with("w1: fail block_size (found 32, expected 16): "), "{}", lines[1]);
    assert_eq!(lines[2], "    fix: start the engine with --block-size 16, or set workers[0].block_size: 32");
    assert!(lines[3].starts_with("w1: ") && lines[3].contains(" 1 failed, "), "{}", lines[3]);
    let all = Program::finish(&[&args[..], &["-v"]].concat());
    assert!(all.stdout.contains("w1: ok   reachable"), "{}", all.stdout);
    assert!(all.stdout.contains("w1: skip role_pairing"), "{}", all.stdout);
}

#[test]
fn a_bad_configuration_is_78_and_still_one_object() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = write(dir.path(), "bad.yaml", "workers: [{url: \"http://127.0.0.1:1\", block_size: none}]\n");
    let seen = doctor(&["-c", &file]);
    assert_eq!(seen.code, Some(78));
    assert_eq!(seen.with("fail"), ["router config"]);
    assert!(seen.check("router", "config")["message"].as_str().is_some_and(|text| text.contains("line 1")));
    assert_eq!(Program::finish(&["doctor", "-c", &file]).code, Some(78));
    // What the start refuses as unsafe is refused here, too, by its key and with both ways out.
    let open = write(dir.path(), "open.yaml", "admin: {listen: \"0.0.0.0:8081\"}\nworkers: [\"http://127.0.0.1:1\"]\n");
    let seen = doctor(&["-c", &open]);
    assert_eq!((seen.code, seen.with("fail")), (Some(78), vec!["router config".to_owned()]));
    let message = seen.check("router", "config")["message"].to_string();
    assert!(message.contains("admin.listen") && message.contains("admin.token_file"), "{message}");
    assert_eq!(Program::finish(&["doctor", "--timeout", "0"]).code, Some(2));
    assert_eq!(Program::finish(&["doctor"]).code, Some(78), "there is nothing to look at");
}

#[test]
fn the_admin_listener_gives_the_same_report_one_look_at_a_time() {
    let engine = engine(&[]);
    let router = Program::serve(&[format!("w1={}", engine.url())], &[]).ready(1);
    let quiet = RawClient::get(&router.admin(), "/admin/doctor").json();
    assert_eq!((&quiet["schema"], &quiet["ok"]), (&json!("warmroute.doctor/1"), &json!(true)));
    assert_eq!(engine.stats()["requests"], 0);
    let probed =
        Seen { code: Some(0), report: RawClient::get(&router.admin(), "/admin/doctor?probe=true").json() }.green();
    assert_eq!(probed.check("w1", "hash_alias")["status"], "ok");
    let asked = engine.stats()["requests"].as_u64().expect("a count");
    assert!(asked > 0);
    assert_eq!(RawClient::get(&router.admin(), "/admin/doctor?probe=perhaps").status, 400);

    engine.fault("hang", 100);
    let mut first = RawClient::connect(&router.admin());
    first.send("GET", "/admin/doctor?probe=true", &[], b"");
    eventually("the first look to be under way", || (engine.stats()["requests"].as_u64()? > asked).then_some(()));
    let second = RawClient::get(&router.admin(), "/admin/doctor");
    assert_eq!((second.status, &second.json()["error"]["code"]), (409, &json!("conflict")));
    drop(first);
    eventually("its turn to be over", || {
        (RawClient::get(&router.admin(), "/admin/doctor").status == 200).then_some(())
    });
}
