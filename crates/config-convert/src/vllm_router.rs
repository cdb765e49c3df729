//! Converts the configuration of vLLM Router, version 0.12 and its neighbours: a mapping of its
//! keys to ours.

mod content;
mod lmcache;
mod pools;
mod process;
mod serving;
mod urls;

use config::{Problem, ROOT};
use settings::{LocatedValue, MAX_DURATION, Range, Value, ValueError, ValueKind, ValueOrigin};

use super::{
    converted_config::{ConvertedConfig, yaml},
    model_path::{ModelPath, model_path},
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

/// The policy that uses KV events.
const KV_AWARE: &str = "kv_aware";
/// The policy that queries LMCache's controller.
const LMCACHE_AWARE: &str = "lmcache_aware";

const PORT: ValueKind = ValueKind::Int {
    min: 1,
    max: 65_535,
};
const WEIGHT: ValueKind = ValueKind::Float(Range {
    min: 0.0,
    max: 1.0,
    open: false,
});

/// Mapping of a simple key.
struct KeyMapping {
    theirs: &'static str,
    ours: &'static str,
    kind: ValueKind,
    /// Unit behind the number in ours.
    unit: &'static str,
    /// That router's default, written out because ours may differ; `None` = leave it out.
    default: Option<&'static str>,
}

const fn key(theirs: &'static str, ours: &'static str, kind: ValueKind) -> KeyMapping {
    KeyMapping {
        theirs,
        ours,
        kind,
        unit: "",
        default: None,
    }
}

impl KeyMapping {
    const fn or(self, default: &'static str) -> Self {
        Self {
            default: Some(default),
            ..self
        }
    }
}

const TOP: &[KeyMapping] = &[
    key(
        "engine_wait_timeout_secs",
        "queue.engine_wait_timeout_secs",
        ValueKind::Int {
            min: 0,
            max: MAX_DURATION.as_secs(),
        },
    ),
    key(
        "pd_uncached_token_threshold",
        "disaggregation.uncached_token_threshold",
        ValueKind::Int {
            min: 0,
            max: u32::MAX as u64,
        },
    ),
];

const KV_AWARE_KEYS: &[KeyMapping] = &[
    key(
        "block_size",
        "models.defaults.block_size",
        ValueKind::Int {
            min: 1,
            max: 1 << 16,
        },
    )
    .or("16"),
    key("enable_speculative", "routing.speculative", ValueKind::Bool).or("true"),
    KeyMapping {
        unit: "ms",
        ..key(
            "speculative_ttl_ms",
            "routing.speculative_ttl",
            ValueKind::Int {
                min: 1,
                max: MAX_DURATION.as_secs() * 1_000,
            },
        )
        .or("2000ms")
    },
];

const KV_EVENTS_KEYS: &[KeyMapping] = &[
    key("topic_filter", "kv_events.topic_filter", ValueKind::Text).or("\"\""),
    key("default_port", "kv_events.default_port", PORT).or("5557"),
];

const WEIGHTS_KEYS: &[KeyMapping] = &[
    key("gpu", "routing.medium_weights.gpu", WEIGHT),
    key("cpu", "routing.medium_weights.cpu", WEIGHT),
    key("disk", "routing.medium_weights.disk", WEIGHT),
];

/// Converts a configuration of vLLM Router to one of ours in YAML. `name` is the name of the file
/// in problems.
///
/// Keys without a counterpart are listed in comments at the top, and so are the keys of ours that
/// this version knows by name only.
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
    let unused = work.given.finish(name)?;
    Ok(work.ours.text(TITLE, &unused))
}

/// Converts a command line as a tree; its flags without a place in the tree are `unused`.
pub(super) fn convert_tree(
    title: &str,
    name: &str,
    tree: &LocatedValue,
    mut unused: Vec<String>,
) -> Result<String, Vec<Problem>> {
    let mut work = Conversion {
        given: SourceConfig::default(),
        ours: ConvertedConfig::default(),
    };
    if let Some(mut top) = work.given.top(tree) {
        work.process(&mut top);
        work.file(top);
    }
    unused.extend(work.given.finish(name)?);
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
        for (theirs, ours) in POLICIES {
            let inner = mode.as_mut().and_then(|mode| mode.take(theirs));
            if let Some(policy) = self.either(inner, top.take(theirs)) {
                self.policy(&policy, ours);
            }
        }
        if let Some(field) = top.take("model_path") {
            self.tokenizer(field);
        }
        self.weights(&mut top);
        self.keys(TOP, &mut top);
        self.serving(&mut top);
        self.content(&mut top);
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

    fn policy(&mut self, policy: &SourceField<'_>, ours: &'static str) {
        let Some(mut fields) = self.given.fields(policy) else {
            return;
        };
        let Some(name) = self.given.required(
            &mut fields,
            "type",
            "the name of a policy, such as kv_aware",
        ) else {
            return;
        };
        match self.given.value(&name, &ValueKind::Text) {
            Some(Value::Text(text)) => match policy_of(&text) {
                Some(word) => {
                    self.set(ours, word.to_owned(), &fields.place("type", Some(&name)));
                    match word {
                        KV_AWARE => self.kv_aware(&mut fields),
                        LMCACHE_AWARE => self.lmcache(&mut fields),
                        _ => {}
                    }
                }
                None => self.given.unused(name),
            },
            _ => return,
        }
        self.given.leave(fields);
    }

    fn kv_aware(&mut self, policy: &mut UnreadFields<'_>) {
        self.keys(KV_AWARE_KEYS, policy);
        let events = policy
            .take("kv_events")
            .and_then(|events| self.given.fields(&events));
        let mut events = events.unwrap_or_else(|| policy.absent("kv_events"));
        self.keys(KV_EVENTS_KEYS, &mut events);
        self.given.leave(events);
        self.weights(policy);
    }

    /// Reads the weights, whose place that router's documents do not name: beside the policy and at
    /// the top level.
    fn weights(&mut self, fields: &mut UnreadFields<'_>) {
        let weights = fields
            .take("medium_weights")
            .and_then(|weights| self.given.fields(&weights));
        if let Some(mut weights) = weights {
            self.keys(WEIGHTS_KEYS, &mut weights);
            self.given.leave(weights);
        }
    }

    fn tokenizer(&mut self, field: SourceField<'_>) {
        const OURS: &str = "models.defaults.tokenizer";
        let Some(Value::Text(text)) = self.given.value(&field, &ValueKind::Text) else {
            return;
        };
        let place = (field.path.clone(), field.value.origin.clone());
        match model_path(&text) {
            ModelPath::Directory(directory) => {
                self.set(OURS, yaml(&Value::Text(directory)), &place)
            }
            ModelPath::HubId(id) => {
                self.set(OURS, "auto".to_owned(), &place);
                self.ours.note(
                    OURS,
                    format!("the model was {id}: found on this machine, or asked of the engine"),
                );
            }
            ModelPath::Other => self.given.unused(field),
        }
    }

    fn keys(&mut self, keys: &[KeyMapping], fields: &mut UnreadFields<'_>) {
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
                self.set(key.ours, value, &place);
            }
        }
    }

    /// Sets a key. Two pools of that router may have settings that ours has once for all; then only
    /// the user can choose.
    fn set(&mut self, ours: &'static str, value: String, place: &(String, ValueOrigin)) {
        if let Err((before, from)) = self.ours.set(ours, value.clone(), &place.0) {
            let message = format!("{value} here, but {before} by `{from}`");
            let expected = format!("the same value, as `{ours}` is one for all workers");
            self.given.contradiction(place.clone(), message, expected);
        }
    }
}

/// Returns the policy of ours with this name, also if this version does not support it yet.
fn policy_of(name: &str) -> Option<&'static str> {
    let ValueKind::Section(routing) = ROOT.iter().find(|section| section.name == "routing")?.kind
    else {
        return None;
    };
    let ValueKind::Word(policies) = routing.iter().find(|key| key.name == "policy")?.kind else {
        return None;
    };
    policies
        .iter()
        .find(|policy| policy.matches(name))
        .map(|policy| policy.word)
}
