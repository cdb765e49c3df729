//! A test's actions on the live stream of events.

use std::str::FromStr;

/// A test's action on the live stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamAction {
    /// Pauses the live messages.
    Pause,
    /// Sends the paused messages.
    Resume,
    /// Skips the next messages; their number.
    Drop(u64),
    /// Sends each of the next messages twice; their number.
    Duplicate(u64),
    /// Sends the next messages together, last one first; their number.
    Reorder(u64),
    /// Sends the next messages with a payload that is no batch; their number.
    Corrupt(u64),
    /// Restarts the engine process: empty cache, sequence 0, every connection cut.
    Restart,
}

/// The text is not an action.
#[derive(Debug, thiserror::Error)]
#[error(
    "action {0:?} is unknown: expected pause, resume, drop:N, duplicate:N, reorder:N, corrupt:N or restart"
)]
pub(crate) struct StreamActionError(String);

impl FromStr for StreamAction {
    type Err = StreamActionError;

    fn from_str(text: &str) -> Result<Self, StreamActionError> {
        let (name, count) = text
            .split_once(':')
            .map_or((text, None), |(name, count)| (name, Some(count)));
        let count = count
            .map(str::parse::<u64>)
            .transpose()
            .map_err(|_| StreamActionError(text.to_owned()))?;
        match (name, count) {
            ("pause", None) => Ok(Self::Pause),
            ("resume", None) => Ok(Self::Resume),
            ("restart", None) => Ok(Self::Restart),
            ("drop", Some(count)) => Ok(Self::Drop(count)),
            ("duplicate", Some(count)) => Ok(Self::Duplicate(count)),
            ("reorder", Some(count)) => Ok(Self::Reorder(count)),
            ("corrupt", Some(count)) => Ok(Self::Corrupt(count)),
            _ => Err(StreamActionError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_have_their_documented_names() {
        assert_eq!(
            "drop:3".parse::<StreamAction>().unwrap(),
            StreamAction::Drop(3)
        );
        assert_eq!(
            "restart".parse::<StreamAction>().unwrap(),
            StreamAction::Restart
        );
        for wrong in ["drop", "pause:1", "drop:x", ""] {
            assert!(wrong.parse::<StreamAction>().is_err(), "{wrong}");
        }
    }
}
