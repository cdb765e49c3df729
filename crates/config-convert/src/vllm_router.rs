//! Converts the configuration of vLLM Router, version 0.12 and its neighbours: a mapping of its
//! keys to ours.

mod caches;
mod content;
mod keys;
mod lmcache;
mod metrics;
mod policy;
mod pools;
mod preprocessing;
mod process;
mod serving;
mod tenants;
mod traces;
mod urls;
mod worker_keys;

use config::Problem;
use settings::{LocatedValue, Value, ValueError, ValueKind, ValueOrigin, kinds::int};

use self::keys::{KeyMapping, SECONDS_OR_ZERO, key};
use super::{
    converted_config::{ConvertedConfig, SECRET_NOTE, yaml},
    model_path::{ModelPath, model_path},
    reasons,
    source_config::{SourceConfig, SourceField, UnreadFields},
};

const TITLE: &str = "Converted from a configuration of vLLM Router.";

/// Policies by the key of either side. That router's documents place them at the top level and
/// under `mode`.
const POLICIES: &[(&str, &str)] = &[
    ("policy", "routing.policy"),
    ("prefill_policy", "routing.prefill_policy"),
    ("decode_policy", "routing.decode_policy"),
];

/// Path of a key and its place in the file.
type Place = (String, ValueOrigin);

const TOP: &[KeyMapping] = &[
    key(
        "engine_wait_timeout_secs",
        "queue.engine_wait_timeout_secs",
        SECONDS_OR_ZERO,
    ),
    key(
        "pd_uncached_token_threshold",
        "disaggregation.uncached_token_threshold",
        int(0, u32::MAX as u64),
    ),
];

/// Converts a configuration of vLLM Router to one of ours in YAML. `name` is the name of the file
/// in problems.
///
/// Keys without a counterpart are listed in comments at the top, each with the reason, and so are the
/// keys of ours that this version knows by name only.
///
/// # Errors
/// Every value that the other router would not accept, in the order of the file.
///
/// ```
/// let theirs = "mode: {type: regular, worker_urls: ['http://10.0.0.5:8000']}\nlog_dir: /tmp\n";
/// let ours = config_convert::convert_vllm_router("router.yaml", theirs).expect("a file of that router");
/// assert!(ours.contains("  - {url: \"http://10.0.0.5:8000\"}\n"));
/// assert!(ours.contains("# no counterpart: log_dir\n"));
/// ```
pub fn convert_vllm_router(name: &str, text: &str) -> Result<String, Vec<Problem>> {
    let (tree, given) = SourceConfig::parse(text);
    let mut work = Conversion {
        given,
        ours: ConvertedConfig::default(),
    };
    if let Some(top) = tree.as_ref().and_then(|tree| work.given.top(tree)) {
        work.file(top);
    }
    let unused = work.given.finish(name, reasons::VLLM_ROUTER)?;
    Ok(work.ours.text(TITLE, &unused))
}

/// Converts a command line as a tree; `flags` are those without a place in the tree.
pub(super) fn convert_tree(
    title: &str,
    name: &str,
    tree: &LocatedValue,
    flags: &[String],
) -> Result<String, Vec<Problem>> {
    let mut work = Conversion {
        given: SourceConfig::default(),
        ours: ConvertedConfig::default(),
    };
    if let Some(mut top) = work.given.top(tree) {
        work.flags(&mut top);
        work.file(top);
    }
    let known = reasons::VLLM_ROUTER;
    let mut unused: Vec<_> = flags
        .iter()
        .map(|flag| reasons::UnusedKey::of(flag, known))
        .collect();
    unused.extend(work.given.finish(name, known)?);
    Ok(work.ours.text(title, &unused))
}

/// State of a conversion.
struct Conversion {
    given: SourceConfig,
    ours: ConvertedConfig,
}

impl Conversion {
    fn file(&mut self, mut top: UnreadFields<'_>) {
        let mode = self.given.required(
            &mut top,
            "mode",
            "a mapping with type and the URLs of workers",
        );
        let mut mode = mode.and_then(|mode| self.given.fields(&mode));
        if let Some(mode) = &mut mode {
            self.workers(mode);
        }
        self.worker_keys(&mut top);
        for (theirs, ours) in POLICIES {
            let inner = mode.as_mut().and_then(|mode| mode.take(theirs));
            if let Some(policy) = self.either(inner, top.take(theirs)) {
                self.policy(&policy, ours);
            }
        }
        self.tokenizer(&mut top);
        self.weights(&mut top);
        self.keys(TOP, &mut top);
        self.tenants(&mut top);
        self.process(&mut top);
        self.serving(&mut top);
        self.metrics(&mut top);
        self.traces(&mut top);
        self.preprocessing(&mut top);
        self.content(&mut top);
        self.caches(&mut top);
        self.prompt_cache(&mut top);
        mode.into_iter()
            .chain([top])
            .for_each(|fields| self.given.leave(fields));
    }

    /// Returns the one that is present; both are a problem, as it would be unclear which one
    /// counts.
    fn either<'a>(
        &mut self,
        inner: Option<SourceField<'a>>,
        outer: Option<SourceField<'a>>,
    ) -> Option<SourceField<'a>> {
        if let (Some(inner), Some(outer)) = (&inner, &outer) {
            let fault =
                ValueError::new(format!("set a second time: `{}` is there too", inner.path));
            self.given.refuse(outer, fault.expected("one of the two"));
        }
        inner.or(outer)
    }

    /// Converts the tokenizer; its own path takes precedence over that of the model.
    fn tokenizer(&mut self, top: &mut UnreadFields<'_>) {
        const OURS: &str = "models.defaults.tokenizer";
        let (own, model) = (top.take("tokenizer_path"), top.take("model_path"));
        let (field, other) = match own {
            Some(own) => (own, model),
            None => match model {
                Some(model) => (model, None),
                None => return,
            },
        };
        if let Some(other) = other {
            self.given
                .unused_because(other, "tokenizer_path takes precedence");
        }
        let Some(Value::Text(text)) = self.given.value(&field, &ValueKind::Text) else {
            return;
        };
        let place = field.place();
        match model_path(&text) {
            ModelPath::Directory(directory) => {
                self.set(OURS, yaml(&Value::Text(directory)), &place)
            }
            ModelPath::HubId(id) => {
                self.set(OURS, yaml(&Value::Text(format!("hub:{id}"))), &place);
                self.ours.note(
                    OURS,
                    "of the local model hub, else asked of the engine".to_owned(),
                );
            }
            ModelPath::Other => self.given.unused(field),
        }
    }

    /// Takes a mapping; `None` if it is left out or is no mapping.
    fn section<'a>(
        &mut self,
        fields: &mut UnreadFields<'a>,
        key: &str,
    ) -> Option<UnreadFields<'a>> {
        let field = fields.take(key)?;
        self.given.fields(&field)
    }

    /// Reads simple keys: our key, its value as YAML, and the place of theirs.
    fn values(
        &mut self,
        keys: &[KeyMapping],
        fields: &mut UnreadFields<'_>,
    ) -> Vec<(&'static str, String, Place)> {
        let mut values = Vec::new();
        for key in keys {
            let field = fields.take(key.theirs);
            let place = fields.place(key.theirs, field.as_ref());
            let value = match &field {
                Some(field) => self
                    .given
                    .value(field, &key.kind)
                    .map(|value| yaml(&value) + key.unit),
                None => key.default.map(str::to_owned),
            };
            if let Some(value) = value {
                values.push((key.ours, value, place));
            }
        }
        values
    }

    /// Converts simple keys.
    fn keys(&mut self, keys: &[KeyMapping], fields: &mut UnreadFields<'_>) {
        for (ours, value, place) in self.values(keys, fields) {
            self.set(ours, value, &place);
        }
        for secret in keys
            .iter()
            .filter(|key| matches!(key.kind, ValueKind::Secret))
        {
            self.ours.note(secret.ours, SECRET_NOTE.to_owned());
        }
    }

    /// Reads a list of texts, as YAML on one line.
    fn texts(&mut self, list: &SourceField<'_>) -> String {
        let texts: Vec<String> = self
            .given
            .items(list)
            .iter()
            .filter_map(|text| self.given.value(text, &ValueKind::Text))
            .map(|text| yaml(&text))
            .collect();
        format!("[{}]", texts.join(", "))
    }

    /// Converts a list of mappings, each by `entry`.
    fn list(
        &mut self,
        ours: &'static str,
        list: &SourceField<'_>,
        mut entry: impl FnMut(&mut Self, SourceField<'_>) -> Option<String>,
    ) {
        let mut entries = Vec::new();
        for item in self.given.items(list) {
            entries.extend(entry(self, item));
        }
        self.set(ours, format!("[{}]", entries.join(", ")), &list.place());
    }

    /// Sets a key. Two pools of that router may have settings that ours has once for all; then only
    /// the user can choose.
    fn set(&mut self, ours: &'static str, value: String, place: &Place) {
        if let Err((before, from)) = self.ours.set(ours, value.clone(), &place.0) {
            let message = format!("{value} here, but {before} by `{from}`");
            let expected = format!("the same value, as `{ours}` is one for all workers");
            self.given.contradiction(place.clone(), message, expected);
        }
    }
}
