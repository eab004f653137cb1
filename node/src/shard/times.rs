//! Which times a record may bring along.
//!
//! What this file keeps true: retention goes by the times of records, so what is taken has one that
//! can be meant: not so far ahead that nothing would ever outlive it, and not so long ago that
//! retention would delete the record, acked to its producer, before anybody has read it.

use crate::shard::faults;
use crate::shard::limits::TIME_AHEAD_MAX_MS;
use narad_core::ids::WallMs;
use narad_core::meta::TopicSettings;
use narad_wire::error::WireFault;

/// Whether a record of this time is taken at `now`.
pub(crate) fn fits(time: WallMs, settings: &TopicSettings, now: WallMs) -> bool {
    let oldest = settings
        .retention_ms
        .map_or(0, |ms| now.0.saturating_sub(ms));
    (oldest..=now.0.saturating_add(TIME_AHEAD_MAX_MS)).contains(&time.0)
}

/// The refusal of a record whose time does not fit.
pub(crate) fn refusal(time: WallMs, settings: &TopicSettings, now: WallMs) -> WireFault {
    let what = match (settings.retention_ms, time < now) {
        (Some(kept_ms), true) => format!(
            "is {} ms ago, and the topic keeps records for {kept_ms} ms",
            now.0 - time.0
        ),
        _ => format!(
            "is {} ms ahead of this node's clock, the limit is {TIME_AHEAD_MAX_MS}",
            time.0.saturating_sub(now.0)
        ),
    };
    faults::invalid(
        format!("the time of a record, timeMs {}, {what}", time.0),
        "count ms since 1970 in UTC, or send 0: the node's clock decides then",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_wire::error::ErrorCode;

    const NOW: WallMs = WallMs(1_700_000_000_000);

    fn settings(retention_ms: Option<u64>) -> TopicSettings {
        TopicSettings {
            retention_ms,
            ..TopicSettings::default()
        }
    }

    #[test]
    fn a_time_in_another_unit_is_refused_where_retention_would_go_by_it() {
        let (kept, forever) = (settings(Some(7 * 86_400_000)), settings(None));
        let (in_s, in_us) = (WallMs(NOW.0 / 1_000), WallMs(NOW.0 * 1_000));
        for settings in [&kept, &forever] {
            assert!(fits(NOW, settings, NOW));
            assert!(!fits(in_us, settings, NOW));
            let fault = refusal(in_us, settings, NOW);
            assert_eq!(fault.code, ErrorCode::Invalid);
            assert!(fault.message.contains("ahead"), "{fault}");
        }
        assert!(!fits(in_s, &kept, NOW));
        let fault = refusal(in_s, &kept, NOW);
        assert!(fault.message.contains("keeps records for"), "{fault}");
        // Without retention an old time harms nobody.
        assert!(fits(in_s, &forever, NOW));
    }

    #[test]
    fn the_bounds_themselves_fit() {
        let kept = settings(Some(1_000));
        for (ms, fit) in [(1_000, true), (1_001, false)] {
            assert_eq!(fits(WallMs(NOW.0 - ms), &kept, NOW), fit);
        }
        for (ms, fit) in [(TIME_AHEAD_MAX_MS, true), (TIME_AHEAD_MAX_MS + 1, false)] {
            assert_eq!(fits(WallMs(NOW.0 + ms), &kept, NOW), fit);
        }
    }
}
