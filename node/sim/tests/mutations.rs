//! Each rule of the move switched off is noticed by a check.

use narad_sim::labs::{catch, line};
use narad_sim::mutation::Mutation;
use narad_sim::report;

#[test]
fn every_rule_that_is_switched_off_is_noticed() {
    let mut missed = Vec::new();
    for mutation in Mutation::ALL {
        let caught = catch(*mutation);
        report::say(&line(*mutation, caught.as_ref()));
        if caught.is_none() {
            missed.push(mutation);
        }
    }
    assert!(missed.is_empty(), "nothing notices {missed:?}");
}
