//! The table of commands that the server knows: what Weir sends, and what the simulator's own code
//! and its tests look at a server with.

use bytes::Bytes;

use super::call::{Call, Done};
use super::client::Client;
use super::protocol::Reply;
use super::server::{Now, Server};
use super::{bitfield, hashes, scan, sentinel, session, sorted_sets, strings};

#[derive(Debug)]
pub(super) struct Command {
    /// In lower case; one within a container as `cluster|slots`.
    pub(super) name: &'static str,
    /// How many words it has, its name included; at least as many if negative.
    arity: i32,
    flags: u16,
    keys: Keys,
    pub(super) run: Run,
}

#[derive(Clone, Copy, Debug)]
enum Keys {
    None,
    First,
    All,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Run {
    /// It concerns keys of one database.
    Keys(fn(&mut Call<'_>) -> Done),
    /// It concerns the server or the connection.
    Server(fn(&mut Server, &mut Client, &[Bytes], Now, &mut Reply) -> Done),
}

const WRITE: u16 = 1;
/// It is refused when memory is out.
const GROW: u16 = 2;
/// Replicas that have lost their primary may answer it, even if they answer no other.
const STALE: u16 = 4;
/// It is answered while the data set is loaded.
const LOADING: u16 = 8;
const NO_LOGIN: u16 = 16;
/// It is answered while a script runs.
const BUSY: u16 = 32;
/// It is carried out at once, also between `MULTI` and `EXEC`.
const UNQUEUED: u16 = 64;
/// A Sentinel knows it, too.
const SENTINEL: u16 = 128;
/// A Sentinel alone knows it.
const ONLY_SENTINEL: u16 = 256;

impl Command {
    pub(super) fn writes(&self) -> bool {
        self.flags & WRITE != 0
    }

    pub(super) fn grows(&self) -> bool {
        self.flags & GROW != 0
    }

    pub(super) fn is_answered_when_stale(&self) -> bool {
        self.flags & STALE != 0
    }

    pub(super) fn is_answered_while_loading(&self) -> bool {
        self.flags & LOADING != 0
    }

    pub(super) fn needs_login(&self) -> bool {
        self.flags & NO_LOGIN == 0
    }

    pub(super) fn is_answered_while_busy(&self) -> bool {
        self.flags & BUSY != 0
    }

    pub(super) fn is_queued(&self) -> bool {
        self.flags & UNQUEUED == 0
    }

    pub(super) fn keys<'w>(&self, words: &'w [Bytes]) -> &'w [Bytes] {
        let range = match self.keys {
            Keys::None => 0..0,
            Keys::First => 1..2,
            Keys::All => 1..words.len(),
        };
        words.get(range).unwrap_or_default()
    }

    fn fits(&self, words: &[Bytes]) -> bool {
        let count = i32::try_from(words.len()).unwrap_or(i32::MAX);
        match self.arity {
            arity if arity < 0 => count >= -arity,
            arity => count == arity,
        }
    }

    /// Finds the command of these words, or says what is wrong with them.
    pub(super) fn find(words: &[Bytes], of_sentinel: bool) -> Result<&'static Self, Vec<u8>> {
        let name = words.first().map_or(&b""[..], |name| name);
        let named = |wanted: &[u8]| {
            let is_wanted = |command: &&Self| {
                let is_known = match of_sentinel {
                    true => command.flags & (SENTINEL | ONLY_SENTINEL) != 0,
                    false => command.flags & ONLY_SENTINEL == 0,
                };
                is_known && command.name.as_bytes().eq_ignore_ascii_case(wanted)
            };
            COMMANDS.iter().find(is_wanted)
        };
        let containers = if of_sentinel {
            ["client", "sentinel"]
        } else {
            ["client", "cluster"]
        };
        let is_container = containers
            .iter()
            .any(|own| own.as_bytes().eq_ignore_ascii_case(name));
        let command = match words.get(1) {
            Some(inner) if is_container => {
                let command = named(&[name, b"|", inner].concat());
                command.ok_or_else(|| unknown_subcommand(name, inner))?
            }
            None if is_container => return Err(wrong_arity(&name.to_ascii_lowercase())),
            _ => named(name).ok_or_else(|| unknown(name, words))?,
        };
        match command.fits(words) {
            true => Ok(command),
            false => Err(wrong_arity(command.name.as_bytes())),
        }
    }
}

fn wrong_arity(name: &[u8]) -> Vec<u8> {
    [b"wrong number of arguments for '", name, b"' command"].concat()
}

/// As much of a word as C prints: up to a null byte, and no more than this.
fn printed(word: &[u8], max: usize) -> &[u8] {
    let text = word.split(|byte| *byte == 0).next().unwrap_or_default();
    text.get(..max).unwrap_or(text)
}

fn unknown_subcommand(container: &[u8], inner: &[u8]) -> Vec<u8> {
    let inner = printed(inner, 128);
    let container = container.to_ascii_uppercase();
    [
        b"unknown subcommand '",
        inner,
        b"'. Try ",
        &container,
        b" HELP.",
    ]
    .concat()
}

fn unknown(name: &[u8], words: &[Bytes]) -> Vec<u8> {
    let name = printed(name, 128);
    let start = b"', with args beginning with: ";
    let mut text = [b"unknown command '", name, start].concat();
    let mut shown = 0;
    for word in words.iter().skip(1) {
        if shown >= 128 {
            break;
        }
        let word = printed(word, 128 - shown);
        text.extend([b"'", word, b"' "].concat());
        shown += word.len() + 3;
    }
    text
}

const fn on_key(name: &'static str, arity: i32, run: fn(&mut Call<'_>) -> Done) -> Command {
    command(name, arity, 0, Keys::First, Run::Keys(run))
}

const fn on_server(
    name: &'static str,
    arity: i32,
    flags: u16,
    run: fn(&mut Server, &mut Client, &[Bytes], Now, &mut Reply) -> Done,
) -> Command {
    command(name, arity, flags, Keys::None, Run::Server(run))
}

const fn command(name: &'static str, arity: i32, flags: u16, keys: Keys, run: Run) -> Command {
    Command {
        name,
        arity,
        flags,
        keys,
        run,
    }
}

impl Command {
    const fn writing(mut self) -> Self {
        self.flags |= WRITE;
        self
    }

    const fn growing(mut self) -> Self {
        self.flags |= WRITE | GROW;
        self
    }

    const fn on_all_keys(mut self) -> Self {
        self.keys = Keys::All;
        self
    }

    const fn on_no_key(mut self) -> Self {
        self.keys = Keys::None;
        self
    }
}

static COMMANDS: [Command; 63] = [
    on_key("bitfield", -2, bitfield::bitfield).growing(),
    on_key("bitfield_ro", -2, bitfield::bitfield_ro),
    on_key("pexpire", -3, strings::pexpire).writing(),
    on_key("zadd", -4, sorted_sets::zadd).growing(),
    on_key("zcard", 2, sorted_sets::zcard),
    on_key("zcount", 4, sorted_sets::zcount),
    on_key("zlexcount", 4, sorted_sets::zlexcount),
    on_key("zpopmax", -2, sorted_sets::zpopmax).writing(),
    on_key("zrange", -4, sorted_sets::zrange),
    on_key("zrangebyscore", -4, sorted_sets::zrangebyscore),
    on_key("zrem", -3, sorted_sets::zrem).writing(),
    on_key("zremrangebylex", 4, sorted_sets::zremrangebylex).writing(),
    on_key("zremrangebyrank", 4, sorted_sets::zremrangebyrank).writing(),
    on_key("zremrangebyscore", 4, sorted_sets::zremrangebyscore).writing(),
    on_key("zrevrange", -4, sorted_sets::zrevrange),
    on_key("zscore", 3, sorted_sets::zscore),
    on_key("hdel", -3, hashes::hdel).writing(),
    on_key("hget", 3, hashes::hget),
    on_key("hgetall", 2, hashes::hgetall),
    on_key("hincrby", 4, hashes::hincrby).growing(),
    on_key("hlen", 2, hashes::hlen),
    on_key("hset", -4, hashes::hset).growing(),
    on_key("del", -2, strings::del).writing().on_all_keys(),
    on_key("exists", -2, strings::exists).on_all_keys(),
    on_key("expire", -3, strings::expire).writing(),
    on_key("expireat", -3, strings::expireat).writing(),
    on_key("get", 2, strings::get),
    on_key("getrange", 4, strings::getrange),
    on_key("persist", 2, strings::persist).writing(),
    on_key("pexpireat", -3, strings::pexpireat).writing(),
    on_key("pttl", 2, strings::pttl),
    on_key("set", -3, strings::set).growing(),
    on_key("ttl", 2, strings::ttl),
    on_key("type", 2, strings::type_of),
    on_key("unlink", -2, strings::del).writing().on_all_keys(),
    on_key("scan", -2, scan::scan).on_no_key(),
    on_server("dbsize", 1, 0, session::dbsize),
    on_server("flushall", -1, WRITE, session::flushall),
    on_server("flushdb", -1, WRITE, session::flushdb),
    on_server("asking", 1, 0, session::asking),
    on_server(
        "auth",
        -2,
        SENTINEL | STALE | LOADING | NO_LOGIN | BUSY,
        session::auth,
    ),
    on_server(
        "client|getname",
        2,
        SENTINEL | STALE | LOADING,
        session::client_getname,
    ),
    on_server(
        "client|id",
        2,
        SENTINEL | STALE | LOADING,
        session::client_id,
    ),
    on_server(
        "client|setname",
        3,
        SENTINEL | STALE | LOADING,
        session::client_setname,
    ),
    on_server("cluster|keyslot", 3, STALE, session::cluster_keyslot),
    on_server("cluster|myid", 2, STALE, session::cluster_myid),
    on_server("cluster|slots", 2, STALE, session::cluster_slots),
    on_server(
        "discard",
        1,
        STALE | LOADING | BUSY | UNQUEUED,
        session::discard,
    ),
    on_server("exec", 1, STALE | LOADING | UNQUEUED, session::exec),
    on_server(
        "hello",
        -1,
        SENTINEL | STALE | LOADING | NO_LOGIN | BUSY,
        session::hello,
    ),
    on_server("info", -1, SENTINEL | STALE | LOADING, session::info),
    on_server(
        "multi",
        1,
        STALE | LOADING | BUSY | UNQUEUED,
        session::multi,
    ),
    on_server("ping", -1, SENTINEL, session::ping),
    on_server(
        "quit",
        -1,
        STALE | LOADING | NO_LOGIN | BUSY | UNQUEUED,
        session::quit,
    ),
    on_server("readonly", 1, STALE | LOADING, session::readonly),
    on_server("readwrite", 1, STALE | LOADING, session::readwrite),
    on_server("role", 1, SENTINEL | STALE | LOADING, session::role),
    on_server("select", 2, STALE | LOADING, session::select),
    on_server(
        "sentinel|get-master-addr-by-name",
        3,
        ONLY_SENTINEL,
        sentinel::address,
    ),
    on_server("sentinel|master", 3, ONLY_SENTINEL, sentinel::primary),
    on_server(
        "subscribe",
        -2,
        SENTINEL | STALE | LOADING,
        session::subscribe,
    ),
    on_server("time", 1, STALE | LOADING, session::time),
    on_server(
        "unsubscribe",
        -1,
        SENTINEL | STALE | LOADING,
        session::unsubscribe,
    ),
];
