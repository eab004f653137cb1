//! Partitions, segments, manifests and topic settings on the wire.

use crate::error::WireError;
use crate::view::TopicSettingsView;
use narad_core::copy::{Manifest, SegmentId, SegmentState};
use narad_core::defaults;
use narad_core::ids::{
    Epoch, Offset, Origin, PartitionIndex, PartitionKey, TopicId, TopicName, WalId, WalSeq,
};
use narad_core::meta::{Setting, TopicSettings};
use narad_schema::client_capnp::{Setting as WireSetting, topic_settings};
use narad_schema::common_capnp::partition;
use narad_schema::peer_capnp::{manifest, segment};

/// Length of something as a list length.
///
/// # Panics
/// When it does not fit in 32 bits; every list that this program sends is bounded far below.
#[must_use]
pub fn list_len(len: usize) -> u32 {
    u32::try_from(len).expect("bounded lists fit in 32 bits")
}

/// Copies a text out of a message.
///
/// # Errors
/// [`WireError::Protocol`] when it is not UTF-8.
pub fn text(reader: capnp::text::Reader<'_>) -> Result<String, WireError> {
    Ok(reader.to_str()?.to_owned())
}

/// Reads a partition's identity.
#[must_use]
pub fn read_partition_key(reader: partition::Reader<'_>) -> PartitionKey {
    PartitionKey {
        topic: TopicId(reader.get_topic()),
        partition: PartitionIndex(reader.get_index()),
    }
}

/// Writes a partition's identity.
pub fn write_partition_key(mut builder: partition::Builder<'_>, key: PartitionKey) {
    builder.set_topic(key.topic.0);
    builder.set_index(key.partition.0);
}

/// Reads a segment's description.
#[must_use]
pub fn read_segment(reader: segment::Reader<'_>) -> SegmentState {
    SegmentState {
        id: SegmentId {
            base: Offset(reader.get_base()),
            epoch: Epoch(reader.get_epoch()),
        },
        durable_len: reader.get_durable_len(),
        digest: reader.get_digest(),
        end: Offset(reader.get_end()),
        sealed: reader.get_sealed(),
    }
}

/// Writes a segment's description.
pub fn write_segment(mut builder: segment::Builder<'_>, segment: &SegmentState) {
    builder.set_base(segment.id.base.0);
    builder.set_epoch(segment.id.epoch.0);
    builder.set_durable_len(segment.durable_len);
    builder.set_digest(segment.digest);
    builder.set_end(segment.end.0);
    builder.set_sealed(segment.sealed);
}

/// A manifest as a copy session answers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyManifest {
    /// The partition as its owner describes it.
    pub manifest: Manifest,
    /// W, as the owner measures it, in bytes/s.
    pub write_bytes_per_s: u64,
    /// What the bulk channel wants to see for this session.
    pub bulk_token: u64,
}

/// Reads a manifest with what the session adds to it.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are no valid manifest, or its segments are not in order.
pub fn read_copy_manifest(reader: manifest::Reader<'_>) -> Result<CopyManifest, WireError> {
    Ok(CopyManifest {
        manifest: read_manifest(reader)?,
        write_bytes_per_s: reader.get_write_bytes_per_s(),
        bulk_token: reader.get_bulk_token(),
    })
}

/// Writes a manifest with what the session adds to it.
pub fn write_copy_manifest(mut builder: manifest::Builder<'_>, copy: &CopyManifest) {
    write_manifest(builder.reborrow(), &copy.manifest);
    builder.set_write_bytes_per_s(copy.write_bytes_per_s);
    builder.set_bulk_token(copy.bulk_token);
}

/// Reads a manifest.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are no valid manifest, its segments are not in order, or their
/// lengths cannot be added up.
pub fn read_manifest(reader: manifest::Reader<'_>) -> Result<Manifest, WireError> {
    let segments: Vec<SegmentState> = reader.get_segments()?.iter().map(read_segment).collect();
    let ordered = segments
        .windows(2)
        .all(|pair| pair[0].id < pair[1].id && pair[0].end <= pair[1].id.base);
    if !ordered || segments.iter().any(|s| s.end < s.id.base) {
        return Err(WireError::Protocol {
            message: "a manifest whose segments are not in offset order".into(),
        });
    }
    let mut lens = segments.iter().map(|s| s.durable_len);
    if lens.try_fold(0, u64::checked_add).is_none() {
        return Err(WireError::Protocol {
            message: "a manifest of more bytes than a number holds".into(),
        });
    }
    let fence_end = reader.get_fence_end();
    Ok(Manifest {
        segments,
        start: Offset(reader.get_start()),
        hwm: Offset(reader.get_hwm()),
        frontier: Offset(reader.get_frontier()),
        marks: reader
            .get_marks()?
            .iter()
            .map(|mark| Origin {
                wal: WalId(mark.get_wal()),
                seq: WalSeq(mark.get_seq()),
            })
            .collect(),
        fence: (fence_end != 0).then(|| (Offset(reader.get_fence_hwm()), Offset(fence_end))),
    })
}

/// Writes a manifest.
pub fn write_manifest(mut builder: manifest::Builder<'_>, manifest: &Manifest) {
    let mut segments = builder
        .reborrow()
        .init_segments(list_len(manifest.segments.len()));
    for (index, segment) in (0u32..).zip(&manifest.segments) {
        write_segment(segments.reborrow().get(index), segment);
    }
    let mut marks = builder
        .reborrow()
        .init_marks(list_len(manifest.marks.len()));
    for (index, origin) in (0u32..).zip(&manifest.marks) {
        let mut mark = marks.reborrow().get(index);
        mark.set_wal(origin.wal.0);
        mark.set_seq(origin.seq.0);
    }
    builder.set_start(manifest.start.0);
    builder.set_hwm(manifest.hwm.0);
    builder.set_frontier(manifest.frontier.0);
    let (fence_hwm, fence_end) = manifest.fence.map_or((0, 0), |(hwm, end)| (hwm.0, end.0));
    builder.set_fence_hwm(fence_hwm);
    builder.set_fence_end(fence_end);
}

/// Settings as the metadata keeps them, from what a client asked for (0 and empty: default).
///
/// # Errors
/// [`WireError::Protocol`] when the dead-letter topic's name is not a valid one.
pub fn settings_from_view(view: &TopicSettingsView) -> Result<TopicSettings, WireError> {
    let dead_letter = if view.dead_letter.is_empty() {
        None
    } else {
        let name = TopicName::parse(&view.dead_letter).map_err(|error| WireError::Protocol {
            message: format!("dead-letter topic name {error}"),
        })?;
        Some(name)
    };
    Ok(TopicSettings {
        visibility_ms: match view.visibility_ms {
            0 => defaults::VISIBILITY_MS,
            ms => ms,
        },
        retention_ms: (view.retention_ms != 0).then_some(view.retention_ms),
        retention_bytes: (view.retention_bytes != 0).then_some(view.retention_bytes),
        max_record_bytes: match view.max_record_bytes {
            0 => defaults::RECORD_MAX_BYTES,
            bytes => bytes,
        },
        max_deliveries: (view.max_deliveries != 0).then_some(view.max_deliveries),
        dead_letter,
        max_leases: match view.max_leases {
            0 => TopicSettings::default().max_leases,
            bound => bound,
        },
        max_acked_ahead: match view.max_acked_ahead {
            0 => TopicSettings::default().max_acked_ahead,
            bound => bound,
        },
    })
}

/// The name of a setting as it is sent.
#[must_use]
pub const fn setting_to_wire(setting: Setting) -> WireSetting {
    match setting {
        Setting::VisibilityMs => WireSetting::VisibilityMs,
        Setting::RetentionMs => WireSetting::RetentionMs,
        Setting::RetentionBytes => WireSetting::RetentionBytes,
        Setting::MaxRecordBytes => WireSetting::MaxRecordBytes,
        Setting::MaxDeliveries => WireSetting::MaxDeliveries,
        Setting::DeadLetter => WireSetting::DeadLetter,
        Setting::MaxLeases => WireSetting::MaxLeases,
        Setting::MaxAckedAhead => WireSetting::MaxAckedAhead,
    }
}

/// The setting of a name that was sent.
#[must_use]
pub const fn setting_from_wire(setting: WireSetting) -> Setting {
    match setting {
        WireSetting::VisibilityMs => Setting::VisibilityMs,
        WireSetting::RetentionMs => Setting::RetentionMs,
        WireSetting::RetentionBytes => Setting::RetentionBytes,
        WireSetting::MaxRecordBytes => Setting::MaxRecordBytes,
        WireSetting::MaxDeliveries => Setting::MaxDeliveries,
        WireSetting::DeadLetter => Setting::DeadLetter,
        WireSetting::MaxLeases => Setting::MaxLeases,
        WireSetting::MaxAckedAhead => Setting::MaxAckedAhead,
    }
}

/// Settings as a client sees them.
#[must_use]
pub fn settings_to_view(settings: &TopicSettings) -> TopicSettingsView {
    TopicSettingsView {
        visibility_ms: settings.visibility_ms,
        retention_ms: settings.retention_ms.unwrap_or(0),
        retention_bytes: settings.retention_bytes.unwrap_or(0),
        max_record_bytes: settings.max_record_bytes,
        max_deliveries: settings.max_deliveries.unwrap_or(0),
        dead_letter: settings
            .dead_letter
            .as_ref()
            .map_or_else(String::new, |name| name.0.clone()),
        max_leases: settings.max_leases,
        max_acked_ahead: settings.max_acked_ahead,
    }
}

/// Reads settings.
///
/// # Errors
/// As [`settings_from_view`], or when the bytes are no valid settings.
pub fn read_settings(reader: topic_settings::Reader<'_>) -> Result<TopicSettings, WireError> {
    settings_from_view(&super::read_settings_view(reader)?)
}

/// Writes settings.
pub fn write_settings(builder: topic_settings::Builder<'_>, settings: &TopicSettings) {
    super::write_settings_view(builder, &settings_to_view(settings));
}
