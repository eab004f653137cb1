//! What walks have found, each as the smallest list of actions that led there.
//!
//! What this file keeps true: none of it breaks a promise any more.

use narad_sim::action::{Action, How, Left, Span};
use narad_sim::models;
use narad_sim::walk::replay;

/// Retention took a segment with records that were in the file and not shown yet: they are acked a
/// moment later, and gone.
#[test]
fn walk_moves_seed_904402() {
    let actions = [
        Action::Produce(2, 0),
        Action::Dispatch(2, How::Ok),
        Action::Produce(0, 0),
        Action::SyncFails(0, 0),
        Action::Produce(0, 0),
        Action::Reopen(0, 0),
        Action::Dispatch(0, How::Ok),
        Action::Produce(0, 0),
        Action::Produce(0, 0),
        Action::Written(0, 0),
        Action::Written(0, 0),
        Action::Retain(0, 0),
        Action::Retain(0, 0),
    ];
    let world = replay(&models::walk_moves(), &actions);
    assert_eq!(world.violation, None);
}

/// The check was wrong: a Freeze that arrives twice is answered twice, and a consumer had acked in between. The
/// target goes by the first answer.
#[test]
fn walk_unknown_seed_2073() {
    let actions = [
        Action::Cut(0),
        Action::Advance(Span::Promote),
        Action::Plan(How::Ok),
        Action::Beat(2, 2, How::Late),
        Action::Crash(1, Left::Torn(126)),
        Action::Work(2, 1, How::Ok),
        Action::Restart(1),
        Action::Work(2, 1, How::Ok),
        Action::Confirm(1),
        Action::Work(2, 1, How::Ok),
        Action::Work(2, 1, How::Ok),
        Action::Crash(1, Left::Torn(213)),
        Action::Restart(1),
        Action::Work(2, 1, How::Ok),
        Action::Confirm(1),
        Action::Timer(2, 1),
        Action::Work(2, 1, How::Ok),
        Action::Work(2, 1, How::Ok),
        Action::Work(2, 1, How::Ok),
        Action::Work(2, 1, How::Twice),
        Action::Apply(1),
        Action::Deliver(1, 1),
        Action::AckLease(1, 0),
    ];
    let world = replay(&models::walk_unknown(), &actions);
    assert_eq!(world.violation, None);
}
