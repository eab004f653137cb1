//! Sizes, rates and durations as people write and read them.
//!
//! What this file keeps true: a unit is never guessed. `KiB MiB GiB TiB` are powers of 1024,
//! `KB MB GB TB` powers of 1000, a bare number is bytes; anything else is refused with an example.

const UNITS: [(&str, u64); 9] = [
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

/// Parses a size as `1536`, `1.5KiB`, `64 MiB`, `2GB`; bytes.
///
/// # Errors
/// A sentence for the user when it is no size or does not fit.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size; write 4096, 64KiB, 1.5GiB or 2GB");
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let factor = if unit.is_empty() {
        1
    } else {
        let found = UNITS.iter().find(|(name, _)| *name == unit);
        found.ok_or_else(wrong)?.1
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(wrong);
    }
    let fraction: f64 = number.parse().map_err(|_| wrong())?;
    let bytes = fraction * factor as f64;
    // 2^63 is exact as a float; beyond it a conversion would saturate without a word.
    if !(0.0..9_223_372_036_854_775_808.0).contains(&bytes) {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

/// Parses a rate as `2MiB/s` or `500KB`; bytes a second. `unlimited` and `0` are 0.
///
/// # Errors
/// A sentence for the user when it is no rate.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    if trimmed.eq_ignore_ascii_case("unlimited") || trimmed.eq_ignore_ascii_case("none") {
        return Ok(0);
    }
    let size = trimmed
        .strip_suffix("/s")
        .or_else(|| trimmed.strip_suffix("ps"))
        .unwrap_or(trimmed);
    parse_size(size)
        .map_err(|_| format!("'{text}' is not a rate; write 50MiB/s, 500KB/s or unlimited"))
}

/// Bytes in at most four digits and a binary unit: `0 B`, `999 B`, `1.5 KiB`, `12.3 GiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    const NAMES: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut name = 0;
    while value >= 1023.95 && name + 1 < NAMES.len() {
        value /= 1024.0;
        name += 1;
    }
    if value < 99.95 {
        format!("{value:.1} {}", NAMES[name])
    } else {
        format!("{value:.0} {}", NAMES[name])
    }
}

/// Bytes a second, over all of the time.
#[must_use]
pub fn per_second(bytes: u64, took: std::time::Duration) -> u64 {
    (bytes as f64 / took.as_secs_f64().max(0.001)) as u64
}

/// A rate: [`size`] a second.
#[must_use]
pub fn rate(bytes_per_s: u64) -> String {
    format!("{}/s", size(bytes_per_s))
}

/// Microseconds as `870 us`, `4.31 ms`, `1.20 s`.
#[must_use]
pub fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.2} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

/// Milliseconds as `950 ms`, `12.5 s`, `3m05s`, `2h07m`.
#[must_use]
pub fn millis(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{:.1} s", ms as f64 / 1e3),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
    }
}

/// A whole number with its thousands set apart: `1,234,567`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_by_their_unit() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64KiB"), Ok(64 << 10));
        assert_eq!(parse_size("1.5 GiB"), Ok(3 << 29));
        assert_eq!(parse_size("2GB"), Ok(2_000_000_000));
        assert_eq!(parse_size("7b"), Ok(7));
        for wrong in [
            "",
            "GiB",
            "1k",
            "-1",
            "1..5KiB",
            "99999999999TiB",
            "1 GiB/s",
            "nan",
        ] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_parsed() {
        assert_eq!(parse_rate("50MiB/s"), Ok(50 << 20));
        assert_eq!(parse_rate("500KB"), Ok(500_000));
        assert_eq!(parse_rate("unlimited"), Ok(0));
        assert_eq!(parse_rate("0"), Ok(0));
        assert!(parse_rate("fast").is_err());
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size((1 << 20) - 1), "1.0 MiB");
        assert_eq!(size(123 << 30), "123 GiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
        assert_eq!(rate(2 << 20), "2.0 MiB/s");
        assert_eq!(micros(870), "870 us");
        assert_eq!(micros(4_310), "4.31 ms");
        assert_eq!(millis(185_000), "3m05s");
        assert_eq!(millis(12_500), "12.5 s");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(12), "12");
    }
}
