//! A router with a permanent configuration file.

use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Program, RawClient, RawReply, RouterQueries as _, eventually};

/// The router, its file and its engines.
pub(crate) struct ConfiguredFleet {
    pub(crate) router: Program,
    pub(crate) engines: Vec<Program>,
    pub(crate) folder: TempDir,
}

impl ConfiguredFleet {
    /// `engines` simulated engines without events, and a file that `yaml` makes of their URLs.
    pub(crate) fn start(
        engines: usize,
        yaml: impl Fn(&[String]) -> String,
        flags: &[&str],
    ) -> Self {
        let engines = (0..engines)
            .map(|_| Program::engine(&["--no-kv-events"]))
            .collect();
        Self::before(engines, yaml, flags)
    }

    /// The same before these engines.
    pub(crate) fn before(
        engines: Vec<Program>,
        yaml: impl Fn(&[String]) -> String,
        flags: &[&str],
    ) -> Self {
        let urls: Vec<_> = engines.iter().map(Program::url).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warmroute.yaml");
        std::fs::write(&path, yaml(&urls)).unwrap();
        let router = Program::serve(&[], &[&["-c", path.to_str().unwrap()], flags].concat());
        Self {
            router,
            engines,
            folder,
        }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.engines.iter().map(Program::url).collect()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("warmroute.yaml")
    }

    /// Replaces the file by another one, as an editor does.
    pub(crate) fn write(&self, yaml: &str) {
        let beside = self.folder.path().join("new.yaml");
        std::fs::write(&beside, yaml).unwrap();
        std::fs::rename(beside, self.path()).unwrap();
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> RawReply {
        self.call("POST", path, body.to_string().as_bytes())
    }

    pub(crate) fn call(&self, method: &str, path: &str, body: &[u8]) -> RawReply {
        let mut client = RawClient::connect(&self.router.admin());
        client.send(method, path, &[], body);
        client.reply()
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        RawClient::get(&self.router.admin(), path).json()
    }

    /// The value of a key in the configuration in force, such as `/routing/policy`.
    pub(crate) fn in_force(&self, pointer: &str) -> Value {
        self.get("/admin/config")
            .pointer(pointer)
            .cloned()
            .unwrap_or(Value::Null)
    }

    /// Requests a reload; returns its status and result.
    pub(crate) fn reload(&self, dry_run: bool) -> (u16, Value) {
        let reply = self.post("/admin/reload", &json!({"dry_run": dry_run}));
        (reply.status, reply.json())
    }

    /// Names and states of the workers.
    pub(crate) fn states(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        self.router
            .workers()
            .iter()
            .map(|worker| (text(&worker["name"]), text(&worker["state"])))
            .collect()
    }

    /// Waits until exactly these workers exist and are ready.
    pub(crate) fn until_ready(&self, names: &[&str]) {
        let want: Vec<_> = names
            .iter()
            .map(|name| ((*name).to_owned(), "ready".to_owned()))
            .collect();
        eventually(&format!("{names:?} to be ready"), || {
            let mut states = self.states();
            states.sort();
            (states == want).then_some(())
        });
    }
}
