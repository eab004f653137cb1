//! What can happen in the world: one closed enum. A run is a list of these and nothing else.
//!
//! What this file keeps true: an action names everything that it depends on, so the same list does
//! the same on every machine, and an action left out of a list leaves the others meaningful.

use std::fmt;

/// How something that can go wrong goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum How {
    /// As it should.
    Ok,
    /// The request is lost.
    Lost,
    /// It takes effect, and the answer is lost.
    NoReply,
    /// It takes effect, and arrives once more, later or never.
    Twice,
    /// A proposal that is neither refused nor applied now: it may be applied later, or never.
    Late,
    /// It fails here, with no effect.
    Fail,
    /// It reports a failure, and has taken effect.
    FailDone,
    /// It breaks half way.
    Half,
    /// A byte is flipped on its way.
    Corrupt,
    /// The disk has no room for it.
    NoRoom,
}

impl How {
    /// Every way.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::Lost,
        Self::NoReply,
        Self::Twice,
        Self::Late,
        Self::Fail,
        Self::FailDone,
        Self::Half,
        Self::Corrupt,
        Self::NoRoom,
    ];

    /// What it takes from the budget of faults.
    #[must_use]
    pub const fn cost(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Lost
            | Self::NoReply
            | Self::Twice
            | Self::Late
            | Self::Fail
            | Self::FailDone
            | Self::Half
            | Self::Corrupt
            | Self::NoRoom => 1,
        }
    }
}

/// What a crash leaves of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Left {
    /// Nothing.
    Nothing,
    /// All of it.
    All,
    /// Of the group that was being written the blocks whose bit is set, and of a longer group every
    /// eighth block behind each. With the highest bit, the others hold what was written there in an
    /// earlier life of the block.
    Torn(u8),
}

/// A stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Span {
    /// One second.
    Second,
    /// A lease runs out, a death does not come about.
    Lease,
    /// A freeze runs out; two of them are a death.
    Ttl,
    /// A death is waited out.
    Promote,
}

/// One step of the world. `n` is a node, `p` a partition by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// A client's record arrives at `n` for `p` and is submitted to the log or put into the WAL.
    Produce(usize, usize),
    /// The oldest append in flight is in the file, and not yet known to be durable.
    Written(usize, usize),
    /// The oldest append in flight becomes durable, is checked again and acked.
    Ack(usize, usize),
    /// The oldest append in flight is in the file and its sync fails: the log stops.
    SyncFails(usize, usize),
    /// A stopped log is recovered and opened again.
    Reopen(usize, usize),
    /// The owner tells the metadata that the log of its first epoch exists.
    Mark(usize, usize, How),
    /// A consumer takes one record of `p` from `n`.
    Deliver(usize, usize),
    /// The consumer that holds the lease of this number acks it at `n`.
    AckLease(usize, usize),
    /// It gives the record back, at `n`.
    Nack(usize, usize),
    /// Retention takes the oldest segment.
    Retain(usize, usize),
    /// `n` applies the next entry of the log.
    Apply(usize),
    /// `n`, started again, confirms its ownership by a barrier.
    Confirm(usize),
    /// The target's worker carries out what it asked for.
    Work(usize, usize, How),
    /// An interrupted operation of the worker ends.
    Interrupted(usize, usize),
    /// The worker's pause is over.
    Timer(usize, usize),
    /// The owner's clock runs out for the handoff.
    Tick(usize, usize, How),
    /// A proposal of the pool is applied.
    Commit(usize),
    /// A proposal of the pool is lost for good.
    Forget(usize),
    /// The last command that was applied is in the pool once more.
    Redo,
    /// A late call of the pool arrives.
    Call(usize),
    /// An ended copy's own records go into the WAL.
    Salvage(usize, usize),
    /// A salvaged copy is deleted and reported.
    Reclaim(usize, usize, How),
    /// A deletion that was asked for twice comes again.
    DeleteAgain(usize, usize),
    /// Ended epochs without a copy here are reported.
    Report(usize, usize),
    /// What the dispatcher of `n` asked for first is done; when nothing waits, its pause is over.
    Dispatch(usize, How),
    /// A heartbeat of the first node arrives at the second, and its answer at the first.
    Beat(usize, usize, How),
    /// The controller of the leader makes one pass.
    Plan(How),
    /// `n`, new as a leader, plans on what it has applied so far, without a barrier.
    StalePlan(usize),
    /// An operator moves `p` to `n`.
    MoveTo(usize, usize),
    /// An operator ends the move of `p`.
    CancelMove(usize),
    /// An operator sets the drain flag of `n`, or takes it back.
    Drain(usize),
    /// The leader removes a drained node that nothing holds.
    Remove(usize),
    /// An operator gives up `n`, which is dead: its partitions begin anew, empty, elsewhere.
    GiveUp(usize),
    /// `n`, which was given up, hands what its disk holds to the cluster.
    HandOver(usize),
    /// The topic is deleted.
    DeleteTopic,
    /// A topic of the same name is made.
    CreateTopic,
    /// The process of `n` ends, and this is left of what was not synced.
    Crash(usize, Left),
    /// It starts again.
    Restart(usize),
    /// `n` is cut off from everybody.
    Cut(usize),
    /// The heartbeats and the log of `n` are cut off; its clients and peers reach it.
    Mute(usize),
    /// The network of `n` is whole again.
    Heal(usize),
    /// Another node leads; the former leader does not know.
    Elect(usize),
    /// A former leader learns that it does not lead.
    StepDown(usize),
    /// Time passes.
    Advance(Span),
}

/// As it is written in a test.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{self:?}");
        let Some((name, arguments)) = text.split_once('(') else {
            return write!(f, "Action::{text}");
        };
        let arguments: Vec<String> = arguments
            .strip_suffix(')')
            .unwrap_or(arguments)
            .split(", ")
            .map(qualified)
            .collect();
        write!(f, "Action::{name}({})", arguments.join(", "))
    }
}

/// An argument with the name of its type, where it is a name itself.
fn qualified(argument: &str) -> String {
    const SPANS: [&str; 4] = ["Second", "Lease", "Ttl", "Promote"];
    let kind = match argument {
        name if SPANS.contains(&name) => "Span::",
        "Nothing" | "All" => "Left::",
        name if name.starts_with("Torn") => "Left::",
        name if name.starts_with(char::is_uppercase) => "How::",
        _ => "",
    };
    format!("{kind}{argument}")
}

/// Kind of an action, for tables.
impl Action {
    /// Which fault it is, if it is one.
    #[must_use]
    pub fn fault(&self) -> Option<FaultKind> {
        let how = match self {
            Self::Work(_, _, how)
            | Self::Tick(_, _, how)
            | Self::Mark(_, _, how)
            | Self::Reclaim(_, _, how)
            | Self::Dispatch(_, how)
            | Self::Beat(_, _, how)
            | Self::Plan(how) => *how,
            Self::SyncFails(..) => return Some(FaultKind::DiskFails),
            Self::Redo | Self::DeleteAgain(..) => return Some(FaultKind::Duplicate),
            Self::Crash(..) => return Some(FaultKind::Crash),
            Self::Cut(_) | Self::Mute(_) => return Some(FaultKind::Isolate),
            Self::Elect(_) | Self::StalePlan(_) => return Some(FaultKind::LeaderChange),
            Self::Advance(Span::Ttl) => return Some(FaultKind::FreezeExpires),
            Self::Advance(Span::Lease | Span::Promote) => return Some(FaultKind::LeaseExpires),
            Self::MoveTo(..) | Self::Drain(_) | Self::GiveUp(_) => return Some(FaultKind::Replan),
            Self::CancelMove(_) => return Some(FaultKind::Cancel),
            Self::DeleteTopic => return Some(FaultKind::TopicDeleted),
            _ => How::Ok,
        };
        match how {
            How::Ok => None,
            How::Lost => Some(FaultKind::Loss),
            How::NoReply => Some(FaultKind::LostReply),
            How::Twice => Some(FaultKind::Duplicate),
            How::Late => Some(FaultKind::Delay),
            How::Fail | How::FailDone | How::NoRoom => Some(FaultKind::DiskFails),
            How::Half => Some(FaultKind::Loss),
            How::Corrupt => Some(FaultKind::Corrupt),
        }
    }
}

/// Faults by kind, as the coverage table counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// A request or stream is lost.
    Loss,
    /// Done, and the answer is lost.
    LostReply,
    /// Arrives twice.
    Duplicate,
    /// Arrives late, or never.
    Delay,
    /// A byte is flipped.
    Corrupt,
    /// A disk operation fails.
    DiskFails,
    /// A process ends.
    Crash,
    /// A node is cut off.
    Isolate,
    /// Another node leads.
    LeaderChange,
    /// The freeze's time to live runs out.
    FreezeExpires,
    /// Leases run out.
    LeaseExpires,
    /// Another target, or a drain.
    Replan,
    /// The move is cancelled.
    Cancel,
    /// The topic is deleted.
    TopicDeleted,
}

impl FaultKind {
    /// Every kind, with its heading.
    pub const ALL: [(Self, &'static str); 14] = [
        (Self::Loss, "loss"),
        (Self::LostReply, "noreply"),
        (Self::Duplicate, "dup"),
        (Self::Delay, "delay"),
        (Self::Corrupt, "corrupt"),
        (Self::DiskFails, "disk"),
        (Self::Crash, "crash"),
        (Self::Isolate, "isolate"),
        (Self::LeaderChange, "leader"),
        (Self::FreezeExpires, "ttl"),
        (Self::LeaseExpires, "lease"),
        (Self::Replan, "replan"),
        (Self::Cancel, "cancel"),
        (Self::TopicDeleted, "topic"),
    ];
}
