//! Runs the doctor and asserts its report.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::Program;

/// The manual's table of misconfigurations.
const MANUAL: &str = include_str!("../../../../../docs/doctor.md");

/// A report and its exit code.
#[derive(Debug)]
pub(crate) struct DoctorRun {
    pub(crate) code: Option<i32>,
    pub(crate) report: Value,
}

/// Runs `doctor --json` with these arguments.
pub(crate) fn doctor(args: &[&str]) -> DoctorRun {
    let end = Program::finish(&[&["doctor", "--json"], args].concat());
    let report = serde_json::from_str(&end.stdout)
        .unwrap_or_else(|error| panic!("{args:?}: stdout is one JSON object ({error}): {end:?}"));
    DoctorRun {
        code: end.code,
        report,
    }
}

/// An engine that answers quickly.
pub(crate) fn engine(flags: &[&str]) -> Program {
    Program::engine(&[&["--speed", "20"], flags].concat())
}

/// The endpoint of an engine's publisher (`kv_events`) or of its replay socket (`replay`).
pub(crate) fn endpoint_of(engine: &Program, what: &str) -> String {
    engine.ready[what][0]
        .as_str()
        .expect("the engine reports its publisher")
        .to_owned()
}

/// Checks the worker `w1` at `url`, with further arguments.
pub(crate) fn look_at_url(url: &str, args: &[&str]) -> DoctorRun {
    let worker = format!("w1={url}");
    doctor(&[&["-w", &worker], args].concat())
}

/// The same for a running engine.
pub(crate) fn look_at(engine: &Program, args: &[&str]) -> DoctorRun {
    look_at_url(&engine.url(), args)
}

/// Checks the worker `w1` at `url` with these worker keys and these sections of configuration.
pub(crate) fn look_with_url(url: &str, keys: &str, sections: &str) -> DoctorRun {
    look_with_file(&format!(
        "{sections}\nworkers:\n  - {{name: w1, url: \"{url}\", {keys}}}\n"
    ))
}

/// The same for a running engine.
pub(crate) fn look_with(engine: &Program, keys: &str, sections: &str) -> DoctorRun {
    look_with_url(&engine.url(), keys, sections)
}

/// Checks a configuration file of this text.
pub(crate) fn look_with_file(yaml: &str) -> DoctorRun {
    let dir = tempfile::tempdir().expect("a directory");
    doctor(&["-c", &write(dir.path(), "warmroute.yaml", yaml)])
}

pub(crate) fn write(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("a file can be written");
    path.display().to_string()
}

impl DoctorRun {
    /// Every check of the report with its owner: a worker's name or `router`.
    fn checks(&self) -> Vec<(&str, &Value)> {
        let router = self.report["checks"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|check| ("router", check));
        let workers = self.report["workers"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|worker| {
                let name = worker["name"].as_str().expect("a worker has a name");
                worker["checks"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(move |check| (name, check))
            });
        router.chain(workers).collect()
    }

    /// The checks with this status, as `owner id`.
    pub(crate) fn with(&self, status: &str) -> Vec<String> {
        let checks = self
            .checks()
            .into_iter()
            .filter(|(_, check)| check["status"] == status);
        checks
            .map(|(owner, check)| format!("{owner} {}", check["id"].as_str().expect("an id")))
            .collect()
    }

    /// The only check with that id of that owner.
    pub(crate) fn check(&self, owner: &str, id: &str) -> &Value {
        let found = self
            .checks()
            .into_iter()
            .find(|(whose, check)| *whose == owner && check["id"] == id);
        found
            .unwrap_or_else(|| panic!("no {owner} {id} in {}", self.report))
            .1
    }

    /// Asserts that nothing failed and nothing warns, and that the summary confirms it.
    pub(crate) fn green(self) -> Self {
        assert_eq!(self.with("fail"), [""; 0], "{}", self.report);
        assert_eq!(self.with("warn"), [""; 0], "{}", self.report);
        assert_eq!((self.code, &self.report["ok"]), (Some(0), &json!(true)));
        self
    }

    /// Asserts that only this check failed at `w1`, that nothing warns, and that its fix contains
    /// all of `words`. Returns the check.
    pub(crate) fn fails_only(&self, id: &str, words: &[&str]) -> &Value {
        assert_eq!(self.with("fail"), [format!("w1 {id}")], "{:#}", self.report);
        assert_eq!(self.with("warn"), [""; 0], "{:#}", self.report);
        assert_eq!((self.code, &self.report["ok"]), (Some(1), &json!(false)));
        let check = self.check("w1", id);
        let fix = check["fix"]
            .as_str()
            .unwrap_or_else(|| panic!("no fix in {check}"));
        for word in words {
            assert!(fix.contains(word), "no {word:?} in {fix:?}");
        }
        check
    }

    /// Asserts that the check `id` failed for `owners` and that no other check fails or warns, that
    /// each prints exactly this fix, and that the manual's table has it. The table has `{names}`
    /// where `values` are filled in here.
    pub(crate) fn fails(
        &self,
        owners: &[&str],
        id: &str,
        fix: &str,
        values: &[(&str, &str)],
    ) -> &Value {
        assert_eq!(
            (self.code, &self.report["ok"]),
            (Some(1), &json!(false)),
            "{:#}",
            self.report
        );
        self.reports("fail", owners, id, fix, values)
    }

    /// The same for a warning.
    pub(crate) fn warns(
        &self,
        owner: &str,
        id: &str,
        fix: &str,
        values: &[(&str, &str)],
    ) -> &Value {
        assert_eq!(
            (self.code, &self.report["ok"]),
            (Some(0), &json!(true)),
            "{:#}",
            self.report
        );
        self.reports("warn", &[owner], id, fix, values)
    }

    /// Exit code 78: the router would not start.
    pub(crate) fn refuses(&self, fix: &str, values: &[(&str, &str)]) -> &Value {
        assert_eq!(
            (self.code, &self.report["ok"]),
            (Some(78), &json!(false)),
            "{:#}",
            self.report
        );
        self.reports("fail", &["router"], "config", fix, values)
    }

    /// Asserts that the check `id` failed for `owners` and that no other check fails or warns, and
    /// that the manual has this fix. Returns the fix that each owner got.
    pub(crate) fn fixes(&self, owners: &[&str], id: &str, fix: &str) -> Vec<String> {
        self.assert_all("fail", owners, id, fix);
        let fix = |owner: &&str| {
            self.check(owner, id)["fix"]
                .as_str()
                .expect("a failure has a fix")
                .to_owned()
        };
        owners.iter().map(fix).collect()
    }

    fn reports(
        &self,
        status: &str,
        owners: &[&str],
        id: &str,
        fix: &str,
        values: &[(&str, &str)],
    ) -> &Value {
        self.assert_all(status, owners, id, fix);
        let printed = values.iter().fold(fix.to_owned(), |fix, (name, value)| {
            fix.replace(&format!("{{{name}}}"), value)
        });
        for owner in owners {
            assert_eq!(self.check(owner, id)["fix"], printed.as_str());
        }
        self.check(owners[0], id)
    }

    fn assert_all(&self, status: &str, owners: &[&str], id: &str, fix: &str) {
        for (known, wanted) in [("fail", status == "fail"), ("warn", status == "warn")] {
            let expected: Vec<String> = if wanted {
                owners.iter().map(|owner| format!("{owner} {id}")).collect()
            } else {
                Vec::new()
            };
            assert_eq!(self.with(known), expected, "{known}: {:#}", self.report);
        }
        let row = format!("| {status} | `{id}` | `` {fix} `` |");
        assert!(MANUAL.contains(&row), "docs/doctor.md lists no {row}");
    }
}
