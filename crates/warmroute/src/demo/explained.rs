//! Shows one decision as a line: the target and the reason.

use routing::receipt::{DecisionId, ReceiptRing};

use super::{DemoOutput, client::ClientReply};
use crate::output;

/// Shows the reason for the decision behind `answer`, from the router's own receipt.
pub(crate) fn show(ring: &ReceiptRing, answer: &ClientReply, output: DemoOutput) {
    let id = answer
        .decision
        .as_deref()
        .and_then(|id| id.parse::<DecisionId>().ok());
    let Some(receipt) = id.and_then(|id| ring.get(id)) else {
        return;
    };
    let Some(decision) = receipt.decision() else {
        return;
    };
    let Some(winner) = decision.winning() else {
        return;
    };
    let mut line = format!(
        "  {} -> {}: {} of {} prompt tokens warm there",
        receipt.id,
        decision.winner.name,
        winner.warm_tokens.total(),
        receipt.prompt.tokens,
    );
    if let Some(ttft) = winner.predicted_ttft_ms {
        line.push_str(&format!(
            ", first token expected in {ttft:.0} ms (it took {:.0})",
            answer.ttft_ms
        ));
    }
    let other = decision.runner_up.and_then(|runner_up| {
        let mut rows = decision.candidates.iter();
        Some((
            rows.find(|row| row.target == runner_up.target)?,
            runner_up.regret_ms?,
        ))
    });
    if let Some((other, regret)) = other {
        line.push_str(&format!(
            "; {} with {} warm would cost {regret:.0} ms more",
            other.name,
            other.warm_tokens.total()
        ));
    }
    if output == DemoOutput::Terminal {
        line.insert_str(0, "\r\x1b[K");
    }
    output::err(&line);
}
