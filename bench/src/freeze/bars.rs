//! What the freeze has to keep.
//!
//! What this file keeps true: ratios are of moves of the same round; what was not measured in this run
//! has no bar.

use super::outcome::{Point, lag_bound};
use crate::report::bars::{Bar, Bound};

/// Up to here the tail has to come below the lag bound.
const CONVERGES_UP_TO: f64 = 0.9;

/// The bars that these points cover.
pub(super) fn of(points: &[Point]) -> Vec<Bar> {
    let mut bars = Vec::new();
    let sizes: Vec<&Point> = points.iter().filter(|p| !p.throttled).collect();
    let smallest = sizes.iter().min_by_key(|p| p.size);
    let largest = sizes.iter().max_by_key(|p| p.size);
    if let (Some(small), Some(large)) = (smallest, largest) {
        bars.extend(over_bare(small));
        if small.size < large.size {
            bars.push(over_size(small, large));
        }
    }
    let ratios: Vec<&Point> = points.iter().filter(|p| p.throttled).collect();
    let at_rest = ratios.iter().find(|p| p.ratio == 0.0);
    if let Some(at_rest) = at_rest {
        let wanted = |p: &&&Point| p.ratio == 0.5 || p.ratio == 0.9 || p.ratio >= 1.0;
        bars.extend(ratios.iter().filter(wanted).map(|p| over_tail(at_rest, p)));
    }
    let converging: Vec<&&Point> = ratios
        .iter()
        .filter(|p| p.ratio > 0.0 && p.ratio <= CONVERGES_UP_TO)
        .collect();
    if !converging.is_empty() {
        bars.push(tails(&converging));
    }
    bars.push(count("moves that did not flip", points, |p| {
        (p.moves.len() - p.flipped().count()) as u64
    }));
    bars.push(count(
        "calls of clients that failed during moves",
        points,
        |p| p.failed_calls,
    ));
    bars.push(count("records lost", points, |p| p.lost));
    bars
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn over_bare(point: &Point) -> Option<Bar> {
    if point.bare_us.is_empty() {
        return None;
    }
    let pairs = point.moves.iter().zip(&point.bare_us);
    let ratios: Vec<f64> = pairs
        .filter(|(one, _)| one.freeze_us > 0)
        .map(|(one, bare)| one.freeze_us as f64 / bare)
        .collect();
    let name = format!("freeze / same steps bare, W = 0, {}", mib(point.size));
    Some(Bar::paired(name, &ratios, Bound::AtMost(2.0)))
}

fn over_size(small: &Point, large: &Point) -> Bar {
    let pairs = small.moves.iter().zip(&large.moves);
    let ratios: Vec<f64> = pairs
        .filter(|(a, b)| a.freeze_us > 0 && b.freeze_us > 0)
        .map(|(a, b)| b.freeze_us as f64 / a.freeze_us as f64)
        .collect();
    let name = format!(
        "freeze at {} / at {}, W = 0",
        mib(large.size),
        mib(small.size)
    );
    Bar::paired(name, &ratios, Bound::AtMost(1.2))
}

/// Freeze over the freeze at rest in the same round and the time that the tail needs at B.
fn over_tail(at_rest: &Point, point: &Point) -> Bar {
    let pairs = at_rest.moves.iter().zip(&point.moves);
    let ratios: Vec<f64> = pairs
        .filter(|(a, b)| a.freeze_us > 0 && b.freeze_us > 0)
        .map(|(rest, one)| {
            let tail = one.tails.last().copied().unwrap_or(0) as f64;
            let needed = tail / point.bandwidth as f64 * 1e6;
            one.freeze_us as f64 / (rest.freeze_us as f64 + needed)
        })
        .collect();
    let name = format!(
        "freeze / (freeze at 0 + tail / B), W/B = {}, {}",
        point.ratio,
        mib(point.size)
    );
    Bar::paired(name, &ratios, Bound::AtMost(1.3))
}

/// The worst tail over its lag bound.
fn tails(points: &[&&Point]) -> Bar {
    let worst = points
        .iter()
        .flat_map(|p| p.flipped())
        .map(|one| {
            let tail = one.tails.last().copied().unwrap_or(0) as f64;
            tail / lag_bound(one.bytes_per_s) as f64
        })
        .fold(0.0, f64::max);
    let name = "largest tail at the freeze / lag bound, W/B <= 0.9";
    Bar::single(name, "ratio", worst, Bound::AtMost(1.0))
}

fn count(name: &str, points: &[Point], of: impl Fn(&Point) -> u64) -> Bar {
    let sum: u64 = points.iter().map(of).sum();
    Bar::single(name, "count", sum as f64, Bound::AtMost(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_wire::client::MoveView;

    fn point(size: u64, ratio: f64, bandwidth: u64, freeze_us: u64, tail: u64) -> Point {
        let mut point = Point::new(size, ratio, bandwidth);
        for _ in 0..9 {
            point.moves.push(MoveView {
                outcome: "flipped".into(),
                freeze_us,
                tails: vec![size, tail],
                bytes_per_s: bandwidth,
                ..MoveView::default()
            });
            point.bare_us.push(1_000.0);
        }
        point
    }

    fn value(bars: &[Bar], begin: &str) -> (Option<f64>, bool) {
        let bar = bars.iter().find(|bar| bar.name.starts_with(begin)).unwrap();
        (bar.value, bar.ok)
    }

    #[test]
    fn bars_are_those_of_what_was_measured() {
        let mib = 1 << 20;
        let points = [
            point(64 * mib, 0.0, 0, 1_500, 0),
            point(8_192 * mib, 0.0, 0, 1_950, 0),
            point(64 * mib, 0.0, 16 * mib, 2_000, 0),
            point(64 * mib, 0.9, 16 * mib, 3_000, 80 << 10),
            point(64 * mib, 2.0, 16 * mib, 1_000_000, 16 * mib),
        ];
        let bars = of(&points);
        assert_eq!(value(&bars, "freeze / same"), (Some(1.5), true));
        assert_eq!(value(&bars, "freeze at 8192"), (Some(1.3), false));
        let (tail, ok) = value(&bars, "freeze / (freeze at 0 + tail / B), W/B = 0.9");
        assert!(ok && (tail.unwrap() - 3_000.0 / (2_000.0 + 4_882.8)).abs() < 1e-3);
        let (tail, ok) = value(&bars, "freeze / (freeze at 0 + tail / B), W/B = 2");
        assert!(ok && tail.unwrap() < 1.0);
        let (worst, ok) = value(&bars, "largest tail");
        assert!(ok && worst.unwrap() > 0.9);
        assert_eq!(value(&bars, "records lost"), (Some(0.0), true));
        assert_eq!(of(&points[2..3]).len(), 3);
    }
}
