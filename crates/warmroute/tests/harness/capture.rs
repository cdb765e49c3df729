//! What programs print and answer, and the credentials that tests use, for a search that finds none
//! of the credentials in the output (`tests/canaries/run`).
//!
//! Only with `CANARY_FOLDER` in the environment; the routers' log is at its finest level then.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::Path,
    sync::{LazyLock, Mutex},
};

/// Members of a configuration, and parts of the names of variables, whose values are credentials.
const MEMBERS: [&str; 8] = [
    "api_key:",
    "key:",
    "password:",
    "secret_key:",
    "mac_key:",
    "token:",
    "secret:",
    "access_key:",
];
const VARIABLES: [&str; 4] = ["KEY", "SECRET", "TOKEN", "PASSWORD"];
const HEADERS: [&str; 7] = [
    "authorization",
    "x-api-key",
    "api-key",
    "x-router-key",
    "x-admin-key",
    "cookie",
    "proxy-authorization",
];
/// Shorter values are words of the output, too.
const SHORTEST: usize = 8;

struct Files {
    output: Mutex<File>,
    credentials: Mutex<File>,
}

static FILES: LazyLock<Option<Files>> = LazyLock::new(|| {
    let folder = std::env::var_os("CANARY_FOLDER")?;
    let open = |name: &str| {
        let path = Path::new(&folder).join(format!("{name}-{}", std::process::id()));
        let file = OpenOptions::new().create(true).append(true).open(path);
        Mutex::new(file.expect("the folder can be written"))
    };
    Some(Files {
        output: open("output"),
        credentials: open("credentials"),
    })
});

/// The flags of a router whose output is captured.
pub(super) fn flags() -> &'static [&'static str] {
    if FILES.is_some() {
        &["--log-level", "trace"]
    } else {
        &[]
    }
}

/// Captures what a program printed or answered.
pub(super) fn output(bytes: &[u8]) {
    if let Some(files) = &*FILES {
        files
            .output
            .lock()
            .unwrap()
            .write_all(bytes)
            .expect("it can be written");
    }
}

/// Notes the value of a header, if it is a credential.
pub(super) fn header(name: &str, value: &str) {
    if HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
        credential(value);
    }
}

/// Notes the credentials among the arguments of a program, in its configuration and its variables.
pub(super) fn program(args: &[&str], env: &[(&str, &str)]) {
    if FILES.is_none() {
        return;
    }
    for pair in args.windows(2) {
        match pair[0] {
            "--api-key" => credential(pair[1]),
            "--admin-token-file" => {
                credential(&std::fs::read_to_string(pair[1]).unwrap_or_default())
            }
            "-c" | "--config" => {
                configuration(&std::fs::read_to_string(pair[1]).unwrap_or_default())
            }
            _ => {}
        }
    }
    for (name, value) in env {
        if VARIABLES.iter().any(|part| name.contains(part)) {
            credential(value);
        }
    }
}

fn configuration(yaml: &str) {
    for member in MEMBERS {
        for (at, _) in yaml.match_indices(member) {
            let is_whole = yaml[..at].ends_with([' ', '{', '\n', ',']);
            let value = yaml[at + member.len()..].trim_start_matches([' ', '"', '\'']);
            let end = value
                .find([',', '}', '\n', '"', '\'', ' '])
                .unwrap_or(value.len());
            if is_whole {
                credential(&value[..end]);
            }
        }
    }
}

fn credential(value: &str) {
    let word = value.trim().rsplit([' ', '=']).next().unwrap_or_default();
    let is_reference = word.contains("${") || word.starts_with('/');
    if let Some(files) = &*FILES
        && word.len() >= SHORTEST
        && !is_reference
    {
        writeln!(files.credentials.lock().unwrap(), "{word}").expect("it can be written");
    }
}
