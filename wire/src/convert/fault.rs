//! Typed errors on the wire.

use super::text;
use crate::error::{ErrorCode, WireError, WireFault};
use narad_schema::common_capnp::error;

/// Reads a fault. A code that a newer peer knows and this program does not becomes `internal`,
/// whose outcome is unknown: nothing is assumed about it.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are no valid error struct.
pub fn read_fault(reader: error::Reader<'_>) -> Result<WireFault, WireError> {
    let mut message = text(reader.get_message()?)?;
    let code = match reader.get_code() {
        Ok(code) => code,
        Err(unknown) => {
            message = format!("{message} (code {} of a newer version)", unknown.0);
            ErrorCode::Internal
        }
    };
    Ok(WireFault {
        code,
        message,
        hint: text(reader.get_hint()?)?,
        retry_after_ms: reader.get_retry_after_ms(),
        detail: text(reader.get_detail()?)?,
        node: text(reader.get_node()?)?,
    })
}

/// Writes a fault.
pub fn write_fault(mut builder: error::Builder<'_>, fault: &WireFault) {
    builder.set_code(fault.code);
    builder.set_message(&fault.message);
    builder.set_hint(&fault.hint);
    builder.set_retry_after_ms(fault.retry_after_ms);
    builder.set_detail(&fault.detail);
    builder.set_node(&fault.node);
}

/// The `error` field of a result: `Ok` when it is absent. Call it as
/// `check(r.has_error(), r.get_error())?`.
///
/// # Errors
/// [`WireError::Fault`] with what the other side said.
pub fn check(
    present: bool,
    error: Result<error::Reader<'_>, capnp::Error>,
) -> Result<(), WireError> {
    if present {
        return Err(WireError::Fault(read_fault(error?)?));
    }
    Ok(())
}
