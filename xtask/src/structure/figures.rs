//! The figures of the workspace, before they are formatted.

use std::collections::BTreeMap;

use super::{
    cycles::cycles,
    distribution::Distribution,
    functions::{Function, functions},
    modules::module_graph,
    source_file::SourceFile,
    test_count::tests_by_crate,
    types::{TypeDefinition, types},
};
use crate::rust_tokens::SourceToken;

/// All figures.
pub(super) struct Figures {
    pub(super) crates: Vec<CrateFigures>,
    pub(super) file_lines: Distribution,
    pub(super) functions: Vec<Function>,
    pub(super) types: Vec<TypeDefinition>,
    pub(super) text: TextFigures,
}

/// The figures of one crate.
pub(super) struct CrateFigures {
    pub(super) name: String,
    pub(super) file_lines: Distribution,
    pub(super) lines: usize,
    pub(super) tests: usize,
    /// The members of each cycle of modules, the largest cycle first.
    pub(super) cycles: Vec<Vec<String>>,
}

/// Counts of lines and characters.
#[derive(Default)]
pub(super) struct TextFigures {
    pub(super) filled_lines: usize,
    pub(super) lines_over_100: usize,
    /// Without the white space around a line.
    pub(super) characters: usize,
    pub(super) code_lines: usize,
    /// Calls of `unwrap` and `expect` outside test modules.
    pub(super) unwraps: usize,
}

impl Figures {
    pub(super) fn of(files: &[SourceFile], sources: &BTreeMap<String, String>) -> Self {
        let tests = tests_by_crate(sources);
        let mut by_crate: BTreeMap<&str, Vec<&SourceFile>> = BTreeMap::new();
        for file in files {
            by_crate.entry(file.crate_name()).or_default().push(file);
        }
        let crates = by_crate
            .iter()
            .map(|(name, files)| crate_figures(name, files, tests.get(name).copied()))
            .collect();
        Self {
            crates,
            file_lines: Distribution::new(files.iter().map(SourceFile::lines)),
            functions: files.iter().flat_map(functions).collect(),
            types: files.iter().flat_map(types).collect(),
            text: text_figures(files),
        }
    }

    pub(super) fn lines(&self) -> usize {
        self.crates.iter().map(|figures| figures.lines).sum()
    }

    pub(super) fn tests(&self) -> usize {
        self.crates.iter().map(|figures| figures.tests).sum()
    }

    pub(super) fn function_lines(&self) -> Distribution {
        Distribution::new(self.functions.iter().map(|function| function.lines))
    }

    pub(super) fn arguments(&self) -> Distribution {
        Distribution::new(self.functions.iter().map(|function| function.arguments))
    }

    pub(super) fn fields(&self) -> Distribution {
        Distribution::new(self.types.iter().filter_map(|found| found.fields))
    }

    /// Returns the largest cycle of modules and its crate.
    pub(super) fn largest_cycle(&self) -> (usize, &str) {
        let sizes = self
            .crates
            .iter()
            .map(|figures| (figures.largest_cycle(), figures.name.as_str()));
        sizes.max_by_key(|(size, _)| *size).unwrap_or((0, ""))
    }
}

impl CrateFigures {
    /// Returns the number of modules in the largest cycle, 0 without one.
    pub(super) fn largest_cycle(&self) -> usize {
        self.cycles.first().map_or(0, Vec::len)
    }
}

fn crate_figures(name: &str, files: &[&SourceFile], tests: Option<usize>) -> CrateFigures {
    let graph = module_graph(files);
    let owned = |cycle: Vec<&str>| cycle.into_iter().map(str::to_owned).collect();
    CrateFigures {
        name: name.to_owned(),
        file_lines: Distribution::new(files.iter().map(|file| file.lines())),
        lines: files.iter().map(|file| file.lines()).sum(),
        tests: tests.unwrap_or_default(),
        cycles: cycles(&graph).into_iter().map(owned).collect(),
    }
}

fn text_figures(files: &[SourceFile]) -> TextFigures {
    let mut figures = TextFigures::default();
    for file in files {
        for line in file.text.lines().filter(|line| !line.trim().is_empty()) {
            figures.filled_lines += 1;
            figures.lines_over_100 += usize::from(line.chars().count() > 100);
            figures.characters += line.trim().chars().count();
        }
        figures.code_lines += file.code_lines();
        figures.unwraps += unwraps(file);
    }
    figures
}

fn unwraps(file: &SourceFile) -> usize {
    let calls = file.tokens.windows(3).enumerate().filter(|(at, tokens)| {
        let is_unwrap = matches!(tokens[1].word(), Some("unwrap" | "expect"));
        tokens[0].is_sign('.') && is_unwrap && opens_call(&tokens[2]) && !file.is_test(*at)
    });
    calls.count()
}

fn opens_call(token: &SourceToken) -> bool {
    token.is_sign('(')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_counted_by_line_and_by_call() {
        let long = format!("    // {}\n", "x".repeat(100));
        let source = format!(
            "fn a() {{ b.unwrap(); c\n    .expect(\"d\"); }}\n\n{long}#[cfg(test)]\nmod tests {{ fn e() {{ f.unwrap() }} }}\n"
        );
        let text = text_figures(&[SourceFile::new("crates/a/src/lib.rs", &source)]);
        assert_eq!((text.filled_lines, text.lines_over_100), (5, 1));
        assert_eq!((text.code_lines, text.unwraps), (2, 2));
        assert_eq!(text.characters, 22 + 15 + 103 + 12 + 35);
    }
}
