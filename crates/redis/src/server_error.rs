//! The meaning of a server's errors: which of them concern one key or one limit, which the server
//! as a whole, and what is to be done about them.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use weir_store::StoreError;

/// An error that a server replied, in its own words, and what is to be done about it.
#[derive(Clone, Debug)]
pub struct ErrorReply {
    words: String,
    refused: Refused,
}

/// The commands that a server refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Refused {
    /// Commands that it does not know, in lower case.
    unknown: Vec<String>,
    /// Commands that its user may not give.
    forbidden: Vec<String>,
    /// Its user may not touch the key.
    has_no_key: bool,
}

/// The commands that every limit needs. Without one of them the store cannot be used at all.
const COMMANDS_OF_ALL: [&str; 2] = ["bitfield", "pexpire"];

/// Why a server takes no writes although its user may write, and what helps.
const NO_WRITES: [(&str, &str); 4] = [
    (
        "OOM",
        "its memory is full: give it more (`maxmemory`), or let it evict what expires soonest \
         (`maxmemory-policy volatile-ttl`)",
    ),
    (
        "MISCONF",
        "it cannot save a snapshot and takes no writes until it can: see to its disk, or set \
         `stop-writes-on-bgsave-error no`",
    ),
    (
        "NOREPLICAS",
        "it has fewer replicas than `min-replicas-to-write` and takes no writes until they are back",
    ),
    (
        "READONLY",
        "it is a replica, which takes no writes: name the primary",
    ),
];

impl ErrorReply {
    fn new(error: &RedisError) -> Self {
        let mut reply = Self {
            words: words(error),
            refused: Refused::default(),
        };
        reply.refused.add(error, None);
        reply
    }

    /// The first of these errors that refuse a command or a key, for all that are refused. Each
    /// comes with the name of the command that was given.
    pub(super) fn of_refusals<'n>(
        errors: impl IntoIterator<Item = (&'n str, RedisError)>,
    ) -> Option<Self> {
        let errors = errors.into_iter();
        let mut errors = errors.filter(|(_, error)| is_refusal(error)).peekable();
        let words = words(&errors.peek()?.1);
        let mut refused = Refused::default();
        errors.for_each(|(given, error)| refused.add(&error, Some(given)));
        Some(Self { words, refused })
    }

    /// Whether limits that need none of the refused commands are not concerned.
    fn is_of_some(&self) -> bool {
        let mut names = self.refused.names().peekable();
        names.peek().is_some()
            && !self.refused.has_no_key
            && names.all(|name| !COMMANDS_OF_ALL.contains(&name))
    }

    /// The text that tells kinds of errors apart, whichever the key: the code of the error, and the
    /// commands that are refused.
    pub fn kind(&self) -> String {
        let code = self.words.split(' ').next().unwrap_or_default();
        let names: Vec<_> = self.refused.names().collect();
        [code, &names.join(" ")].join(" ")
    }

    /// The failure of a call by this error.
    pub(super) fn into_failure(self) -> StoreError {
        match self.is_of_some() {
            true => StoreError::Forbidden(Box::new(self)),
            false => StoreError::Failed(Box::new(self)),
        }
    }

    fn why_no_writes(&self) -> Option<&'static str> {
        let is_code = |code: &str| self.words.split([' ', ':']).any(|word| word == code);
        let found = NO_WRITES.iter().find(|(code, _)| is_code(code));
        found.map(|(_, advice)| *advice)
    }
}

impl Error for ErrorReply {}

impl fmt::Display for ErrorReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { words, refused } = self;
        if !refused.unknown.is_empty() {
            let names = upper(&refused.unknown).join(", ");
            write!(
                f,
                "the server does not know {names}: use one of those in docs/REDIS.md, or undo its \
                 `rename-command`; "
            )?;
        }
        if !refused.forbidden.is_empty() {
            let names = upper(&refused.forbidden).join(", ");
            let rights = refused.forbidden.iter().map(|name| format!("+{name}"));
            let rights = rights.collect::<Vec<_>>().join(" ");
            write!(
                f,
                "the server's user has no right to {names}: grant it `{rights}` by ACL SETUSER; "
            )?;
        }
        if refused.has_no_key {
            f.write_str(
                "the server's user has no right to the keys: grant it those that begin with \
                 `store.redis.prefix`, such as `~weir:*`; ",
            )?;
        }
        if let Some(advice) = self.why_no_writes() {
            write!(f, "{advice}; ")?;
        }
        write!(f, "Redis says \"{words}\"")
    }
}

fn upper(names: &[String]) -> Vec<String> {
    names.iter().map(|name| name.to_ascii_uppercase()).collect()
}

impl Refused {
    /// Adds what an error refuses. Not every error names the command that was given.
    fn add(&mut self, error: &RedisError, given: Option<&str>) {
        let mut add = |names: fn(&mut Self) -> &mut Vec<String>, name: String| {
            let names = names(self);
            if !names.contains(&name) {
                names.push(name);
            }
        };
        let is_unnamed = is_unnamed_refusal(error);
        let unnamed = given.filter(|_| is_unnamed);
        let unnamed = unnamed.map(|given| (given.to_ascii_lowercase(), true));
        match refused_command(error).or(unnamed) {
            Some((name, true)) => add(|refused| &mut refused.unknown, name),
            Some((name, false)) => add(|refused| &mut refused.forbidden, name),
            None => self.has_no_key |= is_refused_key(error),
        }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let all = self.unknown.iter().chain(&self.forbidden);
        all.map(String::as_str)
    }
}

/// An error as the server wrote it.
pub(super) fn words(error: &RedisError) -> String {
    let parts = [error.code(), error.detail()].into_iter().flatten();
    parts.collect::<Vec<_>>().join(" ")
}

/// The same error, which shows itself as the server wrote it, if it did.
pub(super) fn verbatim(error: RedisError) -> Arc<RedisError> {
    Arc::new(match error.code() {
        Some(_) => io::Error::other(ErrorReply::new(&error)).into(),
        None => error,
    })
}

/// The reason why a server closes the connection at its first commands, if it does.
pub(super) fn closed_at(commands: &str, error: Arc<RedisError>) -> Arc<RedisError> {
    if !error.is_connection_dropped() {
        return error;
    }
    let why = format!(
        "the server closed the connection at {commands}; if it always does, it is a port that \
         expects TLS (write rediss://), or a proxy that does not pass all commands, such as \
         twemproxy, and cannot stand before Redis ({error})"
    );
    Arc::new(io::Error::new(io::ErrorKind::ConnectionAborted, why).into())
}

/// The failure of a call by the error of one of its commands.
pub(super) fn command_error(error: RedisError) -> StoreError {
    let is_of_one_key = is_of_one_key(&error);
    if error.code().is_none() {
        return StoreError::Failed(Box::new(error));
    }
    let reply = ErrorReply::new(&error);
    match is_of_one_key {
        true => StoreError::WrongType(Box::new(reply)),
        false => reply.into_failure(),
    }
}

/// Whether the server refuses a command as such, for want of a right or because it does not know
/// it.
pub(super) fn is_refused_command(error: &RedisError) -> bool {
    refused_command(error).is_some() || is_unnamed_refusal(error)
}

/// Whether the server refuses a command that only some limits need.
pub(super) fn is_refused_to_some(error: &RedisError) -> bool {
    ErrorReply::new(error).is_of_some()
}

/// Whether the server refuses a command as such, or all keys.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    is_refused_command(error) || is_refused_key(error)
}

fn is_refused_key(error: &RedisError) -> bool {
    let is_of_user = error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm);
    is_of_user && error.detail().is_some_and(|text| text.contains("key"))
}

/// The errors of a server about a hash whose field holds no number, or one that cannot grow any
/// more.
const NO_NUMBER: [&str; 2] = [
    "hash value is not an integer",
    "increment or decrement would overflow",
];

/// Whether a key holds something else than the command is for, which concerns the limit that is
/// counted there, and no other.
pub(super) fn is_of_one_key(error: &RedisError) -> bool {
    let says = |text: &&str| error.detail().is_some_and(|words| words.contains(*text));
    error.code() == Some("WRONGTYPE") || NO_NUMBER.iter().any(says)
}

/// The name of a command that the server refuses as such, and whether it does not know it.
fn refused_command(error: &RedisError) -> Option<(String, bool)> {
    let text = error.detail()?.to_ascii_lowercase();
    let (is_unknown, (_, rest)) = [
        (false, "to run the '"),
        (true, "unknown command '"),
        (true, "unknown command `"),
    ]
    .iter()
    .find_map(|(is_unknown, start)| Some((*is_unknown, text.split_once(start)?)))?;
    let (name, _) = rest.split_once(['\'', '`'])?;
    Some((name.to_owned(), is_unknown))
}

/// Whether the server, or a proxy before it, does not know a command and does not say which.
fn is_unnamed_refusal(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default().to_ascii_lowercase();
    let starts = ["unknown command", "unsupported command"];
    error.code() == Some("ERR")
        && starts.iter().any(|start| text.starts_with(start))
        && refused_command(error).is_none()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::resp::Replies;
    use super::*;

    pub(crate) fn error(text: &str) -> RedisError {
        let replies = Replies::new(format!("-{text}\r\n").into_bytes());
        replies.values().unwrap_err()
    }

    #[test]
    fn a_refused_command_is_named_whatever_server_refuses_it() {
        for (text, name, is_unknown) in [
            (
                "NOPERM User weir has no permissions to run the 'hincrby' command",
                "hincrby",
                false,
            ),
            (
                "NOPERM this user has no permissions to run the 'zadd' command",
                "zadd",
                false,
            ),
            (
                "ERR unknown command 'TIME', with args beginning with:",
                "time",
                true,
            ),
            (
                "ERR unknown command `ZPOPMAX`, with args beginning with:",
                "zpopmax",
                true,
            ),
            (
                "EXECABORT Transaction discarded because of: NOPERM User weir has no permissions to \
                 run the 'exec' command",
                "exec",
                false,
            ),
        ] {
            let expected = Some((name.to_owned(), is_unknown));
            assert_eq!(refused_command(&error(text)), expected);
        }
        for text in [
            "NOPERM No permissions to access a key",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ] {
            assert_eq!(refused_command(&error(text)), None);
        }
    }

    /// `OOM` got quotes and a colon, and `NOPERM` became `NoPerm`, so that nobody who looked for
    /// the server's text found it.
    #[test]
    fn errors_are_shown_in_the_servers_own_words_with_what_helps() {
        for (text, advice) in [
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                "maxmemory-policy",
            ),
            (
                "MISCONF Redis is configured to save RDB snapshots, but",
                "disk",
            ),
            ("NOREPLICAS Not enough good replicas to write.", "replicas"),
            (
                "READONLY You can't write against a read only replica.",
                "name the primary",
            ),
            ("BUSY Redis is busy running a script.", ""),
            ("NOAUTH Authentication required.", ""),
            ("MOVED 3999 127.0.0.1:6381", ""),
            (
                "NOPERM User weir has no permissions to run the 'hincrby' command",
                "`+hincrby` by ACL SETUSER",
            ),
            ("NOPERM No permissions to access a key", "`~weir:*`"),
            (
                "ERR unknown command 'BITFIELD', with args beginning with: 'k'",
                "does not know BITFIELD",
            ),
        ] {
            let failure = command_error(error(text));
            let cause = failure.source().unwrap().to_string();
            let said = format!("Redis says \"{text}\"");
            assert!(cause.ends_with(&said), "{cause}");
            assert!(cause.contains(advice), "{cause}");
            assert_eq!(cause == said, advice.is_empty(), "{cause}");
            let is_of_rights = text.starts_with("NOPERM");
            assert_eq!(cause.contains("has no right"), is_of_rights, "{cause}");
            assert!(verbatim(error(text)).to_string().ends_with(&said));
        }
    }

    #[test]
    fn only_what_some_limits_need_is_refused_to_some() {
        for (text, expected) in [
            ("NOPERM user may not run: to run the 'zadd' command", true),
            (
                "NOPERM user may not run: to run the 'bitfield' command",
                false,
            ),
            ("ERR unknown command 'PEXPIRE'", false),
            ("NOPERM No permissions to access a key", false),
            ("OOM command not allowed", false),
        ] {
            assert_eq!(is_refused_to_some(&error(text)), expected, "{text}");
        }
    }

    #[test]
    fn kinds_of_errors_differ_by_code_and_command_and_not_by_key() {
        let kind = |text: &str| ErrorReply::new(&error(text)).kind();
        let unknown = |command, key| {
            kind(&format!(
                "ERR unknown command '{command}', with args beginning with: '{key}'"
            ))
        };
        assert_eq!(unknown("BITFIELD", "a"), unknown("BITFIELD", "b"));
        assert_ne!(unknown("BITFIELD", "a"), unknown("ZRANGEBYSCORE", "a"));
        assert_ne!(kind("OOM no"), kind("BUSY no"));
    }
}
