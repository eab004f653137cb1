//! What the adaptive throttle learns while the limit of somebody else, or none, is in force.

use super::*;

#[test]
fn a_limit_of_somebody_else_says_nothing_about_the_queue() {
    for half in [64 << 10, 1 << 20] {
        let mut machine = rested();
        let (_, found) = squeezed(&mut machine, half, 60);
        let too_short = machine.too_short;
        // No limit, a foreground that suffers; one far below what the machine allows; one that nobody notices;
        // nobody there.
        for (p99_us, speed) in [(9_000, 700), (9_000, 20), (1_000, 300), (0, 300)] {
            let samples = if p99_us == 0 { 0 } else { 200 };
            for _ in 0..40 {
                let window = Window {
                    samples,
                    ..window(p99_us, speed * MB)
                };
                machine.watch(window, speed == 700);
            }
            let limits = machine.step(window(9_000, 0));
            assert_eq!(limits.under_way_bytes, found, "what was found out stays");
            assert!(machine.too_short <= too_short);
        }
    }
}

#[test]
fn what_copies_can_reach_is_what_they_reach_in_their_middle() {
    let mut machine = rested();
    // Four copies that nothing holds back: they begin and end in the course of a window, and one window is a lucky one.
    for lucky in [300, 300, 390, 300] {
        for mbs in [120, 300, lucky, 290, 40] {
            machine.watch(window(9_000, mbs * MB), true);
        }
        machine.watch(window(1_000, 0), true);
    }
    assert_eq!(machine.peak.bytes_per_s(), 300 * MB);
    // A limit of somebody's, and copies that are held back, say nothing about it.
    for _ in 0..20 {
        machine.watch(window(1_000, 20 * MB), false);
        machine.step(window(9_000, 150 * MB));
    }
    assert_eq!(machine.peak.bytes_per_s(), 300 * MB);
}

#[test]
fn a_limit_of_somebody_else_is_not_what_copies_can_reach() {
    let mut machine = rested();
    for _ in 0..2 * PROBE_EVERY_WINDOWS {
        machine.watch(window(1_000, 20 * MB), false);
    }
    // It is lifted for good, and the machine learns what there is.
    machine.step(window(1_000, 0));
    let (speed, _) = play(&mut machine, 400 * MB, 80, 50);
    assert!((225 * MB..=240 * MB).contains(&speed), "{}", speed / MB);
    // A source that yields, or whose copies are small, does not make a node forget it.
    let alone = Window {
        samples: 0,
        ..window(0, 30 * MB)
    };
    for _ in 0..60 {
        machine.step(alone);
    }
    assert_eq!(machine.peak.bytes_per_s(), 400 * MB);
}

#[test]
fn the_machine_begins_with_what_it_had_when_somebody_else_s_limit_is_lifted() {
    let mut machine = rested();
    let (_, found) = squeezed(&mut machine, 64 << 10, 40);
    let bore = machine.limit;
    assert!(bore.is_some());
    // A copy goes on under somebody else's limit, or under none: the machine's would begin as after a rest.
    for n in 0..FORGET_WINDOWS {
        let limits = machine.watch(window(2_000, 20 * MB), false);
        let (rate, queue) = (limits.bytes_per_s, limits.under_way_bytes);
        assert_eq!((rate, queue, limits.gives_way), (bore, found, true), "{n}");
    }
    machine.watch(window(2_000, 20 * MB), false);
    let long_ago = machine.watch(window(2_000, 20 * MB), false);
    assert_eq!(long_ago.bytes_per_s, Some(machine.floor()));
    let alone = Window {
        samples: 0,
        ..window(0, 20 * MB)
    };
    let nobody = machine.watch(alone, false);
    assert_eq!(nobody.under_way_bytes, UNDER_WAY_MOST_BYTES);
    assert!(!nobody.gives_way);
}

#[test]
fn a_limit_that_begins_or_ends_in_a_window_does_not_make_less_of_what_copies_can_reach() {
    let mut known = rested();
    for _ in 0..4 {
        known.step(window(1_000, 400 * MB));
    }
    assert_eq!(known.peak.bytes_per_s(), 400 * MB);
    // Lifted for good in the last fifth of a window, and the copy ends soon after; or the machine's is in force again.
    for windows in 1..4 {
        let mut machine = known.clone();
        for _ in 0..4 {
            machine.watch(window(1_000, 20 * MB), false);
        }
        machine.watch(window(1_000, 96 * MB), true);
        for _ in 1..windows {
            machine.watch(window(1_000, 400 * MB), true);
        }
        machine.watch(window(1_000, 50 * MB), true);
        machine.watch(window(1_000, 0), true);
        assert_eq!(machine.peak.bytes_per_s(), 400 * MB, "{windows}");
    }
    // From the machine's own limit to none.
    let mut machine = known.clone();
    play(&mut machine, 400 * MB, 40, 50);
    assert!(machine.limit.is_some());
    for mbs in [250, 400, 400, 390, 0] {
        machine.watch(window(9_000, mbs * MB), true);
    }
    assert!(machine.peak.bytes_per_s() >= 390 * MB);
    // And back, in the middle of a window without anybody else.
    let alone = |mbs: u64| Window {
        samples: 0,
        ..window(0, mbs * MB)
    };
    for mbs in [400, 400] {
        machine.watch(alone(mbs), true);
    }
    for mbs in [120, 130, 0] {
        machine.step(alone(mbs));
    }
    machine.watch(window(9_000, 0), true);
    assert!(machine.peak.bytes_per_s() >= 390 * MB);
}

#[test]
fn some_small_copies_that_nothing_held_back_do_not_keep_a_machine_from_learning_more() {
    let mut machine = Adaptive::default();
    for mbs in [30, 30, 30, 0] {
        machine.watch(window(1_000, mbs * MB), true);
    }
    let (speed, _) = play(&mut machine, 400 * MB, 80, 50);
    assert!((225 * MB..=240 * MB).contains(&speed), "{}", speed / MB);
}
