//! The aims of the code's structure, and their present values.

use super::{
    distribution::rate,
    figures::{CrateFigures, Figures},
    names, report,
};

/// The crates that every request passes.
const REQUEST_PATH: &[&str] = &["gateway", "proxy", "tokenization"];
const TESTS_PER_1000_LINES: f64 = 15.0;
const MAX_STRUCTS: usize = 8;
const MAX_LONG_FUNCTIONS: usize = 15;
/// The largest cycle of modules that is no reason to act, in files.
pub(super) const MAX_CYCLE: usize = 5;
const MAX_FILE_P90: usize = 250;

/// An aim with its present value.
struct Aim {
    aim: String,
    present: String,
    is_met: bool,
}

/// Returns one row per aim.
pub(super) fn table(figures: &Figures) -> String {
    let mut aims = vec![
        large_structs(figures),
        long_functions(figures),
        cycles(figures),
        arguments(figures),
        file_lines(figures),
    ];
    aims.extend(REQUEST_PATH.iter().map(|name| tests(figures, name)));
    aims.push(none_of(
        "no bare participle as a type name",
        names::participles(&figures.types).len(),
    ));
    aims.push(none_of(
        "no type name for more than two things",
        names::ambiguous(&figures.types).len(),
    ));
    let rows = aims.into_iter().map(|aim| {
        let met = if aim.is_met { "yes" } else { "**no**" };
        format!("| {} | {} | {met} |\n", aim.aim, aim.present)
    });
    "| aim | present | met |\n|---|--:|---|\n".to_owned() + &rows.collect::<String>()
}

fn large_structs(figures: &Figures) -> Aim {
    let large: Vec<_> = figures
        .types
        .iter()
        .filter(|found| found.is_large())
        .collect();
    let inner = large.iter().filter(|found| !found.is_outside_shape).count();
    Aim {
        aim: format!(
            "at most {MAX_STRUCTS} structs with more than 13 fields, all of them command lines or wire shapes"
        ),
        present: format!("{}, {inner} of them neither", large.len()),
        is_met: large.len() <= MAX_STRUCTS && inner == 0,
    }
}

fn long_functions(figures: &Figures) -> Aim {
    let long = figures.function_lines().count_above(60);
    Aim {
        aim: format!("at most {MAX_LONG_FUNCTIONS} functions with more than 60 lines"),
        present: long.to_string(),
        is_met: long <= MAX_LONG_FUNCTIONS,
    }
}

fn cycles(figures: &Figures) -> Aim {
    let large: Vec<_> = figures
        .crates
        .iter()
        .filter(|figures| figures.largest_cycle() > MAX_CYCLE)
        .map(|figures| format!("{} {}", figures.name, figures.largest_cycle()))
        .collect();
    Aim {
        aim: format!("no module cycle with more than {MAX_CYCLE} files in any crate"),
        is_met: large.is_empty(),
        present: match large.as_slice() {
            [] => figures.largest_cycle().0.to_string(),
            _ => large.join(", "),
        },
    }
}

fn arguments(figures: &Figures) -> Aim {
    let arguments = figures.arguments();
    let many = arguments.count_above(4);
    Aim {
        aim: "under 1 % of functions with 5 or more arguments".to_owned(),
        present: report::share(many, arguments.count()),
        is_met: many * 100 < arguments.count(),
    }
}

fn file_lines(figures: &Figures) -> Aim {
    let p90 = figures.file_lines.percentile(90);
    Aim {
        aim: format!("file p90 at most {MAX_FILE_P90} lines at width 100"),
        present: p90.to_string(),
        is_met: p90 <= MAX_FILE_P90,
    }
}

fn tests(figures: &Figures, name: &str) -> Aim {
    let is_named = |figures: &&CrateFigures| figures.name == name;
    let figures = figures.crates.iter().find(is_named);
    let tests = figures.map_or(0.0, |figures| rate(figures.tests, figures.lines, 1_000));
    Aim {
        aim: format!("at least {TESTS_PER_1000_LINES} tests per 1,000 lines in `{name}`"),
        present: format!("{tests:.1}"),
        is_met: tests >= TESTS_PER_1000_LINES,
    }
}

fn none_of(aim: &str, count: usize) -> Aim {
    Aim {
        aim: aim.to_owned(),
        present: count.to_string(),
        is_met: count == 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{super::source_file::source_files, *};

    fn rows(sources: &[(&str, String)]) -> Vec<String> {
        let sources: BTreeMap<_, _> = sources
            .iter()
            .map(|(path, text)| ((*path).to_owned(), text.clone()))
            .collect();
        let files = source_files(&sources);
        let table = table(&Figures::of(&files, &sources));
        table.lines().skip(2).map(str::to_owned).collect()
    }

    fn struct_of(fields: usize) -> String {
        let fields: String = (0..fields).map(|at| format!("f{at}: u8, ")).collect();
        format!("struct Large {{ {fields} }}\n")
    }

    #[test]
    fn an_aim_is_met_up_to_its_limit() {
        let sources = [
            ("crates/gateway/src/lib.rs", "fn a() {\n}\n".repeat(15)),
            (
                "crates/gateway/tests/wire.rs",
                "#[test]\nfn b() {}\n".into(),
            ),
            (
                "crates/net/src/wire.rs",
                format!("#[derive(Serialize)]\n{}", struct_of(14)).repeat(8),
            ),
        ];
        let rows = rows(&sources);
        assert!(
            rows[0].ends_with("| 8, 0 of them neither | yes |"),
            "{}",
            rows[0]
        );
        assert!(rows[3].ends_with("| 0.0 % (0) | yes |"), "{}", rows[3]);
        assert!(rows[5].ends_with("`gateway` | 33.3 | yes |"), "{}", rows[5]);
    }

    #[test]
    fn an_aim_is_missed_beyond_its_limit() {
        let long = format!("fn a() {{\n{}}}\n", "\n".repeat(59));
        let many = "fn b(c: u8, d: u8, e: u8, f: u8, g: bool) {}\nstruct Kept;\n";
        let sources = [
            ("crates/proxy/src/lib.rs", long.repeat(16) + many),
            ("crates/net/src/lib.rs", struct_of(14).repeat(3)),
        ];
        let rows = rows(&sources);
        assert!(
            rows[0].ends_with("| 3, 3 of them neither | **no** |"),
            "{}",
            rows[0]
        );
        assert!(rows[1].ends_with("| 16 | **no** |"), "{}", rows[1]);
        assert!(rows[3].ends_with("| 5.9 % (1) | **no** |"), "{}", rows[3]);
        assert!(rows[6].ends_with("`proxy` | 0.0 | **no** |"), "{}", rows[6]);
        assert!(rows[8].ends_with("| 1 | **no** |"), "{}", rows[8]);
        assert!(rows[9].ends_with("| 1 | **no** |"), "{}", rows[9]);
    }
}
