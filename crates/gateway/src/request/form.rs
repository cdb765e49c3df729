//! Requests whose body is a form with files: transcriptions and translations of sound, edits of
//! pictures.
//!
//! The beginning of a form is buffered; the rest of a longer one goes to the worker as it arrives.
//! Such a form is sent once: a worker that has a part of it gets no second attempt, and the receipt
//! says so. Only the field `model` is read, and replaced where the model has another name at the
//! workers.

use std::sync::Arc;

use dialect::{ApiError, ErrorCode, FormError, FormModel, RequestView};
use fleet::ModelView;
use http::{Response, header};
use proxy::BodyRest;
use tokenization::TokenizedPrompt;

use super::{
    accept::AcceptedRequest,
    generation::GenerationStages,
    prefill::Handover,
    preprocess::MODEL,
    queue_wait::WaitRecord,
    receipt::RequestFacts,
    record::RequestGuard,
    reply::refused,
    reply_body::ReplyBody,
    send::{ForwardedFacts, RoutedRequest},
    translate::ApiSupport,
};
use crate::Gateway;

/// Bytes of a form that count as the load of one token: sound of 30 s has about 1500 positions and
/// 500 to 1000 KB.
const BYTES_PER_TOKEN: u64 = 512;

/// Sends a form to a worker of its model.
pub(super) async fn form(
    gateway: &Arc<Gateway>,
    mut call: AcceptedRequest,
    mut guard: Box<RequestGuard>,
) -> Response<ReplyBody> {
    let stages = &gateway.generation;
    let mut wait = stages.form_wait(&call);
    let model = match find_model(gateway, &mut call, &mut wait, &mut guard).await {
        Ok(model) => model,
        Err(error) => return refused(guard, &error),
    };
    match stages.route_form(call, model, wait, &mut guard) {
        Ok(request) => Box::pin(stages.delivery.run(request, guard)).await,
        Err(error) => refused(guard, &error),
    }
}

/// Finds the model that serves the form, and puts its name into the form.
async fn find_model(
    gateway: &Gateway,
    call: &mut AcceptedRequest,
    wait: &mut WaitRecord,
    guard: &mut RequestGuard,
) -> Result<Arc<ModelView>, ApiError> {
    let (named, place) = match read_model(call) {
        Ok(FormModel { name, place }) => (Arc::from(name), Some(place)),
        Err(error @ (FormError::Missing | FormError::TooLate)) => {
            let only = gateway.fleet().only_model();
            (only.ok_or_else(|| refusal(error))?, None)
        }
        Err(error) => return Err(refusal(error)),
    };
    let model = gateway
        .edge
        .preprocessor
        .model_without_json(call, &named, "forms")?;
    if let Some(place) = place.filter(|_| model != named) {
        let body = call.body.bytes();
        let (before, after) = (body.get(..place.start), body.get(place.end..));
        let parts = [
            before.unwrap_or_default(),
            model.as_bytes(),
            after.unwrap_or_default(),
        ];
        call.body.replace(parts.concat().into());
        guard.notes().record_model_rename(named, MODEL);
    }
    let queue = &gateway.generation.delivery.queue;
    let found = queue.model(&model, wait).await?;
    let may_name_any = gateway.edge.preprocessor.hooks.is_empty() && call.may_use_all_models();
    if call.rest.is_some() && !may_name_any {
        // A second field behind what was read could name a model that has a hook or is not allowed.
        let message = "a form above 1 MiB is not accepted where hooks are configured, or with an API key for some models \
                       only: its end is not read here";
        return Err(ApiError::new(ErrorCode::InvalidRequest, message));
    }
    Ok(found)
}

fn read_model(call: &AcceptedRequest) -> Result<FormModel, FormError> {
    let content_type = call.headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let is_whole = call.rest.is_none();
    dialect::form_model(
        content_type.unwrap_or_default(),
        call.body.bytes(),
        is_whole,
    )
}

fn refusal(error: FormError) -> ApiError {
    let message = match error {
        FormError::NotAForm => {
            "expected a form: Content-Type multipart/form-data with a boundary of 1 to 70 characters"
        }
        FormError::Malformed => "the body is not the form that its Content-Type announces",
        FormError::Missing => {
            "the form has no field model, and there is not exactly one model: name one that /v1/models lists"
        }
        FormError::TooLate => {
            "the form does not name its model in its first MiB, and there is not exactly one model: put the field \
             model before the files"
        }
        FormError::Twice => "the form has the field model twice: send it once",
        FormError::BadValue => "the form's field model must be a text of 1 to 1024 bytes",
    };
    let code = if error == FormError::Twice {
        ErrorCode::DuplicateKey
    } else {
        ErrorCode::InvalidRequest
    };
    ApiError::new(code, message).param("model")
}

impl GenerationStages {
    /// Returns the record of a form's wait, which counts its buffered bytes.
    fn form_wait(&self, call: &AcceptedRequest) -> WaitRecord {
        let deadline = call.received + self.request_timeout();
        WaitRecord::new(call.body.bytes().len(), deadline).of_tenant(call.tenant.as_ref())
    }

    /// Gathers the facts of the decision about a form.
    fn route_form(
        &self,
        call: AcceptedRequest,
        model: Arc<ModelView>,
        wait: WaitRecord,
        guard: &mut RequestGuard,
    ) -> Result<RoutedRequest, ApiError> {
        let load = load(&call);
        self.route_unread(call, model, wait, (load, false), guard)
    }

    /// Gathers the facts of the decision about a request whose content the router does not read:
    /// its load in tokens, and whether its reply is a stream. A part of a body that is not buffered
    /// is sent once.
    pub(super) fn route_unread(
        &self,
        call: AcceptedRequest,
        model: Arc<ModelView>,
        wait: WaitRecord,
        (load, stream): (u32, bool),
        guard: &mut RequestGuard,
    ) -> Result<RoutedRequest, ApiError> {
        let api_support = ApiSupport::Openai;
        let pin = self.named_worker(&call)?;
        let prompt = TokenizedPrompt::without_blocks(load);
        let view = RequestView {
            model: (&*model.id).into(),
            stream,
            ..RequestView::default()
        };
        let body_streamed = call.rest.is_some();
        guard.set_request_facts(RequestFacts {
            body_streamed,
            ..RequestFacts::of(&view, &model, call.overrides.priority, &prompt)
        });
        api_support.check(&model)?;
        let facts = ForwardedFacts {
            prompt,
            pin,
            handover: Handover::without_split(),
            api_support,
            keeps_state: body_streamed,
        };
        Ok(RoutedRequest::forwarded(call, model, wait, facts))
    }
}

/// Returns the load of a form, in tokens.
fn load(call: &AcceptedRequest) -> u32 {
    let rest = call.rest.as_ref().and_then(BodyRest::announced);
    let bytes = call.body.bytes().len() as u64 + rest.unwrap_or(0);
    u32::try_from(bytes / BYTES_PER_TOKEN).unwrap_or(u32::MAX)
}
