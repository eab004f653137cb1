//! The hard cases: each keeps the promises, and breaks one without the rules that it is about.

use narad_sim::scenarios::{ALL, play};

#[test]
fn the_hard_cases_keep_the_promises() {
    let mut broken = Vec::new();
    for scenario in ALL {
        let played = std::panic::catch_unwind(|| play(scenario, None));
        match played {
            Ok((None, actions)) => println!("{:<70} {actions} actions", scenario.name),
            Ok((Some(violation), _)) => broken.push(format!("{}: {violation}", scenario.name)),
            Err(_) => broken.push(format!("{}: cannot be played", scenario.name)),
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_hard_cases_need_their_rules() {
    let mut missed = Vec::new();
    for scenario in ALL {
        for mutation in scenario.about {
            match play(scenario, Some(*mutation)).0 {
                Some(violation) => println!("{mutation:?}: {violation}"),
                None => missed.push((scenario.name, mutation)),
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
