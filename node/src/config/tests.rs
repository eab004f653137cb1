//! Tests of the configuration: precedence, relations, and that all problems are told at once.

use super::*;

fn args(words: &[&str]) -> ServeArgs {
    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        serve: ServeArgs,
    }
    <Program as clap::Parser>::try_parse_from(std::iter::once(&"narad").chain(words))
        .expect("the words are flags")
        .serve
}

const GOOD: [&str; 8] = [
    "--node-id",
    "a",
    "--data-dir",
    "/nowhere",
    "--listen",
    "127.0.0.1:7000",
    "--cpus",
    "none",
];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    GOOD.iter().copied().chain(more.iter().copied()).collect()
}

fn flags(words: &[&str]) -> Vec<&'static str> {
    match Config::resolve(args(words)) {
        Ok(_) => Vec::new(),
        Err(ConfigErrors(problems)) => problems.iter().map(|p| p.flag).collect(),
    }
}

#[test]
fn defaults_are_the_table_and_the_bulk_port_is_the_next() {
    let config = Config::resolve(args(&GOOD)).expect("good");
    assert_eq!(config.bulk, "127.0.0.1:7001".parse().unwrap());
    assert_eq!(config.addr, "127.0.0.1:7000");
    assert_eq!(config.http, None);
    assert_eq!(config.start, Start::Restart);
    assert_eq!(
        config.timings.dead_after_ms,
        narad_core::defaults::DEAD_AFTER_MS
    );
}

#[test]
fn all_problems_are_told_at_once() {
    let told = flags(&["--node-id", "a/b", "--shards", "0", "--dead-after-ms", "1"]);
    for flag in [
        "--node-id",
        "--data-dir",
        "--listen",
        "--shards",
        "--dead-after-ms",
    ] {
        assert!(told.contains(&flag), "{flag} in {told:?}");
    }
}

#[test]
fn timings_that_fence_each_other_keep_their_order() {
    assert_eq!(
        flags(&with(&["--move-lease-ms", "14500"])),
        ["--dead-after-ms"]
    );
    assert_eq!(
        flags(&with(&["--force-promote-after-ms", "15000"])),
        ["--force-promote-after-ms"]
    );
    assert_eq!(
        flags(&with(&["--heartbeat-ms", "3000"])),
        ["--move-lease-ms"]
    );
    let scaled = [
        "--heartbeat-ms=100",
        "--election-min-ms=300",
        "--election-max-ms=600",
        "--move-lease-ms=1500",
        "--clock-drift-ms=100",
        "--dead-after-ms=2000",
        "--force-promote-after-ms=4000",
        "--freeze-ttl-ms=1000",
    ];
    assert_eq!(flags(&with(&scaled)), [""; 0]);
}

#[test]
fn a_binding_beyond_loopback_wants_insecure_and_an_address_for_others() {
    let open = [
        "--node-id",
        "a",
        "--data-dir",
        "/nowhere",
        "--listen",
        "0.0.0.0:7000",
    ];
    assert_eq!(flags(&open), ["--listen", "--bulk", "--advertise"]);
    let mut said = open.to_vec();
    said.extend(["--insecure", "--advertise", "db1.example"]);
    let config = Config::resolve(args(&said)).expect("allowed");
    assert_eq!(config.addr, "db1.example:7000");
    assert_eq!(config.bulk_addr, "db1.example:7001");
}

#[test]
fn founders_name_this_node_where_it_listens() {
    let config = Config::resolve(args(&with(&[
        "--peers",
        "a=localhost:7000,b=localhost:7002",
    ])))
    .expect("good");
    assert_eq!(config.addr, "localhost:7000");
    assert!(matches!(config.start, Start::Found(founders) if founders.len() == 2));
    assert_eq!(flags(&with(&["--peers", "b=localhost:7002"])), ["--peers"]);
    assert_eq!(flags(&with(&["--peers", "a=localhost:7009"])), ["--peers"]);
    assert_eq!(
        flags(&with(&["--peers", "a=localhost:7000,a=localhost:7002"])),
        ["--peers"]
    );
    assert_eq!(
        flags(&with(&["--peers", "a=localhost:7000", "--join", "x:1"])),
        ["--peers"]
    );
}

#[test]
fn ports_that_collide_are_told() {
    assert_eq!(flags(&with(&["--bulk", "127.0.0.1:7000"])), ["--bulk"]);
    assert_eq!(flags(&with(&["--http", "127.0.0.1:7001"])), ["--http"]);
}

#[test]
fn a_flag_beats_the_file_and_an_unknown_key_is_told() {
    let dir = std::env::temp_dir().join(format!("narad-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let good = dir.join("good.toml");
    std::fs::write(&good, "heartbeat_ms = 500\nshards = 3\n").unwrap();
    let config = Config::resolve(args(&with(&[
        "--config",
        good.to_str().unwrap(),
        "--shards",
        "2",
    ])))
    .expect("good");
    assert_eq!((config.timings.heartbeat_ms, config.shards), (500, 2));
    let bad = dir.join("bad.toml");
    std::fs::write(&bad, "heartbeat = 500\n").unwrap();
    assert_eq!(
        flags(&with(&["--config", bad.to_str().unwrap()])),
        ["--config"]
    );
    std::fs::remove_dir_all(&dir).unwrap();
}
