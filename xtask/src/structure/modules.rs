//! The modules of a crate, and the arrows that their `use` declarations draw.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{
    source_file::SourceFile,
    use_trees::{UsePath, use_paths},
};

/// The modules that each module uses. Names are paths without `crate`; the crate's root is the
/// empty name, and no arrow leads to it: a root declares and re-exports.
pub(super) type ModuleGraph = BTreeMap<String, BTreeSet<String>>;

/// Returns the graph of one crate's files.
pub(super) fn module_graph(files: &[&SourceFile]) -> ModuleGraph {
    let mut paths: BTreeMap<String, Vec<UsePath>> = BTreeMap::new();
    for file in files {
        let module = module_of(&file.path);
        paths.entry(module).or_default().extend(use_paths(file));
    }
    let names: HashSet<&str> = paths.keys().map(String::as_str).collect();
    let mut uses = Vec::new();
    let mut exports = BTreeMap::new();
    for (module, paths) in &paths {
        for path in paths {
            let Some(target) = resolve(module, &path.segments, &names) else {
                continue;
            };
            if path.is_public {
                let last = path.segments.last().map_or("", String::as_str);
                let name = if target.item.is_empty() {
                    last
                } else {
                    target.item
                };
                exports.insert((module.as_str(), name), target.module.clone());
            }
            uses.push((module, target));
        }
    }
    let mut graph: ModuleGraph = names
        .iter()
        .map(|name| ((*name).to_owned(), BTreeSet::new()))
        .collect();
    for (module, target) in uses {
        let defining = defining_module(target, &exports);
        if defining != *module && !defining.is_empty() {
            graph.entry(module.clone()).or_default().insert(defining);
        }
    }
    graph
}

/// What a path leads to: a module, and the first name behind it.
struct UseTarget<'p> {
    module: String,
    item: &'p str,
}

/// Resolves a path inside the crate; `None` for a path of another crate.
fn resolve<'p>(
    module: &str,
    segments: &'p [String],
    names: &HashSet<&str>,
) -> Option<UseTarget<'p>> {
    let first = segments.first()?.as_str();
    let (mut target, rest) = match first {
        "crate" => (String::new(), &segments[1..]),
        "self" => (module.to_owned(), &segments[1..]),
        "super" => {
            let ups = segments.iter().take_while(|segment| *segment == "super");
            let ups = ups.count();
            let mut parents: Vec<_> = module.split("::").collect();
            parents.truncate(parents.len().saturating_sub(ups));
            (parents.join("::"), &segments[ups..])
        }
        // The path may start with a child module.
        child if names.contains(joined(module, child).as_str()) => (module.to_owned(), segments),
        _ => return None,
    };
    let mut rest = rest.iter();
    let mut item = rest.next();
    while let Some(segment) = item {
        let inner = joined(&target, segment);
        if !names.contains(inner.as_str()) {
            break;
        }
        target = inner;
        item = rest.next();
    }
    Some(UseTarget {
        module: target,
        item: item.map_or("", String::as_str),
    })
}

/// Follows re-exports to the module that defines the item.
fn defining_module(target: UseTarget<'_>, exports: &BTreeMap<(&str, &str), String>) -> String {
    let UseTarget { mut module, item } = target;
    let mut seen = HashSet::from([module.clone()]);
    while let Some(next) = exports.get(&(module.as_str(), item)).cloned() {
        if !seen.insert(next.clone()) {
            break;
        }
        module = next;
    }
    module
}

/// Returns `tls::accept` for `crates/net/src/tls/accept.rs`, and the empty name for a root.
fn module_of(path: &str) -> String {
    let inside = path.split_once("/src/").map_or(path, |(_, inside)| inside);
    let inside = inside.strip_suffix(".rs").unwrap_or(inside);
    if matches!(inside, "lib" | "main") {
        return String::new();
    }
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    inside.replace('/', "::")
}

fn joined(module: &str, child: &str) -> String {
    if module.is_empty() {
        child.to_owned()
    } else {
        format!("{module}::{child}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Vec<(String, Vec<String>)> {
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| SourceFile::new(&format!("crates/a/src/{path}"), text))
            .collect();
        let graph = module_graph(&files.iter().collect::<Vec<_>>());
        let arrows = graph
            .into_iter()
            .map(|(module, targets)| (module, targets.into_iter().collect::<Vec<_>>()));
        arrows.filter(|(_, targets)| !targets.is_empty()).collect()
    }

    fn arrow(from: &str, to: &[&str]) -> (String, Vec<String>) {
        let to = to.iter().map(|name| (*name).to_owned()).collect();
        (from.to_owned(), to)
    }

    #[test]
    fn paths_are_resolved_from_the_module_that_uses_them() {
        let files = [
            ("lib.rs", "mod a; mod b; use std::fmt;"),
            ("a/mod.rs", "mod c; use c::D; use self::c::E; use std::io;"),
            ("a/c.rs", "use super::super::b::F; use super::G;"),
            ("b.rs", "use crate::a::c::D; use crate::H;"),
        ];
        assert_eq!(
            graph(&files),
            [
                arrow("a", &["a::c"]),
                arrow("a::c", &["a", "b"]),
                arrow("b", &["a::c"]),
            ]
        );
    }

    #[test]
    fn a_re_export_leads_to_the_module_that_defines() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::C;"),
            ("a.rs", "mod inner; pub(crate) use inner::C;"),
            ("a/inner.rs", ""),
            ("b.rs", "use crate::C;"),
        ];
        assert_eq!(
            graph(&files),
            [
                arrow("", &["a::inner"]),
                arrow("a", &["a::inner"]),
                arrow("b", &["a::inner"])
            ]
        );
    }
}
