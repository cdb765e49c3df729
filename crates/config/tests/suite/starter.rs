//! The starter file for a new installation.

use crate::sources::{self, lines, load};

#[test]
fn the_starter_file_loads_unchanged() {
    let settings =
        load(config::starter()).unwrap_or_else(|problems| panic!("{}", lines(&problems)));
    assert_eq!(settings.workers.len(), 1);
    assert!(settings.ignored_keys().is_empty());
}

#[test]
fn every_commented_out_key_is_known() {
    let text: String = config::starter()
        .lines()
        .map(|line| match line.trim_start().strip_prefix('#') {
            // A remark, not a key: a key follows the sign without a space.
            Some(rest) if rest.starts_with(' ') && !rest.trim_start().starts_with("- {") => {
                "\n".to_owned()
            }
            Some(_) => format!("{}\n", line.replacen('#', "", 1)),
            None => format!("{line}\n"),
        })
        .collect();
    let env = [("ENGINE_KEY", "k")];
    let settings = sources::load_all(&text, &env, &[])
        .unwrap_or_else(|problems| panic!("{text}\n{}", lines(&problems)));
    assert_eq!(settings.models.rules.len(), 1);
    assert_eq!(settings.models.aliases.len(), 1);
    assert!(settings.decisions.log.is_some());
}

#[test]
fn commented_out_values_are_the_defaults() {
    let keep = [
        "api_key",
        "name:",
        "aliases",
        "rules",
        "- {match",
        "log:",
        "token_file",
    ];
    let text: String = config::starter()
        .lines()
        .filter(|line| {
            !keep
                .iter()
                .any(|word| line.contains(word) && line.trim_start().starts_with('#'))
        })
        .map(|line| match line.trim_start().strip_prefix('#') {
            Some(rest) if rest.starts_with(' ') => "\n".to_owned(),
            Some(_) => format!("{}\n", line.replacen('#', "", 1)),
            None => format!("{line}\n"),
        })
        .collect();
    let shown = load(&text)
        .unwrap_or_else(|problems| panic!("{text}\n{}", lines(&problems)))
        .to_json()
        .clone();
    let usual = load("workers: [\"http://127.0.0.1:8000\"]\n")
        .expect("loads")
        .to_json()
        .clone();
    assert_eq!(shown, usual);
}
