//! Writes a configuration of ours: the workers, a section a block, and above them what cannot be said in keys.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{ConfigSource, checked_value::Value, load};

/// What was translated so far.
#[derive(Debug, Default)]
pub(super) struct ConvertedConfig {
    pub(super) workers: Vec<ConvertedWorker>,
    /// By the path of the key; a section's keys are next to each other in this order.
    settings: BTreeMap<&'static str, ConvertedSetting>,
}

/// An entry of `workers`.
#[derive(Debug)]
pub(super) struct ConvertedWorker {
    pub(super) url: String,
    /// `role` or `type`, and its word.
    pub(super) word: Option<(&'static str, &'static str)>,
    pub(super) bootstrap_port: Option<u64>,
}

#[derive(Debug)]
struct ConvertedSetting {
    /// As YAML.
    value: String,
    /// The key of the other router that said so.
    from: String,
    note: Option<String>,
}

impl ConvertedConfig {
    /// Sets a key, its value given as YAML. A key that has another value already keeps it, and that value is given back
    /// with the key of the other router that set it.
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

    /// Sets a comment beside a key that is set. It must be of one line.
    pub(super) fn note(&mut self, key: &'static str, note: String) {
        if let Some(setting) = self.settings.get_mut(key) {
            setting.note = Some(note);
        }
    }

    /// The whole text; `unused` are the other router's keys that have no counterpart.
    pub(super) fn text(&self, title: &str, unused: &[String]) -> String {
        let body = self.body();
        let mut text = format!("# {title}\n");
        let refused = refused(&body);
        if !refused.is_empty() {
            text += &format!(
                "# refused by `warmroute config check` in this version: {}\n",
                refused.join(", ")
            );
        }
        for path in unused {
            text += &format!("# no counterpart: {path}\n");
        }
        text + &body
    }

    fn body(&self) -> String {
        let mut text = if self.workers.is_empty() {
            "workers: []\n"
        } else {
            "workers:\n"
        }
        .to_owned();
        for worker in &self.workers {
            text += &format!("  - {{url: {}", quoted(&worker.url));
            if let Some((key, word)) = worker.word {
                text += &format!(", {key}: {word}");
            }
            if let Some(port) = worker.bootstrap_port {
                text += &format!(", bootstrap_port: {port}");
            }
            text += "}\n";
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

/// A value as YAML.
pub(super) fn yaml(value: &Value) -> String {
    match value {
        Value::Bool(value) => value.to_string(),
        Value::Int(number) => number.to_string(),
        // With a point, so that it is a number to every reader.
        Value::Float(number) => format!("{number:?}"),
        Value::Text(text) => quoted(text),
        Value::Word(word) => (*word).to_owned(),
        _ => unreachable!("no key is translated into a value of another kind"),
    }
}

/// A text as YAML. A `${` of the other file names no variable of ours, so it is written as the characters themselves.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text.replace("${", "$${")).to_string()
}

/// The keys that this version refuses, found by loading the text; entries of a list count once, as `workers[].role`.
pub(super) fn refused(body: &str) -> Vec<String> {
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
    let (_, drafts) = load::read(source);
    let mut problems: Vec<_> = drafts.into_iter().map(|draft| draft.finish("")).collect();
    problems.sort_by_key(|problem| (problem.line, problem.column));
    let mut keys = Vec::new();
    for problem in problems {
        // Without a key the whole text is meant, and the message says what is wrong with it.
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

/// What a worker is called after its URL, near enough to find two of one name.
pub(super) fn host(url: &str) -> String {
    match url.split_once("://") {
        Some(("unix", path)) => format!("unix:{}", path.trim_matches('/').replace('/', "-")),
        Some((_, rest)) => rest.split('/').next().unwrap_or_default().to_owned(),
        None => url.to_owned(),
    }
}

fn without_indices(path: &str) -> String {
    let mut inside = false;
    path.chars()
        .filter(|letter| {
            inside = (inside || *letter == '[') && *letter != ']';
            !inside || *letter == '['
        })
        .collect()
}
