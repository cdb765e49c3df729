//! Recognizes files of other routers by keys that no file of ours has, to give their users one
//! instruction.

use settings::{LocatedValue, MapEntry, ValueNode};

use crate::problem::ProblemDraft;

/// Keys of Continuum Router that are not ours, and that its converter renames.
const CONTINUUM: &[&str] = &["selection_strategy", "load_balancer"];

/// Returns the problem of a text that is another router's, or `None`. `name` is the file's name in
/// problems.
pub(crate) fn recognised(tree: &LocatedValue, name: &str) -> Option<ProblemDraft> {
    let top = entries(tree)?;
    // The one key that every file of vLLM Router must have: a mapping with the type of its mode.
    let (path, place, router, word) = if let Some(kind) =
        member(top, "mode").and_then(|mode| member(entries(&mode.value)?, "type"))
    {
        ("mode", kind, "vLLM Router", "vllm-router")
    } else if let Some(key) = CONTINUUM.iter().find_map(|key| member(top, key)) {
        (key.key.as_str(), key, "Continuum Router", "continuum")
    } else {
        let server = member(top, "server")?;
        let address = member(entries(&server.value)?, "bind_address")?;
        (
            "server.bind_address",
            address,
            "Continuum Router",
            "continuum",
        )
    };
    let ours = format!(
        "one of ours: `warmroute config convert --from {word} {name} > warmroute.yaml` makes it"
    );
    let draft = ProblemDraft::new(path, format!("this is a configuration of {router}"));
    Some(draft.expected(ours).at(place.origin.clone()))
}

fn entries(tree: &LocatedValue) -> Option<&[MapEntry]> {
    match &tree.node {
        ValueNode::Map(entries) => Some(entries),
        _ => None,
    }
}

fn member<'a>(entries: &'a [MapEntry], key: &str) -> Option<&'a MapEntry> {
    entries.iter().find(|entry| entry.key == key)
}
