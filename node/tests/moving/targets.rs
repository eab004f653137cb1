//! Targets that leave in the middle of a move: their slots are given up and planned anew.

use crate::client::{drain, with_client};
use crate::stage::{Plan, TOPIC, begin_with, check_end, filled, order_planned, partitions};
use crate::support::{Cluster, PATIENCE, wait_for};
use narad_core::ids::PartitionIndex;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_target_that_is_drained_off_gives_its_slot_up_and_leaves_with_nothing() {
    let (mut cluster, addrs, mut plan, acked) = begin_with("target-drained", 4, &[], 10);
    // The partition goes to a node that is drained off while it still copies.
    let slow = addrs.clone();
    with_client(slow, async move |client| {
        client.throttle(Some(1 << 20)).await.expect("a limit");
    });
    order_planned(&addrs, &plan);
    let leaving = plan.to.clone();
    let asked = leaving.clone();
    with_client(addrs.clone(), async move |client| {
        let until = Instant::now() + PATIENCE;
        while let Err(error) = client.decommission(&asked, false, false).await {
            assert!(Instant::now() < until, "{error}");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
    });
    let alive: Vec<String> = {
        let stay = cluster.nodes.iter().filter(|node| node.id != leaving);
        stay.map(|node| node.addr()).collect()
    };
    let (index, gone) = (plan.partition as usize, leaving.clone());
    with_client(alive.clone(), async move |client| {
        let until = Instant::now() + PATIENCE;
        loop {
            let part = partitions(&client).await[index].clone();
            if part.target != gone && part.owner != gone {
                break;
            }
            assert!(Instant::now() < until, "still bound for {gone}: {part:?}");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
        client.throttle(Some(0)).await.expect("no limit");
    });
    let end = cluster.node(&leaving).wait_end();
    assert!(end.success(), "{}", cluster.node(&leaving).log());
    // It has left; whatever it had is elsewhere, and the partition moves on like any other.
    let parts = with_client(alive.clone(), async move |client| {
        let until = Instant::now() + PATIENCE;
        loop {
            let parts = partitions(&client).await;
            if parts.iter().all(|part| part.target.is_empty()) {
                return parts;
            }
            assert!(Instant::now() < until, "{parts:?}");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
    });
    assert!(parts.iter().all(|part| part.owner != leaving), "{parts:?}");
    let part = &parts[plan.partition as usize];
    let other = cluster
        .nodes
        .iter()
        .map(|node| node.id.clone())
        .find(|id| *id != leaving && *id != part.owner)
        .expect("three are left");
    (plan.from, plan.to, plan.epoch) = (part.owner.clone(), other, part.epoch);
    order_planned(&alive, &plan);
    check_end(&mut cluster, &alive, &plan, acked);
}

#[test]
fn a_target_that_dies_in_the_middle_gives_its_slot_up_to_another() {
    let (mut cluster, addrs, plan, acked) = begin_with("target-gone", 4, &[], 10);
    let (leaving, index) = (plan.from.clone(), plan.partition as usize);
    // Drained off, so that the controller chooses who takes the partition.
    let target = with_client(addrs.clone(), async move |client| {
        client.throttle(Some(1 << 20)).await.expect("a limit");
        let until = Instant::now() + PATIENCE;
        while let Err(error) = client.decommission(&leaving, false, false).await {
            assert!(Instant::now() < until, "{error}");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
        loop {
            let part = partitions(&client).await[index].clone();
            if !part.target.is_empty() {
                return part.target;
            }
            assert!(Instant::now() < until, "nobody is to take it: {part:?}");
            glommio::timer::sleep(Duration::from_millis(50)).await;
        }
    });
    cluster.node(&target).kill();
    let alive: Vec<String> = {
        let stay = cluster.nodes.iter().filter(|node| node.id != target);
        stay.map(|node| node.addr()).collect()
    };
    let (gone, from) = (target.clone(), plan.from.clone());
    with_client(alive, async move |client| {
        let until = Instant::now() + PATIENCE;
        loop {
            let part = partitions(&client).await[index].clone();
            let another = !part.target.is_empty() && part.target != gone;
            if another || (part.owner != from && part.owner != gone) {
                break;
            }
            assert!(
                Instant::now() < until,
                "a dead target keeps its slot: {part:?}"
            );
            glommio::timer::sleep(Duration::from_millis(200)).await;
        }
        client.throttle(Some(0)).await.expect("no limit");
    });
    cluster.node(&target).start();
    cluster.node(&target).wait_ready();
    let end = cluster.node(&plan.from).wait_end();
    assert!(end.success(), "{}", cluster.node(&plan.from).log());
    let stay: Vec<String> = {
        let stay = cluster.nodes.iter().filter(|node| node.id != plan.from);
        stay.map(|node| node.addr()).collect()
    };
    with_client(stay, async move |client| {
        drain(&client, TOPIC, &acked).await;
        let parts = partitions(&client).await;
        assert!(
            parts.iter().all(|part| part.owner != plan.from),
            "{parts:?}"
        );
    });
}

/// A small file system of its own, unmounted at the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where this user may not mount.
    fn new(dir: &Path) -> Option<Self> {
        let (image, at) = (dir.join("image"), dir.join("disk"));
        std::fs::create_dir(&at).expect("a mount point");
        let file = std::fs::File::create(&image).expect("an image");
        file.set_len(2 << 30).expect("sparse");
        let done = |command: &mut Command| command.output().is_ok_and(|o| o.status.success());
        let made = done(Command::new("mkfs.ext4").arg("-q").arg("-F").arg(&image))
            && done(
                Command::new("mount")
                    .args(["-o", "loop"])
                    .arg(&image)
                    .arg(&at),
            );
        made.then_some(Self(at))
    }

    /// Takes all room but this.
    fn fill(&self, leave: u64) -> PathBuf {
        let disk = nix::sys::statvfs::statvfs(&self.0).expect("its size");
        let free = disk.blocks_available() * disk.fragment_size();
        let path = self.0.join("filler");
        let file = std::fs::File::create(&path).expect("a file");
        let len = i64::try_from(free.saturating_sub(leave)).expect("a length");
        nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, len).expect("taken");
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_target_whose_disk_fills_up_gives_its_slot_up_and_what_it_staged() {
    let mut cluster = Cluster::founders("target-full", 3, &[]);
    let Some(disk) = SmallDisk::new(&cluster.dir) else {
        eprintln!("not run: a loop device cannot be mounted here");
        return;
    };
    let data = disk.0.join("data");
    let text = data.display().to_string();
    cluster.node("n3").set("--data-dir", &text);
    // Room is taken segment by segment.
    for node in &mut cluster.nodes {
        node.set("--segment-bytes", "1048576");
    }
    cluster.start_all();
    cluster.wait_ready();
    cluster.leader();
    let addrs: Vec<String> = cluster.nodes.iter().map(|node| node.addr()).collect();
    let (cluster, addrs, plan, acked) = filled(cluster, addrs, 20);
    let mut cluster = cluster;
    let plan = Plan {
        to: "n3".into(),
        ..plan
    };
    assert_ne!(plan.from, plan.to, "the small disk owns but one");
    with_client(addrs.clone(), async move |client| {
        client.throttle(Some(1 << 20)).await.expect("a limit");
    });
    order_planned(&addrs, &plan);
    let target = cluster.node(&plan.to);
    wait_for("some of it is copied", || {
        let view = target.get("/v1/cluster/moves")?;
        let moves = view["moves"].as_array()?.clone();
        let mine = moves.iter().find(|m| m["partition"] == plan.partition)?;
        (mine["bytes_done"].as_u64()? > 0).then_some(())
    });
    // Less than what copies leave free.
    let filler = disk.fill(64 << 20);
    let index = plan.partition as usize;
    let part = with_client(addrs.clone(), async move |client| {
        let until = Instant::now() + PATIENCE;
        loop {
            let part = partitions(&client).await[index].clone();
            if part.target != "n3" {
                return part;
            }
            assert!(
                Instant::now() < until,
                "a full disk keeps its slot: {part:?}"
            );
            glommio::timer::sleep(Duration::from_millis(200)).await;
        }
    });
    assert_eq!((&part.owner, part.epoch), (&plan.from, plan.epoch));
    let target = cluster.node(&plan.to);
    let ended = wait_for("it says why", || {
        let view = target.get("/v1/cluster/moves")?;
        let ended = view["finished"].as_array()?.clone();
        ended.into_iter().find(|m| m["partition"] == plan.partition)
    });
    assert_eq!(ended["outcome"], "no_room", "{ended}");
    // A drain meets the full disk: what has bytes goes to the third node.
    wait_for("the leader knows that there is no room", || {
        let view = target.get("/v1/cluster/members")?;
        let members = view["members"].as_array()?;
        let full = members.iter().find(|one| one["id"] == "n3")?;
        (full["disk_free_bytes"].as_u64()? < 1 << 30).then_some(())
    });
    let from = plan.from.clone();
    with_client(addrs.clone(), async move |client| {
        let drained = client.decommission(&from, false, true).await;
        let drained = drained.expect("a dry run");
        let mine = drained.steps.iter().find(|s| s.partition as usize == index);
        assert!(mine.is_some_and(|step| step.to != "n3"), "{drained:?}");
        let refused = client
            .move_to(TOPIC, PartitionIndex(index as u32), "n3")
            .await
            .expect_err("there is no room");
        assert!(refused.to_string().contains("no room"), "{refused}");
    });
    wait_for("what it staged goes", || {
        let left = std::fs::read_dir(data.join("staging")).ok()?;
        (left.count() == 0).then_some(())
    });
    // With room again another order is carried out.
    std::fs::remove_file(filler).expect("room again");
    with_client(addrs.clone(), async move |client| {
        client.throttle(Some(0)).await.expect("no limit");
    });
    order_planned(&addrs, &plan);
    check_end(&mut cluster, &addrs, &plan, acked);
    drop(cluster);
}
