//! Recognizes files of other routers by keys that no file of ours has, to give their users one
//! instruction.

use settings::{LocatedValue, ValueNode};

use crate::problem::ProblemDraft;

/// Returns the problem of a text that is another router's, or `None`. `name` is the file's name in
/// problems.
pub(crate) fn recognised(tree: &LocatedValue, name: &str) -> Option<ProblemDraft> {
    let ValueNode::Map(entries) = &tree.node else {
        return None;
    };
    // The one key that every file of vLLM Router must have: a mapping with the type of its mode.
    let mode = entries.iter().find(|entry| entry.key == "mode")?;
    let ValueNode::Map(inner) = &mode.value.node else {
        return None;
    };
    let kind = inner.iter().find(|entry| entry.key == "type")?;
    let ours = format!(
        "one of ours: `warmroute config convert --from vllm-router {name} > warmroute.yaml` makes it"
    );
    let draft = ProblemDraft::new("mode", "this is a configuration of vLLM Router").expected(ours);
    Some(draft.at(kind.origin.clone()))
}
