//! Renders the table as a page for people.

use std::fmt::Write as _;

use settings::{Availability, KeySchema, ValueKind};

use crate::reload::is_fixed;
use crate::schema::ROOT;

const HEAD: &str = "# Configuration

One YAML file, `-c FILE`. This page is generated from the declarations of the keys; a test keeps the two equal.

- `serve` and `doctor` search the file if neither `-c` names one nor flags or variables name workers: `./config.yaml`,
  `/etc/warmroute/config.yaml`, `/etc/continuum-router/config.yaml`, then the same two in `~/.config`; `config.yml` after
  `config.yaml` in each directory. A line on stderr names the file.
- Precedence: flag, environment variable, file, default. The variable of a key is `WARMROUTE_` and the key's path in
  capitals with `__` between levels: `routing.policy` is `WARMROUTE_ROUTING__POLICY`. The items of a list are separated by
  commas there. An empty variable counts as unset; an unknown `WARMROUTE_` variable is an error.
- `${NAME}` in a text of the file is replaced by the value of that environment variable; an unset one is an error. `$${`
  stands for `${` itself.
- Durations: `250ms`, `30s`, `5m`, `1h`, or a bare number of seconds. Sizes: `32KiB`, `512MiB`, `1MB`, or a bare number of
  bytes. `~` means unset.
- All errors of a file (unknown or duplicate keys, values out of range) are reported at once, with line and column, and
  the exit code is 78. `warmroute config check` only checks.
- The program reloads a changed file while it runs, and also on SIGHUP and on `POST /admin/reload`. A key marked \"needs a
  restart\" takes effect at the next start. A file with an error changes nothing.
- A key marked \"not active yet\" is checked and has no effect in this version; the program says so at the start.
- A key marked \"not built yet\" is known, but this version accepts only its default.

";

/// Returns `docs/configuration.md`: every key with its default, accepted values and meaning.
pub fn reference_page() -> String {
    let mut out = HEAD.to_owned();
    for key in ROOT {
        match key.kind {
            ValueKind::Section(keys) => {
                write!(out, "## `{}`\n\n{}\n\n", key.name, key.doc)
                    .expect("a String takes everything");
                table(keys, key.name, &mut out);
            }
            ValueKind::List(ValueKind::Worker(keys)) => {
                write!(out, "## `{}`\n\n{}\n\n", key.name, key.doc)
                    .expect("a String takes everything");
                table(keys, "workers[]", &mut out);
            }
            ValueKind::List(ValueKind::Section(keys)) => {
                write!(out, "## `{}`\n\n{}\n\n", key.name, key.doc)
                    .expect("a String takes everything");
                table(keys, &format!("{}[]", key.name), &mut out);
            }
            _ => {}
        }
    }
    out
}

fn table(keys: &[KeySchema], path: &str, out: &mut String) {
    out.push_str("| key | default | takes | meaning |\n|---|---|---|---|\n");
    rows(keys, path, out);
    out.push('\n');
}

fn rows(keys: &[KeySchema], path: &str, out: &mut String) {
    for key in keys {
        let path = format!("{path}.{}", key.name);
        match key.kind {
            ValueKind::Section([]) => {
                writeln!(
                    out,
                    "| `{path}` | `{{}}` | {} | {} |",
                    key.kind.expected(),
                    key.doc
                )
                .expect("a String takes everything");
            }
            ValueKind::Section(inner) => rows(inner, &path, out),
            ValueKind::List(ValueKind::Section(inner)) => {
                row(key, &path, out);
                rows(inner, &format!("{path}[]"), out);
            }
            ValueKind::Map(ValueKind::Section(inner)) => {
                row(key, &path, out);
                rows(inner, &format!("{path}.NAME"), out);
            }
            _ => row(key, &path, out),
        }
    }
}

fn row(key: &KeySchema, path: &str, out: &mut String) {
    let default = if key.default.is_empty() {
        "\"\""
    } else {
        key.default
    };
    let later = match key.built {
        Availability::Now => "",
        Availability::Later => " *Not built yet.*",
    };
    let fixed = if later.is_empty() && is_fixed(path) {
        " *Needs a restart.*"
    } else {
        ""
    };
    let takes = takes(&key.kind);
    writeln!(
        out,
        "| `{path}` | `{default}` | {takes} | {}{later}{fixed} |",
        key.doc
    )
    .expect("a String takes everything");
}

fn takes(kind: &ValueKind) -> String {
    match kind {
        ValueKind::Duration { .. } => "duration".into(),
        ValueKind::List(item) => format!("list: {}", takes(item)),
        ValueKind::WordOr(choices, other) => {
            let words: Vec<_> = choices
                .iter()
                .filter(|choice| choice.built == Availability::Now)
                .map(|c| c.word)
                .collect();
            if words.is_empty() {
                takes(other)
            } else {
                format!("{}, or {}", words.join(", "), takes(other))
            }
        }
        other => other.expected(),
    }
}
