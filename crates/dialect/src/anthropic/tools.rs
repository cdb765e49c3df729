//! Translates the tools and the tool choice.

use crate::{RawJson, json::ObjectWriter};

/// Writes each tool with its schema as the client wrote it. A tool of Anthropic's own servers has
/// no schema: no engine could run it.
pub(super) fn tools(
    chat: &mut ObjectWriter<'_>,
    tools: Option<RawJson<'_>>,
    untranslatable: &mut Option<String>,
) {
    let Some(tools) = tools else { return };
    let Some(elements) = tools.elements() else {
        return chat.raw("tools", tools.as_str());
    };
    // Some engines reject an empty list.
    let mut elements = elements.enumerate().peekable();
    if elements.peek().is_none() {
        return;
    }
    let mut list = chat.array("tools");
    for (at, tool) in elements {
        let kind = tool.member("type").and_then(RawJson::string);
        if let Some(kind) = kind.filter(|kind| kind != "custom") {
            let kind: String = kind.chars().take(60).collect();
            untranslatable.get_or_insert_with(|| {
                format!("tools[{at}] is of type {kind:?}, which only Anthropic's own servers have: leave it out")
            });
            continue;
        }
        let mut one = list.object();
        one.text("type", "function");
        let mut function = one.object("function");
        function.some("name", tool.member("name"));
        function.some("description", tool.member("description"));
        function.some("parameters", tool.member("input_schema"));
        function.some("strict", tool.member("strict"));
        function.close();
        one.close();
    }
    list.close();
}

/// Writes the tool choice, and whether parallel calls are allowed.
pub(super) fn choice(chat: &mut ObjectWriter<'_>, choice: Option<RawJson<'_>>) {
    let Some(choice) = choice else { return };
    match choice.member("type").and_then(RawJson::string).as_deref() {
        Some("auto") => chat.text("tool_choice", "auto"),
        Some("any") => chat.text("tool_choice", "required"),
        Some("none") => chat.text("tool_choice", "none"),
        Some("tool") => {
            let mut named = chat.object("tool_choice");
            named.text("type", "function");
            let mut function = named.object("function");
            function.some("name", choice.member("name"));
            function.close();
            named.close();
        }
        // The engine rejects it.
        _ => chat.raw("tool_choice", choice.as_str()),
    }
    if let Some(alone) = choice
        .member("disable_parallel_tool_use")
        .and_then(RawJson::flag)
    {
        chat.raw("parallel_tool_calls", if alone { "false" } else { "true" });
    }
}
