//! Loads settings from a text, variables and flags, with a URL check that is enough for tests.

use config::{ConfigSource, Override, Problem, Settings};

/// Takes `http(s)://host:port` and gives the rest, and `unix://PATH`; refuses everything else.
pub(crate) fn check_url(url: &str) -> Result<String, String> {
    if let Some(path) = url.strip_prefix("unix://") {
        return Ok(format!("unix:{path}"));
    }
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))
        .ok_or("only http here")?;
    if rest.contains('@') {
        Err(format!("`{url}` names a user"))
    } else {
        Ok(rest.trim_end_matches('/').to_owned())
    }
}

pub(crate) fn load(text: &str) -> Result<Settings, Vec<Problem>> {
    load_all(text, &[], &[])
}

pub(crate) fn load_all(
    text: &str,
    env: &[(&str, &str)],
    flags: &[(&str, &str, &str)],
) -> Result<Settings, Vec<Problem>> {
    let env: Vec<_> = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let overrides: Vec<_> = flags
        .iter()
        .map(|(path, value, flag)| Override {
            path: (*path).into(),
            value: (*value).into(),
            flag: (*flag).into(),
        })
        .collect();
    config::load(ConfigSource {
        name: "warmroute.yaml",
        text: Some(text),
        env: &env,
        own_env: &["WARMROUTE_CONFIG"],
        overrides: &overrides,
        left_out: &[],
        more_workers: &[],
        check_url,
    })
}

pub(crate) fn settings(text: &str) -> Settings {
    load(text).unwrap_or_else(|problems| panic!("{text}\n{}", lines(&problems)))
}

pub(crate) fn lines(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(|problem| format!("{problem}\n"))
        .collect()
}
