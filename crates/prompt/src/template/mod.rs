//! Chat templates: compiled once, rendered with limits.
//!
//! Templates are written for one template engine in one language. This module and [`python`]
//! compensate for the differences that real templates depend on; any other failure is an error for
//! the caller, not a wrong text.
//!
//! **Invariant**: a render ends within its fuel, its depth, its budget of bytes and its output
//! limit, and reads only its variables. Compiling a template evaluates no part of it.

mod content_format;
mod json_formatter;
mod library;
mod meter;
mod operators;
mod output;
mod python;
mod resume;
mod rewrite;
mod strftime;

pub(crate) use content_format::ContentFormat;
pub(crate) use output::RenderedText;
pub(crate) use resume::{EarlierLoop, LoopRecord};

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use minijinja::{
    Environment, Error, ErrorKind,
    syntax::SyntaxConfig,
    value::{Serde, Value},
};
use serde_json::Map;

use self::output::OutputWriter;
use crate::{PromptError, cancel};

/// Maximum size of a template. Current ones have up to 20 KB.
const MAX_TEMPLATE_BYTES: usize = 64 << 10;

/// Maximum steps of one render; a message takes some tens.
const FUEL: u64 = 1_000_000;

/// Bytes that a render may read, copy and create, plus a multiple of the input's bytes; see
/// [`meter`]. Templates read each content some tens of times.
const BUDGET_SLACK: usize = 32 << 20;
const BUDGET_FACTOR: usize = 128;
/// Maximum budget: chats of more than 4 MiB get less for each byte.
const MAX_BUDGET: usize = 512 << 20;

/// Maximum nesting of macro calls and loops. Real templates need a handful.
const RECURSION: usize = 64;

/// Maximum output as a multiple of the input's bytes, plus [`OUTPUT_SLACK`].
const OUTPUT_FACTOR: usize = 4;
const OUTPUT_SLACK: usize = 64 << 10;

/// A model's templates by purpose.
#[derive(Debug)]
pub(crate) struct ChatTemplates {
    default: ChatTemplate,
    /// The template for requests with tools, if the model has one.
    tool_use: Option<ChatTemplate>,
}

impl ChatTemplates {
    /// Compiles the named `sources`; the error is the reason why there is no usable template.
    pub(crate) fn compile(
        sources: Vec<(String, String)>,
        special_tokens: Vec<(String, String)>,
    ) -> Result<Self, String> {
        let (mut default, mut tool_use) = (None, None);
        for (name, source) in sources {
            match name.as_str() {
                "default" => default = Some(ChatTemplate::compile(&source, &special_tokens)?),
                "tool_use" => tool_use = Some(ChatTemplate::compile(&source, &special_tokens)?),
                _ => {}
            }
        }
        let default = default.ok_or("the model's files have none")?;
        Ok(Self { default, tool_use })
    }

    pub(crate) fn pick(&self, with_tools: bool) -> &ChatTemplate {
        self.tool_use
            .as_ref()
            .filter(|_| with_tools)
            .unwrap_or(&self.default)
    }
}

/// One template.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(String, String)>,
    content_format: ContentFormat,
    knows_developer: bool,
    bytes: usize,
}

const NAME: &str = "chat";

impl ChatTemplate {
    fn compile(source: &str, special_tokens: &[(String, String)]) -> Result<Self, String> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(format!(
                "it has {} bytes, expected at most {MAX_TEMPLATE_BYTES}",
                source.len()
            ));
        }
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        let syntax = syntax.map_err(|error| error.to_string())?;
        let metered = rewrite::rewrite(&content_format::plain_blocks(source), &syntax)
            .map_err(|error| format!("it does not compile: {error}"))?;
        // Without the template engine's defaults: only metered operations exist.
        let mut environment = Environment::empty();
        environment.set_debug(false);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION);
        library::add(&mut environment);
        operators::add_operators(&mut environment);
        resume::add_filters(&mut environment);
        python::register_python(&mut environment);
        environment
            .add_template_owned(NAME, metered)
            .map_err(|error| format!("it does not compile: {error}"))?;
        Ok(Self {
            environment,
            special_tokens: special_tokens.to_vec(),
            content_format: ContentFormat::of(source),
            knows_developer: source.contains("\"developer\"") || source.contains("'developer'"),
            bytes: source.len(),
        })
    }

    /// Returns the content format that the template expects.
    pub(crate) fn content_format(&self) -> ContentFormat {
        self.content_format
    }

    /// Returns whether the template supports the role `developer`.
    pub(crate) fn knows_developer(&self) -> bool {
        self.knows_developer
    }

    /// Renders the variables, and compares the output with an earlier text.
    pub(crate) fn render(
        &self,
        input: TemplateInput,
        earlier: EarlierText<'_>,
    ) -> Result<RenderedText, PromptError> {
        let size = input.size;
        let all = self.variables(input);
        let limit = OUTPUT_FACTOR * (size + self.bytes) + OUTPUT_SLACK;
        let mut output = OutputWriter::new(earlier.pieces, limit);
        let budget = BUDGET_SLACK
            .saturating_add(size.saturating_mul(BUDGET_FACTOR))
            .min(MAX_BUDGET);
        let render = || {
            let template = self.environment.get_template(NAME)?;
            meter::with_budget(budget, || {
                template
                    .render_captured_to(Value::from_pairs(all), &mut output)
                    .map(drop)
            })?;
            output.end()
        };
        let (rendered, record) =
            resume::with_progress(earlier.main_loop, || catch_unwind(AssertUnwindSafe(render)));
        match rendered {
            _ if cancel::is_cancelled() => Err(PromptError::Cancelled),
            Ok(Ok(())) => output
                .finish(record)
                .map_err(|error| PromptError::Unsupported {
                    what: format!("a text that is not utf-8 ({error})"),
                    is_too_long: false,
                }),
            Ok(Err(error)) => Err(to_prompt_error(&error)),
            Err(_) => Err(PromptError::Unsupported {
                what: "a chat on which the template engine panics".into(),
                is_too_long: false,
            }),
        }
    }

    /// Returns all variables. The client's take precedence over the model's own.
    fn variables(&self, input: TemplateInput) -> BTreeMap<String, Value> {
        let own = self
            .special_tokens
            .iter()
            .map(|(name, text)| (name.clone(), Value::from(text.as_str())));
        let own = own.chain([(
            "strftime_now".to_owned(),
            strftime::strftime_now(input.now_unix_s),
        )]);
        let sent = input
            .variables
            .into_iter()
            .map(|(name, value)| (name, value_of(value)));
        let chat = [
            ("tools".to_owned(), input.tools),
            ("messages".to_owned(), Value::from(input.messages)),
        ];
        own.chain(sent).chain(chat).collect()
    }
}

/// What is known of a text before it is rendered.
#[derive(Clone, Debug, Default)]
pub(crate) struct EarlierText<'a> {
    /// An earlier text, in pieces.
    pub(crate) pieces: &'a [Arc<str>],
    /// The loop over the messages that wrote it.
    pub(crate) main_loop: Option<EarlierLoop>,
}

/// What a template sees.
#[derive(Debug)]
pub(crate) struct TemplateInput {
    /// The variables but tools and messages.
    pub(crate) variables: Map<String, serde_json::Value>,
    /// A list, or none.
    pub(crate) tools: Value,
    pub(crate) messages: Vec<Value>,
    /// Bytes of JSON that all of it was parsed from.
    pub(crate) size: usize,
    pub(crate) now_unix_s: i64,
}

/// Returns a value as a template sees it.
pub(crate) fn value_of(value: serde_json::Value) -> Value {
    Value::from(Serde(value))
}

/// Converts a render error. Only errors that the engine certainly has too are rejections: the
/// template's own exception, and a missing variable. Any other may be a limitation of this template
/// engine, and the real one decides.
fn to_prompt_error(error: &Error) -> PromptError {
    if let Some(message) = python::raised(error) {
        return PromptError::Refused(format!("the chat does not fit the template: {message}"));
    }
    // The error's own description may quote values of the request.
    let (kind, line) = (error.kind(), error.line().unwrap_or(0));
    if kind == ErrorKind::UndefinedError {
        return PromptError::Refused(format!(
            "the chat does not fit the template: {kind} in its line {line}"
        ));
    }
    PromptError::Unsupported {
        what: format!("what the template asks for in its line {line} ({kind})"),
        is_too_long: kind == ErrorKind::OutOfFuel,
    }
}
