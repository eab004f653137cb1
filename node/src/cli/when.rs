//! Points in time as people write them.
//!
//! What this file keeps true: a time is never guessed. A bare number is milliseconds since 1970, a
//! number with a unit is an age, and a date carries its `Z`: nobody's time zone is assumed.

use std::time::{SystemTime, UNIX_EPOCH};

const AGES: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// Parses `2026-11-29T14:30:00Z`, ms since 1970, or an age as `15m`; ms since 1970.
///
/// # Errors
/// A sentence for the user when it is none of these.
pub fn parse_time(text: &str) -> Result<u64, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    });
    parse_at(text.trim(), now).ok_or_else(|| {
        format!(
            "'{text}' is no time; write 2026-11-29T14:30:00Z, an age as 15m or 2h, or ms since 1970"
        )
    })
}

fn parse_at(text: &str, now: u64) -> Option<u64> {
    if let Ok(ms) = text.parse::<u64>() {
        return Some(ms);
    }
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    if let Some((_, factor)) = AGES.iter().find(|(name, _)| *name == unit) {
        let age = number.parse::<u64>().ok()?.checked_mul(*factor)?;
        return Some(now.saturating_sub(age));
    }
    date(text)
}

/// `YYYY-MM-DDThh:mm:ss[.fff]Z`.
fn date(text: &str) -> Option<u64> {
    let (day, time) = text.strip_suffix('Z')?.split_once(['T', ' '])?;
    let [year, month, day] = numbers(day, '-')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(time, ':')?;
    let fraction: String = fraction.chars().chain("000".chars()).take(3).collect();
    let fraction: u64 = fraction.parse().ok()?;
    let days_of = [
        31,
        28 + u64::from(is_leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let length = *days_of.get(usize::try_from(month.checked_sub(1)?).ok()?)?;
    let valid = (1970..=9999).contains(&year) && (1..=length).contains(&day);
    if !valid || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let years: u64 = (1970..year)
        .map(|year| 365 + u64::from(is_leap(year)))
        .sum();
    let months: u64 = days_of.iter().take(usize::try_from(month - 1).ok()?).sum();
    let seconds = ((years + months + day - 1) * 24 + hour) * 3_600 + minute * 60 + second;
    Some(seconds * 1_000 + fraction)
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn numbers(text: &str, separator: char) -> Option<[u64; 3]> {
    let parts: Vec<u64> = text
        .split(separator)
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    parts.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_taken_as_they_are_meant() {
        let now = 1_000_000_000;
        let parse = |text| parse_at(text, now);
        assert_eq!(parse("1234"), Some(1_234));
        assert_eq!(parse("15m"), Some(now - 15 * 60_000));
        assert_eq!(parse("2h"), Some(now - 7_200_000));
        assert_eq!(parse("99999d"), Some(0), "older than everything");
        assert_eq!(parse("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse("2000-03-01T00:00:00Z"), Some(951_868_800_000));
        assert_eq!(parse("2026-11-29T14:30:05.25Z"), Some(1_795_962_605_250));
        for wrong in [
            "",
            "yesterday",
            "5 parsecs",
            "2026-11-29",
            "2026-11-29T14:30:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-29T24:00:00Z",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
