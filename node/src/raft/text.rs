//! Opaque bytes as a JSON string: plain text stays readable in the log, everything else is hexadecimal.
//!
//! Keeps true: decoding gives back the same bytes, and the JSON is at most about twice as long as they are
//! (text that JSON would blow up further, such as control characters, goes as hexadecimal).

use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};
use std::fmt;

const TEXT: char = 't';
const HEX: char = 'x';

fn stays_small(text: &str) -> bool {
    text.bytes()
        .all(|b| b >= 0x20 || matches!(b, b'\n' | b'\r' | b'\t'))
}

/// Serialises `bytes` as one string.
pub(super) fn serialize<S: Serializer>(bytes: &[u8], out: S) -> Result<S::Ok, S::Error> {
    let mut string = String::with_capacity(bytes.len() + 1);
    match std::str::from_utf8(bytes) {
        Ok(text) if stays_small(text) => {
            string.push(TEXT);
            string.push_str(text);
        }
        _ => {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            string.reserve(bytes.len());
            string.push(HEX);
            for byte in bytes {
                string.push(DIGITS[usize::from(byte >> 4)] as char);
                string.push(DIGITS[usize::from(byte & 15)] as char);
            }
        }
    }
    out.serialize_str(&string)
}

struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string that starts with t (text) or x (hexadecimal)")
    }

    fn visit_str<E: Error>(self, string: &str) -> Result<Vec<u8>, E> {
        if let Some(text) = string.strip_prefix(TEXT) {
            return Ok(text.as_bytes().to_vec());
        }
        let hex = string
            .strip_prefix(HEX)
            .ok_or_else(|| E::custom("neither text nor hexadecimal"))?
            .as_bytes();
        if !hex.len().is_multiple_of(2) {
            return Err(E::custom("odd number of hexadecimal digits"));
        }
        let digit = |b: u8| {
            (b as char)
                .to_digit(16)
                .ok_or_else(|| E::custom("not a hexadecimal digit"))
        };
        hex.chunks_exact(2)
            .map(|pair| Ok((digit(pair[0])? * 16 + digit(pair[1])?) as u8))
            .collect()
    }
}

/// Reads what [`serialize`] wrote. Malformed strings are errors.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    from.deserialize_str(Bytes)
}

#[cfg(test)]
mod tests {
    use crate::raft::limits::{MAX_ENTRY_BYTES, MAX_PROPOSAL_BYTES};
    use crate::raft::types::Proposal;

    fn round_trip(bytes: Vec<u8>) -> String {
        let json = serde_json::to_string(&Proposal(bytes.clone())).unwrap();
        assert_eq!(serde_json::from_str::<Proposal>(&json).unwrap().0, bytes);
        json
    }

    #[test]
    fn text_stays_readable_and_bytes_survive() {
        assert_eq!(round_trip(b"{\"a\":1}".to_vec()), r#""t{\"a\":1}""#);
        assert_eq!(round_trip(vec![0xff, 0x00]), r#""xff00""#);
        round_trip(Vec::new());
        round_trip((0..=255).collect());
    }

    #[test]
    fn the_longest_proposal_fits_whatever_it_holds() {
        for byte in [b'"', b'\\', b'\n', 0x00, 0x1f, 0x7f, 0x80, 0xff] {
            assert!(
                round_trip(vec![byte; MAX_PROPOSAL_BYTES]).len() < MAX_ENTRY_BYTES,
                "byte {byte:#x}"
            );
        }
    }

    #[test]
    fn malformed_strings_are_refused() {
        for bad in [r#""""#, r#""z""#, r#""x1""#, r#""xgg""#, "7"] {
            assert!(serde_json::from_str::<Proposal>(bad).is_err(), "{bad}");
        }
    }
}
