//! The scripted working day on five nodes, each in a network namespace of its own.

use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_working_day_on_five_nodes_ends_as_planned_and_loses_nothing() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/session.sh");
    let output = Command::new(script)
        .env("NARAD", env!("CARGO_BIN_EXE_narad"))
        .env_remove("NARAD_SERVER")
        .stdin(Stdio::null())
        .output()
        .expect("bash runs");
    let text = crate::text(&output);
    assert!(output.status.success(), "{text}");
    if let Some(reason) = text.lines().find(|line| line.contains("skipped:")) {
        println!("{reason}");
        return;
    }
    let last = text.lines().rfind(|line| line.starts_with("acknowledged:"));
    assert!(last.is_some_and(|line| line.ends_with("lost: 0")), "{text}");
}
