//! Sources that die, are cut off, or change while they are copied.

use crate::client::{drain, text, topic, with_client};
use crate::stage::{
    PARTITIONS, Plan, TOPIC, begin, begin_with, check_end, choose, logged, names, order_planned,
    partitions, prepare_target, produce, produce_at, wait_moved, wait_stopped,
};
use crate::support::{Cluster, wait_for};
use narad_core::ids::{Offset, PartitionIndex, WallMs};
use narad_wire::client::calls::ReplayRequest;
use narad_wire::client::{Produced, TopicSettingsView};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Limits the copies, or lifts the limit (0).
fn throttle(addrs: &[String], bytes_per_s: u64) {
    with_client(addrs.to_vec(), async move |client| {
        while client.throttle(Some(bytes_per_s)).await.is_err() {
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
    });
}

/// Waits until so many bytes are at the target.
fn wait_copied(cluster: &mut Cluster, plan: &Plan, bytes: u64) {
    let node = cluster.node(&plan.to);
    wait_for("bytes are copied", || {
        let view = node.get("/v1/cluster/moves")?;
        let moves = view["moves"].as_array()?.clone();
        let mine = moves.iter().find(|m| m["partition"] == plan.partition)?;
        (mine["bytes_done"].as_u64()? >= bytes).then_some(())
    });
}

#[test]
fn a_source_that_dies_before_its_copy_is_whole_is_not_promoted_over() {
    let (mut cluster, addrs, plan, acked) = begin("source-dies-early", 20);
    throttle(&addrs, 1 << 20);
    order_planned(&addrs, &plan);
    wait_copied(&mut cluster, &plan, 1);
    cluster.node(&plan.from).kill();
    // Its death is waited out, and the promotion is refused by the target itself.
    let target = cluster.node(&plan.to);
    wait_for("the promotion is refused", || {
        let refused = "does not reach the high-watermark";
        target.log().contains(refused).then_some(())
    });
    let alive = vec![target.addr()];
    let index = plan.partition as usize;
    let part = with_client(alive, async move |client| {
        partitions(&client).await[index].clone()
    });
    assert_eq!((part.owner, part.epoch), (plan.from.clone(), plan.epoch));
    assert_eq!(part.target, plan.to, "the copy waits for its source");
    cluster.node(&plan.from).start();
    cluster.node(&plan.from).wait_ready();
    throttle(&addrs, 0);
    check_end(&mut cluster, &addrs, &plan, acked);
}

/// Isolates a source that holds records which nobody else has, until its target is promoted. It is
/// left standing still.
fn promote_over_isolated(name: &str) -> (Cluster, Vec<String>, Plan, BTreeSet<String>) {
    let (mut cluster, addrs, plan, mut acked) = begin_with(name, 4, &[], 1);
    prepare_target(&mut cluster, &plan, "NARAD_STOP_BEFORE", "begin");
    order_planned(&addrs, &plan);
    wait_stopped(cluster.node(&plan.to));
    // The copy is whole as far as the source has told. What it takes now, only it has.
    let mut late = 0;
    for n in 0..50 {
        let name = format!("late-{n}");
        if let Some(taken) = produce_at(cluster.node(&plan.from), &plan, &name) {
            late += u32::from(matches!(taken, Produced::Committed { .. }));
            acked.insert(name);
        }
    }
    assert!(late > 0, "the source took nothing behind what it had told");
    let others: Vec<String> = cluster
        .nodes
        .iter()
        .map(|node| node.id.clone())
        .filter(|id| *id != plan.from && *id != plan.to)
        .collect();
    for id in &others {
        cluster.node(id).signal(Signal::SIGSTOP);
    }
    // Without a leader its lease runs out, while nobody can call it dead: it fences itself.
    let source = cluster.node(&plan.from);
    let mut n = 0;
    wait_for("the source fences itself", || {
        n += 1;
        let name = format!("fenced-{n}");
        let taken = produce_at(source, &plan, &name)?;
        acked.insert(name);
        (taken == Produced::Accepted).then_some(())
    });
    source.signal(Signal::SIGSTOP);
    for id in others.iter().chain([&plan.to]) {
        cluster.node(id).signal(Signal::SIGCONT);
    }
    let alive: Vec<String> = {
        let nodes = cluster.nodes.iter().filter(|node| node.id != plan.from);
        nodes.map(|node| node.addr()).collect()
    };
    wait_moved(&alive, &plan);
    (cluster, addrs, plan, acked)
}

#[test]
fn an_isolated_source_is_fenced_before_it_is_promoted_over_and_its_later_records_come_back() {
    let (mut cluster, addrs, plan, acked) = promote_over_isolated("source-isolated");
    // Whoever gave it up now would lose them, and is told so.
    let path = format!("/v1/cluster/members/{}/forget", plan.from);
    let loss = cluster.node(&plan.to).get(&path).expect("it is dead");
    let told = (&loss["copies"][0]["partition"], &loss["copies"][0]["end"]);
    assert_eq!(told, (&plan.partition.into(), &"promoted".into()), "{loss}");
    cluster.node(&plan.from).signal(Signal::SIGCONT);
    check_end(&mut cluster, &addrs, &plan, acked);
}

#[test]
fn an_old_copy_whose_last_records_are_damaged_is_kept_and_the_others_come_back() {
    let (mut cluster, addrs, plan, mut acked) = promote_over_isolated("source-damaged");
    let source = cluster.node(&plan.from);
    source.kill();
    // Not the last one: a torn tail would be something else.
    damage(&source.dir.join("partitions"), b"late-10");
    source.start();
    source.wait_ready();
    let kept = source.dir.join("damaged");
    wait_for("the damaged copy is kept", || {
        let mut found = std::fs::read_dir(&kept).ok()?;
        found.next()?.ok()
    });
    assert!(acked.remove("late-10"), "it was acknowledged");
    check_end(&mut cluster, &addrs, &plan, acked);
    assert_eq!(std::fs::read_dir(&kept).expect("kept").count(), 1);
}

/// Changes one byte of the only place below `dir` that holds `name` as a record.
fn damage(dir: &Path, name: &[u8]) {
    let mut places = Vec::new();
    for copy in std::fs::read_dir(dir).expect("partitions") {
        for file in std::fs::read_dir(copy.expect("a copy").path()).expect("files") {
            let path = file.expect("a file").path();
            let bytes = std::fs::read(&path).expect("its bytes");
            let found = bytes.windows(name.len()).enumerate();
            let found = found.filter(|(_, window)| *window == name);
            places.extend(found.map(|(at, _)| (path.clone(), at)));
        }
    }
    let [(path, at)] = &places[..] else {
        panic!("one place was expected: {places:?}");
    };
    let file = File::options().write(true).open(path).expect("opened");
    let changed = [name[0] ^ 1];
    file.write_all_at(&changed, *at as u64).expect("written");
    file.sync_all().expect("synced");
}

#[test]
fn a_target_that_starts_again_does_not_copy_again_what_it_has() {
    let (mut cluster, addrs, plan, acked) = begin("resumes", 40);
    throttle(&addrs, 2 << 20);
    order_planned(&addrs, &plan);
    let (whole, enough) = (40 * 100 * 4_096, 8 << 20);
    wait_copied(&mut cluster, &plan, enough);
    let before = cluster.node(&plan.to).log().len();
    cluster.node(&plan.to).kill();
    cluster.node(&plan.to).start();
    cluster.node(&plan.to).wait_ready();
    throttle(&addrs, 0);
    wait_moved(&addrs, &plan);
    let log = cluster.node(&plan.to).log().split_off(before);
    let again: u64 = logged(&log, "pass copied", "bytes").iter().sum();
    assert!(again > 0, "passes are logged: {log}");
    // All but what the last two seconds before the death had brought is there.
    assert!(
        again < whole - enough / 4,
        "{again} bytes of {whole} were copied again"
    );
    check_end(&mut cluster, &addrs, &plan, acked);
}

/// Everything that the planned partition shows, and where it goes on.
fn shown(addrs: &[String], partition: u32) -> (usize, u64) {
    with_client(addrs.to_vec(), async move |client| {
        let (mut count, mut from) = (0, Offset(0));
        loop {
            let request = ReplayRequest {
                partition: PartitionIndex(partition),
                from,
                from_time: WallMs(0),
                to: Offset(u64::MAX),
                max_records: 2_000,
                max_bytes: 2 << 20,
            };
            let Ok(batch) = client.replay_once(TOPIC, request).await else {
                glommio::timer::sleep(Duration::from_millis(100)).await;
                continue;
            };
            from = batch.next;
            if batch.records.is_empty() {
                return (count, from.0);
            }
            count += batch.records.len();
        }
    })
}

#[test]
fn a_partition_that_retention_has_emptied_moves_and_its_offsets_go_on() {
    let mut cluster = Cluster::founders("retention-emptied", 3, &[]);
    cluster.start_all();
    cluster.wait_ready();
    cluster.leader();
    let addrs: Vec<String> = cluster.nodes.iter().map(|node| node.addr()).collect();
    let parts = with_client(addrs.clone(), async move |client| {
        let settings = TopicSettingsView {
            retention_ms: 1_000,
            ..TopicSettingsView::default()
        };
        topic(&client, TOPIC, PARTITIONS, settings).await;
        let mut acked = BTreeSet::new();
        for partition in 0..PARTITIONS {
            produce(&client, partition, names("gone", 30), &mut acked).await;
        }
        partitions(&client).await
    });
    let plan = choose(&mut cluster, &parts);
    wait_for("retention takes everything", || {
        (shown(&addrs, plan.partition).0 == 0).then_some(())
    });
    order_planned(&addrs, &plan);
    wait_moved(&addrs, &plan);
    let target = cluster.node(&plan.to);
    let offset = wait_for("the new owner takes a record", || {
        match produce_at(target, &plan, "new")? {
            Produced::Committed { offset, .. } => Some(offset),
            Produced::Accepted => None,
        }
    });
    assert!(offset >= Offset(30), "offset {offset} was used before");
}

#[test]
fn segments_that_are_being_copied_outlive_their_retention_until_the_copy_is_done() {
    let small = [("--segment-bytes", "1048576")];
    let (mut cluster, addrs, plan, _) = begin_with("retention-copying", 3, &small, 1);
    with_client(addrs.clone(), async move |client| {
        let settings = TopicSettingsView {
            retention_ms: 4_000,
            ..TopicSettingsView::default()
        };
        topic(&client, "short", PARTITIONS, settings).await;
    });
    // The same partition of a topic of the same shape: placed and planned by itself.
    let parts = with_client(addrs.clone(), async move |client| {
        let mut sent = 0_u32;
        for _ in 0..30 {
            let records: Vec<_> = names("short", 100).iter().map(|name| text(name)).collect();
            let named = Some(PartitionIndex(0));
            let results = client.produce_once("short", &records, named).await;
            sent += results.expect("taken").iter().filter(|r| r.is_ok()).count() as u32;
        }
        assert_eq!(sent, 3_000);
        let topic = client.describe_topic("short").await.expect("it is there");
        topic.partitions
    });
    let part = parts
        .iter()
        .find(|part| part.index == 0)
        .expect("the first");
    let to = cluster
        .nodes
        .iter()
        .map(|node| node.id.clone())
        .find(|id| *id != part.owner && *id != plan.from)
        .or_else(|| Some(plan.from.clone()))
        .expect("three nodes");
    throttle(&addrs, 1 << 20);
    let ordered = to.clone();
    with_client(addrs.clone(), async move |client| {
        while client
            .move_to("short", PartitionIndex(0), &ordered)
            .await
            .is_err()
        {
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
    });
    // Twelve seconds of copying, four of retention, which runs every ten: it meets the copy.
    let node = cluster.node(&to);
    let ended = wait_for("the move ends", || {
        let view = node.get("/v1/cluster/moves")?;
        let ended = view["finished"].as_array()?.clone();
        ended.into_iter().find(|m| m["topic"] == "short")
    });
    assert_eq!(ended["outcome"], "flipped", "{ended}");
    let log = node.log();
    assert!(!log.contains("it is copied again"), "{log}");
    // And then it does its work at the new owner.
    wait_for("retention goes on", || {
        with_client(addrs.clone(), async move |client| {
            let seen = client.describe_topic("short").await.ok()?;
            seen.partitions[0].target.is_empty().then_some(())
        })
    });
}

#[test]
fn a_partition_that_is_written_faster_than_it_is_copied_moves_all_the_same() {
    let (mut cluster, addrs, plan, mut acked) = begin("too-hot", 10);
    throttle(&addrs, 1 << 20);
    let halt = Arc::new(AtomicBool::new(false));
    let (stop, to, partition) = (halt.clone(), addrs.clone(), plan.partition);
    let load = std::thread::spawn(move || {
        with_client(to, async move |client| {
            let mut acked = BTreeSet::new();
            let mut batch = 0;
            while !stop.load(Ordering::SeqCst) {
                batch += 1;
                let tag = format!("hot-{batch}");
                produce(&client, partition, names(&tag, 100), &mut acked).await;
                glommio::timer::sleep(Duration::from_millis(60)).await;
            }
            acked
        })
    });
    order_planned(&addrs, &plan);
    wait_moved(&addrs, &plan);
    halt.store(true, Ordering::SeqCst);
    acked.extend(load.join().expect("the load goes through"));
    let log = cluster.node(&plan.to).log();
    assert!(
        log.contains("not converged: the tail is drained in the freeze"),
        "{log}"
    );
    let passes = logged(&log, "pass copied", "pass").len();
    assert!(passes <= 20, "{passes} passes");
    throttle(&addrs, 0);
    check_end(&mut cluster, &addrs, &plan, acked);
}

#[test]
fn new_leaders_plan_nothing_twice_and_destroy_nothing() {
    let (mut cluster, addrs, _, acked) = begin("new-leaders", 1);
    let look = |addrs: &[String]| {
        with_client(addrs.to_vec(), async move |client| {
            let parts = partitions(&client).await;
            parts
                .into_iter()
                .map(|part| (part.index, part.owner, part.epoch, part.target))
                .collect::<Vec<_>>()
        })
    };
    let before = look(&addrs);
    for _ in 0..3 {
        let leader = cluster.leader();
        cluster.node(&leader).kill();
        let alive: Vec<String> = {
            let others = cluster.nodes.iter().filter(|node| node.id != leader);
            others.map(|node| node.addr()).collect()
        };
        wait_for("another node leads", || {
            let node = cluster.nodes.iter().find(|node| node.id != leader)?;
            let view = node.get("/v1/cluster/members")?;
            let now = view["leader"].as_str()?;
            (!now.is_empty() && now != leader).then_some(())
        });
        // It has a whole pass of the controller for it, with one node away.
        std::thread::sleep(Duration::from_millis(2_500));
        assert_eq!(look(&alive), before, "a dead owner's partitions stay");
        cluster.node(&leader).start();
        cluster.node(&leader).wait_ready();
    }
    assert_eq!(look(&addrs), before);
    with_client(addrs, async move |client| {
        drain(&client, TOPIC, &acked).await;
    });
}
