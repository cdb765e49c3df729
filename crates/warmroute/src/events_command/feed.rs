//! Reads the sockets: the history first, if it can be replayed, then the live batches.

use std::{io, time::Duration};

use bytes::Bytes;
use kv_events::frames::{self, ReplayFrame};
use tokio::time::timeout;
use zmtp::{Dealer, Limits, Sub, SubEvent};

use super::{CommandEnd, PublisherArgs, SourceArgs};
use crate::{output, signals::StopSignals};

/// Longest wait for the replay socket, and for each message of its answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of history; the rest is dropped with a notice.
const HISTORY_BYTES: usize = 256 << 20;

/// Answer to a request for everything that the publisher still has.
#[derive(Debug)]
pub(super) struct HistoryReply {
    /// The request's frames.
    pub(super) sent: Vec<Vec<u8>>,
    /// The messages, the end marker among them.
    pub(super) received: Vec<Vec<Bytes>>,
    /// Description of how it ended.
    pub(super) outcome: String,
}

impl HistoryReply {
    /// Returns the number of the last batch.
    fn last_seq(&self) -> Option<u64> {
        self.received
            .iter()
            .rev()
            .find_map(|message| match frames::replay(message) {
                Ok(ReplayFrame::Batch { seq, .. }) => Some(seq),
                _ => None,
            })
    }

    fn batches(&self) -> u64 {
        let is_batch = |message: &&Vec<Bytes>| {
            matches!(frames::replay(message), Ok(ReplayFrame::Batch { .. }))
        };
        self.received.iter().filter(is_batch).count() as u64
    }
}

/// Receiver of the messages.
pub(super) trait EventHandler {
    /// Handles a message of the live socket.
    fn live(&mut self, message: &[Bytes]) -> io::Result<()>;
    /// Handles the answer of the replay socket, of which at most `most` batches are wanted.
    fn history(&mut self, history: &HistoryReply, most: u64) -> io::Result<()>;
}

/// Passes messages to `listener` until the wanted number of batches, or a signal.
pub(super) async fn follow(
    source: &SourceArgs,
    listener: &mut impl EventHandler,
) -> io::Result<CommandEnd> {
    let mut stops = StopSignals::catch()?;
    let mut feed = EventFeed {
        source,
        left: source.count.unwrap_or(u64::MAX),
        known: None,
        last_message: None,
    };
    tokio::select! {
        done = feed.run(listener) => done.map(|()| CommandEnd::Done),
        stop = stops.next() => Ok(CommandEnd::Stopped(stop)),
    }
}

struct EventFeed<'a> {
    source: &'a SourceArgs,
    /// Batches still wanted.
    left: u64,
    /// Last number of the history: batches published during the replay arrive twice.
    known: Option<u64>,
    /// The last warning, which is not repeated.
    last_message: Option<String>,
}

impl EventFeed<'_> {
    async fn run(&mut self, listener: &mut impl EventHandler) -> io::Result<()> {
        let mut sub = self.open().await?;
        let mut history = self.source.publisher.replay.is_some();
        while self.left > 0 {
            match sub.next().await {
                SubEvent::Connected { .. } => {
                    self.note(format!("connected to {}", self.source.publisher.endpoint));
                    // Requested once the live socket is connected, so that nothing falls between
                    // the two.
                    if std::mem::take(&mut history) {
                        self.history(listener).await?;
                    }
                }
                SubEvent::Message {
                    frames: message, ..
                } => {
                    if !self.is_known(&message) {
                        listener.live(&message)?;
                        self.left -= 1;
                    }
                }
                SubEvent::Disconnected { reason, .. } => {
                    self.note(format!("connection lost: {reason}"))
                }
                SubEvent::Unreachable { reason, .. } => {
                    self.note(format!("no connection: {reason}"))
                }
            }
        }
        Ok(())
    }

    async fn open(&self) -> io::Result<Sub> {
        let PublisherArgs {
            endpoint,
            topic,
            bind,
            ..
        } = &self.source.publisher;
        let limits = Limits::default();
        if *bind {
            let bound = Sub::bind(endpoint, &[topic.as_bytes()], limits).await;
            bound
                .map(|(sub, _)| sub)
                .map_err(|error| io::Error::other(error.to_string()))
        } else {
            Sub::connect(endpoint, &[topic.as_bytes()], limits)
                .map_err(|error| io::Error::other(error.to_string()))
        }
    }

    async fn history(&mut self, listener: &mut impl EventHandler) -> io::Result<()> {
        let Some(endpoint) = &self.source.publisher.replay else {
            return Ok(());
        };
        let mut dealer = match Dealer::connect(endpoint, Limits::default(), TIMEOUT).await {
            Ok(dealer) => dealer,
            Err(error) => {
                self.note(format!("no history: {endpoint}: {error}"));
                return Ok(());
            }
        };
        let history = request_history(&mut dealer).await;
        self.note(format!(
            "history: {} batches, {}",
            history.batches(),
            history.outcome
        ));
        listener.history(&history, self.left)?;
        self.known = history.last_seq();
        self.left = self.left.saturating_sub(history.batches());
        Ok(())
    }

    /// Returns whether the batch was in the history. Only the first ones can be: a lower number
    /// later belongs to a restarted publisher.
    fn is_known(&mut self, message: &[Bytes]) -> bool {
        let Some(known) = self.known else {
            return false;
        };
        let seq = frames::live(message).ok().and_then(|live| live.seq);
        let is_known = seq.is_some_and(|seq| seq <= known);
        if !is_known {
            self.known = None;
        }
        is_known
    }

    fn note(&mut self, text: String) {
        if self.last_message.as_ref() != Some(&text) {
            output::err(&format!("warmroute events: {text}"));
            self.last_message = Some(text);
        }
    }
}

/// Requests the whole history.
async fn request_history(dealer: &mut Dealer) -> HistoryReply {
    let sent = frames::replay_request(0).to_vec();
    let mut history = HistoryReply {
        sent,
        received: Vec::new(),
        outcome: String::new(),
    };
    history.outcome = match dealer.send(&history.sent).await {
        Err(error) => error.to_string(),
        Ok(()) => receive(dealer, &mut history.received).await,
    };
    history
}

async fn receive(dealer: &mut Dealer, received: &mut Vec<Vec<Bytes>>) -> String {
    let mut bytes = 0;
    loop {
        let message = match timeout(TIMEOUT, dealer.recv()).await {
            Ok(Ok(message)) => message,
            Ok(Err(error)) => {
                return format!("broke off after {} messages: {error}", received.len());
            }
            Err(_) => return format!("silence after {} messages", received.len()),
        };
        bytes += message.iter().map(Bytes::len).sum::<usize>();
        if bytes > HISTORY_BYTES {
            return format!(
                "left out what goes beyond {HISTORY_BYTES} bytes, after {} messages",
                received.len()
            );
        }
        let read = frames::replay(&message).map(|replay| replay == ReplayFrame::End);
        received.push(message);
        match read {
            Ok(false) => {}
            Ok(true) => return "end marker".to_owned(),
            Err(error) => return format!("no answer of a replay socket: {error}"),
        }
    }
}
