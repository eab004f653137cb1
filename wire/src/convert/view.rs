//! Views on the wire.

use super::{list_len, text};
use crate::error::WireError;
use crate::view::{
    FreezeSplitView, LossView, LostCopyView, LostPartitionView, MemberView, MoveView, NodeView,
    PartitionView, PlanStepView, TopicSettingsView, TopicView,
};
use narad_schema::client_capnp::{
    freeze_split, loss, member, move_, node_info, partition_info, plan_step, topic, topic_settings,
};

/// Reads who answers.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are not valid.
pub fn read_node(reader: node_info::Reader<'_>) -> Result<NodeView, WireError> {
    Ok(NodeView {
        id: text(reader.get_id()?)?,
        version: text(reader.get_version()?)?,
        shards: reader.get_shards(),
        max_record_bytes: reader.get_max_record_bytes(),
        max_batch_bytes: reader.get_max_batch_bytes(),
        max_batch_records: reader.get_max_batch_records(),
        incarnation: reader.get_incarnation(),
    })
}

/// Writes who answers.
pub fn write_node(mut builder: node_info::Builder<'_>, view: &NodeView) {
    builder.set_id(&view.id);
    builder.set_version(&view.version);
    builder.set_shards(view.shards);
    builder.set_max_record_bytes(view.max_record_bytes);
    builder.set_max_batch_bytes(view.max_batch_bytes);
    builder.set_max_batch_records(view.max_batch_records);
    builder.set_incarnation(view.incarnation);
}

/// Reads topic settings as sent.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are not valid.
pub fn read_settings_view(
    reader: topic_settings::Reader<'_>,
) -> Result<TopicSettingsView, WireError> {
    Ok(TopicSettingsView {
        visibility_ms: reader.get_visibility_ms(),
        retention_ms: reader.get_retention_ms(),
        retention_bytes: reader.get_retention_bytes(),
        max_record_bytes: reader.get_max_record_bytes(),
        max_deliveries: reader.get_max_deliveries(),
        dead_letter: text(reader.get_dead_letter()?)?,
        max_leases: reader.get_max_leases(),
        max_acked_ahead: reader.get_max_acked_ahead(),
    })
}

/// Writes topic settings.
pub fn write_settings_view(mut builder: topic_settings::Builder<'_>, view: &TopicSettingsView) {
    builder.set_visibility_ms(view.visibility_ms);
    builder.set_retention_ms(view.retention_ms);
    builder.set_retention_bytes(view.retention_bytes);
    builder.set_max_record_bytes(view.max_record_bytes);
    builder.set_max_deliveries(view.max_deliveries);
    builder.set_dead_letter(&view.dead_letter);
    builder.set_max_leases(view.max_leases);
    builder.set_max_acked_ahead(view.max_acked_ahead);
}

/// Reads one partition.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are not valid.
pub fn read_partition(reader: partition_info::Reader<'_>) -> Result<PartitionView, WireError> {
    Ok(PartitionView {
        index: reader.get_index(),
        owner: text(reader.get_owner()?)?,
        epoch: reader.get_epoch(),
        target: text(reader.get_target()?)?,
        move_id: reader.get_move_id(),
        handoff_id: reader.get_handoff_id(),
        start: reader.get_start(),
        hwm: reader.get_hwm(),
        frontier: reader.get_frontier(),
        bytes: reader.get_bytes(),
        known: reader.get_known(),
    })
}

/// Writes one partition.
pub fn write_partition(mut builder: partition_info::Builder<'_>, view: &PartitionView) {
    builder.set_index(view.index);
    builder.set_owner(&view.owner);
    builder.set_epoch(view.epoch);
    builder.set_target(&view.target);
    builder.set_move_id(view.move_id);
    builder.set_handoff_id(view.handoff_id);
    builder.set_start(view.start);
    builder.set_hwm(view.hwm);
    builder.set_frontier(view.frontier);
    builder.set_bytes(view.bytes);
    builder.set_known(view.known);
}

/// Reads a topic.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are not valid.
pub fn read_topic(reader: topic::Reader<'_>) -> Result<TopicView, WireError> {
    Ok(TopicView {
        id: reader.get_id(),
        name: text(reader.get_name()?)?,
        parent: text(reader.get_parent()?)?,
        settings: read_settings_view(reader.get_settings()?)?,
        partitions: reader
            .get_partitions()?
            .iter()
            .map(read_partition)
            .collect::<Result<_, _>>()?,
    })
}

/// Writes a topic.
pub fn write_topic(mut builder: topic::Builder<'_>, view: &TopicView) {
    builder.set_id(view.id);
    builder.set_name(&view.name);
    builder.set_parent(&view.parent);
    write_settings_view(builder.reborrow().init_settings(), &view.settings);
    let mut partitions = builder.init_partitions(list_len(view.partitions.len()));
    for (index, partition) in (0u32..).zip(&view.partitions) {
        write_partition(partitions.reborrow().get(index), partition);
    }
}

/// Reads a member.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are not valid.
pub fn read_member(reader: member::Reader<'_>) -> Result<MemberView, WireError> {
    let told = |value| (!reader.get_untold()).then_some(value);
    Ok(MemberView {
        id: text(reader.get_id()?)?,
        addr: text(reader.get_addr()?)?,
        bulk_addr: text(reader.get_bulk_addr()?)?,
        http_addr: text(reader.get_http_addr()?)?,
        status: text(reader.get_status()?)?,
        draining: reader.get_draining(),
        role: text(reader.get_role()?)?,
        owned: reader.get_owned(),
        inbound: reader.get_inbound(),
        outbound: reader.get_outbound(),
        shards: reader.get_shards(),
        version: text(reader.get_version()?)?,
        disk_free_bytes: told(reader.get_disk_free_bytes()),
        disk_used_bytes: told(reader.get_disk_used_bytes()),
        undispatched: told(reader.get_undispatched()),
        held: text(reader.get_held()?)?,
        incarnation: reader.get_incarnation(),
    })
}

/// Writes a member.
pub fn write_member(mut builder: member::Builder<'_>, view: &MemberView) {
    builder.set_id(&view.id);
    builder.set_addr(&view.addr);
    builder.set_bulk_addr(&view.bulk_addr);
    builder.set_http_addr(&view.http_addr);
    builder.set_status(&view.status);
    builder.set_draining(view.draining);
    builder.set_role(&view.role);
    builder.set_owned(view.owned);
    builder.set_inbound(view.inbound);
    builder.set_outbound(view.outbound);
    builder.set_shards(view.shards);
    builder.set_version(&view.version);
    builder.set_disk_free_bytes(view.disk_free_bytes.unwrap_or(0));
    builder.set_disk_used_bytes(view.disk_used_bytes.unwrap_or(0));
    builder.set_undispatched(view.undispatched.unwrap_or(0));
    builder.set_untold(view.disk_free_bytes.is_none());
    builder.set_held(&view.held);
    builder.set_incarnation(view.incarnation);
}

fn read_split(reader: freeze_split::Reader<'_>) -> FreezeSplitView {
    FreezeSplitView {
        settle_us: reader.get_settle_us(),
        drain_us: reader.get_drain_us(),
        persist_us: reader.get_persist_us(),
        install_us: reader.get_install_us(),
        flip_us: reader.get_flip_us(),
        takeover_us: reader.get_takeover_us(),
    }
}

/// Reads a move.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are not valid.
pub fn read_move(reader: move_::Reader<'_>) -> Result<MoveView, WireError> {
    Ok(MoveView {
        topic: text(reader.get_topic()?)?,
        partition: reader.get_partition(),
        source: text(reader.get_source()?)?,
        target: text(reader.get_target()?)?,
        move_id: reader.get_move_id(),
        phase: text(reader.get_phase()?)?,
        bytes_done: reader.get_bytes_done(),
        bytes_left: reader.get_bytes_left(),
        bytes_per_s: reader.get_bytes_per_s(),
        write_bytes_per_s: reader.get_write_bytes_per_s(),
        passes: reader.get_passes(),
        converged: reader.get_converged(),
        elapsed_ms: reader.get_elapsed_ms(),
        freeze_us: reader.get_freeze_us(),
        split: read_split(reader.get_split()?),
        last_error: text(reader.get_last_error()?)?,
        handoff_id: reader.get_handoff_id(),
        outcome: text(reader.get_outcome()?)?,
        tails: reader.get_tails()?.iter().collect(),
        manual: reader.get_manual(),
        frozen_for_us: reader.get_frozen_for_us(),
    })
}

/// Writes a move.
pub fn write_move(mut builder: move_::Builder<'_>, view: &MoveView) {
    builder.set_topic(&view.topic);
    builder.set_partition(view.partition);
    builder.set_source(&view.source);
    builder.set_target(&view.target);
    builder.set_move_id(view.move_id);
    builder.set_phase(&view.phase);
    builder.set_bytes_done(view.bytes_done);
    builder.set_bytes_left(view.bytes_left);
    builder.set_bytes_per_s(view.bytes_per_s);
    builder.set_write_bytes_per_s(view.write_bytes_per_s);
    builder.set_passes(view.passes);
    builder.set_converged(view.converged);
    builder.set_elapsed_ms(view.elapsed_ms);
    builder.set_freeze_us(view.freeze_us);
    let mut split = builder.reborrow().init_split();
    split.set_settle_us(view.split.settle_us);
    split.set_drain_us(view.split.drain_us);
    split.set_persist_us(view.split.persist_us);
    split.set_install_us(view.split.install_us);
    split.set_flip_us(view.split.flip_us);
    split.set_takeover_us(view.split.takeover_us);
    builder.set_last_error(&view.last_error);
    builder.set_handoff_id(view.handoff_id);
    builder.set_outcome(&view.outcome);
    let mut tails = builder.reborrow().init_tails(list_len(view.tails.len()));
    for (index, tail) in (0u32..).zip(&view.tails) {
        tails.set(index, *tail);
    }
    builder.set_manual(view.manual);
    builder.set_frozen_for_us(view.frozen_for_us);
}

/// Reads a plan's step.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are not valid.
pub fn read_plan_step(reader: plan_step::Reader<'_>) -> Result<PlanStepView, WireError> {
    Ok(PlanStepView {
        topic: text(reader.get_topic()?)?,
        partition: reader.get_partition(),
        from: text(reader.get_from()?)?,
        to: text(reader.get_to()?)?,
        reason: text(reader.get_reason()?)?,
        bytes: reader.get_bytes(),
    })
}

/// Writes a plan's step.
pub fn write_plan_step(mut builder: plan_step::Builder<'_>, view: &PlanStepView) {
    builder.set_topic(&view.topic);
    builder.set_partition(view.partition);
    builder.set_from(&view.from);
    builder.set_to(&view.to);
    builder.set_reason(&view.reason);
    builder.set_bytes(view.bytes);
}

/// Writes steps of a plan.
pub fn write_plan_steps(
    mut list: capnp::struct_list::Builder<'_, plan_step::Owned>,
    steps: &[PlanStepView],
) {
    for (index, step) in (0u32..).zip(steps) {
        write_plan_step(list.reborrow().get(index), step);
    }
}

/// Reads what giving up a node loses.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are not valid.
pub fn read_loss(reader: loss::Reader<'_>) -> Result<LossView, WireError> {
    let partitions = reader.get_partitions()?.iter().map(|one| {
        Ok(LostPartitionView {
            topic: text(one.get_topic()?)?,
            partition: one.get_partition(),
            epoch: one.get_epoch(),
            // A node that does not say whether it was told means unknown by 0.
            bytes: (one.get_bytes_told() || one.get_bytes() > 0).then(|| one.get_bytes()),
            target: text(one.get_target()?)?,
        })
    });
    let copies = reader.get_copies()?.iter().map(|one| {
        Ok(LostCopyView {
            topic: text(one.get_topic()?)?,
            partition: one.get_partition(),
            epoch: one.get_epoch(),
            end: text(one.get_end()?)?,
            from: one.get_from(),
        })
    });
    Ok(LossView {
        copies: copies.collect::<Result<_, WireError>>()?,
        deaths: reader.get_deaths(),
        partitions: partitions.collect::<Result<_, WireError>>()?,
        inbound: reader.get_inbound(),
        undispatched: reader.get_undispatched(),
        told: reader.get_told(),
        notes: reader
            .get_notes()?
            .iter()
            .map(|note| text(note?))
            .collect::<Result<_, _>>()?,
    })
}

/// Writes what giving up a node loses.
pub fn write_loss(mut builder: loss::Builder<'_>, view: &LossView) {
    builder.set_inbound(view.inbound);
    builder.set_undispatched(view.undispatched);
    builder.set_told(view.told);
    let mut list = builder
        .reborrow()
        .init_partitions(list_len(view.partitions.len()));
    for (index, one) in (0u32..).zip(&view.partitions) {
        let mut slot = list.reborrow().get(index);
        slot.set_topic(&one.topic);
        slot.set_partition(one.partition);
        slot.set_epoch(one.epoch);
        slot.set_bytes(one.bytes.unwrap_or(0));
        slot.set_bytes_told(one.bytes.is_some());
        slot.set_target(&one.target);
    }
    let mut list = builder.reborrow().init_copies(list_len(view.copies.len()));
    for (index, one) in (0u32..).zip(&view.copies) {
        let mut slot = list.reborrow().get(index);
        slot.set_topic(&one.topic);
        slot.set_partition(one.partition);
        slot.set_epoch(one.epoch);
        slot.set_end(&one.end);
        slot.set_from(one.from);
    }
    builder.set_deaths(view.deaths);
    let mut notes = builder.init_notes(list_len(view.notes.len()));
    for (index, note) in (0u32..).zip(&view.notes) {
        notes.set(index, note);
    }
}
