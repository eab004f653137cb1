//! Sizes and rates on the command line.
//!
//! What this file keeps true: a unit is never guessed; what is not understood is refused.

/// Parses `4096`, `64KiB`, `16MiB`, `1GiB`, and rates as `2MiB/s`; bytes.
///
/// # Errors
/// A sentence for the user.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not understood; write 4096, 64KiB, 16MiB/s or 1GiB");
    let plain = text.strip_suffix("/s").unwrap_or(text);
    let (number, factor) = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)]
        .into_iter()
        .find_map(|(unit, factor)| Some((plain.strip_suffix(unit)?, factor)))
        .unwrap_or((plain, 1_u64));
    let number: u64 = number.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(factor).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn units_are_taken_by_their_name() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("2MiB/s"), Ok(2 << 20));
        assert_eq!(parse_bytes("1 GiB"), Ok(1 << 30));
        for wrong in ["", "MiB", "2MB", "-1", "99999999999GiB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
