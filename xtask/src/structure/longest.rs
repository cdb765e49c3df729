//! The items behind the figures: the longest, the largest and the worst named.

use super::{aims::MAX_CYCLE, figures::Figures, functions::Function, names, types::TypeDefinition};

/// Functions that are listed by length and by arguments.
const LISTED: usize = 25;

/// Returns one list per kind, with places.
pub(super) fn lists(figures: &Figures) -> String {
    let participles = names::participles(&figures.types)
        .into_iter()
        .map(|found| format!("{} {}", found.name, found.place));
    let ambiguous = names::ambiguous(&figures.types)
        .into_iter()
        .map(|(name, count)| format!("{count} {name}"));
    [
        list("Longest functions", longest_functions(&figures.functions)),
        list(
            "Functions with the most arguments",
            most_arguments(&figures.functions),
        ),
        list(
            "Structs with more than 13 fields",
            largest_structs(&figures.types),
        ),
        list(
            "Module cycles with more than five files",
            large_cycles(figures),
        ),
        list(
            "Type names that are a bare participle",
            participles.collect(),
        ),
        list("Type names for more than two things", ambiguous.collect()),
    ]
    .concat()
}

fn list(title: &str, lines: Vec<String>) -> String {
    let lines: String = lines.into_iter().map(|line| format!("{line}\n")).collect();
    format!("\n{title}:\n{lines}")
}

fn longest_functions(functions: &[Function]) -> Vec<String> {
    let mut functions: Vec<_> = functions.iter().collect();
    functions.sort_by_key(|function| usize::MAX - function.lines);
    let lines = functions.into_iter().take(LISTED);
    lines
        .map(|function| format!("{} {} {}", function.lines, function.name, function.place))
        .collect()
}

fn most_arguments(functions: &[Function]) -> Vec<String> {
    let mut functions: Vec<_> = functions.iter().collect();
    functions.sort_by_key(|function| usize::MAX - function.arguments);
    let lines = functions.into_iter().take(LISTED);
    lines
        .map(|function| {
            format!(
                "{} {} {}",
                function.arguments, function.name, function.place
            )
        })
        .collect()
}

fn largest_structs(types: &[TypeDefinition]) -> Vec<String> {
    let mut structs: Vec<_> = types.iter().filter(|found| found.is_large()).collect();
    structs.sort_by_key(|found| usize::MAX - found.fields.unwrap_or_default());
    let line = |found: &TypeDefinition| {
        let fields = found.fields.unwrap_or_default();
        let exception = if found.is_outside_shape {
            " (command line or wire shape)"
        } else {
            ""
        };
        format!("{fields} {} {}{exception}", found.name, found.place)
    };
    structs.into_iter().map(line).collect()
}

fn large_cycles(figures: &Figures) -> Vec<String> {
    let mut lines = Vec::new();
    for figures in &figures.crates {
        let large = figures
            .cycles
            .iter()
            .filter(|cycle| cycle.len() > MAX_CYCLE);
        lines.extend(
            large.map(|cycle| format!("{} {}: {}", cycle.len(), figures.name, cycle.join(", "))),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{super::source_file::SourceFile, *};

    #[test]
    fn each_list_shows_its_items_with_their_places() {
        let cycle = (0..6).map(|at| {
            let text = format!("use crate::m{}::A;", (at + 1) % 6);
            SourceFile::new(&format!("crates/a/src/m{at}.rs"), &text)
        });
        let text = "\nfn b(c: u8) {}\nfn d() {\n}\nstruct Kept;\n";
        let files: Vec<_> = cycle
            .chain([SourceFile::new("crates/a/src/lib.rs", text)])
            .collect();
        let lists = lists(&Figures::of(&files, &BTreeMap::new()));
        for expected in [
            "Longest functions:\n2 d crates/a/src/lib.rs:3\n1 b crates/a/src/lib.rs:2\n",
            "most arguments:\n1 b crates/a/src/lib.rs:2\n0 d crates/a/src/lib.rs:3\n",
            "five files:\n6 a: m0, m1, m2, m3, m4, m5\n",
            "participle:\nKept crates/a/src/lib.rs:5\n",
        ] {
            assert!(lists.contains(expected), "{expected:?} in {lists}");
        }
    }
}
