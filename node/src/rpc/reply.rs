//! Small helpers that every method uses: reading what came, and faults for what is malformed.
//!
//! What this file keeps true: bytes that cannot be understood become a typed `invalid`, never the
//! end of the connection.

use crate::messages::ProposeError;
use crate::shard::faults;
use narad_wire::error::{ErrorCode, WireError, WireFault};

/// A malformed request.
pub(crate) fn malformed(error: impl Into<WireError>) -> WireFault {
    let error = error.into();
    WireFault::new(ErrorCode::Invalid, format!("malformed request: {error}"))
        .hint("check the client against the interface files of this version")
}

/// A text parameter.
pub(crate) fn text(reader: capnp::Result<capnp::text::Reader<'_>>) -> Result<String, WireFault> {
    let reader = reader.map_err(malformed)?;
    Ok(reader.to_str().map_err(malformed)?.to_owned())
}

/// A proposal that was not applied for sure.
pub(crate) fn unproposed(error: &ProposeError) -> WireFault {
    match error {
        ProposeError::Unavailable { .. } => {
            WireFault::new(ErrorCode::Unavailable, error.to_string())
                .hint("a majority of the voters must be reachable; try again shortly")
                .retry_after_ms(500)
        }
        ProposeError::Unknown { .. } => {
            WireFault::new(ErrorCode::UnknownOutcome, error.to_string())
                .hint("it may still be applied; look at the state before doing it again")
        }
        ProposeError::NotLeader { leader } => {
            let fault =
                WireFault::new(ErrorCode::NotLeader, error.to_string()).hint("ask the leader");
            match leader {
                Some((id, addr)) => fault
                    .node(addr.clone())
                    .detail(format!(r#"{{"leader":"{id}"}}"#)),
                None => fault.retry_after_ms(200),
            }
        }
    }
}

/// An executor of this node is gone.
pub(crate) fn stopping(_: crate::context::Stopping) -> WireFault {
    faults::shutting_down()
}

/// Answers a call: the fault goes into its `error`.
macro_rules! answer {
    ($results:ident, $outcome:expr, |$value:pat_param| $fill:expr) => {
        match $outcome {
            Ok($value) => $fill,
            Err(fault) => {
                narad_wire::convert::write_fault($results.get().init_error(), &fault);
            }
        }
    };
}
pub(crate) use answer;
