//! Whether a server carries out the commands that the configuration needs, before requests depend
//! on it.
//!
//! Each of them is given once, in a form that changes nothing and creates no key: only then is it
//! known that this server knows it, and that this user may give it for keys with this prefix.
//! `COMMAND INFO` and `ACL DRYRUN` would need rights of their own, and each call that a user may
//! not make is a line in the server's `ACL LOG`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use weir_limit::Algorithm;

use super::gcra::ReadBy;
use super::resp::{Replies, Request};
use super::server_error::ErrorReply;

/// The algorithms that limits use. All stores of the same settings share them, and a reload may
/// replace them.
#[derive(Clone, Debug, Default)]
pub struct UsedAlgorithms(Arc<AtomicU8>);

impl UsedAlgorithms {
    /// These are used from now on, and no others.
    pub fn replace(&self, algorithms: impl IntoIterator<Item = Algorithm>) {
        let bits = algorithms.into_iter().map(bit);
        let bits = bits.fold(0, |all, bit| all | bit);
        self.0.store(bits, Ordering::Relaxed);
    }

    fn bits(&self) -> u8 {
        ALL | self.0.load(Ordering::Relaxed)
    }
}

/// For commands that every configuration needs.
const ALL: u8 = 1;
const SLIDING_WINDOW: u8 = 1 << 1;
const SLIDING_LOG: u8 = 1 << 2;
const IN_FLIGHT: u8 = 1 << 3;

/// No combination of the others.
const UNKNOWN: u8 = u8::MAX;

const fn bit(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::Gcra | Algorithm::FixedWindow(_) => ALL,
        Algorithm::SlidingWindow { .. } => SLIDING_WINDOW,
        Algorithm::SlidingLog { .. } => SLIDING_LOG,
        Algorithm::InFlight => IN_FLIGHT,
    }
}

/// A command in a form that changes nothing, whatever the key holds.
struct Trial {
    name: &'static str,
    /// The arguments after its key; none where it has no key.
    after_key: Option<&'static [&'static str]>,
    needed_by: u8,
}

const fn on_key(name: &'static str, after_key: &'static [&'static str], needed_by: u8) -> Trial {
    Trial {
        name,
        after_key: Some(after_key),
        needed_by,
    }
}

const fn keyless(name: &'static str) -> Trial {
    Trial {
        name,
        after_key: None,
        needed_by: SLIDING_WINDOW | SLIDING_LOG | IN_FLIGHT,
    }
}

/// `ZPOPMAX` is not among them: only refunds of logs need it, and Redis before 5.0 lacks it.
const TRIALS: [Trial; 16] = [
    on_key("BITFIELD", &[], ALL),
    // Of a key that nobody writes to.
    on_key("PEXPIRE", &["1000"], ALL),
    on_key("HGETALL", &[], SLIDING_WINDOW),
    // An increment or score that is no number is refused when the right to the command was looked at.
    on_key("HINCRBY", &["0", "x"], SLIDING_WINDOW),
    on_key("HDEL", &["0"], SLIDING_WINDOW),
    on_key("ZADD", &["x", "0"], SLIDING_LOG | IN_FLIGHT),
    on_key("ZREM", &["0"], SLIDING_LOG | IN_FLIGHT),
    on_key("ZREMRANGEBYRANK", &["1", "0"], SLIDING_LOG | IN_FLIGHT),
    on_key("ZLEXCOUNT", &["+", "-"], SLIDING_LOG),
    on_key("ZREVRANGE", &["1", "0"], SLIDING_LOG),
    on_key("ZREMRANGEBYLEX", &["+", "-"], SLIDING_LOG),
    on_key("ZCARD", &[], IN_FLIGHT),
    on_key("ZCOUNT", &["1", "0"], IN_FLIGHT),
    on_key("ZREMRANGEBYSCORE", &["1", "0"], IN_FLIGHT),
    keyless("MULTI"),
    keyless("EXEC"),
];

fn needed_by(algorithms: u8) -> impl Iterator<Item = &'static Trial> {
    let all = TRIALS.iter();
    all.filter(move |trial| trial.needed_by & algorithms != 0)
}

/// A command that a gateway can do without, but not as well: see [`super::gcra::read`].
const READ_ONLY: Trial = on_key("BITFIELD_RO", &["GET", "u63", "0"], ALL);

/// The knowledge about the commands of a server, from one connection to it.
#[derive(Debug)]
pub(super) struct KnownCommands {
    /// The algorithms whose commands it has carried out.
    tried: AtomicU8,
    reads_apart: AtomicBool,
}

impl Default for KnownCommands {
    fn default() -> Self {
        Self {
            tried: AtomicU8::new(UNKNOWN),
            reads_apart: AtomicBool::new(false),
        }
    }
}

impl KnownCommands {
    /// By which command integers are read.
    pub(super) fn read_by(&self) -> ReadBy {
        match self.reads_apart.load(Ordering::Relaxed) {
            true => ReadBy::BitfieldRo,
            false => ReadBy::Bitfield,
        }
    }

    /// The server has refused a command, which may be one of those that it carried out before.
    pub(super) fn doubt(&self) {
        self.tried.store(UNKNOWN, Ordering::Relaxed);
    }

    /// Commands to try on a key, if there is one, unless the server is known to carry them out.
    pub(super) fn trial(
        &self,
        used: &UsedAlgorithms,
        key: impl FnOnce() -> Option<String>,
    ) -> Option<CommandTrial> {
        let algorithms = used.bits();
        if self.tried.load(Ordering::Relaxed) == algorithms {
            return None;
        }
        let key = key()?;
        let mut request = Request::default();
        for trial in [&READ_ONLY].into_iter().chain(needed_by(algorithms)) {
            trial.add(&mut request, key.as_bytes());
        }
        Some(CommandTrial {
            request,
            algorithms,
        })
    }

    /// Which needed commands the server refuses, by its replies to a trial. They are tried again
    /// until it refuses none.
    pub(super) fn conclude(&self, algorithms: u8, replies: &Replies) -> Option<ErrorReply> {
        let mut replies = replies.iter();
        // Proxies have words of their own for a command that they do not pass.
        let reads_apart = matches!(replies.next(), Some(Ok(_)));
        self.reads_apart.store(reads_apart, Ordering::Relaxed);
        let named = needed_by(algorithms).map(|trial| trial.name).zip(replies);
        let errors = named.filter_map(|(name, reply)| Some((name, reply.err()?)));
        let refused = ErrorReply::of_refusals(errors);
        let tried = match &refused {
            None => algorithms,
            Some(_) => UNKNOWN,
        };
        self.tried.store(tried, Ordering::Relaxed);
        refused
    }
}

/// Commands that are tried, and for which algorithms.
pub(super) struct CommandTrial {
    pub(super) request: Request,
    pub(super) algorithms: u8,
}

impl Trial {
    fn add(&self, request: &mut Request, key: &[u8]) {
        let Some(after_key) = self.after_key else {
            request.command(1, self.name);
            return;
        };
        let command = request.command(2 + after_key.len(), self.name).word(key);
        for word in after_key {
            command.word(word.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::resp::text;
    use super::*;

    fn log() -> Algorithm {
        Algorithm::SlidingLog {
            count_denied: false,
        }
    }

    fn trial(known: &KnownCommands, used: &UsedAlgorithms) -> Option<CommandTrial> {
        known.trial(used, || Some("k".to_owned()))
    }

    fn asked(known: &KnownCommands, used: &UsedAlgorithms) -> Option<String> {
        let trial = trial(known, used)?;
        Some(text(|request| *request = trial.request))
    }

    fn replies(trial: &CommandTrial, of: impl Fn(usize) -> &'static str) -> Replies {
        let all: String = (0..trial.request.len()).map(of).collect();
        Replies::new(all.into_bytes())
    }

    #[test]
    fn no_command_is_tried_that_the_configuration_does_not_need() {
        let (known, used) = (KnownCommands::default(), UsedAlgorithms::default());
        let asked = |algorithms: &[Algorithm]| {
            used.replace(algorithms.iter().copied());
            asked(&known, &used).unwrap()
        };
        let plain = "BITFIELD_RO k GET u63 0\nBITFIELD k\nPEXPIRE k 1000";
        assert_eq!(asked(&[]), plain);
        assert_eq!(asked(&[Algorithm::Gcra]), plain);
        let of_log = asked(&[Algorithm::Gcra, log()]);
        assert!(of_log.contains("\nZLEXCOUNT k + -\n"), "{of_log}");
        assert!(of_log.ends_with("\nMULTI\nEXEC"), "{of_log}");
        assert!(!of_log.contains("HINCRBY"), "{of_log}");
        assert!(asked(&[Algorithm::InFlight]).contains("\nZCARD k\n"));
    }

    #[test]
    fn what_is_carried_out_is_not_tried_again_until_that_is_in_doubt_or_more_is_needed() {
        let (known, used) = (KnownCommands::default(), UsedAlgorithms::default());
        let conclude = |of: fn(usize) -> &'static str| {
            let trial = trial(&known, &used).unwrap();
            known.conclude(trial.algorithms, &replies(&trial, of))
        };
        let refused = conclude(|number| match number {
            0 => "*1\r\n:0\r\n",
            1 => "-NOPERM User weir has no permissions to run the 'bitfield' command\r\n",
            _ => "-ERR unknown command 'PEXPIRE'\r\n",
        });
        let refused = refused.unwrap().to_string();
        assert!(refused.contains("does not know PEXPIRE"), "{refused}");
        assert!(refused.contains("no right to BITFIELD"), "{refused}");
        assert_eq!(known.read_by(), ReadBy::BitfieldRo);
        // An error of another kind says that the command was known and allowed.
        assert!(conclude(|_| "-OOM command not allowed\r\n").is_none());
        assert!(trial(&known, &used).is_none());
        used.replace([log()]);
        assert!(conclude(|_| ":0\r\n").is_none());
        known.doubt();
        assert!(trial(&known, &used).is_some());
    }

    #[test]
    fn integers_are_read_by_a_command_of_their_own_only_where_it_was_carried_out() {
        let (known, used) = (KnownCommands::default(), UsedAlgorithms::default());
        for (reply, read_by) in [
            ("-ERR unsupported command\r\n", ReadBy::Bitfield),
            ("-ERR command not supported\r\n", ReadBy::Bitfield),
            ("-invalid request\r\n", ReadBy::Bitfield),
            ("*1\r\n:0\r\n", ReadBy::BitfieldRo),
        ] {
            known.doubt();
            let trial = trial(&known, &used).unwrap();
            let replies = replies(&trial, |number| match number {
                0 => reply,
                _ => ":0\r\n",
            });
            assert!(known.conclude(trial.algorithms, &replies).is_none());
            assert_eq!(known.read_by(), read_by, "{reply}");
        }
    }

    #[test]
    fn a_needed_command_that_is_refused_without_its_name_is_not_taken_as_carried_out() {
        for reply in [
            "-ERR unknown command\r\n",
            "-ERR Unsupported command\r\n",
            "-ERR UNKNOWN COMMAND \"pexpire\"\r\n",
        ] {
            let (known, used) = (KnownCommands::default(), UsedAlgorithms::default());
            let tried = trial(&known, &used).unwrap();
            let replies = replies(&tried, |number| match number {
                2 => reply,
                _ => ":0\r\n",
            });
            let refused = known.conclude(tried.algorithms, &replies).unwrap();
            let refused = refused.to_string();
            assert!(
                refused.contains("does not know PEXPIRE:"),
                "{reply}: {refused}"
            );
            assert!(trial(&known, &used).is_some());
        }
    }
}
