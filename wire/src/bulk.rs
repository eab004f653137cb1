//! The bulk channel: a partition's bytes from the source's disk to the target, outside of RPC.
//!
//! What this file keeps true: only bytes below the durable length that an open copy session has
//! published ever leave a node, and only for whoever shows that session's token; a refusal is
//! typed; an interrupted range says how many bytes came.
//!
//! Wire format: the receiver sends fixed request headers ([`header`]), as many ahead as it likes;
//! the server answers them in order, each with a fixed response header and, when accepted, exactly
//! the bytes of the range. The bytes carry no checksum of their own here: they are frames and are
//! verified as frames when they arrive.
//!
//! One stream alternates between disk and socket at the source; two or more overlap them.

mod arrival;
pub mod header;
mod pacer;
mod reads;
mod sender;
mod serve;
mod server;
mod session;
mod stream;

pub use header::{BulkStatus, RangeRequest};
pub use sender::CopyPath;
pub use server::{BulkOptions, BulkServer, BulkStats};
pub use session::{Published, SessionTable, TableFull};
pub use stream::{BulkError, BulkStream};
