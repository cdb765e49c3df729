//! The bodies of replies, with whatever is to go wrong in them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, stream};
use serde_json::Value;

use crate::{detokenizer::Detokenizer, fault::Fault, generation::Generation, server_state::ServerState};

use super::{
    ApiError, Cut,
    shape::{Shape, Usage},
};

/// What was written before a cut has this long to leave; else the peer would see less than was promised.
const FLUSH: Duration = Duration::from_millis(5);

/// A reply as server-sent events.
pub(crate) struct EventStream {
    state: Arc<ServerState>,
    shape: Shape,
    /// `None` once its last token is written.
    generation: Option<Generation>,
    detokenizer: Detokenizer,
    fault: Option<Fault>,
    usage: Usage,
    queue: VecDeque<Bytes>,
    written: usize,
}

impl EventStream {
    pub(crate) fn new(state: Arc<ServerState>, shape: Shape, generation: Generation, fault: Option<Fault>) -> Self {
        Self {
            state,
            shape,
            usage: Usage { prompt: generation.prompt.len(), ..Usage::default() },
            generation: Some(generation),
            detokenizer: Detokenizer::default(),
            fault,
            queue: VecDeque::new(),
            written: 0,
        }
    }

    pub(crate) fn chunks(self) -> impl Stream<Item = Result<Bytes, Cut>> + Send + 'static {
        stream::unfold(Some(self), |events| async move {
            let mut events = events?;
            match events.next().await {
                Some(Ok(event)) => Some((Ok(event), Some(events))),
                Some(Err(cut)) => Some((Err(cut), None)),
                None => None,
            }
        })
    }

    async fn next(&mut self) -> Option<Result<Bytes, Cut>> {
        while self.queue.is_empty() && self.generation.is_some() {
            if self.advance().await.is_err() {
                return Some(Err(self.cut().await));
            }
        }
        match self.fault {
            Some(Fault::ResetMid(after)) if self.written >= after => return Some(Err(self.cut().await)),
            Some(Fault::StallMid(after)) if self.written >= after => std::future::pending().await,
            Some(Fault::ErrorMid(after)) if self.written >= after => {
                self.fault = None;
                self.discard();
                self.queue = [data(&ApiError::of_status(500).value()), done()].into();
            }
            Some(Fault::ShortBody) if self.generation.is_none() && self.queue.len() <= 1 => {
                return Some(Err(self.cut().await));
            }
            _ => {}
        }
        let event = self.queue.pop_front()?;
        self.written += 1;
        Some(Ok(event))
    }

    /// Takes one token and writes its events.
    async fn advance(&mut self) -> Result<(), Cut> {
        let Some(generation) = &mut self.generation else { return Ok(()) };
        let emitted = generation.next().await.map_err(|_| Cut)?;
        let first = self.usage.completion == 0;
        self.usage.completion += 1;
        self.usage.cached = u64::from(emitted.cached_tokens);
        if first && let Some(chunk) = self.shape.role_chunk(&generation.prompt) {
            self.queue.push_back(data(&chunk));
        }
        let text = self.detokenizer.push(&self.state.tokenizer.model, emitted.token);
        let prompt = first.then_some(&*generation.prompt);
        self.queue.push_back(data(&self.shape.token_chunk(&text, emitted.token, emitted.finish, prompt)));
        if emitted.finish.is_some() {
            self.generation = None;
            if self.shape.include_usage {
                self.queue.push_back(data(&self.shape.usage_chunk(self.usage)));
            }
            if self.fault != Some(Fault::NoDone) {
                self.queue.push_back(done());
            }
        }
        Ok(())
    }

    async fn cut(&mut self) -> Cut {
        self.discard();
        tokio::time::sleep(FLUSH).await;
        Cut
    }

    fn discard(&mut self) {
        if let Some(generation) = self.generation.take() {
            generation.discard();
        }
    }
}

/// A plain body that breaks off: the first `bytes` of it, then the fault.
pub(crate) fn broken_body(
    whole: Bytes,
    bytes: usize,
    then: BrokenEnd,
) -> impl Stream<Item = Result<Bytes, Cut>> + Send + 'static {
    let part = whole.slice(..bytes.min(whole.len()));
    stream::unfold(Some(part), move |part| async move {
        match part {
            Some(part) if !part.is_empty() => Some((Ok(part), Some(Bytes::new()))),
            _ => match then {
                BrokenEnd::Cut => {
                    tokio::time::sleep(FLUSH).await;
                    Some((Err(Cut), None))
                }
                BrokenEnd::Stall => std::future::pending().await,
            },
        }
    })
}

/// How a broken body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokenEnd {
    /// With its connection.
    Cut,
    /// Not at all.
    Stall,
}

fn data(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

fn done() -> Bytes {
    Bytes::from_static(b"data: [DONE]\n\n")
}
