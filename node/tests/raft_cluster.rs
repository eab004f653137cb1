//! A cluster of three: election, writes, barriers, cut-off nodes, restarts from disk, leadership handed over.

mod raft_support;

use narad::raft::limits::MAX_PROPOSAL_BYTES;
use narad::raft::{BarrierError, MembershipError, ProposeError, TransferError};
use raft_support::*;

const THREE: [&str; 3] = ["a", "b", "c"];

#[test]
fn three_nodes_elect_write_and_agree() {
    run(async {
        let cluster = Cluster::new("agree");
        let nodes = cluster.found(&THREE).await;
        let first = leader(&nodes).await;
        let mut last = 0;
        for number in 0..50 {
            let (index, answer) = first
                .propose(format!("w{number}").into_bytes())
                .await
                .unwrap();
            assert!(index > last);
            assert_eq!(answer, (number + 1).to_string().into_bytes());
            last = index;
        }
        assert_eq!(
            converge(&nodes).await,
            (0..50)
                .map(|number| format!("w{number}"))
                .collect::<Vec<_>>()
        );
        assert_eq!(
            first.machine().borrow().published,
            first.last_applied().unwrap()
        );
        assert!(first.read_barrier().await.unwrap() >= last);

        let follower = nodes.iter().find(|node| node.id() != first.id()).unwrap();
        let there = Some((first.id().to_owned(), addr(first.id())));
        assert_eq!(follower.leader(), there);
        let refused = follower.propose(b"x".to_vec()).await;
        assert_eq!(
            refused,
            Err(ProposeError::NotLeader {
                leader: there.clone()
            })
        );
        assert_eq!(
            follower.read_barrier().await,
            Err(BarrierError::NotLeader { leader: there })
        );
        assert!(matches!(
            follower.promote("b").await,
            Err(MembershipError::NotLeader { .. })
        ));
        assert_eq!(
            follower.transfer_leader("b", HANG).await,
            Err(TransferError::NotLeader)
        );

        let before = cluster.net.read_indexes.get();
        let index = first.propose(b"seen".to_vec()).await.unwrap().0;
        assert!(
            barrier(follower).await >= index,
            "a barrier shows what was written before it"
        );
        assert!(texts(follower).contains(&"seen".to_owned()));
        assert!(
            cluster.net.read_indexes.get() > before,
            "it went through the leader"
        );

        let long = first.propose(vec![b'x'; MAX_PROPOSAL_BYTES + 1]).await;
        assert_eq!(long, Err(ProposeError::TooLarge(MAX_PROPOSAL_BYTES + 1)));
        let members = first.membership();
        assert_eq!(
            (members.voters.len(), members.learners.len(), members.joint),
            (3, 0, false)
        );
        assert_eq!(first.machine().borrow().members, members);
        first
            .initialize([("z".to_owned(), peer("z"))].into())
            .await
            .expect("already done");
    });
}

#[test]
fn a_leader_that_is_cut_off_knows_nothing_for_certain() {
    run(async {
        let cluster = Cluster::new("cut");
        let nodes = cluster.found(&THREE).await;
        write(&nodes, "before").await;
        let old = leader(&nodes).await;
        let old_term = old.confirm_leadership().await.unwrap();
        cluster.cut(old.id());
        let lost = old.propose(b"lost?".to_vec()).await.unwrap_err();
        assert!(lost.is_unknown(), "{lost}");
        assert!(matches!(
            old.confirm_leadership().await,
            Err(BarrierError::Unconfirmed(_) | BarrierError::NotLeader { .. })
        ));
        assert!(old.read_barrier().await.is_err());

        let rest: Vec<_> = nodes
            .iter()
            .filter(|node| node.id() != old.id())
            .cloned()
            .collect();
        let new = leader(&rest).await;
        assert!(new.confirm_leadership().await.unwrap() > old_term);
        write(&rest, "after").await;
        cluster.heal();
        let all = converge(&nodes).await;
        assert_eq!(
            all.iter()
                .filter(|text| *text != "lost?")
                .collect::<Vec<_>>(),
            ["before", "after"]
        );
        assert!(
            barrier(&old).await > 0,
            "the old leader reads through the new one"
        );
    });
}

#[test]
fn a_node_comes_back_from_its_directory_with_the_same_log() {
    run(async {
        let cluster = Cluster::new("reopen");
        let mut nodes = cluster.found(&THREE).await;
        for number in 0..20 {
            write(&nodes, &format!("one{number}")).await;
        }
        converge(&nodes).await;
        let lead = leader(&nodes).await.id().to_owned();
        let at = nodes.iter().position(|node| node.id() != lead).unwrap();
        let gone = nodes.remove(at);
        let id = gone.id().to_owned();
        let kept = texts(&gone);
        cluster.stop(gone).await;
        for number in 0..20 {
            write(&nodes, &format!("two{number}")).await;
        }
        cluster.cut(&id);
        let back = cluster.start(&id).await;
        assert!(
            texts(&back).len() + 1 >= kept.len(),
            "what it knew to be committed is applied before it hears anyone"
        );
        assert_eq!(texts(&back), kept[..texts(&back).len()]);
        cluster.heal();
        nodes.push(back);
        assert_eq!(converge(&nodes).await.len(), 40);
        assert_eq!(
            nodes[2].machine().borrow().restores,
            0,
            "its log was enough"
        );
    });
}

#[test]
fn a_whole_cluster_comes_back() {
    run(async {
        let cluster = Cluster::new("all");
        let nodes = cluster.found(&THREE).await;
        for number in 0..10 {
            write(&nodes, &number.to_string()).await;
        }
        let term = leader(&nodes).await.term();
        for node in nodes {
            cluster.stop(node).await;
        }
        let nodes = cluster.found(&THREE).await;
        assert!(leader(&nodes).await.term() > term, "terms never repeat");
        assert_eq!(
            converge(&nodes).await,
            (0..10).map(|number| number.to_string()).collect::<Vec<_>>()
        );
    });
}

#[test]
fn leadership_goes_where_it_is_sent() {
    run(async {
        let cluster = Cluster::new("transfer");
        let nodes = cluster.found(&THREE).await;
        write(&nodes, "x").await;
        for _ in 0..3 {
            let old = leader(&nodes).await;
            let to = nodes.iter().find(|node| node.id() != old.id()).unwrap();
            old.transfer_leader(to.id(), HANG).await.unwrap();
            assert_eq!(leader(&nodes).await.id(), to.id());
            write(&nodes, "y").await;
        }
        let lead = leader(&nodes).await;
        assert!(matches!(
            lead.transfer_leader(lead.id(), HANG).await,
            Err(TransferError::NotVoter(_))
        ));
        assert!(matches!(
            lead.transfer_leader("nobody", HANG).await,
            Err(TransferError::NotVoter(_))
        ));
        let to = nodes
            .iter()
            .find(|node| node.id() != lead.id())
            .unwrap()
            .id()
            .to_owned();
        cluster.cut(&to);
        lead.propose(b"z".to_vec()).await.unwrap();
        let short = std::time::Duration::from_millis(300);
        assert!(matches!(
            lead.transfer_leader(&to, short).await,
            Err(TransferError::Behind { .. })
        ));
        assert!(
            lead.confirm_leadership().await.is_ok(),
            "a refused hand-over leaves the leader in place"
        );
    });
}

#[test]
fn a_cluster_of_one_needs_nobody() {
    run(async {
        let cluster = Cluster::new("one");
        let nodes = cluster.found(&["solo"]).await;
        write(&nodes, "x").await;
        assert!(nodes[0].confirm_leadership().await.is_ok());
        let last = matches!(
            nodes[0].remove_voter("solo").await,
            Err(MembershipError::Invalid(_))
        );
        assert!(last, "the last voter stays");
        cluster.stop(nodes.into_iter().next().unwrap()).await;
        let nodes = [cluster.start("solo").await];
        write(&nodes, "y").await;
        assert_eq!(texts(&nodes[0]), ["x", "y"]);
    });
}
