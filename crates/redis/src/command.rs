//! The commands to Redis about a transaction of any algorithm, and the meaning of its replies.

use redis::{RedisError, Value};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Decision, Mode, Transaction};
use weir_store::HashedKey;
use weir_store::StoreError;

use super::client::Key;
use super::expiry::Expiry;
use super::gcra::{self, GcraCommand, GcraReply, ReadBy};
use super::resp::{Cursor, Request};
use super::server_error::{command_error, is_of_one_key, is_refused_command, is_refused_to_some};
use super::sliding_log::Members;
use super::window::{Repair, WindowKind, WindowReply};
use super::{fixed_window, sliding_log, sliding_window};

/// Why a key of the right type is no bucket.
pub(super) const FOREIGN: &str = "it holds what Weir does not write there";

/// The commands of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// With the hash of the key, for the cache of expiries.
    Gcra(GcraCommand, HashedKey),
    /// For a transaction that is counted in windows.
    Window(WindowCommand),
}

/// The commands of a transaction that is counted in windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowCommand {
    /// The bucket stays unread.
    Nothing,
    /// Reads the bucket.
    Read(WindowKind, ReadBy),
    /// Takes the cost from a fixed window if it fits.
    TakeFixed,
    /// Reads the bucket, and takes the cost whether it fits or not.
    TakeSliding,
    /// Reads the log, and adds these members.
    TakeLog(Members),
}

/// The replies to the commands of a transaction.
pub(super) enum Reply {
    Gcra(GcraReply),
    Window(WindowReply),
    /// The server refuses a command that it needs, or its key holds another type.
    Refused(RedisError),
    /// The key holds what Weir does not write there. Something may have been written beside it.
    Foreign {
        written: bool,
    },
    /// The node that was asked failed.
    Missing,
}

impl Command {
    /// `gcra` has the hash of the key and whether a take sets the expiry.
    pub(super) fn new(
        transaction: &Transaction,
        now: Timestamp,
        by: ReadBy,
        gcra: impl FnOnce() -> (HashedKey, Expiry),
    ) -> Self {
        if transaction.is_windowed() {
            return Self::Window(WindowCommand::new(transaction, now, by));
        }
        let (key, expiry) = gcra();
        Self::Gcra(GcraCommand::new(transaction, expiry, by), key)
    }

    pub(super) fn add(
        self,
        request: &mut Request,
        key: &[u8],
        transaction: &Transaction,
        now: Timestamp,
    ) {
        match self {
            Self::Gcra(command, _) => command.add(request, key, transaction, now),
            Self::Window(command) => command.add(request, key, transaction, now),
        }
    }

    /// Reads the replies; none when they are not replies to this command.
    pub(super) fn parse(
        self,
        replies: &mut Cursor<'_>,
        transaction: &Transaction,
        now: Timestamp,
    ) -> Option<Reply> {
        match self {
            Self::Gcra(command, _) => GcraReply::read(command, replies, now).map(Reply::Gcra),
            Self::Window(command) => command
                .parse(replies, transaction, now)
                .map(Reply::of_window),
        }
    }

    /// The same when some of the replies may be errors. An error is the answer unless the server
    /// refuses the command as such, or for this key.
    pub(super) fn parse_or_refusal(
        self,
        replies: &mut Cursor<'_>,
        transaction: &Transaction,
        now: Timestamp,
    ) -> Option<Result<Reply, RedisError>> {
        let mut own = *replies;
        // Every error is looked for: after a refused `MULTI` what stood in it is done all the same.
        let count = self.replies(transaction, now);
        let mut errors = replies.by_ref().take(count).filter_map(Result::err);
        let first = errors.next();
        errors.for_each(drop);
        match first {
            None => self.parse(&mut own, transaction, now).map(Ok),
            Some(error) if is_refused_command(&error) || is_of_one_key(&error) => {
                Some(Ok(Reply::Refused(error)))
            }
            Some(error) => Some(Err(error)),
        }
    }

    fn replies(self, transaction: &Transaction, now: Timestamp) -> usize {
        let mut request = Request::default();
        self.add(&mut request, &[], transaction, now);
        request.len()
    }
}

impl WindowCommand {
    fn new(transaction: &Transaction, now: Timestamp, by: ReadBy) -> Self {
        let kind = WindowKind::new(&transaction.quota);
        match (transaction.mode, kind) {
            (Mode::AllowOnly, _) => Self::Nothing,
            (Mode::CheckOnly | Mode::Peek, _) => Self::Read(kind, by),
            // A cost above a full bucket is never taken, unless denials are counted.
            _ if !transaction.fits_beside(0) && !transaction.is_counted_when_denied() => {
                Self::Read(kind, by)
            }
            (_, WindowKind::Fixed) => Self::TakeFixed,
            (_, WindowKind::Sliding) => Self::TakeSliding,
            (_, WindowKind::Log) => Self::TakeLog(Members::new(transaction, now)),
        }
    }

    fn add(self, request: &mut Request, key: &[u8], transaction: &Transaction, now: Timestamp) {
        match self {
            Self::Nothing => {}
            Self::Read(WindowKind::Fixed, by) => fixed_window::read(request, key, by),
            Self::Read(WindowKind::Sliding, _) => sliding_window::read(request, key),
            Self::Read(WindowKind::Log, _) => sliding_log::read(request, key, transaction, now),
            Self::TakeFixed => {
                fixed_window::take(request, key, transaction, now);
                fixed_window::expire(request, key, &transaction.quota, now);
            }
            Self::TakeSliding => sliding_window::take(request, key, transaction, now),
            Self::TakeLog(members) => sliding_log::take(request, key, transaction, members, now),
        }
    }

    fn parse(
        self,
        replies: &mut Cursor<'_>,
        transaction: &Transaction,
        now: Timestamp,
    ) -> Option<WindowReply> {
        match self {
            Self::Nothing => Some(WindowReply::default()),
            Self::Read(WindowKind::Fixed, _) => fixed_window::parse_read(replies, transaction, now),
            Self::Read(WindowKind::Sliding, _) => {
                sliding_window::parse(&replies.value()?, false, transaction, now)
            }
            Self::Read(WindowKind::Log, _) => {
                sliding_log::parse_read(&transacted(replies)?, transaction, now)
            }
            Self::TakeFixed => fixed_window::parse_take(replies, transaction, now),
            Self::TakeSliding => {
                sliding_window::parse(transacted(replies)?.first()?, true, transaction, now)
            }
            Self::TakeLog(_) => sliding_log::parse_take(&transacted(replies)?, transaction, now),
        }
    }
}

/// The reply of `EXEC`, behind those of `MULTI` and of the queued commands.
fn transacted(replies: &mut Cursor<'_>) -> Option<Vec<Value>> {
    loop {
        match replies.value()? {
            Value::Okay | Value::SimpleString(_) => {}
            Value::Array(results) => return Some(results),
            _ => return None,
        }
    }
}

impl Reply {
    fn of_window(found: WindowReply) -> Self {
        match found.is_foreign {
            true => Self::Foreign {
                written: found.written,
            },
            false => Self::Window(found),
        }
    }

    pub(super) fn denies(&self, command: Command, transaction: &Transaction) -> bool {
        let decision = self.decision(command, transaction, false);
        decision.is_some_and(|decision| !decision.allowed)
    }

    /// The decision about a bucket unless it stayed unread; `denied` if a limit of the batch
    /// denies.
    pub(super) fn decision(
        &self,
        command: Command,
        transaction: &Transaction,
        denied: bool,
    ) -> Option<Decision> {
        Some(match self {
            Self::Refused(_) | Self::Foreign { .. } | Self::Missing => return None,
            Self::Gcra(found) => {
                let debt = match command {
                    Command::Gcra(command, _) => found.deciding_debt(command, transaction),
                    Command::Window(_) => Nanos::ZERO,
                };
                match transaction.decide(debt) {
                    decision if denied && decision.allowed => transaction.untouched(debt),
                    decision => decision,
                }
            }
            Self::Window(found) => match transaction.decide_in_window(&found.usage) {
                decision if denied && decision.allowed => {
                    transaction.untouched_in_window(&found.usage)
                }
                decision if decision.allowed => decision,
                decision => found
                    .usage_after
                    .map_or(decision, |after| transaction.decide_in_window(&after)),
            },
        })
    }

    /// Whether something was written that must not stay.
    pub(super) fn is_to_be_refunded(
        &self,
        command: Command,
        transaction: &Transaction,
        denied: bool,
    ) -> bool {
        match self {
            Self::Refused(_) | Self::Missing => false,
            Self::Foreign { written } => *written,
            Self::Gcra(found) => denied && found.taken,
            Self::Window(found) => {
                let fits = transaction.fits_beside(found.usage.used);
                let stays = if fits {
                    !denied
                } else {
                    transaction.is_counted_when_denied() && self.denies(command, transaction)
                };
                found.written && !stays
            }
        }
    }

    /// The end of the fixed window that units were taken from.
    pub(super) fn window_end(&self) -> Timestamp {
        match self {
            Self::Window(found) => found.end,
            _ => Timestamp::default(),
        }
    }

    /// Adds what repairs a ban that was shortened, and a window that other quotas and old times
    /// have left behind.
    pub(super) fn add_repair(
        &self,
        request: &mut Request,
        key: impl FnOnce() -> Key,
        transaction: &Transaction,
        now: Timestamp,
    ) {
        let quota = &transaction.quota;
        match self {
            Self::Gcra(found)
                if transaction.cut(found.first).is_some() && transaction.cuts_leftovers() =>
            {
                gcra::clamp(request, &key(), quota.tolerance(), now);
            }
            Self::Window(found) if transaction.cuts_leftovers() => match &found.repair {
                Repair::Nothing => {}
                Repair::Cut(end) => {
                    let key = key();
                    fixed_window::cut(request, &key, *end);
                    fixed_window::expire(request, &key, quota, now);
                }
                Repair::Prune(starts) => sliding_window::prune(request, &key(), starts),
            },
            _ => {}
        }
    }

    /// Whether another definition of the limit made the debt of the first level.
    pub(super) fn has_foreign_level(&self, transaction: &Transaction) -> bool {
        matches!(self, Self::Gcra(found) if transaction.has_foreign_level(found.first))
    }

    /// Why the server refuses the command, if it does, or what is wrong with the bucket.
    pub(super) fn refusal(&self) -> Option<StoreError> {
        match self {
            Self::Refused(error) => Some(command_error(error.clone())),
            Self::Foreign { .. } => Some(StoreError::WrongType(FOREIGN.into())),
            Self::Gcra(_) | Self::Window(_) | Self::Missing => None,
        }
    }

    /// Whether all limits need the command that the server refuses.
    pub(super) fn is_refused_for_all(&self) -> bool {
        matches!(self, Self::Refused(error) if !is_refused_to_some(error) && !is_of_one_key(error))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use weir_limit::{Algorithm, Quota};

    use super::super::resp::{Replies, text};
    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000_000_000);

    fn two_of_ten(algorithm: Algorithm) -> Transaction {
        let quota = Quota::windowed(algorithm, 10, Duration::from_secs(60)).unwrap();
        Transaction::new("L:a".into(), quota, NonZeroU64::new(2).unwrap())
    }

    fn asked(transaction: &Transaction) -> String {
        text(|request| {
            let command = WindowCommand::new(transaction, NOW, ReadBy::Bitfield);
            command.add(request, b"k", transaction, NOW);
        })
    }

    #[test]
    fn a_sliding_window_is_read_and_added_to_at_once() {
        let transaction = two_of_ten(Algorithm::SlidingWindow {
            count_denied: false,
        });
        assert_eq!(
            asked(&transaction),
            "MULTI\nHGETALL k\nHINCRBY k 1000000000 2\nPEXPIRE k 63000\nEXEC"
        );
        assert_eq!(
            text(|request| sliding_window::prune(request, b"k", &[7, 8])),
            "HDEL k 7 8"
        );
    }

    #[test]
    fn a_log_is_read_and_added_to_at_once() {
        for (count_denied, commands) in [(false, 8), (true, 10)] {
            let transaction = two_of_ten(Algorithm::SlidingLog { count_denied });
            let text = asked(&transaction);
            let names: Vec<_> = text.lines().map(|line| line.split(' ').next()).collect();
            assert_eq!(names.len(), commands, "{text}");
            assert_eq!(
                (names[0], names[commands - 1]),
                (Some("MULTI"), Some("EXEC"))
            );
            assert_eq!(names[4], Some("ZADD"));
        }
    }

    #[test]
    fn what_is_queued_and_then_executed_is_read_to_its_end() {
        let command = WindowCommand::TakeSliding;
        let transaction = two_of_ten(Algorithm::SlidingWindow {
            count_denied: false,
        });
        let replies = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n\
            *3\r\n*2\r\n$10\r\n1000000000\r\n$1\r\n7\r\n:9\r\n:1\r\n:77\r\n";
        let replies = Replies::new(replies.to_vec());
        let mut cursor = replies.iter();
        let found = command.parse(&mut cursor, &transaction, NOW).unwrap();
        assert_eq!((found.usage.used, found.written), (7, true));
        assert_eq!(cursor.int(), Some(77));
    }

    #[test]
    fn an_error_in_a_transaction_or_an_aborted_one_is_no_finding() {
        let transaction = two_of_ten(Algorithm::SlidingWindow {
            count_denied: false,
        });
        for replies in [
            "+OK\r\n-OOM no memory\r\n+QUEUED\r\n+QUEUED\r\n-EXECABORT discarded\r\n",
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n-WRONGTYPE no hash\r\n:1\r\n:1\r\n",
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*-1\r\n",
        ] {
            let replies = Replies::new(replies.as_bytes().to_vec());
            let found = WindowCommand::TakeSliding.parse(&mut replies.iter(), &transaction, NOW);
            assert_eq!(found, None);
        }
    }
}
