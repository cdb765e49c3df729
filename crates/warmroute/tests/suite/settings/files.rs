//! The configuration file: start, check, and its keys without effect.

use std::{path::Path, process::Command, time::Duration};

use contract_id::contract;

use crate::harness::Program;

const IGNORED: &str = "workers: [\"http://127.0.0.1:1\"]\nrouting: {policy: warm}\nkv_cache_index:\n  enabled: true\n";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn the_starter_file_is_printed_or_written_and_passes_the_check() {
    let printed = Program::finish(&["config", "init"]);
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
    let folder = folder();
    let path = folder.path().join("warmroute.yaml").display().to_string();
    let written = Program::finish(&["config", "init", &path]);
    assert_eq!(
        (written.code, written.stdout.as_str()),
        (Some(0), ""),
        "{}",
        written.stderr
    );
    assert_eq!(
        std::fs::read_to_string(&path).expect("a file"),
        printed.stdout
    );
    let check = Program::finish(&["config", "check", &path]);
    assert_eq!(
        (check.code, check.stdout.as_str(), check.stderr.as_str()),
        (Some(0), "ok\n", "")
    );
    // An existing file is not overwritten.
    std::fs::write(&path, "workers: []\n").expect("it can be written");
    let again = Program::finish(&["config", "init", &path]);
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("there already"), "{}", again.stderr);
    assert_eq!(
        std::fs::read_to_string(&path).expect("a file"),
        "workers: []\n"
    );
}

#[test]
#[contract("CH31", "CK1", "A12")]
fn keys_without_effect_are_reported_once_and_do_not_stop_the_start() {
    let folder = folder();
    let path = folder.path().join("w.yaml").display().to_string();
    std::fs::write(&path, IGNORED).expect("it can be written");
    let check = Program::finish(&["config", "check", &path]);
    assert_eq!(
        (check.code, check.stdout.as_str()),
        (Some(0), "ok\n"),
        "{}",
        check.stderr
    );
    let lines: Vec<_> = check.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{}", check.stderr);
    assert!(lines[0].contains(
        "line 4, column 12: kv_cache_index.enabled: has no effect: routing.policy is warm"
    ));
    let json = Program::finish(&["config", "check", "--json", &path]);
    let reported: serde_json::Value = serde_json::from_str(&json.stdout).expect("one object");
    assert_eq!(
        (json.code, &reported["ok"], &reported["problems"]),
        (Some(0), &true.into(), &serde_json::json!([]))
    );
    assert_eq!(
        (
            &reported["warnings"][0]["path"],
            &reported["warnings"][0]["line"]
        ),
        (&"kv_cache_index.enabled".into(), &4.into())
    );
    let router = Program::serve_with(IGNORED, &[], &[]);
    crate::harness::eventually("the warning on stderr", || {
        let log = router.stderr();
        let warning = log
            .lines()
            .find(|line| line.contains("kv_cache_index.enabled"))?;
        for part in [
            "WARN",
            "true",
            "warm",
            "routing.policy continuum or composite",
        ] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
        Some(())
    });
    assert_eq!(
        router.stderr().matches("has no effect").count(),
        1,
        "{}",
        router.stderr()
    );
}

#[test]
#[contract("V46")]
fn a_file_of_another_router_is_refused_with_a_working_convert_command() {
    let seed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/seed-configs/vllm-router-decode-policy-under-mode.yaml"
    );
    let refused = Program::finish(&["serve", "-c", seed]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(78), ""));
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    let command = refused
        .stderr
        .split('`')
        .nth(1)
        .expect("a command between backticks");
    let words: Vec<_> = command
        .split(' ')
        .skip(1)
        .take_while(|word| *word != ">")
        .collect();
    let converted = Program::finish(&words);
    assert_eq!(converted.code, Some(0), "{command}: {}", converted.stderr);
    let folder = folder();
    let path = folder.path().join("w.yaml").display().to_string();
    std::fs::write(&path, &converted.stdout).expect("it can be written");
    let check = Program::finish(&["config", "check", &path]);
    assert_eq!(
        (check.code, check.stdout.as_str()),
        (Some(0), "ok\n"),
        "{}",
        check.stderr
    );
}

#[test]
fn flags_of_other_routers_are_converted_from_the_command_line_and_from_a_file() {
    let flags = [
        "--worker-urls",
        "http://127.0.0.1:1",
        "--policy",
        "round_robin",
        "--api-key",
        "sk-hush",
    ];
    let from_flags =
        Program::finish(&[&["config", "convert", "--from", "smg", "--"][..], &flags].concat());
    assert_eq!(from_flags.code, Some(0), "{}", from_flags.stderr);
    assert!(
        from_flags.stdout.contains("# no counterpart: --api-key\n")
            && !from_flags.stdout.contains("sk-hush")
    );
    let folder = folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(
        path("start.sh"),
        format!(
            "python -m sglang_router.launch_router \\\n  {}\n",
            flags.join(" ")
        ),
    )
    .expect("it can be written");
    let from_file = Program::finish(&["config", "convert", "--from", "smg", &path("start.sh")]);
    assert_eq!(from_file.stdout, from_flags.stdout);
    std::fs::write(path("w.yaml"), &from_flags.stdout).expect("it can be written");
    assert_eq!(
        Program::finish(&["config", "check", &path("w.yaml")]).stdout,
        "ok\n"
    );
    let vllm = [
        "config",
        "convert",
        "--from",
        "vllm-router",
        "--",
        "--worker-urls",
        "http://127.0.0.1:1",
    ];
    assert!(Program::finish(&vllm).stdout.contains("http://127.0.0.1:1"));
    let continuum = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/seed-configs/continuum-health-caching-logging-line0073-backends.yaml"
    );
    let theirs = Program::finish(&["config", "convert", "--from", "continuum", continuum]);
    assert_eq!(theirs.code, Some(0), "{}", theirs.stderr);
    std::fs::write(path("c.yaml"), &theirs.stdout).expect("it can be written");
    assert_eq!(
        Program::finish(&["config", "check", &path("c.yaml")]).stdout,
        "ok\n"
    );
    // That router has no relevant flags, and an empty command line is refused.
    assert_eq!(
        Program::finish(&["config", "convert", "--from", "continuum", "--", "--x"]).code,
        Some(2)
    );
    assert_eq!(
        Program::finish(&["config", "convert", "--from", "smg"]).code,
        Some(2)
    );
}

/// Runs the program in a folder, which is its user's home too; returns its exit code, stdout and
/// stderr.
fn run_in(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmroute"));
    command
        .args(args)
        .current_dir(folder)
        .env("HOME", folder)
        .envs(env.iter().copied());
    let output = test_programs::limit::output(&mut command, Duration::from_secs(60));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn write(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
    std::fs::write(path, text).expect("it can be written");
}

#[test]
fn a_file_that_is_not_named_is_searched_in_the_working_directory_and_then_the_users() {
    let folder = folder();
    let folder = folder.path();
    // Each file has a mistake of its own, which tells that it was read.
    let places = [
        ".config/continuum-router/config.yml",
        ".config/continuum-router/config.yaml",
        ".config/warmroute/config.yml",
        ".config/warmroute/config.yaml",
        "config.yml",
        "config.yaml",
    ];
    let (code, _, stderr) = run_in(folder, &["serve"], &[]);
    assert_eq!(code, Some(78), "{stderr}");
    assert!(stderr.contains("there is no engine"), "{stderr}");
    for (at, place) in places.iter().enumerate() {
        write(folder, place, &format!("workers: []\nmistake_{at}: 1\n"));
        for command in ["serve", "doctor"] {
            let (code, _, stderr) = run_in(folder, &[command], &[]);
            assert_eq!(code, Some(78), "{stderr}");
            assert!(
                stderr.contains(&format!("mistake_{at}")) && stderr.contains(place),
                "{command}: {stderr}"
            );
        }
    }
    // A named file, and workers in flags or variables, end the search.
    write(folder, "named.yaml", "mistake_named: 1\n");
    let bad = ["-w", "ftp://x"];
    let variable = [("WARMROUTE_WORKERS", "ftp://x")];
    for (args, env, word) in [
        (&["serve", "-c", "named.yaml"][..], &[][..], "mistake_named"),
        (&["serve", bad[0], bad[1]], &[], "ftp"),
        (&["serve"], &variable, "ftp"),
    ] {
        let (_, _, stderr) = run_in(folder, args, env);
        assert!(stderr.contains(word), "{stderr}");
        assert!(!stderr.contains("mistake_5"), "{stderr}");
    }
}

#[test]
fn a_continuum_file_to_convert_is_searched_as_that_router_does() {
    let folder = folder();
    let folder = folder.path();
    let convert = ["config", "convert", "--from", "continuum"];
    let (code, stdout, stderr) = run_in(folder, &convert, &[]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    for (place, name) in [
        (".config/continuum-router/config.yml", "users-yml"),
        (".config/continuum-router/config.yaml", "users-yaml"),
        ("config.yml", "here-yml"),
        ("config.yaml", "here-yaml"),
    ] {
        write(
            folder,
            place,
            &format!("backends: [{{name: {name}, url: 'http://a:1'}}]\n"),
        );
        let (code, stdout, stderr) = run_in(folder, &convert, &[]);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stdout.contains(name), "{place}: {stdout}");
        assert!(stderr.contains(place), "{stderr}");
    }
    // Our own folder is none of that router's, and other routers have no such places.
    let (code, ..) = run_in(folder, &["config", "convert", "--from", "vllm-router"], &[]);
    assert_eq!(code, Some(2));
}

#[test]
fn the_starter_file_is_printed_by_a_flag_too() {
    let printed = Program::finish(&["config", "init"]);
    let by_flag = Program::finish(&["--generate-config"]);
    assert_eq!(
        (by_flag.code, by_flag.stdout, by_flag.stderr),
        (printed.code, printed.stdout, printed.stderr)
    );
    assert_eq!(
        Program::finish(&["--generate-config", "serve"]).code,
        Some(2)
    );
}
