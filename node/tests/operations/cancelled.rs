//! A decommission that is cancelled, at every point that it can be at: before the first move, while
//! something is copied, frozen, installed or being served, after the last move, while leadership is
//! handed over, and in the middle of the removal.
//!
//! What this file keeps true: however far it was, the node stays and gets its share again, every
//! node shows the same, and every record that was acknowledged comes.

use crate::support::{Cluster, wait_for};
use crate::{fails, numbered, ok, produce, produce_everywhere, wait_consumed};
use nix::sys::signal::Signal;

const PARTITIONS: u32 = 8;

/// Four nodes with something in every partition.
struct Stage {
    cluster: Cluster,
    lines: Vec<String>,
}

/// Whether a process has stopped itself.
fn stands_still(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
    state.flatten() == Some('T')
}

impl Stage {
    /// `stop_before`: these processes stop themselves at this step, once.
    fn new(name: &str, nodes: usize, stop_before: Option<(&[&str], &str)>) -> Self {
        let mut cluster = Cluster::founders(name, nodes, &[]);
        for node in &mut cluster.nodes {
            // One after the other, so that the first one is the only one; nobody else takes over from a
            // node that stands still.
            for limit in ["--max-in-flight-moves", "--max-moves-in", "--max-moves-out"] {
                node.set(limit, "1");
            }
            node.set("--dead-after-ms", "300000");
            node.set("--force-promote-after-ms", "600000");
            if let Some((who, step)) = stop_before
                && who.contains(&node.id.as_str())
            {
                node.next_env
                    .push(("NARAD_STOP_BEFORE".into(), step.into()));
            }
        }
        cluster.start_all();
        cluster.wait_ready();
        cluster.leader();
        let server = cluster.nodes[0].addr();
        let parts = PARTITIONS.to_string();
        ok(&server, &["topic", "create", "t", "--partitions", &parts]);
        let lines = produce_everywhere(&server, "t", PARTITIONS, 100);
        Self { cluster, lines }
    }

    /// A member that does not lead.
    fn follower(&mut self) -> String {
        let leader = self.cluster.leader();
        let mut ids = self.cluster.nodes.iter().map(|node| node.id.clone());
        ids.rfind(|id| *id != leader).expect("more than one")
    }

    /// Addresses of all that go on, for the commands of the operator.
    fn servers(&mut self) -> String {
        let nodes = self.cluster.nodes.iter_mut();
        let going: Vec<String> = nodes
            .filter_map(|node| (node.runs() && !stands_still(node.pid())).then(|| node.addr()))
            .collect();
        going.join(",")
    }

    /// Waits until one has stopped itself; its id.
    fn wait_stopped(&mut self) -> String {
        wait_for("a node stops itself", || {
            let stopped = |node: &&crate::support::Node| stands_still(node.pid());
            Some(self.cluster.nodes.iter().find(stopped)?.id.clone())
        })
    }

    /// Cancels, as soon as somebody leads who can be told so. Of those that stand still, only these
    /// `still` do so meanwhile: a move that is flipped makes room for the next one, and were its target
    /// allowed to stop as well, two of four would be left, and nobody could lead.
    fn cancel(&mut self, id: &str, still: &[&str]) {
        wait_for("somebody leads, and the drain is cancelled", || {
            self.go_on_but(still);
            let servers = self.servers();
            let args = ["cluster", "decommission", id, "--cancel"];
            let output = crate::narad(&servers, &args).output().expect("narad runs");
            let told = crate::text(&output);
            let done = output.status.success();
            assert!(!done || told.contains("stays"), "{told}");
            done.then_some(())
        });
    }

    /// Makes this node lead: whoever else does hands it over by stopping, and comes back.
    fn lead(&mut self, id: &str) {
        wait_for("it leads", || {
            let leader = self.cluster.leader();
            if leader == id {
                return Some(());
            }
            let node = self.cluster.node(&leader);
            assert!(node.stop().success());
            node.start();
            node.wait_ready();
            None
        });
    }

    /// Whoever stands still goes on.
    fn go_on(&self) {
        self.go_on_but(&[]);
    }

    /// Whoever stands still goes on, but for these.
    fn go_on_but(&self, still: &[&str]) {
        for node in &self.cluster.nodes {
            if !still.contains(&node.id.as_str()) && stands_still(node.pid()) {
                node.signal(Signal::SIGCONT);
            }
        }
    }

    /// Every node shows the same cluster, in which everybody votes and owns its share and nothing goes on.
    fn check_whole(&mut self) {
        let count = self.cluster.nodes.len();
        let share = PARTITIONS as usize / count;
        wait_for("a whole cluster at rest", || {
            self.go_on();
            for node in &self.cluster.nodes {
                let view = node.get("/v1/cluster/members")?;
                let members = view["members"].as_array()?;
                let whole = members.iter().all(|one| {
                    let owned = one["owned"].as_u64().unwrap_or(0) as usize;
                    let votes = one["role"] == "voter" || one["role"] == "leader";
                    one["status"] == "alive"
                        && one["draining"] == false
                        && one["inbound"] == 0
                        && one["outbound"] == 0
                        && one["held"] == ""
                        && votes
                        && (share..=share + 1).contains(&owned)
                });
                let plan = node.get("/v1/cluster/plan")?;
                let planned = plan["steps"].as_array()?.len();
                if members.len() != count || !whole || planned > 0 {
                    return None;
                }
            }
            Some(())
        });
        let server = self.servers();
        let late = numbered("late", 200);
        produce(&server, "t", &late);
        self.lines.extend(late);
        wait_consumed(&server, "t", &self.lines);
        for node in &mut self.cluster.nodes {
            assert!(node.runs(), "{} has ended", node.id);
        }
    }
}

/// The drain of a follower, cancelled when the target of its first move is about to take this step.
fn cancelled_before(step: &str) {
    let all: &[&str] = &["n1", "n2", "n3", "n4"];
    let mut stage = Stage::new(&format!("cancel-{step}"), 4, Some((all, step)));
    let leaves = stage.follower();
    let servers = stage.servers();
    ok(&servers, &["cluster", "decommission", &leaves]);
    let target = stage.wait_stopped();
    assert_ne!(target, leaves);
    stage.cancel(&leaves, &[&target]);
    stage.go_on();
    stage.check_whole();
}

#[test]
fn while_it_copies() {
    cancelled_before("pass");
}

#[test]
fn while_the_source_is_frozen() {
    cancelled_before("drain");
}

#[test]
fn when_the_copy_is_installed_and_not_flipped() {
    cancelled_before("flip");
}

#[test]
fn when_the_copy_is_flipped_and_not_served() {
    cancelled_before("serve");
}

#[test]
fn before_the_first_move() {
    let mut stage = Stage::new("cancel-first", 4, None);
    let leaves = stage.follower();
    let servers = stage.servers();
    ok(&servers, &["cluster", "pause"]);
    ok(&servers, &["cluster", "decommission", &leaves]);
    let member = stage
        .cluster
        .node(&leaves)
        .member(&leaves)
        .expect("a member");
    assert_eq!(
        (&member["draining"], &member["outbound"]),
        (&true.into(), &0.into())
    );
    stage.cancel(&leaves, &[]);
    ok(&servers, &["cluster", "resume"]);
    stage.check_whole();
    // Nothing has happened, so nothing was moved.
    let moves = stage.cluster.nodes[0]
        .get("/v1/cluster/moves")
        .expect("moves");
    assert_eq!(
        moves["finished"].as_array().map(Vec::len),
        Some(0),
        "{moves}"
    );
}

#[test]
fn after_the_last_move() {
    // Three voters, of which three have to stay.
    let mut stage = Stage::new("cancel-last", 3, None);
    let leaves = stage.follower();
    let servers = stage.servers();
    ok(&servers, &["cluster", "decommission", &leaves]);
    wait_for("only the vote is left", || {
        let member = stage.cluster.node(&leaves).member(&leaves)?;
        let held = member["held"].as_str()?;
        (held.starts_with("MinVoters") && member["owned"] == 0).then_some(())
    });
    stage.cancel(&leaves, &[]);
    stage.check_whole();
}

#[test]
fn while_leadership_is_handed_over() {
    let mut stage = Stage::new("cancel-transfer", 4, Some((&["n1"], "transfer")));
    let leaves = "n1".to_owned();
    stage.lead(&leaves);
    let servers = stage.servers();
    ok(&servers, &["cluster", "decommission", &leaves]);
    // Everything has moved; it stands still just before it hands over, and another one is elected.
    assert_eq!(stage.wait_stopped(), leaves);
    stage.cancel(&leaves, &[&leaves]);
    stage.go_on();
    stage.check_whole();
}

/// The removal of a follower, cancelled when the leader is about to take this step of it.
fn cancelled_in_the_removal(step: &str) {
    let name = format!("cancel-{step}");
    // Three of five go on.
    let mut stage = Stage::new(&name, 5, Some((&["n1"], step)));
    let leader = "n1";
    stage.lead(leader);
    let leaves = stage.follower();
    let servers = stage.servers();
    ok(&servers, &["cluster", "decommission", &leaves]);
    assert_eq!(stage.wait_stopped(), leader);
    // The next leader would go on where this one stands, were it told that nothing holds the node.
    stage.cluster.node(&leaves).signal(Signal::SIGSTOP);
    stage.cancel(&leaves, &[leader, &leaves]);
    stage.go_on();
    stage.check_whole();
}

#[test]
fn before_its_vote_is_taken() {
    cancelled_in_the_removal("expel");
}

#[test]
fn when_its_vote_is_taken_and_it_is_a_member_still() {
    cancelled_in_the_removal("remove");
}

#[test]
fn when_it_is_out_it_is_too_late_and_says_so() {
    let mut stage = Stage::new("cancel-late", 4, None);
    let leaves = stage.follower();
    let servers = stage.servers();
    ok(&servers, &["cluster", "decommission", &leaves, "--wait"]);
    assert!(stage.cluster.node(&leaves).wait_end().success());
    let servers = stage.servers();
    let told = fails(&servers, &["cluster", "decommission", &leaves, "--cancel"]);
    assert!(told.contains("has left the cluster already"), "{told}");
    wait_consumed(&servers, "t", &stage.lines);
}
