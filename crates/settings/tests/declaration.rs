//! What follows from the declaration of a section.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use settings::{
    Availability, CheckedValue, KeySchema, LocatedValue, Reload, Section, Setting, Value,
    ValueKind, ValueNode, ValueOrigin, default_value, kinds, scalar,
};

settings::words! {
    /// Kind of engine.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Engine {
        _ = "auto",
        /// vLLM.
        Vllm = "vllm",
        /// Dynamo.
        Dynamo = "dynamo" | "dyn",
    }
    later "tgi";
}

settings::section! {
    /// A file that must be named.
    #[derive(Clone, Debug, PartialEq)]
    optional struct LogFile {
        /// Its path.
        path: PathBuf = "~", restart;
        /// Time between writes.
        interval: Duration = "10s" in kinds::PAUSE, restart;
    }
}

settings::section! {
    /// A pool.
    #[derive(Clone, Debug, PartialEq)]
    struct Pool {
        /// Most connections; a doc text of
        /// two lines.
        size: usize = "8" in kinds::int(1, 64), restart;
        /// Share that is kept.
        kept: f64 = "0.5", live, simulated;
        /// Kind of its engine.
        engine "type": Option<Engine> = "auto", live;
        /// How long an entry counts.
        ttl "ttl_seconds": Duration = "600" in kinds::seconds(1, 86_400), live;
        /// A key of a later version.
        snapshot: Option<PathBuf> = "~", later;
        /// Where it logs.
        log: Option<LogFile>, restart;
        /// Names by address.
        names: BTreeMap<String, String> = "{}", live;
        /// Inner section.
        inner: Inner, live;
    }
    with {
        /// Filled in later.
        pub resolved: Option<u32>;
    }
}

settings::section! {
    /// An inner section.
    #[derive(Clone, Debug, PartialEq)]
    struct Inner {
        /// Seed of its hashes.
        seed: u64 = "7", restart;
        /// Whether it is on.
        enabled: bool = "true", live;
    }
}

fn key(name: &str) -> &'static KeySchema {
    Pool::KEYS
        .iter()
        .find(|key| key.name == name)
        .unwrap_or_else(|| panic!("no key {name}"))
}

/// Reads a value as a variable would give it.
fn parsed(kind: &ValueKind, text: &str) -> Result<Value, String> {
    let given = LocatedValue {
        node: ValueNode::Loose(text.to_owned().into()),
        origin: ValueOrigin::Named("TEST".to_owned()),
    };
    scalar(kind, &given, &given, |_| Err("no URL here".to_owned())).map_err(|error| error.message)
}

#[test]
fn the_default_is_the_text_of_the_declaration() {
    let pool = Pool::default();
    assert_eq!((pool.size, pool.kept, pool.engine), (8, 0.5, None));
    assert_eq!(pool.ttl, Duration::from_secs(600));
    assert_eq!((&pool.snapshot, &pool.log), (&None, &None));
    assert_eq!((pool.inner.seed, pool.inner.enabled), (7, true));
    assert!(pool.names.is_empty() && pool.resolved.is_none());
    assert_eq!(default_value::<u64>(Inner::KEYS, "seed"), 7);
}

#[test]
fn the_table_has_the_keys_in_order_with_their_documentation_and_marks() {
    let names: Vec<_> = Pool::KEYS.iter().map(|key| key.name).collect();
    assert_eq!(
        names,
        [
            "size",
            "kept",
            "type",
            "ttl_seconds",
            "snapshot",
            "log",
            "names",
            "inner"
        ]
    );
    assert_eq!(
        key("size").doc,
        "Most connections; a doc text of two lines."
    );
    assert_eq!(
        (key("size").reload, key("kept").reload),
        (Reload::Restart, Reload::Live)
    );
    assert_eq!(
        (key("size").simulated, key("kept").simulated),
        (false, true)
    );
    assert_eq!(
        (key("size").built, key("snapshot").built),
        (Availability::Now, Availability::Later)
    );
    assert!(matches!(key("inner").kind, ValueKind::Section(keys) if keys.len() == 2));
}

#[test]
fn a_kind_of_the_declaration_takes_the_place_of_that_of_the_type() {
    assert_eq!(parsed(&key("size").kind, "64"), Ok(Value::Int(64)));
    assert!(parsed(&key("size").kind, "65").is_err());
    assert!(parsed(&key("kept").kind, "1.5").is_err());
    let ttl = CheckedValue::default_of(parsed(&key("ttl_seconds").kind, "2m").expect("a time"));
    assert_eq!(Duration::read(&ttl), Some(Duration::from_secs(120)));
    assert_eq!(ttl.shown(), 120);
}

#[test]
fn a_section_whose_file_is_not_named_is_absent() {
    let mut section = CheckedValue::defaults(Pool::KEYS);
    assert_eq!(Pool::read(&section).expect("a pool").log, None);
    section.key_mut("log").key_mut("path").value = Value::Text("/tmp/log".to_owned());
    let log = Pool::read(&section)
        .expect("a pool")
        .log
        .expect("a file is named");
    assert_eq!(
        (log.path, log.interval),
        (PathBuf::from("/tmp/log"), Duration::from_secs(10))
    );
}

#[test]
fn a_running_program_keeps_what_counts_from_the_next_start_on() {
    let started = Pool::default();
    let mut new = Pool {
        size: 1,
        kept: 1.0,
        inner: Inner {
            seed: 1,
            enabled: false,
        },
        ..Pool::default()
    };
    new.keep_restart_keys(&started);
    assert_eq!((new.size, new.kept), (8, 1.0));
    assert_eq!((new.inner.seed, new.inner.enabled), (7, false));
}

#[test]
fn words_are_read_in_every_spelling_and_a_later_one_is_refused() {
    for (text, engine) in [
        ("auto", None),
        ("VLLM", Some(Engine::Vllm)),
        ("dyn", Some(Engine::Dynamo)),
        ("dynamo", Some(Engine::Dynamo)),
    ] {
        let value = parsed(&Engine::KIND, text).expect("a word");
        assert_eq!(
            Engine::read(&CheckedValue::default_of(value)),
            engine,
            "{text}"
        );
    }
    assert_eq!(Engine::Dynamo.as_str(), "dynamo");
    assert_eq!(
        parsed(&Engine::KIND, "tgi"),
        Err("`tgi` is not built yet in this version".to_owned())
    );
    assert_eq!(Engine::KIND.expected(), "one of auto, vllm, dynamo");
}

#[test]
fn entries_with_a_problem_are_left_out_of_a_list() {
    let items = [Value::Text("a".to_owned()), Value::Unset].map(CheckedValue::default_of);
    let list = CheckedValue::default_of(Value::List(items.to_vec()));
    assert_eq!(Vec::<String>::read(&list), Some(vec!["a".to_owned()]));
    assert_eq!(
        Vec::<String>::read(&CheckedValue::default_of(Value::Unset)),
        None
    );
}
