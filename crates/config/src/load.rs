//! Loads settings from all sources, one stage a line.

use std::collections::HashSet;

use settings::{CheckUrl, LocatedValue};

use crate::{
    Problem, Settings,
    build::build,
    check::Checker,
    foreign, more_workers, overlay,
    problem::{ProblemDraft, report},
    schema::ROOT,
    top, yaml,
};

/// A value set by a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Path of the key, as in `routing.policy`, `workers` (once per worker),
    /// `models.entries["a.b"].tokenizer`, `workers["w1"].kv_events.endpoint`.
    pub path: String,
    /// Its value, as text.
    pub value: String,
    /// Name of the flag in problems.
    pub flag: String,
}

/// An entry of `workers` from neither file, variable nor flag: from an operator's call, or from
/// discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoreWorker {
    /// Name of its origin in problems.
    pub origin: String,
    /// The entry in YAML or JSON: a mapping, or just `[NAME=]URL`. Nothing in it is expanded: a
    /// caller that may add a worker must not read the environment with it.
    pub text: String,
}

/// Inputs of the settings.
#[derive(Clone, Copy, Debug)]
pub struct ConfigSource<'a> {
    /// Name of the file in problems.
    pub name: &'a str,
    /// The YAML text, if there is a file.
    pub text: Option<&'a str>,
    /// The environment. It resolves `${NAME}` in the file, and `WARMROUTE_*` set keys.
    pub env: &'a [(String, String)],
    /// `WARMROUTE_*` variables that are not keys because the program reads them itself.
    pub own_env: &'a [&'a str],
    /// Values set by flags.
    pub overrides: &'a [Override],
    /// Names of workers of the other sources that are left out.
    pub left_out: &'a [String],
    /// More workers, behind those of the other sources. One whose name is taken is skipped.
    pub more_workers: &'a [MoreWorker],
    /// Check of a worker's URL.
    pub check_url: CheckUrl,
}

impl<'a> ConfigSource<'a> {
    /// Returns a file's text alone, under the name of the file in problems. URLs of workers are
    /// taken as they are.
    pub fn of_text(name: &'a str, text: &'a str) -> Self {
        Self {
            name,
            text: Some(text),
            env: &[],
            own_env: &[],
            overrides: &[],
            left_out: &[],
            more_workers: &[],
            check_url: |url| Ok(url.to_owned()),
        }
    }
}

/// Builds settings from all sources. Precedence: flag, environment, file, default.
///
/// # Errors
///
/// Every problem found, in the order of the file, then those of variables and flags.
pub fn load(source: ConfigSource<'_>) -> Result<Settings, Vec<Problem>> {
    let name = source.name;
    let more = source.more_workers;
    let (mut settings, problems) = read(source);
    if !problems.is_empty() {
        return Err(report(problems, name));
    }
    for (at, worker) in settings.workers.iter_mut().enumerate() {
        let origin = settings.origins.named(&["workers", &at.to_string()]);
        worker.found = origin.is_some_and(|origin| more.iter().any(|more| more.origin == origin));
    }
    Ok(settings)
}

/// Returns every problem that [`load`] finds, also beyond its limit, in the order of the file.
pub fn all_problems(source: ConfigSource<'_>) -> Vec<Problem> {
    let name = source.name;
    let (_, drafts) = read(source);
    let mut problems: Vec<_> = drafts.into_iter().map(|draft| draft.finish(name)).collect();
    problems.sort_by_key(|problem| (problem.line, problem.column));
    problems
}

/// Returns the settings and all their problems.
fn read(source: ConfigSource<'_>) -> (Settings, Vec<ProblemDraft>) {
    let ConfigSource {
        name,
        text,
        env,
        own_env,
        overrides,
        left_out,
        more_workers,
        check_url,
    } = source;
    let (mut tree, mut problems) = text.map_or((None, Vec::new()), yaml::parse);
    if let Some(draft) = tree
        .as_ref()
        .and_then(|tree| foreign::recognised(tree, name))
    {
        // One helpful line instead of one for each key.
        (_, problems) = (tree.take(), vec![draft]);
    }
    let mut root = top::tidy(tree, &mut problems);
    let covers = !overrides.is_empty() || overlay::has_keys(env, own_env);
    let of_file = covers.then(|| {
        let mut own = root.clone();
        more_workers::leave_out(&mut own, left_out, check_url);
        file_problems(&own, env, check_url)
    });
    overlay::environment(&mut root, env, own_env, &mut problems);
    overlay::flags(&mut root, overrides, check_url, &mut problems);
    more_workers::leave_out(&mut root, left_out, check_url);
    let passed_over = more_workers::add(&mut root, more_workers, check_url, &mut problems);
    let mut checker = Checker {
        env,
        check_url,
        problems,
    };
    let mut checked = checker.section(ROOT, Some(&root), "");
    let mut problems = checker.problems;
    if let Some(of_file) = of_file {
        let known: HashSet<_> = problems.iter().map(ProblemDraft::place).collect();
        let covered = of_file
            .into_iter()
            .filter(|draft| !known.contains(&draft.place()));
        let covered: Vec<_> = covered.collect();
        problems.extend(covered);
    }
    let settings = build(&mut checked, name, &mut problems);
    let passed_over = report(passed_over, name);
    (
        Settings {
            passed_over,
            ..settings
        },
        problems,
    )
}

/// Returns the problems of the file's own values: a flag or a variable that covers one does not make
/// it right. A value with a variable in it is not judged, as that need not be set where the value is
/// not used.
fn file_problems(
    root: &LocatedValue,
    env: &[(String, String)],
    check_url: CheckUrl,
) -> Vec<ProblemDraft> {
    let mut checker = Checker {
        env,
        check_url,
        problems: Vec::new(),
    };
    checker.section(ROOT, Some(root), "");
    let mut problems = checker.problems;
    problems.retain(|draft| !draft.names_variable());
    problems
}
