//! Who may import whom, and that the decisions know nothing of the machine.
//!
//! What this file keeps true: the table in `node/docs/ARCHITECTURE.md` is what the manifests say; a
//! new arrow is a decision that somebody makes here, not an accident.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Crate directory, its package name, and what of this workspace it may depend on.
const ARROWS: [(&str, &str, &[&str]); 7] = [
    ("node/core", "narad-core", &[]),
    ("storage", "narad-storage", &["narad-core"]),
    ("schema", "narad-schema", &[]),
    ("wire", "narad-wire", &["narad-core", "narad-schema"]),
    (
        "node",
        "narad",
        &["narad-core", "narad-schema", "narad-storage", "narad-wire"],
    ),
    ("node/sim", "narad-sim", &["narad-core", "narad-storage"]),
    (
        "bench",
        "narad-bench",
        &["narad-core", "narad-schema", "narad-storage", "narad-wire"],
    ),
];

/// What the decisions may use from outside the workspace.
const CORE_MAY_USE: [&str; 1] = ["serde"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
        .to_owned()
}

fn manifest(path: &Path) -> toml::Table {
    let text = std::fs::read_to_string(path.join("Cargo.toml")).expect("a manifest");
    text.parse().expect("TOML")
}

/// Names of dependencies and build dependencies, of every target.
fn dependencies(manifest: &toml::Table) -> BTreeSet<String> {
    let mut tables = vec![manifest];
    if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
        tables.extend(targets.values().filter_map(toml::Value::as_table));
    }
    let mut names = BTreeSet::new();
    for table in tables {
        for kind in ["dependencies", "build-dependencies"] {
            let found = table.get(kind).and_then(toml::Value::as_table);
            names.extend(found.into_iter().flat_map(|table| table.keys().cloned()));
        }
    }
    names
}

#[test]
fn no_arrow_outside_the_table() {
    let members: BTreeSet<String> = manifest(&root())["workspace"]["members"]
        .as_array()
        .expect("members")
        .iter()
        .map(|member| member.as_str().expect("a path").to_owned())
        .collect();
    let known: BTreeSet<String> = ARROWS.iter().map(|(dir, _, _)| (*dir).to_owned()).collect();
    assert_eq!(
        members, known,
        "every crate of the workspace stands in the table"
    );
    let ours: BTreeSet<&str> = ARROWS.iter().map(|(_, name, _)| *name).collect();
    for (dir, name, allowed) in ARROWS {
        let manifest = manifest(&root().join(dir));
        assert_eq!(manifest["package"]["name"].as_str(), Some(name));
        for dependency in dependencies(&manifest) {
            assert!(
                !ours.contains(dependency.as_str()) || allowed.contains(&dependency.as_str()),
                "{name} must not import {dependency}"
            );
        }
    }
}

/// What is read of a watched value is copied out in a statement that does nothing else. The value's lock is held
/// to the end of the statement; a task that is spawned runs at once, up to where it waits; and whoever reads a
/// second time while the writer waits for the first never gets on, nor does anybody else: a node hung like that.
#[test]
fn no_lock_of_a_watched_value_is_held_while_anything_else_happens() {
    let harmless = |line: &str| {
        let plain = |rest: &str| {
            let field = rest.trim_end_matches(';').trim_end_matches(".clone()");
            field
                .chars()
                .all(|c| c.is_ascii_lowercase() || c == '_' || c == '.')
        };
        let (before, after) = line
            .split_once(".borrow_and_update()")
            .expect("it is there");
        let copied = before.starts_with("let ") && after.ends_with(';') && plain(after);
        // Of a condition it is dropped before the block; a flag is copied out of it.
        let asked = ["if *", "while !*", "while *", "if !*"];
        copied || asked.iter().any(|begin| before.starts_with(begin))
    };
    let mut seen = 0;
    each_source(&root().join("node/src"), &mut |path, text| {
        // openraft's own kind of watch has to hand the guard on.
        if path.ends_with("raft/runtime/channels.rs") {
            return;
        }
        for line in text.lines().map(str::trim) {
            if line.contains(".borrow_and_update()") && !line.starts_with("assert") {
                seen += 1;
                assert!(harmless(line), "{}: {line}", path.display());
            }
        }
    });
    assert!(seen >= 5, "{seen}");
    assert!(!harmless(
        "mover.reconcile(&meta.borrow_and_update().clone());"
    ));
    assert!(!harmless(
        "let n = count(&meta.borrow_and_update().clone());"
    ));
    assert!(!harmless(
        "if let Some(x) = meta.borrow_and_update().clone() {"
    ));
}

#[test]
fn decisions_know_nothing_of_the_machine() {
    let core = root().join("node/core");
    for dependency in dependencies(&manifest(&core)) {
        assert!(
            CORE_MAY_USE.contains(&dependency.as_str()),
            "narad-core must not use {dependency}"
        );
    }
    let lib = std::fs::read_to_string(core.join("src/lib.rs")).expect("a crate");
    for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
        assert!(
            lib.lines().any(|line| line.trim() == attribute),
            "{attribute} is missing"
        );
    }
    // Anybody could bring the standard library back by name.
    let mut looked_at = 0;
    each_source(&core.join("src"), &mut |path, text| {
        looked_at += 1;
        let product = text.split("#[cfg(test)]").next().expect("a first part");
        for line in product
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            let brings_std = line.contains("extern crate std") || line.contains("use std::");
            let in_tests = path.components().any(|part| part.as_os_str() == "tests");
            assert!(in_tests || !brings_std, "{}: {line}", path.display());
        }
    });
    assert!(looked_at > 5, "only {looked_at} files were looked at");
}

#[test]
fn every_file_says_what_it_is_for() {
    let mut looked_at = 0;
    for (dir, _, _) in ARROWS {
        each_source(&root().join(dir).join("src"), &mut |path, text| {
            looked_at += 1;
            assert!(text.starts_with("//! "), "{} has no header", path.display());
        });
    }
    assert!(looked_at > 50, "only {looked_at} files were looked at");
}

/// Calls `look` with every Rust file below a directory.
fn each_source(dir: &Path, look: &mut impl FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            each_source(&path, look);
        } else if path.extension().is_some_and(|end| end == "rs") {
            look(
                &path,
                &std::fs::read_to_string(&path).expect("a source file"),
            );
        }
    }
}
