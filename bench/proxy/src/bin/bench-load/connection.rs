//! One connection of the load and the requests on it.

use std::{rc::Rc, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use crate::{
    Load,
    exchange::{Exchange, Reuse},
    prompts::{RandomNumbers, write_request},
};

/// When the requests of one connection are due.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// The next request and the time between two; `None`: at once.
    next: Option<(Instant, Duration)>,
    end: Instant,
}

impl Schedule {
    pub(crate) fn closed(end: Instant) -> Self {
        Self { next: None, end }
    }

    pub(crate) fn open(first: Instant, step: Duration, end: Instant) -> Self {
        Self {
            next: Some((first, step)),
            end,
        }
    }

    /// Waits for the next request and returns the moment that it is timed from; `None`: there is no more.
    async fn next(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let Some((due, step)) = &mut self.next else {
            return (now < self.end).then_some(now);
        };
        let moment = *due;
        if moment >= self.end {
            return None;
        }
        *due += *step;
        if moment > now {
            sleep_until(moment).await;
            return Some(Instant::now());
        }
        Some(moment)
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    load: Rc<Load>,
    random: RandomNumbers,
    stream: Option<TcpStream>,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(load: Rc<Load>, number: u32) -> Self {
        Self {
            load,
            random: RandomNumbers::of_connection(number),
            stream: None,
            request: Vec::new(),
            reply: Vec::with_capacity(64 * 1024),
        }
    }

    /// Sends requests until the schedule ends or a reply is not there at `limit`.
    pub(crate) async fn repeat(&mut self, mut schedule: Schedule, limit: Instant) {
        loop {
            write_request(&self.load, &mut self.random, &mut self.request);
            let Some(from) = schedule.next().await else {
                return;
            };
            if !self.request_until(from, limit).await {
                return;
            }
        }
    }

    /// Sends one request.
    pub(crate) async fn once(&mut self, limit: Instant) {
        write_request(&self.load, &mut self.random, &mut self.request);
        self.request_until(Instant::now(), limit).await;
    }

    /// Returns whether the request ended, with a reply or an error, before `limit`.
    async fn request_until(&mut self, from: Instant, limit: Instant) -> bool {
        match timeout_at(limit, self.send(from)).await {
            Ok(Ok(Reuse::Yes)) => {}
            Ok(Ok(Reuse::No)) => self.stream = None,
            Ok(Err(error)) => {
                self.stream = None;
                self.load.statistics.borrow_mut().add_error(&error);
                // A router that refuses everything is not asked without a pause.
                sleep(Duration::from_millis(2)).await;
            }
            Err(_) => {
                self.load.statistics.borrow_mut().timeouts += 1;
                return false;
            }
        }
        true
    }

    async fn send(&mut self, from: Instant) -> Result<Reuse> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                let stream = TcpStream::connect(("127.0.0.1", self.load.port))
                    .await
                    .context("connect")?;
                stream.set_nodelay(true)?;
                none.insert(stream)
            }
        };
        let exchange = Exchange::new(&self.load, stream, from);
        exchange.run(&self.request, &mut self.reply).await
    }
}
