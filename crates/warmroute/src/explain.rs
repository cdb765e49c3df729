//! `warmroute explain`: queries a running router which target a request would get, or why one got its
//! target.
//!
//! It decides nothing itself: a dry run or a stored receipt comes from the router's admin listener,
//! and is shown as a table or as received.

mod table;

use std::{path::PathBuf, time::Duration};

use clap::Args;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use net::{WorkerUrl, fetch};
use serde_json::{Map, Value};

use crate::{exit_code::ExitCode, output, settings};

/// Time limit for the router's answer: a long prompt has to be tokenized first.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer that is read; a receipt has a few KiB.
const ANSWER_BYTES: usize = 16 << 20;

#[derive(Args, Debug)]
#[command(
    after_help = "Exit code: 0 with an answer; 2 if the question is wrong, also when the router says so with a 400; 1 if \
                  there is no answer for another reason."
)]
pub(crate) struct ExplainArgs {
    /// The router's admin listener: http://HOST:PORT, HOST:PORT or unix:/PATH.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9191", value_parser = admin_url)]
    pub(crate) url: WorkerUrl,
    #[command(flatten)]
    pub(crate) query: ExplainQuery,
    /// The model; needed if the router serves several and the request names none.
    #[arg(long, value_name = "ID", conflicts_with = "decision")]
    pub(crate) model: Option<String>,
    /// Print the receipt as one JSON object on stdout and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// File that holds the token of the admin listener; without the flag, the variable WARMROUTE_ADMIN_TOKEN holds it.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,
}

/// What is to be explained.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct ExplainQuery {
    /// Who would get this prompt, as a plain completion.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Who would get this request: a JSON file with the body of a chat or completion request, or of /v1/route. Nothing
    /// is reserved: a request_id in it is left out.
    #[arg(long, value_name = "FILE")]
    pub(crate) request: Option<PathBuf>,
    /// Why the request of this decision (header x-warmroute-decision) went where it did.
    #[arg(long, value_name = "ID")]
    pub(crate) decision: Option<String>,
}

/// Reason for a missing answer, with its exit code.
struct ExplainError {
    message: String,
    code: u8,
}

impl ExplainError {
    /// Returns the error for a wrong query.
    fn usage(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: settings::BAD_FLAG,
        }
    }

    /// Returns the error for a router that gave no answer.
    fn answer(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: 1,
        }
    }
}

pub(crate) fn run(args: &ExplainArgs) -> ExitCode {
    let answer = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ExplainError::answer(format!("the runtime could not be started: {error}")))
        .and_then(|runtime| runtime.block_on(request(args)));
    let shown = answer.and_then(|receipt| {
        if args.json {
            Ok(receipt.to_string())
        } else {
            as_table(receipt)
        }
    });
    match shown {
        Ok(shown) => output::out(shown.trim_end()),
        Err(error) => {
            output::err(&format!("warmroute explain: {}", error.message));
            return ExitCode::from(error.code);
        }
    }
    ExitCode::SUCCESS
}

fn as_table(receipt: Value) -> Result<String, ExplainError> {
    let receipt: api::Receipt<'static> = serde_json::from_value(receipt).map_err(|error| {
        ExplainError::answer(format!(
            "the router's receipt is of another version ({error}): --json prints it as it is"
        ))
    })?;
    Ok(table::of(&receipt))
}

async fn request(args: &ExplainArgs) -> Result<Value, ExplainError> {
    let router = AdminListener {
        url: &args.url,
        headers: headers(args)?,
    };
    if let Some(id) = &args.query.decision {
        // Only a valid id becomes part of a path.
        let id: routing::receipt::DecisionId =
            id.parse()
                .map_err(|error: routing::receipt::DecisionIdError| {
                    ExplainError::usage(error.to_string())
                })?;
        return router.get(&format!("/admin/decisions/{id}")).await;
    }
    let mut body = body(&args.query)?;
    if let Some(model) = &args.model {
        body.insert("model".to_owned(), Value::from(model.as_str()));
    }
    if !body.contains_key("model") {
        body.insert("model".to_owned(), Value::from(router.only_model().await?));
    }
    router
        .post("/v1/route", Value::Object(body).to_string())
        .await
}

/// Returns the body of the dry run.
fn body(query: &ExplainQuery) -> Result<Map<String, Value>, ExplainError> {
    if let Some(prompt) = &query.prompt {
        return Ok(Map::from_iter([(
            "prompt".to_owned(),
            Value::from(prompt.as_str()),
        )]));
    }
    let path = query
        .request
        .as_deref()
        .unwrap_or_else(|| std::path::Path::new(""));
    let shown = path.display();
    let text = std::fs::read(path)
        .map_err(|error| ExplainError::usage(format!("{shown} cannot be read: {error}")))?;
    match serde_json::from_slice(&text) {
        Ok(Value::Object(mut body)) => {
            // Engines take a `request_id` too. To the router it would mean a reservation, and a dry
            // run makes none.
            body.remove("request_id");
            Ok(body)
        }
        Ok(_) => Err(ExplainError::usage(format!(
            "{shown} holds no JSON object: write the body of a request into it"
        ))),
        Err(error) => Err(ExplainError::usage(format!(
            "{shown} is not JSON ({error}): write the body of a request into it"
        ))),
    }
}

fn headers(args: &ExplainArgs) -> Result<HeaderMap, ExplainError> {
    let mut headers = HeaderMap::new();
    let token = match &args.admin_token_file {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|error| {
            ExplainError::usage(format!("{} cannot be read: {error}", path.display()))
        })?),
        None => std::env::var(settings::ADMIN_TOKEN).ok(),
    };
    if let Some(token) = token
        .as_deref()
        .map(str::trim)
        .filter(|token| !token.is_empty())
    {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
            ExplainError::usage(
                "the admin token is not plain text: it must be the router's own, on one line",
            )
        })?;
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
    Ok(headers)
}

/// Parses the address, also in the forms of the ready line and the configuration: `host:port` or
/// `unix:/path`.
fn admin_url(text: &str) -> Result<WorkerUrl, String> {
    let url = match text.strip_prefix("unix:") {
        _ if text.contains("://") => text.to_owned(),
        Some(path) => format!("unix://{path}"),
        None => format!("http://{text}"),
    };
    url.parse()
        .map_err(|error: net::WorkerUrlError| error.to_string())
}

/// Admin listener of a running router.
struct AdminListener<'a> {
    url: &'a WorkerUrl,
    headers: HeaderMap,
}

impl AdminListener<'_> {
    async fn get(&self, path: &str) -> Result<Value, ExplainError> {
        read(fetch::get(self.url, path, &self.headers, TIMEOUT, ANSWER_BYTES).await)
    }

    async fn post(&self, path: &str, body: String) -> Result<Value, ExplainError> {
        read(
            fetch::post(
                self.url,
                path,
                &self.headers,
                Some(body.into()),
                TIMEOUT,
                ANSWER_BYTES,
            )
            .await,
        )
    }

    /// Returns the router's only model.
    async fn only_model(&self) -> Result<String, ExplainError> {
        let list = self.get("/admin/models").await?;
        let models = list["models"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let ids: Vec<&str> = models
            .iter()
            .filter_map(|model| model["id"].as_str())
            .collect();
        match ids.as_slice() {
            [only] => Ok((*only).to_owned()),
            [] => Err(ExplainError::answer(
                "the router knows of no model yet: check `/admin/workers`, or name one with --model",
            )),
            several => Err(ExplainError::usage(format!(
                "the router serves {}: name one of them with --model",
                several.join(", ")
            ))),
        }
    }
}

fn read(answer: Result<fetch::FetchedReply, fetch::FetchError>) -> Result<Value, ExplainError> {
    let answer = answer
        .map_err(|error| ExplainError::answer(format!("the router's admin listener: {error}")))?;
    let body: Option<Value> = serde_json::from_slice(&answer.body).ok();
    if answer.status == StatusCode::OK
        && let Some(body) = body
    {
        return Ok(body);
    }
    let Some(error) = body
        .as_ref()
        .map(|body| &body["error"])
        .filter(|error| error.is_object())
    else {
        let status = answer.status.as_u16();
        return Err(ExplainError::answer(format!(
            "what answered with status {status} is no admin listener: check --url"
        )));
    };
    let text = |field: &str| error[field].as_str().unwrap_or("?").to_owned();
    let message = format!("{} ({})", text("message"), text("code"));
    Err(if answer.status == StatusCode::BAD_REQUEST {
        ExplainError::usage(message)
    } else {
        ExplainError::answer(message)
    })
}
