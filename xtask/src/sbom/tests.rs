use std::{collections::BTreeSet, path::Path, sync::LazyLock};

use contract_id::contract;
use serde_json::{Value, json};

use super::{Checksums, Graph, components, document, inputs};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let text = super::sbom(repository()).expect("the document of this repository");
    serde_json::from_str(&text).expect("the document is JSON")
});

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the repository")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn entries(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn names(list: &Value) -> BTreeSet<String> {
    let name = |entry: &Value| format!("{} {}", text(&entry["name"]), text(&entry["version"]));
    entries(list).iter().map(name).collect()
}

#[test]
#[contract("S76")]
fn the_document_has_the_fields_that_cyclonedx_1_5_requires() {
    let document = &*DOCUMENT;
    assert_eq!(document["bomFormat"], "CycloneDX");
    assert_eq!(document["specVersion"], "1.5");
    assert_eq!(document["version"], 1);
    let subject = &document["metadata"]["component"];
    assert_eq!(
        (&subject["type"], &subject["name"]),
        (&json!("application"), &json!("warmroute"))
    );
    for component in entries(&document["components"]) {
        assert_eq!(component["type"], "library", "{component}");
        let [license] = entries(&component["licenses"]) else {
            panic!("not one licence: {component}");
        };
        let license = spdx::Expression::parse(text(&license["expression"]));
        assert!(license.is_ok(), "{component}");
        let reference = text(&component["bom-ref"]);
        if reference.starts_with("workspace:") {
            assert_eq!(
                (&component["purl"], &component["hashes"]),
                (&Value::Null, &Value::Null)
            );
            continue;
        }
        assert_eq!(text(&component["purl"]), reference);
        let [hash] = entries(&component["hashes"]) else {
            panic!("not one hash: {component}");
        };
        let content = text(&hash["content"]);
        assert!(
            hash["alg"] == "SHA-256" && content.len() == 64,
            "{component}"
        );
        assert!(content.bytes().all(|digit| digit.is_ascii_hexdigit()));
    }
}

/// The tree of a build of the program alone, asked for with cargo's other notation.
#[test]
#[contract("S76")]
fn every_crate_of_the_dependency_tree_is_in_the_document() {
    let manifest = repository().join("crates/warmroute");
    let args = [
        "tree",
        "--edges",
        "normal,no-proc-macro",
        "--target",
        super::TARGET,
        "--prefix",
        "depth",
    ];
    let tree = super::cargo(&manifest, &args).expect("the tree");
    let tree = String::from_utf8(tree).expect("the tree is text");
    let mut listed = names(&DOCUMENT["components"]);
    listed.insert(format!(
        "warmroute {}",
        text(&DOCUMENT["metadata"]["component"]["version"])
    ));
    let mut lines = 0;
    for line in tree.lines() {
        let line = line.trim_start_matches(|digit: char| digit.is_ascii_digit());
        let mut words = line.split(' ');
        let (name, version) = (
            words.next().expect("a name"),
            words.next().expect("a version"),
        );
        let named = format!("{name} {}", version.trim_start_matches('v'));
        assert!(listed.contains(&named), "{named} is missing");
        lines += 1;
    }
    assert!(lines > 200, "{tree}");
    assert!(listed.contains("gateway 0.1.0") && listed.iter().any(|it| it.starts_with("rustls ")));
    // A dependency of tests alone.
    assert!(
        !listed.iter().any(|it| it.starts_with("proptest ")),
        "{listed:?}"
    );
}

#[test]
#[contract("S76")]
fn each_crate_has_its_dependencies_and_the_program_leads_to_all() {
    let document = &*DOCUMENT;
    let subject = text(&document["metadata"]["component"]["bom-ref"]);
    let references: BTreeSet<_> = entries(&document["components"])
        .iter()
        .map(|component| text(&component["bom-ref"]))
        .chain([subject])
        .collect();
    let nodes = entries(&document["dependencies"]);
    let listed: BTreeSet<_> = nodes.iter().map(|node| text(&node["ref"])).collect();
    assert_eq!(listed, references);
    assert_eq!(listed.len(), nodes.len(), "a reference comes twice");
    let (mut reached, mut next) = (BTreeSet::from([subject]), vec![subject]);
    while let Some(at) = next.pop() {
        let node = nodes.iter().find(|node| node["ref"] == at);
        for needed in entries(&node.expect("a node")["dependsOn"])
            .iter()
            .map(text)
        {
            if reached.insert(needed) {
                next.push(needed);
            }
        }
    }
    assert_eq!(reached, references);
}

#[test]
#[contract("S76")]
fn equal_sources_give_equal_bytes() {
    let once = super::sbom(repository()).expect("the document");
    assert_eq!(super::sbom(repository()).expect("the document again"), once);
    assert!(
        !once.contains(env!("CARGO_MANIFEST_DIR")),
        "a path of this machine"
    );
}

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Returns the metadata of `warmroute`, which needs `a`; `kind` is that of the dependency.
fn metadata(license: &str, kind: &Value) -> Graph {
    let json = json!({
        "packages": [
            {"id": "w", "name": "warmroute", "version": "0.1.0", "license": "MIT", "source": null},
            {"id": "a", "name": "a", "version": "1.0.0+b", "license": license, "source": REGISTRY},
        ],
        "resolve": {"nodes": [
            {"id": "w", "deps": [{"pkg": "a", "dep_kinds": [{"kind": kind}]}]},
            {"id": "a", "deps": []},
        ]},
    });
    Graph::read(json.to_string().as_bytes()).expect("known fields")
}

fn built(graph: &Graph, lock: &str) -> Result<String, String> {
    let tree = inputs::tree("warmroute v0.1.0 (/here)\na v1.0.0+b\n\na v1.0.0+b (*)\n")?;
    let components = components(graph, &tree, &Checksums::read(lock)?)?;
    document::render("warmroute", &components)
}

const LOCK: &str = "[[package]]\nname = \"warmroute\"\nversion = \"0.1.0\"\n\n\
    [[package]]\nname = \"a\"\nversion = \"1.0.0+b\"\nchecksum = \"00ff\"\n";

#[test]
fn names_versions_and_licences_are_written_as_their_standards_say() {
    let text = built(&metadata("MIT/Apache-2.0", &Value::Null), LOCK).expect("a document");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        document["components"],
        json!([{
            "type": "library", "bom-ref": "pkg:cargo/a@1.0.0%2Bb", "name": "a", "version": "1.0.0+b",
            "licenses": [{"expression": "MIT OR Apache-2.0"}],
            "hashes": [{"alg": "SHA-256", "content": "00ff"}],
            "purl": "pkg:cargo/a@1.0.0%2Bb",
        }])
    );
    let needs = &document["dependencies"];
    assert_eq!(
        *needs,
        json!([
            {"ref": "pkg:cargo/a@1.0.0%2Bb", "dependsOn": []},
            {"ref": "workspace:warmroute@0.1.0", "dependsOn": ["pkg:cargo/a@1.0.0%2Bb"]},
        ])
    );
    let of_tests = built(&metadata("MIT", &json!("dev")), LOCK).expect("a document");
    let of_tests: Value = serde_json::from_str(&of_tests).expect("JSON");
    assert_eq!(of_tests["dependencies"][1]["dependsOn"], json!([]));
}

#[test]
fn a_crate_without_checksum_or_with_an_unknown_licence_is_an_error() {
    let graph = |license| metadata(license, &Value::Null);
    let without = LOCK.replace("checksum", "other");
    assert_eq!(
        built(&graph("MIT"), &without),
        Err("a 1.0.0+b has no checksum in Cargo.lock".to_owned())
    );
    let error = built(&graph("whatever you like"), LOCK).expect_err("no licence");
    assert!(
        error.starts_with("the licence `whatever you like` is no SPDX"),
        "{error}"
    );
    assert!(inputs::tree("a line\n").is_err());
}
