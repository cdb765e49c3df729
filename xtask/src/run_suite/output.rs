//! The output of a program on both its pipes, line by line.

use std::{
    cell::Cell,
    io::{BufRead as _, BufReader, Read, Write as _},
    process::Child,
    sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    time::Duration,
};

/// Number of lines read ahead; if this many wait, the program waits too.
const LINES_AHEAD: usize = 1024;

#[derive(Clone, Copy, Debug)]
enum Pipe {
    Stdout,
    Stderr,
}

/// One line with its line end, or the last one without it.
#[derive(Debug)]
pub(super) struct OutputLine {
    pipe: Pipe,
    bytes: Vec<u8>,
}

impl OutputLine {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Writes the line to the same stream of this process.
    pub(super) fn pass_on(&self) {
        // An error means that the reader has closed the stream: the line is dropped.
        let _ = match self.pipe {
            Pipe::Stdout => std::io::stdout()
                .write_all(&self.bytes)
                .and_then(|()| std::io::stdout().flush()),
            Pipe::Stderr => std::io::stderr().write_all(&self.bytes),
        };
    }
}

pub(super) enum NextLine {
    Line(OutputLine),
    /// No line arrived in time.
    Nothing,
    /// Both pipes are closed.
    End,
}

/// The output of a running program.
#[derive(Debug)]
pub(super) struct Output {
    lines: Receiver<OutputLine>,
    at_end: Cell<bool>,
}

impl Output {
    /// Takes over the pipes of `child`.
    pub(super) fn of(child: &mut Child) -> Self {
        let (sender, lines) = mpsc::sync_channel(LINES_AHEAD);
        if let Some(stdout) = child.stdout.take() {
            read(stdout, Pipe::Stdout, sender.clone());
        }
        if let Some(stderr) = child.stderr.take() {
            read(stderr, Pipe::Stderr, sender);
        }
        Self {
            lines,
            at_end: Cell::new(false),
        }
    }

    pub(super) fn next(&self, limit: Duration) -> NextLine {
        match self.lines.recv_timeout(limit) {
            Ok(line) => NextLine::Line(line),
            Err(RecvTimeoutError::Timeout) => NextLine::Nothing,
            Err(RecvTimeoutError::Disconnected) => {
                self.at_end.set(true);
                NextLine::End
            }
        }
    }

    /// Whether [`Output::next`] has given everything.
    pub(super) fn is_at_end(&self) -> bool {
        self.at_end.get()
    }
}

fn read(pipe: impl Read + Send + 'static, from: Pipe, lines: SyncSender<OutputLine>) {
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        loop {
            let mut bytes = Vec::new();
            match pipe.read_until(b'\n', &mut bytes) {
                Ok(1..) if lines.send(OutputLine { pipe: from, bytes }).is_ok() => {}
                _ => return,
            }
        }
    });
}
