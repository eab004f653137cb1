//! What a command that carried records tells at its end.
//!
//! What this file keeps true: the commands name what they count alike, for people and for programs.

use super::units;
use serde_json::{Map, Value};
use std::time::Duration;

/// How much went through a command, and how fast.
pub struct Totals {
    /// Records.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long the command ran.
    pub took: Duration,
}

impl Totals {
    /// For programs, with what this command alone counts.
    #[must_use]
    pub fn json(&self, more: &[(&str, u64)]) -> Value {
        let common = [
            ("records", self.records),
            ("bytes", self.bytes),
            ("elapsed_ms", self.elapsed_ms()),
            ("bytes_per_s", units::per_second(self.bytes, self.took)),
        ];
        let counts = common.iter().chain(more);
        let body: Map<String, Value> = counts
            .map(|(name, count)| ((*name).to_owned(), (*count).into()))
            .collect();
        Value::Object(body)
    }

    /// For people: the bytes, the time and the speed.
    #[must_use]
    pub fn volume(&self) -> String {
        format!(
            "{} in {}, {}",
            units::size(self.bytes),
            units::millis(self.elapsed_ms()),
            units::rate(units::per_second(self.bytes, self.took))
        )
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn programs_get_the_common_counts_and_the_command_s_own() {
        let totals = Totals {
            records: 3,
            bytes: 4_096,
            took: Duration::from_secs(2),
        };
        let told = json!({
            "records": 3,
            "bytes": 4_096,
            "elapsed_ms": 2_000,
            "bytes_per_s": 2_048,
            "skipped": 7,
        });
        assert_eq!(totals.json(&[("skipped", 7)]), told);
        assert_eq!(totals.volume(), "4.0 KiB in 2.0 s, 2.0 KiB/s");
    }
}
