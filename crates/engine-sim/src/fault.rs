//! Injected faults: the next generation requests fail in one chosen way.

use std::str::FromStr;

use parking_lot::Mutex;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// The engine answers with this status; no generation runs.
    Status(u16),
    /// The engine never answers; no generation runs.
    Hang,
    /// The connection ends without a byte; no generation runs.
    Reset,
    /// The connection ends after this many events of a stream, or bytes of a plain body.
    ResetMid(usize),
    /// Nothing more comes after this many events of a stream, or bytes of a plain body.
    StallMid(usize),
    /// The body ends before its announced end.
    ShortBody,
    /// The stream ends cleanly, without its last event.
    NoDone,
    /// An error event after this many events of a stream, as when the engine core dies; a plain
    /// reply turns into 500.
    ErrorMid(usize),
}

/// The text is not a fault.
#[derive(Debug, thiserror::Error)]
#[error(
    "fault {0:?} is unknown: expected none, 500, 503, 429, hang, reset, reset_mid:K, stall_mid:K, short_body, no_done \
     or error_mid:K"
)]
pub(crate) struct FaultError(String);

impl FromStr for InjectedFault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let (name, count) = text
            .split_once(':')
            .map_or((text, None), |(name, count)| (name, Some(count)));
        let count = count
            .map(str::parse::<usize>)
            .transpose()
            .map_err(|_| FaultError(text.to_owned()))?;
        match (name, count) {
            ("500", None) => Ok(Self::Status(500)),
            ("503", None) => Ok(Self::Status(503)),
            ("429", None) => Ok(Self::Status(429)),
            ("hang", None) => Ok(Self::Hang),
            ("reset", None) => Ok(Self::Reset),
            ("reset_mid", Some(count)) => Ok(Self::ResetMid(count)),
            ("stall_mid", Some(count)) => Ok(Self::StallMid(count)),
            ("short_body", None) => Ok(Self::ShortBody),
            ("no_done", None) => Ok(Self::NoDone),
            ("error_mid", Some(count)) => Ok(Self::ErrorMid(count)),
            _ => Err(FaultError(text.to_owned())),
        }
    }
}

/// The current fault, and the number of requests that it still affects.
#[derive(Debug, Default)]
pub(crate) struct FaultSlot(Mutex<Option<(InjectedFault, u64)>>);

impl FaultSlot {
    pub(crate) fn set(&self, fault: Option<InjectedFault>, count: u64) {
        *self.0.lock() = fault.filter(|_| count > 0).map(|fault| (fault, count));
    }

    /// Takes the fault of one request.
    pub(crate) fn take(&self) -> Option<InjectedFault> {
        let mut slot = self.0.lock();
        let (fault, left) = (*slot)?;
        *slot = (left > 1).then_some((fault, left - 1));
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_applies_the_requested_number_of_times() {
        let slot = FaultSlot::default();
        slot.set(Some(InjectedFault::Reset), 2);
        assert_eq!(
            [slot.take(), slot.take(), slot.take()],
            [Some(InjectedFault::Reset), Some(InjectedFault::Reset), None]
        );
        slot.set(Some(InjectedFault::Hang), 5);
        slot.set(None, 1);
        assert_eq!(slot.take(), None);
    }

    #[test]
    fn faults_have_their_documented_names() {
        assert_eq!(
            "reset_mid:3".parse::<InjectedFault>().unwrap(),
            InjectedFault::ResetMid(3)
        );
        assert_eq!(
            "503".parse::<InjectedFault>().unwrap(),
            InjectedFault::Status(503)
        );
        for wrong in ["reset_mid", "reset:1", "reset_mid:-1", "404", ""] {
            assert!(wrong.parse::<InjectedFault>().is_err(), "{wrong}");
        }
    }
}
