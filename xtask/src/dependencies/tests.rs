use serde_json::{Value, json};

use super::{DenyPolicy, Metadata, policy::LicenseException, problems};

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Returns the repository's policy without its exceptions.
fn policy() -> DenyPolicy {
    let mut policy = DenyPolicy::read(include_str!("../../../deny.toml"))
        .expect("the file of the repository parses");
    policy.licenses.exceptions.clear();
    policy
}

/// Returns a crate of the registry with these fields replaced.
fn package(name: &str, fields: Value) -> Value {
    let mut package = json!({
        "name": name, "version": "1.2.3", "license": "MIT OR Apache-2.0", "source": REGISTRY, "publish": null,
        "dependencies": [],
    });
    let fields = fields.as_object().expect("fields are an object").clone();
    package
        .as_object_mut()
        .expect("a package is an object")
        .extend(fields);
    package
}

fn found(policy: &DenyPolicy, packages: &[Value]) -> Vec<String> {
    let metadata =
        Metadata::read(json!({"packages": packages}).to_string().as_bytes()).expect("known fields");
    problems(policy, &metadata)
}

fn licensed(license: &str) -> Vec<String> {
    found(&policy(), &[package("a", json!({"license": license}))])
}

#[test]
fn the_dependencies_of_this_workspace_satisfy_the_policy() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the repository");
    let said = super::check(root).expect("nothing offends");
    let crates: usize = said
        .split(' ')
        .find_map(|word| word.parse().ok())
        .expect("a number of crates");
    assert!(crates > 100, "{said}");
}

#[test]
fn one_licence_of_an_or_suffices_and_all_of_an_and_are_needed() {
    for fine in [
        "MIT",
        "GPL-3.0-only OR MIT",
        "MIT/Apache-2.0",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
    ] {
        assert_eq!(licensed(fine), [""; 0], "{fine}");
    }
    for bad in [
        "GPL-3.0-only",
        "MIT AND GPL-3.0-only",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert_eq!(
            licensed(bad),
            [format!(
                "a 1.2.3: the licence `{bad}` is not allowed by licenses.allow"
            )]
        );
    }
    assert!(
        licensed("whatever you like")[0]
            .starts_with("a 1.2.3: the licence `whatever you like` is no SPDX")
    );
    let none = found(&policy(), &[package("a", json!({"license": null}))]);
    assert!(
        none[0].starts_with("a 1.2.3: its manifest names no licence"),
        "{none:?}"
    );
}

#[test]
fn an_exception_applies_to_its_crate_only_and_must_be_used() {
    let mut policy = policy();
    let allow = vec!["NCSA".to_owned()];
    policy.licenses.exceptions.push(LicenseException {
        name: "a".to_owned(),
        allow,
    });
    let [a, b] = ["a", "b"].map(|name| package(name, json!({"license": "MIT AND NCSA"})));
    assert_eq!(found(&policy, &[a]), [""; 0]);
    let others = found(&policy, &[b]);
    assert_eq!(others.len(), 2, "{others:?}");
    assert!(
        others[0].starts_with("b 1.2.3: the licence")
            && others[1].starts_with("a: licenses.exceptions names it")
    );
}

#[test]
fn a_banned_crate_is_named_with_the_reason() {
    let banned = found(&policy(), &[package("serde_yaml", json!({}))]);
    assert_eq!(banned.len(), 1, "{banned:?}");
    assert!(
        banned[0].starts_with("serde_yaml 1.2.3: banned by bans.deny: deprecated"),
        "{banned:?}"
    );
}

#[test]
fn another_source_than_the_registry_is_named() {
    for source in [
        "git+https://github.com/a/b?rev=1#2",
        "registry+https://example.com/index",
        "sparse+https://example.com/",
    ] {
        let other = found(&policy(), &[package("a", json!({"source": source}))]);
        assert_eq!(
            other,
            [format!(
                "a 1.2.3: comes from {source}, which sources.allow-registry does not name"
            )]
        );
    }
}

#[test]
fn workspace_crates_need_no_licence_and_must_not_use_wildcard_versions() {
    let dependencies = json!([{"name": "ours", "req": "*", "path": "/ours"}, {"name": "b", "req": "^1", "path": null}]);
    let ours =
        json!({"license": null, "source": null, "publish": [], "dependencies": dependencies});
    assert_eq!(found(&policy(), &[package("a", ours.clone())]), [""; 0]);
    let mut any = package("a", ours);
    any["dependencies"][1]["req"] = json!("*");
    assert_eq!(
        found(&policy(), &[any]),
        ["a 1.2.3: takes any version of b: name one"]
    );
}

#[test]
fn a_rule_that_is_not_implemented_is_refused() {
    let text = include_str!("../../../deny.toml");
    for (from, to) in [
        (
            "multiple-versions = \"warn\"",
            "multiple-versions = \"deny\"",
        ),
        ("all-features = true", "all-features = false"),
        (
            "unknown-git = \"deny\"",
            "unknown-git = \"deny\"\nallow-git = []",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        assert!(
            DenyPolicy::read(&text.replacen(from, to, 1)).is_err(),
            "{to}"
        );
    }
}
