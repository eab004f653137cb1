//! What the adaptive throttle does with windows of all kinds.

use super::*;
use alloc::vec::Vec;

mod watched;

const MB: u64 = 1 << 20;

fn window(p99_us: u64, copied_per_s: u64) -> Window {
    Window {
        elapsed_ms: WINDOW_MS,
        samples: 200,
        p99_us,
        copied_bytes: copied_per_s * WINDOW_MS / 1_000,
    }
}

/// A node whose foreground gets slower with what is copied: p99 = 1 ms + 10 us for each MB/s.
fn play(machine: &mut Adaptive, wire: u64, windows: usize, slower_us: u64) -> (u64, u64) {
    let (mut limit, mut copied, mut worst) = (machine.limit, 0, 0);
    for n in 0..windows {
        let speed = limit.unwrap_or(wire).min(wire);
        let p99_us = 1_000 + speed / MB * slower_us;
        limit = machine.step(window(p99_us, speed)).bytes_per_s;
        if n >= windows / 2 {
            copied += speed;
            worst = worst.max(p99_us);
        }
    }
    (copied / (windows - windows / 2) as u64, worst)
}

fn rested() -> Adaptive {
    let mut machine = Adaptive::default();
    for _ in 0..8 {
        assert_eq!(machine.rate(window(1_000, 0)), None);
    }
    machine
}

#[test]
fn copies_take_everything_while_nobody_is_disturbed() {
    let mut machine = Adaptive::default();
    for _ in 0..50 {
        let idle = Window {
            samples: 0,
            ..window(0, 500 * MB)
        };
        assert_eq!(machine.rate(idle), None);
    }
    let mut machine = rested();
    let (speed, _) = play(&mut machine, 400 * MB, 50, 0);
    assert_eq!(speed, 400 * MB, "a foreground that does not suffer");
}

#[test]
fn copies_yield_within_the_promise_where_half_of_the_speed_allows_it() {
    let mut machine = rested();
    // At full speed 400 MB/s p99 would be 1.8 ms, at half of it 1.4 ms.
    let (speed, worst) = play(&mut machine, 400 * MB, 80, 2);
    assert!((200 * MB..390 * MB).contains(&speed), "{}", speed / MB);
    assert!(worst <= 1_500, "{worst}");
}

#[test]
fn a_move_keeps_half_of_the_speed_however_much_the_foreground_suffers() {
    let mut machine = rested();
    let (speed, _) = play(&mut machine, 400 * MB, 80, 50);
    assert!((225 * MB..=240 * MB).contains(&speed), "{}", speed / MB);
    // It gives everything back when the foreground goes away.
    let mut limit = machine.limit;
    for _ in 0..20 {
        let speed = limit.unwrap_or(400 * MB);
        limit = machine.rate(Window {
            samples: 0,
            ..window(0, speed)
        });
    }
    assert_eq!(limit, None);
}

#[test]
fn a_foreground_that_suffers_much_waits_until_it_is_known_what_copies_can_reach() {
    let mut machine = rested();
    for _ in 1..PROBE_WINDOWS {
        assert_eq!(machine.rate(window(4_000, 100 * MB)), None);
    }
    let limit = machine.rate(window(4_000, 400 * MB));
    assert_eq!(
        (limit, machine.peak.bytes_per_s()),
        (Some(machine.floor()), 400 * MB)
    );
}

#[test]
fn the_next_copy_begins_with_what_was_borne_until_that_is_long_ago() {
    let mut machine = rested();
    play(&mut machine, 400 * MB, 40, 50);
    let bore = machine.limit;
    assert!(bore.is_some());
    // Between two moves, and in the first window of the next one.
    for _ in 0..10 {
        assert_eq!(machine.rate(window(1_000, 0)), bore);
    }
    assert_eq!(machine.rate(window(4_000, 220 * MB)), bore);
    for n in 0..=FORGET_WINDOWS {
        assert_eq!(machine.rate(window(1_000, 0)), bore, "{n}");
    }
    // Long afterwards it begins low where somebody may be disturbed, and takes what is idle.
    assert_eq!(machine.rate(window(1_000, 0)), Some(machine.floor()));
    let alone = Window {
        samples: 0,
        ..window(0, 0)
    };
    assert_eq!(machine.rate(alone), None);
    let (speed, _) = play(&mut machine, 400 * MB, 20, 0);
    assert_eq!(speed, 400 * MB);
}

#[test]
fn a_foreground_that_comes_after_the_copy_is_listened_to_first() {
    let mut machine = Adaptive::default();
    machine.rate(Window {
        samples: 0,
        ..window(0, 400 * MB)
    });
    let held = machine.rate(window(5_000, 400 * MB));
    assert_eq!(held, Some(FLOOR_BYTES_PER_S));
    assert_eq!(machine.rate(window(2_000, MB)), held);
    assert_eq!(machine.rate(window(1_000, MB)), None);
    assert_eq!(machine.baseline_us(), Some(1_000));
}

#[test]
fn one_disturbed_window_changes_nothing() {
    let mut machine = rested();
    for n in 0..30 {
        let p99_us = if n % 10 == 5 { 50_000 } else { 1_000 };
        assert_eq!(machine.rate(window(p99_us, 300 * MB)), None, "{n}");
    }
}

#[test]
fn the_queue_is_short_while_there_is_somebody_to_disturb() {
    let short = UNDER_WAY_SHORT_BYTES;
    let mut machine = rested();
    let first = machine.step(window(1_000, 400 * MB));
    assert_eq!(first.under_way_bytes, short, "a copy begins with that");
    for _ in 0..4 {
        machine.step(window(1_000, 400 * MB));
    }
    let everything = Limits {
        gives_way: true,
        ..Limits::NONE
    };
    assert_eq!(machine.step(window(1_000, 400 * MB)), everything);
    // The queue is shortened before the rate is.
    let mut limits = everything;
    while limits == everything {
        limits = machine.step(window(2_000, 400 * MB));
    }
    assert_eq!((limits.bytes_per_s, limits.under_way_bytes), (None, short));
    while limits.bytes_per_s.is_none() {
        limits = machine.step(window(2_000, 400 * MB));
    }
    assert_eq!(limits.under_way_bytes, short);
    // And is long again once the foreground is gone.
    let gone = Window {
        samples: 0,
        ..window(0, 400 * MB)
    };
    assert_eq!(machine.step(gone).under_way_bytes, UNDER_WAY_MOST_BYTES);
}

/// Copies on a disk that reaches half of its speed with `half` bytes under way, beside a foreground that suffers
/// whatever they do; what they get, and what is under way, in the end: a shorter queue is not being tried then.
fn squeezed(machine: &mut Adaptive, half: u64, windows: usize) -> (u64, u64) {
    let mut limits = machine.step(window(9_000, 0));
    let mut speed = 0;
    for n in 0.. {
        let queue = limits.under_way_bytes;
        let able = 800 * MB / (queue + half) * queue;
        speed = limits.bytes_per_s.unwrap_or(able).min(able);
        let tried = machine.too_short > 0 && queue <= machine.too_short;
        if n >= windows && !tried {
            break;
        }
        assert!(n < windows + 20, "a try ends");
        limits = machine.step(window(9_000, speed));
    }
    (speed, limits.under_way_bytes)
}

#[test]
fn the_queue_gets_as_short_as_half_of_the_speed_allows() {
    // With 512 KiB the first disk gives 640 MB/s, and 400 with 128; the second 267 and 80.
    for (half, least, most) in [(128 << 10, 0, 192 << 10), (1 << 20, 256 << 10, 512 << 10)] {
        let mut machine = rested();
        let (speed, under_way) = squeezed(&mut machine, half, 60);
        let reached = machine.floor() / 100 * MISSED_PERCENT;
        assert!(speed >= reached, "{} of {} MB/s", speed / MB, reached / MB);
        assert!(speed * 2 >= machine.peak.bytes_per_s(), "half of the most");
        assert!((least..=most).contains(&under_way), "{under_way}");
        // What was found out holds for the next move, and for as long as it goes on.
        for _ in 0..5 {
            let between = machine.step(window(1_000, 0));
            assert_eq!(between.under_way_bytes, under_way);
        }
        let (_, again) = squeezed(&mut machine, half, 30);
        assert_eq!(again, under_way);
    }
}

#[test]
fn copies_keep_half_of_the_speed_on_every_disk_however_p99_goes_with_the_queue() {
    // p99 by bytes under way, in KiB: high whatever is done, or falling into the range in which nothing is changed.
    let patterns: [fn(u64) -> u64; 4] = [
        |_| 9_000,
        |kib| if kib > 192 { 1_400 } else { 1_250 },
        |kib| if kib > 256 { 1_400 } else { 1_200 },
        |kib| 1_000 + 2 * kib,
    ];
    for half in (16..2_048).step_by(24) {
        for (number, p99_us) in patterns.iter().enumerate() {
            let mut machine = rested();
            let mut limits = machine.step(window(9_000, 0));
            let (mut all, mut windows, mut below, mut worst) = (0, 0, 0, u64::MAX);
            for n in 0..400 {
                let kib = limits.under_way_bytes >> 10;
                let able = 800 * MB / (kib + half) * kib;
                let speed = limits.bytes_per_s.unwrap_or(able).min(able);
                limits = machine.step(window(p99_us(kib), speed));
                if n >= 100 {
                    (all, windows) = (all + speed, windows + 1);
                    let half = machine.peak.bytes_per_s() / 1_000 * 499;
                    below += u64::from(speed < half);
                    worst = worst.min(speed);
                }
                if n == 199 {
                    // Before what copies can reach is learned anew, and with it how short the queue may be.
                    let peak = machine.peak.bytes_per_s();
                    assert!(
                        all * 10 >= peak * 495 && worst * 100 >= peak * 35,
                        "at {half} KiB, pattern {number}: {} and {} of {} MB/s",
                        all / 100 / MB,
                        worst / MB,
                        peak / MB
                    );
                }
            }
            let peak = machine.peak.bytes_per_s();
            let mean = all / windows;
            // A queue of half the length is tried now and then: it gives half of that, at least.
            assert!(
                mean * 2 >= peak && below * 20 <= windows && worst * 4 >= peak,
                "at {half} KiB, pattern {number}: {} MB/s, {below} windows below half of {}, the worst {}",
                mean / MB,
                peak / MB,
                worst / MB
            );
        }
    }
}

#[test]
fn a_queue_that_was_found_out_outlives_a_time_without_anybody() {
    let mut machine = rested();
    let (_, found) = squeezed(&mut machine, 64 << 10, 40);
    assert_eq!(found, UNDER_WAY_LEAST_BYTES);
    let alone = Window {
        samples: 0,
        ..window(0, 400 * MB)
    };
    assert_eq!(machine.step(alone).under_way_bytes, UNDER_WAY_MOST_BYTES);
    // The foreground comes back while the copy goes on, and suffers.
    let mut windows = 0;
    while machine.step(window(9_000, 400 * MB)).under_way_bytes != found {
        windows += 1;
        assert!(windows < 2 * RECENT_WINDOWS, "at once, not step by step");
    }
}

#[test]
fn a_queue_that_has_become_too_short_is_made_longer() {
    let mut machine = rested();
    let (_, under_way) = squeezed(&mut machine, 64 << 10, 40);
    assert_eq!(under_way, UNDER_WAY_LEAST_BYTES);
    let before = machine.peak.bytes_per_s();
    let (speed, under_way) = squeezed(&mut machine, 256 << 10, 40);
    assert!(under_way > UNDER_WAY_LEAST_BYTES, "{under_way}");
    assert!(
        speed >= before / 100 * 49,
        "{} of {}",
        speed / MB,
        before / MB
    );
    // A foreground that suffers no more: the queue first, then the rate.
    for _ in 0..30 {
        machine.step(window(1_000, machine.limit.unwrap_or(600 * MB)));
    }
    assert_eq!(machine.limit, None);
    assert_eq!(machine.under_way, UNDER_WAY_MOST_BYTES);
}

#[test]
fn what_copies_can_reach_is_learned_with_a_queue_that_allows_it() {
    let mut machine = rested();
    squeezed(&mut machine, 64 << 10, 40);
    let mut probed = 0;
    for _ in 0..2 * PROBE_EVERY_WINDOWS {
        let limits = machine.step(window(9_000, machine.floor()));
        if machine.probing.is_some() {
            probed += 1;
            assert_eq!(limits.under_way_bytes, UNDER_WAY_SHORT_BYTES);
        }
    }
    assert!(probed > 0);
}

#[test]
fn what_copies_can_reach_is_learned_anew_now_and_then() {
    let mut machine = rested();
    let mut free = 0;
    let mut limit = None;
    for n in 0..4 * PROBE_EVERY_WINDOWS {
        // After a while the place gives a quarter of what it gave.
        let wire = if n < 50 { 400 * MB } else { 100 * MB };
        free += u32::from(limit.is_none());
        limit = machine.rate(window(9_000, limit.unwrap_or(wire).min(wire)));
    }
    assert_eq!(machine.peak.bytes_per_s(), 100 * MB);
    assert_eq!(limit, Some(machine.floor()));
    assert!(
        free * 100 <= 4 * PROBE_EVERY_WINDOWS + 100 * PROBE_WINDOWS,
        "{free}"
    );
}

#[test]
fn copies_give_way_while_somebody_may_be_disturbed_and_only_then() {
    let mut machine = Adaptive::default();
    assert!(!machine.step(Window::default()).gives_way);
    let mut machine = rested();
    assert!(
        machine.step(window(1_000, 0)).gives_way,
        "the next one begins so"
    );
    // What the most is, is learned from copies that compete.
    let steps: Vec<bool> = (0..4)
        .map(|_| machine.step(window(1_000, 400 * MB)).gives_way)
        .collect();
    assert_eq!(steps, [false, true, true, true]);
    let alone = Window {
        samples: SAMPLES_MIN - 1,
        ..window(1_000, 400 * MB)
    };
    assert!(!machine.step(alone).gives_way);
    assert!(machine.step(window(1_000, 400 * MB)).gives_way);
}

#[test]
fn copies_that_get_nothing_when_they_give_way_insist_for_most_of_the_time() {
    let mut machine = rested();
    for _ in 0..4 {
        machine.step(window(1_000, 400 * MB));
    }
    let mut starving = Vec::new();
    for _ in 0..3 * (STARVED_WINDOWS + INSIST_WINDOWS) {
        starving.push(machine.step(window(1_000, MB)).gives_way);
    }
    let inside = starving.iter().filter(|gives_way| **gives_way).count();
    assert!(inside > 0, "it tries again");
    assert!(inside * 10 <= starving.len(), "{inside}");
    // Windows in which moves end and begin are no reason.
    let mut machine = rested();
    for _ in 0..4 {
        machine.step(window(1_000, 400 * MB));
    }
    for n in 0..40 {
        let speed = if n % 4 == 0 { 400 * MB } else { MB };
        assert!(machine.step(window(1_000, speed)).gives_way, "{n}");
    }
}

#[test]
fn windows_in_which_copies_begin_or_end_do_not_make_the_queue_longer() {
    let mut machine = rested();
    for _ in 0..4 {
        machine.watch(window(9_000, 400 * MB), true);
    }
    let mut shortest = u64::MAX;
    for turn in 0..20 {
        machine.step(window(1_000, 0));
        // Nobody else is there for the half of a window.
        for percent in [20, 100, 98, 99, 70, 40] {
            let limit = machine.limit.unwrap_or(400 * MB);
            machine.step(window(9_000, limit / 100 * percent));
        }
        shortest = shortest.min(machine.under_way);
        assert!(
            turn < 3 || machine.under_way == UNDER_WAY_LEAST_BYTES,
            "{turn}: {}",
            machine.under_way
        );
    }
    assert_eq!(shortest, UNDER_WAY_LEAST_BYTES);
}

#[test]
fn a_disk_that_was_slow_for_a_moment_is_no_slow_disk() {
    let mut machine = rested();
    for _ in 0..6 {
        machine.watch(window(9_000, 400 * MB), true);
    }
    let slow = |machine: &mut Adaptive, percent: u64, windows: u32| {
        for _ in 0..windows {
            let limit = machine.limit.unwrap_or(400 * MB);
            machine.step(window(9_000, limit / 100 * percent));
        }
    };
    slow(&mut machine, 100, 20);
    assert_eq!(machine.found, UNDER_WAY_LEAST_BYTES);
    slow(&mut machine, 70, 12);
    let longer = machine.found;
    assert!(longer > UNDER_WAY_LEAST_BYTES, "{longer}");
    let before = machine.retry.1;
    slow(&mut machine, 100, 2 * before);
    assert_eq!(machine.found, UNDER_WAY_LEAST_BYTES);
    // Where it is one, that is tried ever more rarely.
    let mut short = 0;
    for _ in 0..PROBE_EVERY_WINDOWS {
        let percent = if machine.under_way == UNDER_WAY_LEAST_BYTES {
            80
        } else {
            100
        };
        short += u32::from(percent == 80);
        slow(&mut machine, percent, 1);
    }
    assert!(short * 8 <= PROBE_EVERY_WINDOWS, "{short}");
}

#[test]
fn a_short_queue_without_a_limit_does_not_hold_copies_below_what_they_keep() {
    let mut machine = rested();
    squeezed(&mut machine, 64 << 10, 40);
    assert_eq!(machine.found, UNDER_WAY_LEAST_BYTES);
    // A foreground that suffers no more, until there is no limit; then the disk needs a longer queue, and p99
    // goes neither way.
    for _ in 0..30 {
        let speed = machine.limit.unwrap_or(600 * MB).min(600 * MB);
        machine.step(window(1_000, speed));
    }
    let mut limits = machine.step(window(9_000, 600 * MB));
    let mut speed = 0;
    for n in 0..40 {
        let queue = limits.under_way_bytes;
        let able = 800 * MB / (queue + (512 << 10)) * queue;
        speed = limits.bytes_per_s.unwrap_or(able).min(able);
        limits = machine.step(window(if n < 3 { 9_000 } else { 1_200 }, speed));
    }
    let peak = machine.peak.bytes_per_s();
    assert!(speed * 2 >= peak, "{} of {} MB/s", speed / MB, peak / MB);
}
