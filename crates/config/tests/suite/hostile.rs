//! Any text yields settings or problems.

use proptest::prelude::*;

use crate::sources::{load, load_all, problems};

#[test]
fn alias_bombs_are_reported_as_a_problem() {
    let mut bomb = "x: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
    for level in 1..40 {
        let last = level - 1;
        bomb += &format!(
            "y{level}: &a{level} [{}]\n",
            vec![format!("*a{last}"); 10].join(", ")
        );
    }
    problems(&bomb);
    problems(&format!("workers: {}", "[".repeat(50_000)));
    let many = problems(&format!("workers:\n{}", "  - {}\n".repeat(100_000)));
    assert_eq!(many[0].message, "a list of 100000 entries");
    problems(&format!("workers:\n{}", "  - {}\n".repeat(500_000)));
    problems(
        &(0..60_000)
            .map(|number| format!("wrkers{number}: 1\n"))
            .collect::<String>(),
    );
    problems(&"a".repeat(8 << 20));
    problems("server:\n\tport: 1\n");
    problems(&format!("routing: {{policy: \"{}\"}}", "x".repeat(1 << 20)));
    let short = problems(&format!("{}: 1", "k".repeat(1 << 16)));
    assert!(short[0].to_string().len() < 2_000);
}

/// Pieces that reach more of the code than random letters.
fn piece() -> impl Strategy<Value = String> {
    const KNOWN: &[&str] = &[
        "server",
        "workers",
        "backends",
        "listen",
        "models",
        "entries",
        "tokenizer",
        "routing",
        "policy",
        "warm",
        "url",
        "name",
        "kv_events",
        "decision_log",
        "log",
        "<<",
        "&a",
        "*a",
        "!!str",
        "${",
        "${A}",
        "$${",
        "}",
        "{",
        "[",
        "]",
        ": ",
        "- ",
        "\n",
        "\n  ",
        "\n    ",
        "'",
        "\"",
        "~",
        "true",
        "-1",
        "1e999",
        ".inf",
        "18446744073709551616",
        "30s",
        "512MiB",
        "#",
        "http://h:1",
        "127.0.0.1:1",
        "---",
        "...",
        "|",
        ">",
        "?",
        ",",
        "\u{0}",
        "\u{feff}",
        "\t",
        "é",
    ];
    prop_oneof![8 => proptest::sample::select(KNOWN).prop_map(Into::into), 1 => ".{0,8}"]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_text_gives_settings_or_problems(text in ".{0,400}") {
        check(&text);
    }

    #[test]
    fn any_pile_of_pieces_gives_settings_or_problems(pieces in proptest::collection::vec(piece(), 0..40)) {
        check(&pieces.concat());
    }

    #[test]
    fn any_variable_and_any_flag_gives_settings_or_problems(name in "[A-Z_]{0,20}", path in r#"[a-z.\[\]"]{0,20}"#, value: String) {
        let name = format!("WARMROUTE_{name}");
        for text in ["", "workers: [http://h:1]", "server: 5"] {
            let _ = load_all(text, &[(&name, &value)], &[(&path, &value, "--flag")]);
            let _ = load_all(text, &[("WARMROUTE_WORKERS", &value)], &[(&format!("workers[{path}].name"), &value, "--flag")]);
        }
    }
}

/// The text of a problem is never empty, and fits a terminal.
fn check(text: &str) {
    if let Err(problems) = load(text) {
        assert!(!problems.is_empty());
        for problem in problems {
            let line = problem.to_string();
            assert!(line.len() < 4_000 && !problem.message.is_empty(), "{line}");
        }
    }
}
