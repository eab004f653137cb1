//! Between the wire's structs and this program's types, both ways.
//!
//! What this file keeps true: conversions from the wire are total: whatever the bytes are, they
//! give a value or a [`WireError`](crate::error::WireError), never a panic; conversions to the wire cannot fail for values
//! that this program makes.

mod fault;
mod partition;
mod record;
mod view;

pub use fault::{check, read_fault, write_fault};
pub use partition::{
    CopyManifest, list_len, read_copy_manifest, read_manifest, read_partition_key, read_segment,
    read_settings, setting_from_wire, setting_to_wire, settings_from_view, settings_to_view, text,
    write_copy_manifest, write_manifest, write_partition_key, write_segment, write_settings,
};
pub use record::{
    Record, RecordRef, read_record, read_records, record_ref, records_bytes, write_record,
    write_records,
};
pub use view::{
    read_loss, read_member, read_move, read_node, read_partition, read_plan_step,
    read_settings_view, read_topic, write_loss, write_member, write_move, write_node,
    write_partition, write_plan_step, write_plan_steps, write_settings_view, write_topic,
};
