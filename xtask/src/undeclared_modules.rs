//! Files in the folder of a test program that no module declares. The compiler does not see them, and their tests would be
//! lost without a word.

use std::collections::BTreeMap;

use crate::rust_tokens::tokens;

/// One line for each such file of `sources`, which are texts by path.
pub(crate) fn find(sources: &BTreeMap<String, String>) -> Vec<String> {
    let in_programs = sources
        .keys()
        .filter_map(|path| Some((path, ModuleFile::of(path, sources)?)));
    in_programs
        .filter(|(_, module)| {
            let parents = module.parents();
            let mut texts = parents.iter().filter_map(|parent| sources.get(parent));
            !texts.any(|text| declares(text, module.name))
        })
        .map(|(path, module)| {
            format!(
                "{path} is in no test program: declare `mod {};` in {}",
                module.name,
                module.parents().join(" or ")
            )
        })
        .collect()
}

/// A file that a test program has as a module.
struct ModuleFile<'p> {
    /// The folder of the module's parent.
    folder: &'p str,
    name: &'p str,
}

impl<'p> ModuleFile<'p> {
    /// `None`: a program's own root, or outside the folders of programs.
    fn of(path: &'p str, sources: &BTreeMap<String, String>) -> Option<Self> {
        let (package, inside) = path.split_once("/tests/")?;
        let (program, module) = inside.split_once('/')?;
        if module == "main.rs"
            || !sources.contains_key(&format!("{package}/tests/{program}/main.rs"))
        {
            return None;
        }
        let file = path.strip_suffix("/mod.rs").or(path.strip_suffix(".rs"))?;
        let (folder, name) = file.rsplit_once('/')?;
        Some(Self { folder, name })
    }

    /// Where it can be declared.
    fn parents(&self) -> [String; 3] {
        let folder = self.folder;
        [
            format!("{folder}/main.rs"),
            format!("{folder}/mod.rs"),
            format!("{folder}.rs"),
        ]
    }
}

fn declares(text: &str, module: &str) -> bool {
    tokens(text).windows(3).any(|tokens| {
        tokens[0].word() == Some("mod")
            && tokens[1].word() == Some(module)
            && tokens[2].is_sign(';')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undeclared(files: &[(&str, &str)]) -> Vec<String> {
        let owned = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        find(&files.iter().map(owned).collect())
    }

    #[test]
    fn a_file_that_its_parent_does_not_declare_is_named() {
        let files = [
            (
                "crates/net/tests/suite/main.rs",
                "mod a; mod b; // mod lost;\n",
            ),
            ("crates/net/tests/suite/a.rs", "mod part;"),
            ("crates/net/tests/suite/a/part.rs", ""),
            ("crates/net/tests/suite/a/other.rs", ""),
            (
                "crates/net/tests/suite/b/mod.rs",
                "#[path = \"x.rs\"] mod part;",
            ),
            ("crates/net/tests/suite/b/part.rs", ""),
            ("crates/net/tests/suite/lost.rs", ""),
            ("crates/net/tests/suite/gone/mod.rs", "mod deep;"),
            ("crates/net/tests/suite/gone/deep.rs", ""),
        ];
        let named: Vec<_> = undeclared(&files)
            .iter()
            .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
            .collect();
        assert_eq!(
            named,
            [
                "crates/net/tests/suite/a/other.rs",
                "crates/net/tests/suite/gone/mod.rs",
                "crates/net/tests/suite/lost.rs",
            ]
        );
    }

    #[test]
    fn programs_and_what_they_share_need_no_declaration() {
        let files = [
            ("crates/net/tests/wire.rs", ""),
            ("crates/net/tests/harness/mod.rs", ""),
            ("crates/net/tests/harness/chat.rs", ""),
            ("crates/net/tests/suite/main.rs", ""),
            ("crates/net/src/tests/parts.rs", ""),
        ];
        assert_eq!(undeclared(&files), [""; 0]);
    }
}
