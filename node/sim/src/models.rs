//! The models: small worlds that are explored to their last state, and the larger ones in which
//! walks go at random.
//!
//! What this file keeps true: each says what it bounds; together they cover the move, its
//! cancelling, promotion, moving back, leaders, drains and topics.

use crate::action::Span;
use crate::explore::Limits;
use crate::limits::STATES_MAX;
use crate::setup::{Allow, Setup};

/// The flip without deaths: lost, late and repeated messages, either side crashing.
#[must_use]
pub fn complete(faults: u8, records: u32) -> Setup {
    Setup {
        faults,
        records,
        commands: 5,
        advances: 1,
        in_flight: 1,
        allow: Allow {
            crash: vec![0, 1],
            loss: true,
            late: true,
            advance: vec![Span::Ttl],
            ..Allow::default()
        },
        ..Setup::quiet("complete")
    }
}

/// The source dies: cut off, promoted over, and back with what it still holds.
#[must_use]
pub fn promote(faults: u8, records: u32) -> Setup {
    Setup {
        deaths: true,
        faults,
        records,
        commands: 2,
        advances: 3,
        in_flight: 1,
        eager: vec![1, 2],
        allow: Allow {
            cut: vec![0],
            late: faults > 1,
            advance: vec![Span::Ttl, Span::Promote],
            reclaim: true,
            ..Allow::default()
        },
        ..Setup::quiet("promote")
    }
}

/// Moved there and back again: what is left of the first copy, and a deletion that comes twice.
#[must_use]
pub fn return_trip(faults: u8, records: u32) -> Setup {
    Setup {
        faults,
        records,
        commands: 9,
        in_flight: 1,
        allow: Allow {
            crash: vec![0],
            late: true,
            move_to: vec![0],
            reclaim: true,
            ..Allow::default()
        },
        ..Setup::quiet("return-trip")
    }
}

/// Another target, no target, and a topic that goes while it is being moved.
#[must_use]
pub fn replan(faults: u8, records: u32) -> Setup {
    Setup {
        faults,
        records,
        commands: 7,
        in_flight: 1,
        eager: vec![2],
        allow: Allow {
            late: true,
            move_to: vec![1, 2],
            cancel: true,
            topic: true,
            reclaim: true,
            ..Allow::default()
        },
        ..Setup::quiet("replan")
    }
}

/// The leader is the owner, and is cut off: the old one goes on believing that it leads.
#[must_use]
pub fn leaders(faults: u8, records: u32) -> Setup {
    Setup {
        leader: 0,
        deaths: true,
        faults,
        records,
        commands: 2,
        advances: 3,
        in_flight: 1,
        eager: vec![1, 2],
        allow: Allow {
            cut: vec![0],
            elect: vec![2],
            advance: vec![Span::Ttl, Span::Promote],
            beat: vec![0],
            ..Allow::default()
        },
        ..Setup::quiet("leaders")
    }
}

/// Two partitions that change places: two moves at once, each node the source of one and the target
/// of the other.
#[must_use]
pub fn crossing(faults: u8, records: u32) -> Setup {
    Setup {
        partitions: 2,
        moves: vec![(0, 1), (1, 0)],
        faults,
        records,
        commands: 5,
        advances: 1,
        in_flight: 1,
        eager: vec![0, 1, 2],
        allow: Allow {
            crash: vec![1],
            late: faults < 2,
            advance: vec![Span::Ttl],
            ..Allow::default()
        },
        ..Setup::quiet("crossing")
    }
}

/// Walks with a partition that is written to as fast as it is copied: tails that take passes.
#[must_use]
pub fn walk_hot() -> Setup {
    let moves = walk_moves();
    Setup {
        name: "walk-hot",
        records: 90,
        record_bytes: 1 << 20,
        preload: 6,
        allow: Allow {
            consume: false,
            retain: false,
            move_to: vec![1, 2],
            crash: vec![0, 1],
            ..moves.allow.clone()
        },
        ..moves
    }
}

/// Walks in which flips seldom go as they should: lost, late, refused, installs that fail half way,
/// and everything else on top of what is not known then.
#[must_use]
pub fn walk_unknown() -> Setup {
    let deaths = walk_deaths();
    Setup {
        name: "walk-unknown",
        faults: 40,
        records: 16,
        unknown: true,
        allow: Allow {
            plan: true,
            drain: vec![1],
            crash: vec![1],
            cut: vec![0, 1],
            mute: vec![1],
            ..deaths.allow.clone()
        },
        ..deaths
    }
}

/// Walks without deaths: everything but leaders, leases and promotions.
#[must_use]
pub fn walk_moves() -> Setup {
    Setup {
        faults: 12,
        records: 12,
        commands: 60,
        advances: 6,
        segment: 3,
        preload: 2,
        eager: Vec::new(),
        chained: false,
        allow: Allow {
            wal: true,
            written: true,
            consume: true,
            retain: true,
            crash: vec![0, 1, 2],
            cut: vec![0, 1, 2],
            loss: true,
            late: true,
            redo: true,
            disk: true,
            advance: vec![Span::Second, Span::Ttl],
            move_to: vec![0, 1, 2],
            cancel: true,
            reclaim: true,
            ..Allow::default()
        },
        ..Setup::quiet("walk-moves")
    }
}

/// Walks with deaths, leases, promotions and leaders.
#[must_use]
pub fn walk_deaths() -> Setup {
    let moves = walk_moves();
    Setup {
        name: "walk-deaths",
        deaths: true,
        partitions: 2,
        advances: 10,
        allow: Allow {
            mute: vec![0, 1, 2],
            elect: vec![0, 1, 2],
            advance: vec![Span::Second, Span::Lease, Span::Ttl, Span::Promote],
            topic: true,
            beat: vec![0, 1, 2],
            ..moves.allow.clone()
        },
        ..moves
    }
}

/// Walks that are about death: owners that are cut off, promoted over, and come back.
#[must_use]
pub fn walk_promotions() -> Setup {
    Setup {
        name: "walk-promotions",
        nodes: 3,
        faults: 16,
        records: 16,
        commands: 60,
        advances: 24,
        segment: 1_000,
        eager: Vec::new(),
        chained: true,
        deaths: true,
        allow: Allow {
            crash: vec![0, 1, 2],
            mute: vec![0, 1, 2],
            cut: vec![0, 1, 2],
            elect: vec![0, 1, 2],
            written: true,
            late: true,
            redo: true,
            advance: vec![Span::Lease, Span::Ttl, Span::Promote],
            move_to: vec![0, 1, 2],
            give_up: vec![0, 1, 2],
            reclaim: true,
            beat: vec![0, 1, 2],
            ..Allow::default()
        },
        ..Setup::quiet("walk-promotions")
    }
}

/// Walks with the planner, drains, removals and topics that come and go, over four nodes.
#[must_use]
pub fn walk_cluster() -> Setup {
    let deaths = walk_deaths();
    Setup {
        name: "walk-cluster",
        nodes: 4,
        partitions: 3,
        moves: Vec::new(),
        allow: Allow {
            retain: false,
            drain: vec![0, 1],
            topic: true,
            plan: true,
            crash: vec![0, 1, 2, 3],
            ..deaths.allow.clone()
        },
        ..deaths
    }
}

/// All walks.
#[must_use]
pub fn walks() -> Vec<Setup> {
    vec![
        walk_moves(),
        walk_deaths(),
        walk_promotions(),
        walk_cluster(),
        walk_hot(),
        walk_unknown(),
    ]
}

/// The models with their limits: those of the suite, or the wide ones.
#[must_use]
pub fn explored(wide: bool) -> Vec<(Setup, Limits)> {
    let limits = |states| Limits { states, sample: 64 };
    if wide {
        vec![
            (complete(2, 0), limits(STATES_MAX)),
            (complete(1, 1), limits(STATES_MAX)),
            (promote(2, 1), limits(STATES_MAX)),
            (return_trip(2, 0), limits(STATES_MAX)),
            (replan(2, 0), limits(STATES_MAX)),
            (leaders(1, 1), limits(STATES_MAX)),
            (leaders(2, 0), limits(STATES_MAX)),
            (crossing(2, 0), limits(STATES_MAX)),
        ]
    } else {
        vec![
            (complete(0, 1), limits(200_000)),
            (complete(1, 0), limits(200_000)),
            (promote(1, 1), limits(2_000_000)),
            (return_trip(1, 0), limits(1_000_000)),
            (replan(1, 0), limits(1_000_000)),
            (crossing(1, 0), limits(1_000_000)),
        ]
    }
}
