//! The C library of the publisher as an engine's author has it: installed, and linked with a program
//! in C whose events a router follows.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::LazyLock,
    time::Duration,
};

use contract_id::contract;
use serde_json::json;
use test_programs::limit;

use crate::harness::{Program, RawClient, RouterQueries as _, eventually};

const LIBRARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../warmroute-publisher");
const FREE: &str = "tcp://127.0.0.1:0";
/// Its number on Linux.
const SIGPIPE: u64 = 13;
/// Longest time of an installation, a compilation and a program's start or end.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linkage {
    Shared,
    Static,
}

/// The example, linked in each way; one compilation serves all tests.
static EXAMPLES: LazyLock<[(Linkage, PathBuf); 2]> = LazyLock::new(|| {
    let library = InstalledLibrary::install();
    [Linkage::Shared, Linkage::Static].map(|linkage| (linkage, library.compile(linkage)))
});

fn shared_example() -> &'static Path {
    &EXAMPLES[0].1
}

/// The folder that the library is installed in.
struct InstalledLibrary {
    folder: PathBuf,
}

impl InstalledLibrary {
    fn install() -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-publisher");
        // It is there if the tests ran before.
        let _ = fs::remove_dir_all(&folder);
        install(&folder, Path::new(""));
        Self { folder }
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.folder.join(inside)
    }

    /// The words of a field of its pkg-config file.
    fn flags(&self, field: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path("lib/pkgconfig/warmroute-publisher.pc"));
        let text = text.expect("it is installed");
        let (head, fields) = text.split_once("\n\n").expect("variables and fields");
        let line = fields
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{field}: ")));
        let mut line = line.expect("the field").to_owned();
        for variable in head.lines().rev() {
            let (name, value) = variable.split_once('=').expect("a variable");
            line = line.replace(&format!("${{{name}}}"), value);
        }
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles the example.
    fn compile(&self, linkage: Linkage) -> PathBuf {
        let program = self.path(&format!("{linkage:?}"));
        let mut compiler = Command::new("cc");
        compiler
            .args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"])
            .arg(format!("{LIBRARY}/examples/publisher.c"))
            .args(self.flags("Cflags"));
        let libraries = self.path("lib");
        match linkage {
            Linkage::Shared => compiler
                .args(self.flags("Libs"))
                .arg(format!("-Wl,-rpath,{}", libraries.display())),
            Linkage::Static => compiler
                .arg(libraries.join("libwarmroute_publisher.a"))
                .args(self.flags("Libs.private")),
        };
        let output = limit::output(compiler.arg("-o").arg(&program), PATIENCE);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{linkage:?}: {errors}");
        program
    }
}

/// Installs the library that cargo has built for this test program, beside which it lies.
fn install(prefix: &Path, destination: &Path) {
    let program = std::env::current_exe().expect("this program has a path");
    let mut script = Command::new(format!("{LIBRARY}/install"));
    script
        .arg(program.parent().expect("its folder"))
        .env("PREFIX", prefix)
        .env("DESTDIR", destination);
    let output = limit::output(&mut script, PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

/// The running example. Dropping it kills the process.
struct Example {
    child: Child,
    input: ChildStdin,
    endpoint: String,
    replay_endpoint: String,
}

impl Example {
    fn start(program: &Path) -> Self {
        let mut child = Command::new(program)
            .args([FREE, FREE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let input = child.stdin.take().expect("stdin is piped");
        let output = child.stdout.take().expect("stdout is piped");
        let mut example = Self {
            child,
            input,
            endpoint: String::new(),
            replay_endpoint: String::new(),
        };
        let line = limit::first_line(output, PATIENCE).expect("the line of its endpoints");
        let (endpoint, replay_endpoint) = line.split_once(' ').expect("two endpoints");
        endpoint.clone_into(&mut example.endpoint);
        replay_endpoint.clone_into(&mut example.replay_endpoint);
        example
    }

    /// The blocked signals of those of its threads that are the library's, or of the other ones.
    fn blocked_signals(&self, of_library: bool) -> Vec<u64> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let threads = threads.expect("its threads").flatten();
        // A thread may have ended meanwhile.
        let statuses = threads.filter_map(|it| fs::read_to_string(it.path().join("status")).ok());
        let chosen =
            statuses.filter(|status| status.starts_with("Name:\twarmroute-event") == of_library);
        let blocked = |status: String| {
            let mask = status
                .lines()
                .find_map(|line| line.strip_prefix("SigBlk:\t"));
            u64::from_str_radix(mask.expect("the mask"), 16).expect("a number")
        };
        chosen.map(blocked).collect()
    }

    fn step(&mut self) {
        self.input.write_all(b"\n").expect("the program reads");
    }

    fn end(&mut self) -> ExitStatus {
        limit::wait(&mut self.child, PATIENCE, "the program in C")
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A router in front of an engine that publishes no events of its own.
struct FollowingRouter {
    router: Program,
    _engine: Program,
}

impl FollowingRouter {
    fn start(example: &Example) -> Self {
        let engine = Program::engine(&["--no-kv-events", "--block-size", "16"]);
        let events =
            json!({"endpoint": example.endpoint, "replay_endpoint": example.replay_endpoint});
        let worker =
            json!({"name": "w1", "url": engine.url(), "block_size": 16, "kv_events": events});
        let settings = json!({"workers": [worker]});
        let router = Program::serve_with(&settings.to_string(), &[], &[]).ready(1);
        Self {
            router,
            _engine: engine,
        }
    }

    /// Waits until the router predicts this many cached tokens of the example's prompt.
    fn predicts(&self, tokens: u64) {
        let prompt: Vec<u32> = (0..100).collect();
        let body = json!({"model": "sim", "token_ids": prompt}).to_string();
        eventually(&format!("a prediction of {tokens} tokens"), || {
            let reply = RawClient::post(&self.router.data(), "/v1/route", body.as_bytes());
            let receipt = reply.json();
            let found = &receipt["candidates"][0]["predicted_cached_tokens"];
            (*found == tokens).then_some(())
        });
    }
}

#[test]
#[contract("DY37")]
fn a_router_follows_the_events_of_a_program_in_c() {
    for (linkage, program) in EXAMPLES.iter() {
        let mut example = Example::start(program);
        // It has published before the router runs, which asks for the history.
        let router = FollowingRouter::start(&example);
        router.predicts(64);
        example.step();
        router.predicts(96);
        example.step();
        router.predicts(32);
        example.step();
        router.predicts(0);
        example.step();
        assert_eq!(example.end().code(), Some(0), "{linkage:?}");
    }
}

#[test]
#[contract("DY37")]
fn a_program_in_c_gets_a_code_and_a_text_for_a_bad_argument() {
    let output = limit::output(
        Command::new(shared_example()).args(["5557", FREE]),
        PATIENCE,
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "create: endpoint: endpoint \"5557\" has no supported transport: write tcp://host:port or ipc:///path (code 1)\n"
    );
}

#[test]
#[contract("DY37")]
fn signals_of_a_program_in_c_reach_its_own_threads_only() {
    let example = Example::start(shared_example());
    // An answer to a subscriber shows that the library's thread runs.
    FollowingRouter::start(&example).predicts(64);
    let of_library = example.blocked_signals(true);
    let pipe = 1_u64 << (SIGPIPE - 1);
    assert!(!of_library.is_empty());
    assert!(
        of_library.iter().all(|mask| mask & pipe != 0),
        "{of_library:x?}"
    );
    assert_eq!(example.blocked_signals(false), [0]);
}

#[test]
#[contract("DY37")]
fn a_program_in_c_asks_for_the_shared_object_by_the_number_of_its_functions() {
    let program = fs::read(shared_example()).expect("it is compiled");
    let name = b"libwarmroute_publisher.so.0\0";
    assert!(program.windows(name.len()).any(|bytes| bytes == name));
}

#[test]
#[contract("DY37")]
fn a_package_of_the_library_names_the_folder_that_it_will_be_in() {
    let package = tempfile::tempdir().expect("a folder");
    install(Path::new("/opt/engine"), package.path());
    let installed = |file: &str| package.path().join("opt/engine").join(file);
    for file in [
        "include/warmroute_publisher.h",
        "lib/libwarmroute_publisher.a",
        "lib/libwarmroute_publisher.so.0",
        "lib/libwarmroute_publisher.so",
    ] {
        assert!(installed(file).is_file(), "{file}");
    }
    let description = fs::read_to_string(installed("lib/pkgconfig/warmroute-publisher.pc"));
    let description = description.expect("it is installed");
    for line in [
        "prefix=/opt/engine\n",
        concat!("\nVersion: ", env!("CARGO_PKG_VERSION"), "\n"),
    ] {
        assert!(description.contains(line), "{description}");
    }
}
