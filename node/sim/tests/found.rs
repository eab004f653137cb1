//! What walks have found, each as the smallest list of actions that led there.
//!
//! What this file keeps true: none of it breaks a promise any more.

use narad_sim::action::{Action, How};
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
