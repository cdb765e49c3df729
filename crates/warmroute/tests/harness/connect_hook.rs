//! Records the addresses that a program connects to, at the system call.

use std::{collections::BTreeSet, path::PathBuf, process::Command, time::Duration};

use tempfile::TempDir;
use test_programs::limit;

const SOURCE: &str = include_str!("connect_hook.c");
const COMPILE: Duration = Duration::from_secs(120);

/// A library that is loaded into a program before all others. It refuses all addresses but those of
/// this machine.
pub struct ConnectHook {
    folder: TempDir,
}

impl ConnectHook {
    /// Compiles it with the C compiler that builds some dependencies, too.
    pub fn build() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let hook = Self { folder };
        let source = hook.path("hook.c");
        std::fs::write(&source, SOURCE).expect("the source can be written");
        let mut compiler = Command::new("cc");
        let library = hook.path("hook.so");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .args([&library, &source])
            .arg("-ldl");
        let output = limit::output(&mut compiler, COMPILE);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        hook
    }

    /// The variables of a program that it is loaded into.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let path = |name: &str| self.path(name).display().to_string();
        [
            ("LD_PRELOAD", path("hook.so")),
            ("CONNECT_LOG", path("log")),
        ]
    }

    /// The addresses so far, each once; a unix socket as `unix:PATH`.
    pub fn addresses(&self) -> BTreeSet<String> {
        let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// The number of connects so far.
    pub fn connects(&self) -> usize {
        let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines().count()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
