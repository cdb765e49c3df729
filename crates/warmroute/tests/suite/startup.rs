//! The output and exit codes of the program when it is started wrongly, and correctly.

use std::{net::TcpListener, path::Path};

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{FinishedProgram, Program, RawClient, RouterQueries, eventually};

/// An address without a listener.
const NOBODY: &str = "http://127.0.0.1:1";

fn file(dir: &Path, name: &str, text: impl AsRef<[u8]>) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("a file can be written");
    path.display().to_string()
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

/// `serve` with these arguments exits with this code and one message that contains all of `words`.
fn refused(args: &[&str], code: i32, words: &[&str]) -> FinishedProgram {
    let end = Program::finish(
        &[
            &["serve", "--port", "0", "--admin-listen", "127.0.0.1:0"],
            args,
        ]
        .concat(),
    );
    assert_eq!(end.code, Some(code), "{args:?}: {}", end.stderr);
    for word in words {
        assert!(
            end.stderr.contains(word),
            "{args:?}: no {word:?} in: {}",
            end.stderr
        );
    }
    assert_eq!(end.stdout, "", "{args:?}");
    end
}

#[test]
fn without_arguments_there_is_help() {
    let end = Program::finish(&[]);
    assert_eq!(end.code, Some(2));
    for command in ["serve", "engine", "demo", "config"] {
        assert!(end.stderr.contains(command), "{}", end.stderr);
    }
    assert_eq!(Program::finish(&["--version"]).code, Some(0));
}

#[test]
fn bad_flags_and_their_values_end_with_2() {
    refused(&["--no-such-flag"], 2, &["--no-such-flag"]);
    refused(
        &["-w", "example.org"],
        2,
        &["--worker", "example.org", "http://host:port"],
    );
    refused(&["-w", "ftp://example.org"], 2, &["--worker", "ftp"]);
    refused(
        &["-w", NOBODY, "--listen", "nowhere"],
        2,
        &["--listen", "nowhere", "expected"],
    );
    refused(
        &["-w", NOBODY, "--policy", "wram"],
        2,
        &["--policy", "wram", "did you mean `warm`"],
    );
    refused(
        &["-w", NOBODY, "--router-temperature", "11"],
        2,
        &["--router-temperature", "10"],
    );
    refused(&["-w", NOBODY, "--block-size", "0"], 2, &["--block-size"]);
    refused(
        &["-w", NOBODY, "--tokenizer", "qwen="],
        2,
        &["--tokenizer", "expected NAME=VALUE"],
    );
    refused(
        &["-w", NOBODY, "--tokenizer", "qwen"],
        2,
        &["--tokenizer", "expected NAME=VALUE"],
    );
    refused(
        &["-w", NOBODY, "--kv-events", "nobody=tcp://127.0.0.1:1"],
        2,
        &["--kv-events", "nobody"],
    );
    refused(&["-w", NOBODY, "--api-key", ""], 2, &["--api-key"]);
    assert_eq!(Program::finish(&["serve", "--port", "65536"]).code, Some(2));
    assert_eq!(
        Program::finish(&["engine", "--block-size", "0"]).code,
        Some(2)
    );
    assert_eq!(Program::finish(&["demo", "--workers", "0"]).code, Some(2));
}

#[test]
fn all_problems_of_a_file_are_reported_at_once_with_their_places() {
    let dir = dir();
    let text = "server:\n  listen: nowhere\nworkers:\n  - url: http://127.0.0.1:1\n    wieght: 2\nrouting:\n  policy: best\n  \
                temperature: 99\n";
    let path = file(dir.path(), "bad.yaml", text);
    let words = [
        "line 2, column 11: server.listen",
        "line 5, column 5: workers[0].wieght: unknown key",
        "did you mean `weight`?",
        "line 7, column 11: routing.policy",
        "line 8, column 16: routing.temperature",
    ];
    let end = refused(&["-c", &path], 78, &words);
    assert_eq!(
        end.stderr.lines().count(),
        4,
        "one line each: {}",
        end.stderr
    );
    assert!(
        end.stderr.lines().all(|line| line.starts_with(&path)),
        "each names the file: {}",
        end.stderr
    );

    let check = Program::finish(&["config", "check", &path, "--json"]);
    assert_eq!(check.code, Some(78));
    let report: Value = serde_json::from_str(&check.stdout).expect("one JSON object");
    assert_eq!(report["ok"], false);
    let problems = report["problems"].as_array().expect("a list of problems");
    let places: Vec<_> = problems
        .iter()
        .map(|it| (it["path"].as_str().expect("a path"), it["line"].as_u64()))
        .collect();
    let want = [
        ("server.listen", 2),
        ("workers[0].wieght", 5),
        ("routing.policy", 7),
        ("routing.temperature", 8),
    ];
    assert_eq!(places, want.map(|(path, line)| (path, Some(line))));
    let keys: Vec<&String> = problems[1].as_object().expect("an object").keys().collect();
    assert_eq!(
        keys[..7],
        [
            "path", "line", "column", "value", "message", "expected", "nearest"
        ]
    );
    assert_eq!(
        (&problems[1]["value"], &problems[1]["nearest"]),
        (&json!(2), &json!("weight"))
    );

    // A file's problem is reported beside a flag's, and decides the code.
    refused(
        &["-c", &path, "--kv-overlap-score-weight", "101"],
        78,
        &["--kv-overlap-score-weight", "wieght"],
    );
}

#[test]
fn problems_around_the_file_end_with_78() {
    let dir = dir();
    let missing = dir.path().join("none.yaml").display().to_string();
    refused(&["-c", &missing], 78, &[&missing, "cannot be read"]);
    refused(
        &["-c", &file(dir.path(), "bytes.yaml", b"a: 1\nb: \xff\n")],
        78,
        &["line 2, column 4", "UTF-8"],
    );
    refused(
        &["-c", &file(dir.path(), "broken.yaml", "server: [\n")],
        78,
        &["line", "YAML"],
    );
    // It is not read to find that out.
    let huge = file(dir.path(), "huge.yaml", "");
    let empty = std::fs::File::options().write(true).open(&huge);
    empty
        .and_then(|file| file.set_len(1 << 30))
        .expect("a sparse file");
    refused(&["-c", &huge], 78, &[&huge, "1073741824 bytes"]);
    let unset = file(
        dir.path(),
        "unset.yaml",
        "workers:\n  - {url: \"http://127.0.0.1:1\", api_key: \"${NOT_SET_1}\"}\n",
    );
    refused(
        &["-c", &unset],
        78,
        &["line 2", "workers[0].api_key", "NOT_SET_1"],
    );
    let args = ["serve", "-w", NOBODY];
    let end = Program::finish_with_env(&args, &[("WARMROUTE_ROUTING__POLCIY", "warm")]);
    assert_eq!(end.code, Some(78));
    assert!(
        end.stderr.contains("WARMROUTE_ROUTING__POLCIY"),
        "{}",
        end.stderr
    );
    assert!(
        end.stderr
            .contains("did you mean `WARMROUTE_ROUTING__POLICY`"),
        "{}",
        end.stderr
    );
    let end = Program::finish_with_env(&args, &[("WARMROUTE_ROUTING__POLICY", "best")]);
    assert_eq!(end.code, Some(78));
    assert!(
        end.stderr
            .contains("WARMROUTE_ROUTING__POLICY: routing.policy"),
        "{}",
        end.stderr
    );
}

#[test]
fn tokenizers_and_templates_that_cannot_be_used_end_with_78_and_their_line() {
    let dir = dir();
    let empty = dir.path().join("empty");
    let broken = dir.path().join("broken");
    for made in [&empty, &broken] {
        std::fs::create_dir(made).expect("a directory can be made");
    }
    file(&broken, "tokenizer.json", "{\"model\": 1}");
    let (empty, broken) = (empty.display().to_string(), broken.display().to_string());
    refused(
        &["-w", NOBODY, "--tokenizer", "qwen=/no/such"],
        78,
        &["--tokenizer", "/no/such", "does not exist"],
    );
    refused(
        &["-w", NOBODY, "--tokenizer", &format!("qwen={empty}")],
        78,
        &[&empty, "has no tokenizer.json"],
    );
    let text = format!(
        "workers: [\"{NOBODY}\"]\nmodels:\n  defaults:\n    chat_template: /no/template\n  entries:\n    qwen:\n      \
         tokenizer: {broken}\n    llama:\n      tokenizer: {empty}\n"
    );
    let path = file(dir.path(), "models.yaml", text);
    let words = [
        "line 4, column 20: models.defaults.chat_template",
        "line 7, column 18: models.entries[\"qwen\"].tokenizer",
        "line 9, column 18: models.entries[\"llama\"].tokenizer",
        "cannot be loaded",
    ];
    let end = refused(&["-c", &path], 78, &words);
    assert_eq!(
        end.stderr.lines().count(),
        3,
        "one line each: {}",
        end.stderr
    );
}

#[test]
fn a_router_without_workers_names_the_next_step() {
    let dir = dir();
    refused(
        &[],
        78,
        &["no engine to route to", "-w http://127.0.0.1:8000"],
    );
    let path = file(dir.path(), "no-workers.yaml", "routing: {policy: warm}\n");
    refused(&["-c", &path], 78, &["no engine to route to"]);
    // With an explicit empty list it starts.
    let path = file(dir.path(), "empty.yaml", "workers: []\n");
    let router = Program::serve(&[], &["-c", &path]);
    let reply = RawClient::get(&router.data(), "/readyz");
    assert_eq!(reply.status, 503);
    eventually("a log line about it", || {
        router
            .stderr()
            .contains("no workers are configured")
            .then_some(())
    });
}

#[test]
fn a_taken_port_is_one_clear_message() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let flags = ["--listen", "--admin-listen", "--metrics-listen"];
    for (flag, says) in flags.into_iter().zip(["--port", flags[1], flags[2]]) {
        let mut args = vec!["serve", "-w", NOBODY];
        for listener in flags {
            let taken = listener == flag;
            args.extend([listener, if taken { &*address } else { "127.0.0.1:0" }]);
        }
        let end = Program::finish(&args);
        assert_eq!(end.code, Some(1), "{}", end.stderr);
        let lines: Vec<&str> = end.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{}", end.stderr);
        for word in [&*address, "already in use", says] {
            assert!(lines[0].contains(word), "{}", lines[0]);
        }
    }
    let port = taken.local_addr().expect("an address").port().to_string();
    let end = Program::finish(&["engine", "--port", &port, "--no-kv-events"]);
    assert_eq!(end.code, Some(1));
    assert!(
        end.stderr.contains(&address) && end.stderr.contains("already in use"),
        "{}",
        end.stderr
    );
}

#[test]
fn a_listener_is_exposed_only_where_explicitly_allowed() {
    let dir = dir();
    let any = "0.0.0.0:0";
    let serve = |args: &[&str]| Program::finish(&[&["serve", "-w", NOBODY], args].concat());
    let exposed = serve(&["--listen", any]);
    assert_eq!(exposed.code, Some(78));
    for word in ["server.listen", "API key", "--insecure-open"] {
        assert!(exposed.stderr.contains(word), "{}", exposed.stderr);
    }
    let exposed = serve(&["--port", "0", "--admin-listen", any]);
    assert_eq!(exposed.code, Some(78));
    for word in ["admin.listen", "--admin-token-file"] {
        assert!(exposed.stderr.contains(word), "{}", exposed.stderr);
    }
    let short = file(dir.path(), "short", "secret");
    let bad = serve(&[
        "--port",
        "0",
        "--admin-listen",
        any,
        "--admin-token-file",
        &short,
    ]);
    assert_eq!(bad.code, Some(78));
    assert!(
        bad.stderr.contains("--admin-token-file: admin.token_file"),
        "{}",
        bad.stderr
    );
    assert!(
        !bad.stderr.contains("secret"),
        "a token is not printed: {}",
        bad.stderr
    );

    let workers = [NOBODY.to_owned()];
    drop(Program::serve(
        &workers,
        &["--insecure-open", "--listen", any],
    ));
    let token = file(dir.path(), "token", "0123456789abcdef0123456789abcdef\n");
    let flags = [
        "--api-key",
        "sk-1",
        "--listen",
        any,
        "--admin-listen",
        any,
        "--admin-token-file",
        &token,
    ];
    let router = Program::serve(&workers, &flags);
    let port = |address: &str| format!("127.0.0.1:{}", address.rsplit(':').next().expect("a port"));
    let (data, admin) = (port(&router.data()), port(&router.admin()));
    let status = |address: &str, path: &str, key: Option<&str>| {
        let bearer = key.map(|key| format!("Bearer {key}"));
        let headers: Vec<(&str, &str)> = bearer
            .iter()
            .map(|bearer| ("authorization", bearer.as_str()))
            .collect();
        let mut client = RawClient::connect(address);
        client.send("GET", path, &headers, b"");
        client.reply().status
    };
    assert_eq!(status(&data, "/v1/models", None), 401);
    assert_eq!(status(&data, "/v1/models", Some("sk-2")), 401);
    assert_eq!(status(&data, "/v1/models", Some("sk-1")), 200);
    assert_eq!(status(&admin, "/admin/workers", None), 401);
    assert_eq!(status(&admin, "/admin/workers", Some("sk-1")), 401);
    assert_eq!(
        status(
            &admin,
            "/admin/workers",
            Some("0123456789abcdef0123456789abcdef")
        ),
        200
    );
}

#[test]
#[contract("CH3")]
fn a_worker_that_starts_later_is_used_once_it_is_up() {
    let engine = Program::engine(&[]);
    let (url, address) = (engine.url(), engine.data());
    drop(engine);
    let router = Program::serve(&[format!("late={url}")], &[]);
    let line = format!("late {url} down ");
    eventually("a verdict on the worker that is down", || {
        router.stderr().contains(&line).then_some(())
    });
    let verdict = router.stderr();
    let verdict = verdict
        .lines()
        .find(|verdict_line| verdict_line.starts_with(&line))
        .expect("it was just there");
    assert!(
        verdict.contains("start the engine"),
        "it names the next step: {verdict}"
    );

    let chat =
        json!({"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
            .to_string();
    let send = || RawClient::post(&router.data(), "/v1/chat/completions", chat.as_bytes());
    let reply = send();
    assert_eq!(reply.status, 503);
    assert_eq!(reply.json()["error"]["code"], "no_worker");
    assert_eq!(reply.json()["error"]["type"], "overloaded_error");
    let after: u32 = reply
        .header("retry-after")
        .and_then(|seconds| seconds.parse().ok())
        .expect("whole seconds");
    assert!((1..=60).contains(&after), "{after}");
    assert!(
        !reply.text().contains(&address),
        "an internal address is not shown: {}",
        reply.text()
    );
    let health = RawClient::get(&router.data(), "/health").json();
    assert_eq!(health["workers"], json!({"ready": 0, "total": 1}));
    assert_eq!(health["status"], "unavailable");

    let port = address.rsplit(':').next().expect("a port").to_owned();
    let _engine = Program::engine(&["--port", &port]);
    let router = router.ready(1);
    let reply = RawClient::post(&router.data(), "/v1/chat/completions", chat.as_bytes());
    assert_eq!(
        (reply.status, reply.header("x-warmroute-worker")),
        (200, Some("late"))
    );
    let line = format!("late {url} ready vllm ");
    eventually("a verdict on the worker that is back", || {
        router.stderr().contains(&line).then_some(())
    });
}

#[test]
#[contract("CH5")]
fn a_worker_gets_requests_once_its_model_is_loaded() {
    let engine = Program::engine(&["--startup-delay", "3s"]);
    let router = Program::serve(&[engine.url()], &[]);
    eventually("the worker to be warming up", || {
        (router.workers()[0]["state"] == "warming_up").then_some(())
    });
    // The interval of a ready worker is 30 s: only the short interval finds it within the deadline
    // of `ready`.
    let router = router.ready(1);
    eventually("both verdicts", || {
        (router.stderr().matches(&engine.url()).count() >= 2).then_some(())
    });
    let states: Vec<String> = router
        .stderr()
        .lines()
        .filter(|line| line.contains(&engine.url()))
        .map(str::to_owned)
        .collect();
    assert!(states[0].contains(" warming_up "), "{states:?}");
}

#[test]
fn the_ready_lines_have_one_shape_and_a_signal_ends_with_0() {
    let engine = Program::engine(&[]);
    let router = Program::serve(&[engine.url()], &[]).ready(1);
    for (program, role) in [(&router, "serve"), (&engine, "engine")] {
        let ready = program.ready.as_object().expect("an object");
        let keys: Vec<&str> = ready.keys().take(5).map(String::as_str).collect();
        assert_eq!(keys, ["event", "role", "data", "admin", "pid"]);
        assert_eq!(
            (&ready["event"], &ready["role"]),
            (&json!("listening"), &json!(role))
        );
        assert_eq!(ready["pid"], program.pid());
        assert!(
            ready["data"]
                .as_str()
                .is_some_and(|address| !address.ends_with(":0")),
            "{ready:?}"
        );
    }
    router.signal("TERM");
    assert_eq!(router.wait().code, Some(0));
    engine.signal("TERM");
    assert_eq!(engine.wait().code, Some(0));
    let router = Program::serve(&[NOBODY.to_owned()], &[]);
    router.signal("INT");
    assert_eq!(router.wait().code, Some(0));
}

#[test]
fn a_flag_overrides_the_environment_which_overrides_the_file() {
    let dir = dir();
    let path = file(
        dir.path(),
        "warmroute.yaml",
        "routing: {policy: random, temperature: 0.5}\n",
    );
    let show = |env: &[(&str, &str)]| -> Value {
        let end = Program::finish_with_env(&["config", "show", &path, "--json"], env);
        assert_eq!(end.code, Some(0), "{}", end.stderr);
        serde_json::from_str(&end.stdout).expect("one JSON object")
    };
    assert_eq!(show(&[])["routing"]["policy"], "random");
    let env = ("WARMROUTE_ROUTING__POLICY", "kv_aware");
    assert_eq!(show(&[env])["routing"]["policy"], "kv_aware");
    assert_eq!(show(&[env])["routing"]["temperature"], 0.5);
    assert_eq!(
        show(&[("WARMROUTE_ROUTING__POLICY", "")])["routing"]["policy"],
        "random",
        "empty counts as not set"
    );

    let engine = Program::engine(&[]);
    let policy = |flags: &[&str]| {
        let router = Program::serve_with_env(&[engine.url()], flags, &[env]).ready(1);
        let body = json!({"model": "sim", "prompt": "hi", "max_tokens": 1}).to_string();
        let reply = RawClient::post(&router.data(), "/v1/completions", body.as_bytes());
        reply.header("x-warmroute-policy").map(str::to_owned)
    };
    assert_eq!(policy(&["-c", &path]).as_deref(), Some("kv_aware"));
    assert_eq!(
        policy(&["-c", &path, "--policy", "least_loaded"]).as_deref(),
        Some("least_loaded")
    );
}

#[test]
#[contract("S9", "S81")]
fn a_valid_configuration_is_shown_complete_and_without_secrets() {
    let dir = dir();
    let text = "workers:\n  - {name: w1, url: \"http://127.0.0.1:1\", api_key: sk-secret}\n";
    let path = file(dir.path(), "warmroute.yaml", text);
    let check = Program::finish(&["config", "check", "-c", &path, "--json"]);
    assert_eq!(
        (check.code, check.stdout.trim()),
        (Some(0), r#"{"ok":true,"problems":[]}"#)
    );
    assert_eq!(Program::finish(&["config", "check", &path]).stdout, "ok\n");
    let json = Program::finish(&["config", "show", &path, "--json"]);
    let shown: Value = serde_json::from_str(&json.stdout).expect("one JSON object");
    assert_eq!(shown["workers"][0]["name"], "w1");
    assert_eq!(shown["workers"][0]["api_key"], "***");
    assert_eq!(
        shown["server"]["listen"], "127.0.0.1:8080",
        "defaults are shown too"
    );
    let yaml = Program::finish(&["config", "show", &path]).stdout;
    assert!(
        yaml.contains("policy: warm") && !yaml.contains("sk-secret"),
        "{yaml}"
    );
    let again = file(dir.path(), "again.yaml", &yaml);
    assert_eq!(
        Program::finish(&["config", "check", &again]).code,
        Some(0),
        "the shown configuration can be loaded"
    );
    let schema = Program::finish(&["config", "schema"]);
    let schema: Value = serde_json::from_str(&schema.stdout).expect("a JSON schema");
    assert!(schema["properties"]["routing"].is_object());
}

#[test]
fn the_commands_printed_after_the_verdicts_work_as_they_stand() {
    test_programs::require!(Curl);
    let model = "it's/sim model";
    let engine = Program::engine(&["--model", model]);
    let second = Program::engine(&["--model", "other"]);
    let workers = [format!("a={}", engine.url()), format!("b={}", second.url())];
    let env = [("WARMROUTE_API_KEY", "sk-hush")];
    let router = Program::serve_with_env(&workers, &[], &env);
    let commands = |from: &str| -> Vec<String> {
        let lines = from
            .lines()
            .filter(|line| line.contains("--prompt") || line.starts_with("curl "));
        lines.map(str::to_owned).collect()
    };
    let printed = eventually("both commands", || {
        let commands = commands(&router.stderr());
        (commands.len() == 2).then_some(commands)
    });
    let stderr = router.stderr();
    let place = |part: &str| {
        stderr
            .find(part)
            .unwrap_or_else(|| panic!("no {part}: {stderr}"))
    };
    for verdict in [" ready vllm", "b http"] {
        assert!(place(verdict) < place("curl "), "{stderr}");
    }
    assert!(!stderr.contains("sk-hush"), "{stderr}");
    let run = |command: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", command]).envs(env);
        let output = test_programs::limit::output(&mut shell, std::time::Duration::from_secs(60));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let reply: Value = serde_json::from_str(&run(&printed[0])).expect("a reply");
    assert_eq!(reply["object"], "chat.completion", "{reply}");
    assert_eq!(reply["model"], model);
    let explained = run(&printed[1]);
    assert!(explained.contains("winner    a/0"), "{explained}");
}

#[test]
fn without_a_known_model_the_printed_commands_name_none() {
    let router = Program::serve(&[NOBODY.to_owned()], &[]);
    let stderr = eventually("both commands", || {
        let stderr = router.stderr();
        stderr.contains(" explain --url ").then_some(stderr)
    });
    assert!(stderr.contains("\"model\":\"MODEL\""), "{stderr}");
    assert!(!stderr.contains("--model"), "{stderr}");
}

#[test]
#[contract("S77")]
fn the_program_writes_no_core_file() {
    let router = Program::serve_with("workers: []\n", &[], &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", router.pid())).unwrap();
    let core = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max core file size"))
        .expect("its line");
    let limits: Vec<_> = core.split_ascii_whitespace().take(2).collect();
    assert_eq!(limits, ["0", "0"]);
}

#[test]
#[contract("S80")]
fn a_key_in_the_arguments_draws_a_warning_and_one_in_a_variable_or_a_file_does_not() {
    let dir = dir();
    let key = file(dir.path(), "key", "sk-in-a-file\n");
    let warning = "put it into the variable WARMROUTE_API_KEY, or into a file for --api-key-file";
    for (flags, env, is_warned) in [
        (["--api-key", "sk-argument"], None, true),
        (["--api-key-file", key.as_str()], None, false),
        (
            ["--policy", "warm"],
            Some(("WARMROUTE_API_KEY", "sk-variable")),
            false,
        ),
    ] {
        let env: Vec<_> = env.into_iter().collect();
        let router = Program::serve_with_env(&[NOBODY.to_owned()], &flags, &env);
        let listening = || {
            router
                .stderr()
                .contains("listening")
                .then(|| router.stderr())
        };
        let log = eventually("the line after the warnings", listening);
        assert_eq!(log.contains(warning), is_warned, "{log}");
        assert!(!log.contains("sk-"), "{log}");
        let status = |key: &str| {
            let headers = [("authorization", key)];
            let mut client = RawClient::connect(&router.data());
            client.send("GET", "/v1/models", &headers, b"");
            client.reply().status
        };
        let own = match flags {
            ["--api-key", _] => "Bearer sk-argument",
            ["--api-key-file", _] => "Bearer sk-in-a-file",
            _ => "Bearer sk-variable",
        };
        assert_eq!(
            (status(own), status("Bearer sk-other")),
            (200, 401),
            "{flags:?}"
        );
    }
    let both = ["-w", NOBODY, "--api-key", "sk-1", "--api-key-file", &key];
    refused(&both, 2, &["--api-key-file", "cannot be used with"]);
    let none = ["-w", NOBODY, "--api-key-file", "/no/such/file"];
    refused(&none, 2, &["--api-key-file", "could not be read"]);
}

#[test]
#[contract("S80")]
fn a_url_with_a_password_is_refused_in_every_flag_and_not_quoted() {
    for (flag, value) in [
        ("--worker", "http://user:geheim@127.0.0.1:1"),
        ("--worker", "w1=user:geheim@127.0.0.1"),
        ("--kv-events", "w1=tcp://user:geheim@127.0.0.1:1"),
        ("--kv-events", "w1=nats://user:geheim@127.0.0.1:1/kv"),
        ("--kv-events", "w1=http://user:geheim@127.0.0.1:1/events"),
    ] {
        let end = Program::finish(&["serve", "-w", "w1=http://127.0.0.1:2", flag, value]);
        assert!(matches!(end.code, Some(2 | 78)), "{flag} {value}: {end:?}");
        assert!(
            !end.stderr.contains("geheim"),
            "{flag} {value}: {}",
            end.stderr
        );
    }
}
