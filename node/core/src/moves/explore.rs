//! Random walks through whole moves: the owner's side, the target's worker and the metadata machine
//! wired together, with lost, late and repeated messages, crashes, isolation, deaths and promotions.
//!
//! What these walks check after every step: no acked record is lost (P1), whoever acks owns the
//! partition at that moment (P2), a flip installs a prefix of what the source holds (P3); and once
//! the faults stop, every move ends and the partition takes appends again (P5).

mod calls;
mod checks;
mod source_shell;
mod target_shell;
mod world;

use world::World;

fn walk(seed: u64, steps: u32) -> World {
    let mut world = World::new(seed);
    for _ in 0..steps {
        world.random_step();
        world.check();
    }
    world.heal_and_finish();
    world
}

#[test]
fn random_walks_keep_the_promises() {
    let mut flips = 0;
    let mut promotions = 0;
    let mut cancels = 0;
    let mut rollbacks = 0;
    for seed in 1..=400 {
        let world = walk(seed, 3_000);
        flips += world.count.flips;
        promotions += world.count.promotions;
        cancels += world.count.cancels;
        rollbacks += world.count.rollbacks;
    }
    // A walk that never gets anywhere would check nothing.
    assert!(flips > 300, "{flips} flips");
    assert!(promotions > 2, "{promotions} promotions");
    assert!(cancels > 50, "{cancels} cancelled handoffs");
    assert!(rollbacks > 5, "{rollbacks} roll-backs");
}
