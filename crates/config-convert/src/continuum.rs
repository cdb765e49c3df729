//! Converts the configuration of Continuum Router: its keys are ours, except for some with another
//! name here.

use config::{Problem, ROOT, TOP_ALIASES, parse_yaml, report};
use settings::{KeySchema, LocatedValue, MapEntry, ValueKind, ValueNode, ValueOrigin};

use super::{
    converted_config::head,
    reasons::{CONTINUUM, UnusedKey, reason},
};

const TITLE: &str = "Converted from a configuration of Continuum Router.";

/// Keys with another name here: theirs, ours. Both are at most two steps deep.
const RENAMED: &[(&[&str], &[&str])] = &[
    (&["server", "bind_address"], &["server", "listen"]),
    (&["server", "workers"], &["server", "runtime_threads"]),
];

/// Our key of the strategy where requests are routed by prefix.
const FALLBACK: &[&str] = &["routing", "fallback"];

/// The strategy: our policy, or the fallback where requests are routed by prefix.
const STRATEGIES: &[&[&str]] = &[&["selection_strategy"], &["load_balancer", "strategy"]];

/// Converts a configuration of Continuum Router to one of ours in YAML. `name` is the name of the
/// file in problems.
///
/// Keys without a counterpart are listed in comments at the top, each with the reason, and so are
/// those that this version refuses. The strategy becomes the policy; if prefix routing or the
/// prefix view is on, the policy of requests that they cannot place.
///
/// # Errors
/// YAML errors of the text.
///
/// ```
/// let theirs = "selection_strategy: LeastLatency\n\
///     backends: [{name: a, url: 'http://10.0.0.5:8000', pool: x}]\n";
/// let ours = config_convert::convert_continuum("config.yaml", theirs).expect("a file of that router");
/// assert!(ours.contains("policy: LeastLatency"));
/// assert!(ours.contains("# no counterpart: backends[0].pool\n"));
/// ```
pub fn convert_continuum(name: &str, text: &str) -> Result<String, Vec<Problem>> {
    let (tree, problems) = parse_yaml(text);
    if !problems.is_empty() {
        return Err(report(problems, name));
    }
    let origin = ValueOrigin::File { line: 1, column: 1 };
    let mut tree = tree.unwrap_or(LocatedValue {
        node: ValueNode::Null,
        origin: origin.clone(),
    });
    if matches!(tree.node, ValueNode::Null) {
        tree.node = ValueNode::Map(Vec::new());
    }
    let mut unused = Vec::new();
    for (theirs, ours) in RENAMED {
        move_key(&mut tree, theirs, ours);
    }
    let by_prefix = is_routed_by_prefix(&tree);
    for strategy in STRATEGIES {
        if !by_prefix {
            move_key(&mut tree, strategy, &["routing", "policy"]);
        } else if is_fallback(&tree, strategy) {
            move_key(&mut tree, strategy, FALLBACK);
        }
    }
    prune_top(&mut tree, &mut unused);
    unused.sort_by_key(|(origin, _)| match origin {
        ValueOrigin::File { line, column } => (*line, *column),
        ValueOrigin::Named(_) => (0, 0),
    });
    let unused: Vec<_> = unused
        .into_iter()
        .map(|(_, name)| UnusedKey {
            reason: reason(CONTINUUM, &name),
            name,
        })
        .collect();
    // Texts keep their `${NAME}`, which means the same there.
    let body = serde_saphyr::to_string(&tree.to_json()).unwrap_or_default();
    Ok(head(TITLE, &body, &unused) + &body)
}

/// Returns whether a part of that router's pipeline by prefix is on.
fn is_routed_by_prefix(tree: &LocatedValue) -> bool {
    ["prefix_routing", "kv_cache_index"].iter().any(|section| {
        member(tree, section)
            .and_then(|section| member(section, "enabled"))
            .is_some_and(|enabled| matches!(enabled.node, ValueNode::Bool(true)))
    })
}

/// Returns whether the value under a path is a policy of our key for requests without a prefix. The
/// ring is none: it is on already.
fn is_fallback(tree: &LocatedValue, path: &[&str]) -> bool {
    let value = path.iter().try_fold(tree, |at, key| member(at, key));
    match (value.map(|value| &value.node), kind_at(FALLBACK)) {
        (Some(ValueNode::Text(name)), Some(ValueKind::Word(words))) => {
            words.iter().any(|word| word.matches(name))
        }
        _ => false,
    }
}

fn member<'a>(tree: &'a LocatedValue, key: &str) -> Option<&'a LocatedValue> {
    let ValueNode::Map(entries) = &tree.node else {
        return None;
    };
    let entry = entries.iter().find(|entry| entry.key == key)?;
    Some(&entry.value)
}

/// Moves a value to another path, unless that is taken already.
fn move_key(tree: &mut LocatedValue, from: &[&str], to: &[&str]) {
    let Some(value) = taken(tree, from) else {
        return;
    };
    let origin = value.origin.clone();
    let place = to
        .iter()
        .try_fold(&mut *tree, |at, key| at.get_or_insert(key, &origin));
    match place {
        Some(place) if matches!(place.node, ValueNode::Null) => *place = value,
        _ => {}
    }
}

/// Removes and returns the value under a path, and a section that becomes empty.
fn taken(tree: &mut LocatedValue, path: &[&str]) -> Option<LocatedValue> {
    let (first, rest) = path.split_first()?;
    let ValueNode::Map(entries) = &mut tree.node else {
        return None;
    };
    let at = entries.iter().position(|entry| entry.key == *first)?;
    if rest.is_empty() {
        return Some(entries.remove(at).value);
    }
    let found = taken(&mut entries.get_mut(at)?.value, rest);
    if entries
        .get(at)
        .is_some_and(|entry| matches!(&entry.value.node, ValueNode::Map(left) if left.is_empty()))
    {
        entries.remove(at);
    }
    found
}

/// Top-level keys that stand for something else in our files.
const UNLIKE_OURS: &[&str] = &["api_keys"];

fn prune_top(tree: &mut LocatedValue, unused: &mut Vec<(ValueOrigin, String)>) {
    let ValueNode::Map(entries) = &mut tree.node else {
        return;
    };
    entries.retain_mut(|entry| {
        let alias = TOP_ALIASES
            .iter()
            .find(|(alias, _)| *alias == entry.key)
            .map(|(_, path)| *path);
        let own = [entry.key.as_str()];
        let path: &[&str] = alias.unwrap_or(&own);
        match kind_at(path).filter(|_| !UNLIKE_OURS.contains(&own[0])) {
            Some(kind) => {
                prune(kind, &mut entry.value, &entry.key, unused);
                true
            }
            None => {
                unused.push((entry.origin.clone(), settings::shown_text(&entry.key)));
                false
            }
        }
    });
}

fn kind_at(path: &[&str]) -> Option<&'static ValueKind> {
    let mut keys = ROOT;
    let (last, sections) = path.split_last()?;
    for section in sections {
        match keys.iter().find(|key| key.name == *section)?.kind {
            ValueKind::Section(inner) => keys = inner,
            _ => return None,
        }
    }
    keys.iter()
        .find(|key| key.name == *last)
        .map(|key| &key.kind)
}

/// Removes keys that the schema does not know.
fn prune(
    kind: &'static ValueKind,
    given: &mut LocatedValue,
    path: &str,
    unused: &mut Vec<(ValueOrigin, String)>,
) {
    match (kind, &mut given.node) {
        (ValueKind::Section(keys) | ValueKind::Worker(keys), ValueNode::Map(entries)) => {
            prune_section(keys, entries, path, unused)
        }
        (ValueKind::List(item), ValueNode::List(items)) => {
            for (at, inner) in items.iter_mut().enumerate() {
                prune(item, inner, &format!("{path}[{at}]"), unused);
            }
        }
        (ValueKind::Map(item), ValueNode::Map(entries)) => {
            for entry in entries {
                prune(
                    item,
                    &mut entry.value,
                    &config::map_path(path, &entry.key),
                    unused,
                );
            }
        }
        _ => {}
    }
}

fn prune_section(
    keys: &'static [KeySchema],
    entries: &mut Vec<MapEntry>,
    path: &str,
    unused: &mut Vec<(ValueOrigin, String)>,
) {
    entries.retain_mut(|entry| {
        let path = config::map_path(path, &entry.key);
        match keys.iter().find(|key| key.name == entry.key) {
            Some(key) => {
                prune(&key.kind, &mut entry.value, &path, unused);
                true
            }
            None => {
                unused.push((entry.origin.clone(), path));
                false
            }
        }
    });
}
