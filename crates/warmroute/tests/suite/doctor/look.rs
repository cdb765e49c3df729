//! Running the doctor, and what its report must say.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::Program;

/// What the manual says of misconfigurations.
const MANUAL: &str = include_str!("../../../../../docs/doctor.md");

/// A report and the exit code that came with it.
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

/// A quick engine.
pub(crate) fn engine(flags: &[&str]) -> Program {
    Program::engine(&[&["--speed", "20"], flags].concat())
}

/// Where an engine publishes or answers replays: `what` is `kv_events` or `replay`.
pub(crate) fn place(engine: &Program, what: &str) -> String {
    engine.ready[what][0]
        .as_str()
        .expect("the engine says where it publishes")
        .to_owned()
}

/// Looks at the worker `w1` at `url`, with further arguments.
pub(crate) fn look_at_url(url: &str, args: &[&str]) -> DoctorRun {
    let worker = format!("w1={url}");
    doctor(&[&["-w", &worker], args].concat())
}

/// The same of a running engine.
pub(crate) fn look_at(engine: &Program, args: &[&str]) -> DoctorRun {
    look_at_url(&engine.url(), args)
}

/// Looks at the worker `w1` at `url` with these keys of its own and these sections of configuration.
pub(crate) fn look_with_url(url: &str, keys: &str, sections: &str) -> DoctorRun {
    look_with_file(&format!(
        "{sections}\nworkers:\n  - {{name: w1, url: \"{url}\", {keys}}}\n"
    ))
}

/// The same of a running engine.
pub(crate) fn look_with(engine: &Program, keys: &str, sections: &str) -> DoctorRun {
    look_with_url(&engine.url(), keys, sections)
}

/// Looks with a configuration file of this text.
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
    /// Every check of the report: whose it is, and the check.
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

    /// Those with this status, as `owner id`.
    pub(crate) fn with(&self, status: &str) -> Vec<String> {
        let checks = self
            .checks()
            .into_iter()
            .filter(|(_, check)| check["status"] == status);
        checks
            .map(|(owner, check)| format!("{owner} {}", check["id"].as_str().expect("an id")))
            .collect()
    }

    /// The one check of that id at the worker of that name.
    pub(crate) fn check(&self, owner: &str, id: &str) -> &Value {
        let found = self
            .checks()
            .into_iter()
            .find(|(whose, check)| *whose == owner && check["id"] == id);
        found
            .unwrap_or_else(|| panic!("no {owner} {id} in {}", self.report))
            .1
    }

    /// Asserts that nothing failed and nothing is worth a look, and that it says so.
    pub(crate) fn green(self) -> Self {
        assert_eq!(self.with("fail"), [""; 0], "{}", self.report);
        assert_eq!(self.with("warn"), [""; 0], "{}", self.report);
        assert_eq!((self.code, &self.report["ok"]), (Some(0), &json!(true)));
        self
    }

    /// Asserts that exactly this check failed at `w1`, that nothing else is worth a look, and that its fix has all of
    /// `words`. Answers the check.
    pub(crate) fn only(&self, id: &str, words: &[&str]) -> &Value {
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

    /// Asserts that the check `id` failed for `owners` and nothing else is to be said of anything, that each prints just
    /// this fix, and that the manual's table has it. In the table a fix has its `{names}` where `values` stand here.
    pub(crate) fn names(
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
        self.says("fail", owners, id, fix, values)
    }

    /// The same of something that is only worth a look.
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
        self.says("warn", &[owner], id, fix, values)
    }

    /// Exit code 78: the router would not start.
    pub(crate) fn refuses(&self, fix: &str, values: &[(&str, &str)]) -> &Value {
        assert_eq!(
            (self.code, &self.report["ok"]),
            (Some(78), &json!(false)),
            "{:#}",
            self.report
        );
        self.says("fail", &["router"], "config", fix, values)
    }

    /// Asserts that the check `id` failed for `owners` and nothing else is to be said of anything, and that the manual has
    /// this fix. Answers what each of them printed.
    pub(crate) fn alike(&self, owners: &[&str], id: &str, fix: &str) -> Vec<String> {
        self.is_all("fail", owners, id, fix);
        let fix = |owner: &&str| {
            self.check(owner, id)["fix"]
                .as_str()
                .expect("a failure has a fix")
                .to_owned()
        };
        owners.iter().map(fix).collect()
    }

    fn says(
        &self,
        status: &str,
        owners: &[&str],
        id: &str,
        fix: &str,
        values: &[(&str, &str)],
    ) -> &Value {
        self.is_all(status, owners, id, fix);
        let printed = values.iter().fold(fix.to_owned(), |fix, (name, value)| {
            fix.replace(&format!("{{{name}}}"), value)
        });
        for owner in owners {
            assert_eq!(self.check(owner, id)["fix"], printed.as_str());
        }
        self.check(owners[0], id)
    }

    fn is_all(&self, status: &str, owners: &[&str], id: &str, fix: &str) {
        for (said, wanted) in [("fail", status == "fail"), ("warn", status == "warn")] {
            let expected: Vec<String> = if wanted {
                owners.iter().map(|owner| format!("{owner} {id}")).collect()
            } else {
                Vec::new()
            };
            assert_eq!(self.with(said), expected, "{said}: {:#}", self.report);
        }
        let row = format!("| {status} | `{id}` | `` {fix} `` |");
        assert!(MANUAL.contains(&row), "docs/doctor.md lists no {row}");
    }
}
