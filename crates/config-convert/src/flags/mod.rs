//! Converts the command lines of the routers around SGLang (`sglang_router`, `smg`) and of vLLM
//! Router, which share most flags.
//!
//! Each flag becomes its key in a file of vLLM Router; a flag without such a key has a key of its
//! own here.

mod table;
mod words;

use config::{Problem, ProblemDraft, report};
use settings::{LocatedValue, MapEntry, ValueNode, ValueOrigin};

use self::table::{FLAGS, Flag, FlagMeaning, POLICY_NAMES};
use super::vllm_router::convert_tree;

/// Router whose command line is converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRouter {
    /// `sglang_router` and its successor `smg`.
    Smg,
    /// `vllm-router`.
    VllmRouter,
}

impl SourceRouter {
    fn title(self) -> &'static str {
        match self {
            Self::Smg => "Converted from a command line of sglang-router or smg.",
            Self::VllmRouter => "Converted from a command line of vLLM Router.",
        }
    }

    fn pools(self) -> &'static str {
        match self {
            Self::Smg => "prefill_decode",
            Self::VllmRouter => "vllm_prefill_decode",
        }
    }
}

/// Default port of both routers; clients know it.
const PORT: &str = "30000";
/// Default port of both routers' metrics; scrapers know it.
const METRICS_PORT: &str = "29000";
/// Default policy of both routers.
const POLICY: &str = "cache_aware";
/// Most words accepted: ten times more than either router has flags.
const MAX_WORDS: usize = 100_000;

/// Converts a command line, given as text, to a configuration of ours in YAML. `name` is the name
/// of the text in problems.
///
/// # Errors
/// As [`convert_flags`].
pub fn convert_command(
    router: SourceRouter,
    name: &str,
    text: &str,
) -> Result<String, Vec<Problem>> {
    convert_flags(router, name, &words::words(text))
}

/// Converts the words of a command line to a configuration of ours in YAML. The words before the
/// first flag are the program.
///
/// Flags without a counterpart are listed in comments at the top with the reason, by name only: a
/// value may be a secret.
///
/// # Errors
/// Every value that the other router would not accept.
///
/// ```
/// let flags = [
///     "--worker-urls", "http://10.0.0.5:8000", "--policy", "round_robin", "--log-dir", "/tmp",
/// ];
/// let flags: Vec<String> = flags.map(str::to_owned).into();
/// let ours = config_convert::convert_flags(config_convert::SourceRouter::Smg, "flags", &flags)
///     .expect("flags of that router");
/// assert!(ours.contains("  - {url: \"http://10.0.0.5:8000\"}\n"));
/// assert!(ours.contains("  policy: round_robin\n"));
/// assert!(ours.contains("# no counterpart: --log-dir\n"));
/// ```
pub fn convert_flags(
    router: SourceRouter,
    name: &str,
    words: &[String],
) -> Result<String, Vec<Problem>> {
    let mut line = ParsedFlags {
        router,
        ..ParsedFlags::new()
    };
    let mut words = words
        .iter()
        .take(MAX_WORDS)
        .map(String::as_str)
        .skip_while(|word| !word.starts_with("--"))
        .peekable();
    while let Some(word) = words.next() {
        let (flag, joined) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word, None),
        };
        let mut values: Vec<&str> = joined.into_iter().collect();
        while joined.is_none() && words.peek().is_some_and(|next| !next.starts_with("--")) {
            values.extend(words.next());
        }
        line.flag(flag, &values);
    }
    if !line.problems.is_empty() {
        return Err(report(line.problems, name));
    }
    let (tree, unused) = line.tree();
    convert_tree(router.title(), name, &tree, &unused)
}

/// Parsed command line.
#[derive(Debug)]
struct ParsedFlags {
    router: SourceRouter,
    tree: LocatedValue,
    workers: Vec<LocatedValue>,
    prefill: Vec<LocatedValue>,
    decode: Vec<LocatedValue>,
    split: bool,
    unused: Vec<String>,
    problems: Vec<ProblemDraft>,
}

impl ParsedFlags {
    fn new() -> Self {
        Self {
            router: SourceRouter::Smg,
            tree: map(&origin("")),
            workers: Vec::new(),
            prefill: Vec::new(),
            decode: Vec::new(),
            split: false,
            unused: Vec::new(),
            problems: Vec::new(),
        }
    }

    fn flag(&mut self, flag: &str, values: &[&str]) {
        // `python -m sglang_router` prefixes its own flags with `--router-` if an engine has flags
        // too.
        let plain = flag.trim_start_matches("--");
        let bare = plain
            .strip_prefix("router-")
            .filter(|_| plain != "router-temperature")
            .unwrap_or(plain);
        let found = FLAGS.iter().find(|known| known.name == bare);
        let from = origin(flag);
        let Some(Flag { means, .. }) = found else {
            self.unused.push(flag.to_owned());
            return;
        };
        let text = |text: &str| LocatedValue {
            node: ValueNode::Text(text.to_owned().into()),
            origin: from.clone(),
        };
        match (*means, values) {
            (FlagMeaning::Workers, urls) => self.workers.extend(urls.iter().map(|url| text(url))),
            (FlagMeaning::Split, _) => self.split = true,
            (FlagMeaning::Prefill, [url]) => self.prefill.push(text(url)),
            (FlagMeaning::Prefill, [url, port, ..]) => {
                let pair = ValueNode::List(vec![text(url), bootstrap_port(port, &from)]);
                self.prefill.push(LocatedValue {
                    node: pair,
                    origin: from,
                });
            }
            (FlagMeaning::Decode, [url, ..]) => self.decode.push(text(url)),
            (FlagMeaning::Policy(key), [name, ..]) => {
                self.put(&[key, "type"], policy_name(name), &from);
            }
            (FlagMeaning::Key(path), [value, ..]) => self.put(path, value, &from),
            (FlagMeaning::Fixed(path, value), _) => self.put(path, value, &from),
            (FlagMeaning::Aliases, pairs) => {
                for pair in pairs {
                    match pair.split_once('=') {
                        Some((alias, model)) => self.put(&["model_aliases", alias], model, &from),
                        None => self.refuse(flag, pair, "NAME=MODEL"),
                    }
                }
            }
            (
                FlagMeaning::Prefill
                | FlagMeaning::Decode
                | FlagMeaning::Policy(_)
                | FlagMeaning::Key(_),
                [],
            ) => {
                self.problems.push(
                    ProblemDraft::new("", "the flag has no value")
                        .expected("a value behind it")
                        .at(from),
                );
            }
        }
    }

    fn refuse(&mut self, flag: &str, value: &str, expected: &str) {
        let draft = ProblemDraft::new("", format!("cannot use `{}`", settings::shown_text(value)));
        self.problems
            .push(draft.expected(expected).at(origin(flag)));
    }

    /// Stores a flag; the last of several flags of one name counts, as in that router.
    fn put(&mut self, path: &[&str], value: &str, from: &ValueOrigin) {
        let place = path
            .iter()
            .try_fold(&mut self.tree, |at, key| at.get_or_insert(key, from));
        if let Some(place) = place {
            *place = LocatedValue {
                node: ValueNode::Loose(value.to_owned().into()),
                origin: from.clone(),
            };
        }
    }

    /// Returns the equivalent file as a tree, and the flags without a place in it.
    fn tree(mut self) -> (LocatedValue, Vec<String>) {
        let split = self.split || !(self.prefill.is_empty() && self.decode.is_empty());
        let mode = if split {
            self.router.pools()
        } else {
            "regular"
        };
        let from = origin(if split { "--prefill" } else { "--worker-urls" });
        self.put(&["mode", "type"], mode, &from);
        let lists = if split {
            vec![("prefill_urls", self.prefill), ("decode_urls", self.decode)]
        } else {
            vec![("worker_urls", self.workers)]
        };
        let mut tree = self.tree;
        for (key, urls) in lists {
            let place = tree
                .get_or_insert("mode", &from)
                .and_then(|mode| mode.get_or_insert(key, &from));
            if let Some(place) = place {
                *place = LocatedValue {
                    node: ValueNode::List(urls),
                    origin: from.clone(),
                };
            }
        }
        for (path, value) in [
            (&["policy", "type"][..], POLICY),
            (&["port"], PORT),
            (&["metrics", "port"], METRICS_PORT),
            (&["trace_config", "enable_trace"], "false"),
        ] {
            let place = path
                .iter()
                .try_fold(&mut tree, |at, key| at.get_or_insert(key, &from));
            if let Some(place) = place.filter(|place| matches!(place.node, ValueNode::Null)) {
                *place = LocatedValue {
                    node: ValueNode::Loose(value.to_owned().into()),
                    origin: from.clone(),
                };
            }
        }
        (tree, self.unused)
    }
}

fn origin(flag: &str) -> ValueOrigin {
    ValueOrigin::Named(flag.to_owned())
}

fn map(origin: &ValueOrigin) -> LocatedValue {
    LocatedValue {
        node: ValueNode::Map(Vec::<MapEntry>::new()),
        origin: origin.clone(),
    }
}

/// Returns our name of a policy, or theirs if we have none.
fn policy_name(theirs: &str) -> &str {
    POLICY_NAMES
        .iter()
        .find(|(known, _)| *known == theirs)
        .map_or(theirs, |(_, ours)| *ours)
}

fn bootstrap_port(port: &str, from: &ValueOrigin) -> LocatedValue {
    let node = if port.eq_ignore_ascii_case("none") {
        ValueNode::Null
    } else {
        ValueNode::Loose(port.to_owned().into())
    };
    LocatedValue {
        node,
        origin: from.clone(),
    }
}
