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
fn a_relative_data_directory_is_one_below_the_current() {
    let words = GOOD.map(|word| if word == "/nowhere" { "data/a" } else { word });
    let config = Config::resolve(args(&words)).expect("good");
    let here = std::env::current_dir().expect("there is one");
    assert_eq!(config.data_dir, here.join("data/a"));
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

#[test]
fn every_wrong_key_of_a_file_is_told_beside_every_other_problem() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    std::fs::create_dir_all(&dir).expect("the target directory can be made");
    let path = dir.join(format!("wrong-keys-{}.toml", std::process::id()));
    std::fs::write(
        &path,
        "colour = 'red'\nshards = 'many'\nheartbeat_ms = 1\nwal_cap = 5\nlisten = '127.0.0.1:7000'\n",
    )
    .expect("the target directory can be written");
    let words = ["--node-id", "a", "--config", path.to_str().expect("text")];
    let errors = Config::resolve(args(&words)).expect_err("wrong");
    std::fs::remove_file(&path).expect("it is ours");
    let text = errors.to_string();
    for part in [
        "colour",
        "shards",
        "wal_cap",
        "--heartbeat-ms",
        "--data-dir",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains("--listen"), "the good key counts:\n{text}");
}

/// Names of all settings, as the command line has them.
fn knobs() -> Vec<String> {
    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        serve: ServeArgs,
    }
    let command = <Program as clap::CommandFactory>::command();
    let ids = command.get_arguments().filter_map(|arg| arg.get_long());
    ids.filter(|id| !matches!(*id, "help" | "config"))
        .map(|id| id.replace('-', "_"))
        .collect()
}

#[test]
fn the_sample_file_names_every_knob_with_its_default_and_is_valid() {
    let text = include_str!("../../docs/narad.toml");
    let mut all = String::new();
    for line in text.lines() {
        // Knobs that are commented out show their defaults.
        let line = line.strip_prefix("#= ").unwrap_or(line);
        all.push_str(line);
        all.push('\n');
    }
    let table: toml::Table = toml::from_str(&all).expect("TOML");
    let knobs = knobs();
    for knob in &knobs {
        assert!(table.contains_key(knob), "{knob} is not in the sample file");
    }
    for key in table.keys() {
        assert!(knobs.contains(key), "{key} is no setting");
    }
    let mut file: ServeArgs = table.try_into().expect("every value has the right type");
    // Founding and joining exclude each other; the sample shows both.
    file.join = None;
    let shown = Config::resolve(file).expect("the sample file is valid");
    let bare = ServeArgs {
        node_id: Some("n1".into()),
        data_dir: Some("/var/lib/narad".into()),
        listen: Some("10.0.0.1:7420".into()),
        http: Some("10.0.0.1:7422".into()),
        insecure: Some(true),
        peers: Some(vec![
            "n1=10.0.0.1:7420".into(),
            "n2=10.0.0.2:7420".into(),
            "n3=10.0.0.3:7420".into(),
        ]),
        ..ServeArgs::default()
    };
    let plain = Config::resolve(bare).expect("valid");
    assert_eq!(
        (shown.timings, shown.moves, shown.storage.segment_bytes),
        (plain.timings, plain.moves, plain.storage.segment_bytes),
        "what the sample calls a default is one"
    );
    assert_eq!(
        (shown.min_voters, shown.max_voters, shown.bulk),
        (plain.min_voters, plain.max_voters, plain.bulk)
    );
}
