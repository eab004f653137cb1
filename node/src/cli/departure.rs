//! What it means that a node which was drained is in no list of members any more.
//!
//! What this file keeps true: it is out only when the cluster has said, behind a barrier, that it left in
//! order. A node that answers may be behind and never have heard of it, and somebody may have given it up: then its
//! disk still holds what nobody else has.

use super::connect::Session;
use super::error::{CliError, CliResult};
use super::output::Out;
use super::units;
use crate::control::registration::refused;
use narad_wire::error::WireError;
use serde_json::json;

/// Says that the node is out.
pub(super) fn left(session: &Session, node: &str, took_ms: u64, out: &mut Out) -> CliResult {
    if session.json {
        out.json(&json!({"node": node, "removed": true, "elapsed_ms": took_ms}))
    } else {
        out.line(format_args!(
            "{node} is out of the cluster after {}",
            units::millis(took_ms)
        ))
    }
}

/// What it means that the cluster does not call the node a member: it has left, which is what `--wait`
/// waits for, or something else that is no reason to empty its disk.
pub(super) fn end_of(node: &str, error: WireError) -> CliResult {
    match error.fault().map(|fault| fault.detail.as_str()) {
        Some(refused::REMOVED) => Ok(()),
        Some(refused::FORGOTTEN) => Err(CliError::new(
            "forgotten",
            format!("{node} has not left in order: somebody gave it up while it was dead"),
            "keep its disk until what only it holds is handed over: start the node once more, or narad salvage",
        )),
        _ => Err(error.into()),
    }
}

/// A node was not in the list: asks behind a barrier whether it has left. False: it is a member all the same.
pub(super) async fn confirmed_out(session: &Session, node: &str) -> Result<bool, CliError> {
    match session.decommission(node, false, true).await {
        Ok(_) => Ok(false),
        Err(error) => end_of(node, error).map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_member_that_left_in_order_is_out() {
        use narad_wire::error::{ErrorCode, WireFault};
        let fault =
            |code, detail: &str| WireError::from(WireFault::new(code, "said").detail(detail));
        let end = |code, detail| end_of("n5", fault(code, detail));
        assert!(end(ErrorCode::NotMember, refused::REMOVED).is_ok());
        let forgotten = end(ErrorCode::NotMember, refused::FORGOTTEN).unwrap_err();
        assert!(forgotten.hint.contains("keep its disk"), "{forgotten}");
        assert!(end(ErrorCode::NotMember, "").is_err(), "never heard of");
        assert!(end(ErrorCode::Unavailable, "").is_err(), "cannot tell");
    }
}
