//! Messages of the live and the replay socket, as lists of frames.

use kv_events::frames::{
    ReplayForm, ReplayFrame, encode_live, encode_replay, live, parse_replay_request, replay,
};

/// Cuts the bytes into frames (a length, then so many bytes) and reads them in every way there is.
///
/// # Panics
///
/// If something that was read is not written the same again.
pub(crate) fn check(mut bytes: &[u8]) {
    let mut frames = Vec::new();
    while let Some((length, rest)) = bytes.split_first() {
        let (frame, rest) = rest.split_at(rest.len().min((*length).into()));
        frames.push(frame);
        bytes = rest;
    }
    if let Ok(read) = live(&frames)
        && let Some(seq) = read.seq
    {
        assert_eq!(encode_live(read.topic, seq, read.payload), frames);
    }
    if let Ok(ReplayFrame::Batch { seq, payload }) = replay(&frames) {
        let (form, topic) = if frames.len() == 4 {
            (ReplayForm::New, frames[1])
        } else {
            (ReplayForm::Old, &[][..])
        };
        assert_eq!(encode_replay(form, topic, seq, payload), frames);
    }
    let _ = parse_replay_request(&frames);
}
