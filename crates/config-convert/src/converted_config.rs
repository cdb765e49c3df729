//! Writes a converted configuration: the workers, a block per section, and comments above them for
//! everything without a key.

use std::{collections::BTreeMap, fmt::Write as _};

use config::{ConfigSource, all_problems};
use settings::Value;

use crate::reasons::UnusedKey;

/// Comment beside a secret.
pub(super) const SECRET_NOTE: &str = "better as ${NAME} of an environment variable";

/// Converted configuration so far.
#[derive(Debug, Default)]
pub(super) struct ConvertedConfig {
    pub(super) workers: Vec<ConvertedWorker>,
    /// Settings by the path of the key; in this order a section's keys are adjacent.
    settings: BTreeMap<&'static str, ConvertedSetting>,
}

/// An entry of `workers`.
#[derive(Debug, Default)]
pub(super) struct ConvertedWorker {
    pub(super) url: String,
    /// `role` or `type`, and its word.
    pub(super) word: Option<(&'static str, &'static str)>,
    pub(super) bootstrap_port: Option<u64>,
    pub(super) api_key: Option<String>,
    pub(super) dp_ranks: Option<u64>,
}

#[derive(Debug)]
struct ConvertedSetting {
    /// Value as YAML.
    value: String,
    /// Key of the other router that set it.
    from: String,
    note: Option<String>,
}

impl ConvertedConfig {
    /// Sets a key to a YAML value. A key that has another value keeps it, and that value is
    /// returned with the key of the other router that set it.
    pub(super) fn set(
        &mut self,
        key: &'static str,
        value: String,
        from: &str,
    ) -> Result<(), (String, String)> {
        let setting = ConvertedSetting {
            value,
            from: from.to_owned(),
            note: None,
        };
        match self.settings.get(key) {
            Some(before) if before.value != setting.value => {
                Err((before.value.clone(), before.from.clone()))
            }
            Some(_) => Ok(()),
            None => {
                self.settings.insert(key, setting);
                Ok(())
            }
        }
    }

    /// Returns whether a key is set.
    pub(super) fn has(&self, key: &str) -> bool {
        self.settings.contains_key(key)
    }

    /// Sets a comment beside a key that is set. It must be one line.
    pub(super) fn note(&mut self, key: &'static str, note: String) {
        if let Some(setting) = self.settings.get_mut(key) {
            setting.note = Some(note);
        }
    }

    /// Returns the whole text; `unused` are the keys without a counterpart.
    pub(super) fn text(&self, title: &str, unused: &[UnusedKey]) -> String {
        let body = self.body();
        head(title, &body, unused) + &body
    }

    fn body(&self) -> String {
        let mut text = if self.workers.is_empty() {
            "workers: []\n"
        } else {
            "workers:\n"
        }
        .to_owned();
        for worker in &self.workers {
            text += &worker.line();
        }
        let mut open: Vec<&str> = Vec::new();
        for (path, setting) in &self.settings {
            let mut steps: Vec<&str> = path.split('.').collect();
            let key = steps.pop().unwrap_or_default();
            let common = open
                .iter()
                .zip(&steps)
                .take_while(|(left, right)| left == right)
                .count();
            for (depth, section) in steps.iter().enumerate().skip(common) {
                text += &format!("{:1$}{section}:\n", "", depth * 2);
            }
            let _ = write!(text, "{:1$}{key}: {2}", "", steps.len() * 2, setting.value);
            if let Some(note) = &setting.note {
                let _ = write!(text, "  # {note}");
            }
            text.push('\n');
            open = steps;
        }
        text
    }
}

impl ConvertedWorker {
    fn line(&self) -> String {
        let mut line = format!("  - {{url: {}", quoted(&self.url));
        if let Some((key, word)) = self.word {
            line += &format!(", {key}: {word}");
        }
        for (key, number) in [
            ("bootstrap_port", self.bootstrap_port),
            ("dp_ranks", self.dp_ranks),
        ] {
            if let Some(number) = number {
                line += &format!(", {key}: {number}");
            }
        }
        match &self.api_key {
            Some(secret) => line + &format!(", api_key: {}}}  # {SECRET_NOTE}\n", quoted(secret)),
            None => line + "}\n",
        }
    }
}

/// Returns the comments above a body: the keys of it that this version refuses, and what has no
/// counterpart, each with the reason.
pub(super) fn head(title: &str, body: &str, unused: &[UnusedKey]) -> String {
    let mut text = format!("# {title}\n");
    let refused = refused(body);
    if !refused.is_empty() {
        text += &format!(
            "# refused by `warmroute config check` in this version: {}\n",
            refused.join(", ")
        );
    }
    for UnusedKey { name, reason } in unused {
        text += &format!("# no counterpart: {name}\n#   {reason}\n");
    }
    text
}

/// Returns a value as YAML.
pub(super) fn yaml(value: &Value) -> String {
    match value {
        Value::Bool(value) => value.to_string(),
        Value::Int(number) => number.to_string(),
        // With a decimal point, so that every reader parses a number.
        Value::Float(number) => format!("{number:?}"),
        Value::Text(text) => quoted(text),
        Value::Word(word) => (*word).to_owned(),
        Value::Secret(secret) => quoted(secret.expose()),
        _ => unreachable!("no key is translated into a value of another kind"),
    }
}

/// Returns a text as YAML. A `${` of the other file names no variable of ours, so it is escaped.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text.replace("${", "$${")).to_string()
}

/// Returns the keys that this version refuses, found by loading the text; entries of a list count
/// once, as `workers[].role`.
fn refused(body: &str) -> Vec<String> {
    let source = ConfigSource {
        name: "",
        text: Some(body),
        env: &[],
        own_env: &[],
        overrides: &[],
        left_out: &[],
        more_workers: &[],
        check_url: |url| Ok(host(url)),
    };
    let mut keys = Vec::new();
    for problem in all_problems(source) {
        // Without a key the problem concerns the whole text, and the message describes it.
        let key = if problem.path.is_empty() {
            problem.message
        } else {
            without_indices(&problem.path)
        };
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Returns the worker name that follows from a URL, accurate enough to find duplicates.
pub(super) fn host(url: &str) -> String {
    match url.split_once("://") {
        Some(("unix", path)) => format!("unix:{}", path.trim_matches('/').replace('/', "-")),
        Some((_, rest)) => rest.split('/').next().unwrap_or_default().to_owned(),
        None => url.to_owned(),
    }
}

pub(super) fn without_indices(path: &str) -> String {
    let mut inside = false;
    path.chars()
        .filter(|letter| {
            inside = (inside || *letter == '[') && *letter != ']';
            !inside || *letter == '['
        })
        .collect()
}
