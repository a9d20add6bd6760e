//! Logging in, and what users may do.

use std::collections::BTreeSet;

use weir_sim::redis::{Config, Rights, Server, User};
use weir_testing::RedisServer;

use super::peers::Peers;

fn all_but(commands: &[&str]) -> Rights {
    Rights::AllBut(commands.iter().map(|name| (*name).to_owned()).collect())
}

fn weir(rights: Rights) -> User {
    User {
        name: "weir".to_owned(),
        password: Some("PASSWORD".to_owned()),
        rights,
        key_prefix: "weir:".to_owned(),
    }
}

struct Users {
    real: RedisServer,
    peers: Peers,
}

impl Users {
    /// The default user has a password, and `weir` may touch keys that begin with `weir:`.
    fn new() -> Self {
        let real = RedisServer::start();
        real.command(&["ACL SETUSER weir on >PASSWORD ~weir:* +@all"]);
        real.command(&["CONFIG SET requirepass secret"]);
        let default = User {
            password: Some("secret".to_owned()),
            ..User::unlimited("default")
        };
        let simulated = Server::new(Config {
            users: vec![default, weir(all_but(&[]))],
            ..Config::default()
        });
        let peers = Peers::new(&real, simulated);
        Self { real, peers }
    }

    fn allow_all_but(&mut self, commands: &[&str]) {
        let lacks = commands.iter().map(|name| format!(" -{name}"));
        let rights = format!("ACL SETUSER weir +@all{}", lacks.collect::<String>());
        let reply = self.real.command(&[&format!("AUTH secret\r\n{rights}")]);
        assert_eq!(reply.matches("+OK").count(), 3, "{reply}");
        self.peers.simulated.set_user(weir(all_but(commands)));
    }
}

#[test]
fn a_client_that_has_not_logged_in_is_told_so() {
    let mut users = Users::new();
    let peers = &mut users.peers;
    for text in [
        "PING",
        "GET weir:a",
        "MULTI",
        "EXEC",
        "HELLO 3",
        "HELLO",
        "HELLO 4",
        "nonsense",
    ] {
        peers.check(text);
    }
    for text in [
        "AUTH wrong",
        "AUTH weir wrong",
        "AUTH nobody PASSWORD",
        "AUTH a b c",
        "HELLO 2 AUTH weir wrong",
        "HELLO 3 AUTH weir",
        "GET weir:a",
        "AUTH weir PASSWORD",
        "GET weir:a",
        "AUTH secret",
        "GET other",
    ] {
        peers.check(text);
    }
    for bytes in [
        &b"*11\r\n$4\r\nPING\r\n"[..],
        b"*1\r\n$16385\r\n",
        b"*2\r\n$4\r\nQUIT\r\n$1\r\na\r\n",
    ] {
        users.peers.reconnect(&users.real);
        users.peers.check_until_closed(bytes);
    }
}

#[test]
fn without_a_password_none_is_taken() {
    let real = RedisServer::start();
    let mut peers = Peers::new(&real, Server::new(Config::default()));
    for text in [
        "AUTH secret",
        "AUTH default secret",
        "AUTH nobody x",
        "HELLO 2 AUTH default x",
    ] {
        peers.check_likeness(text, super::peers::Likeness::Form);
    }
    assert!(peers.check("AUTH secret").contains("without any password"));
}

#[test]
fn a_user_may_do_what_the_rights_say_and_no_more() {
    let mut users = Users::new();
    users.allow_all_but(&["hincrby", "client|setname"]);
    for text in [
        "AUTH weir PASSWORD",
        "HINCRBY weir:h a 1",
        "HSET weir:h a 1",
        "HSET other a 1",
        "DEL weir:h other",
        "CLIENT SETNAME a",
        "CLIENT GETNAME",
        "MULTI",
        "HGETALL weir:h",
        "HINCRBY weir:h a 1",
        "HGETALL weir:h",
        "EXEC",
        "MULTI",
        "ZADD other 1 a",
        "DISCARD",
        "HGETALL weir:h",
    ] {
        users.peers.check(text);
    }
}

#[test]
fn a_right_that_is_taken_away_counts_for_what_is_queued() {
    let mut users = Users::new();
    for (lack, end) in [("hset", "EXEC"), ("exec", "EXEC"), ("discard", "DISCARD")] {
        users.allow_all_but(&[]);
        for text in [
            "AUTH weir PASSWORD",
            "MULTI",
            "HSET weir:h a 1",
            "HGETALL weir:h",
        ] {
            users.peers.check(text);
        }
        users.allow_all_but(&[lack]);
        users.peers.check(end);
        users.allow_all_but(&[]);
        users.peers.check("EXEC");
        users.peers.check("HGETALL weir:h");
    }
    users.allow_all_but(&["multi"]);
    for text in ["MULTI", "HSET weir:h a 2", "EXEC"] {
        users.peers.check(text);
    }
}

#[test]
fn a_user_with_the_rights_that_are_documented_is_refused_all_else() {
    let mut users = Users::new();
    let rights = [
        "bitfield",
        "pexpire",
        "time",
        "select",
        "del",
        "scan",
        "multi",
        "exec",
        "zscore",
        "cluster|slots",
    ];
    let allowed: BTreeSet<String> = rights.iter().map(|name| (*name).to_owned()).collect();
    let added = rights.map(|name| format!(" +{name}")).concat();
    let command = format!("AUTH secret\r\nACL SETUSER weir -@all{added}");
    users.real.command(&[&command]);
    users.peers.simulated.set_user(weir(Rights::Only(allowed)));
    for text in [
        "AUTH weir PASSWORD",
        "BITFIELD weir:a GET u8 0",
        "PEXPIRE weir:a 100",
        "BITFIELD other GET u8 0",
        "ZADD weir:z 1 a",
        "ZSCORE weir:z a",
        "CLUSTER SLOTS",
        "CLUSTER MYID",
        "CLIENT SETNAME x",
        "PING",
        "HELLO 9",
        "INFO",
        "SCAN 0 MATCH weir:*",
        "MULTI",
        "DEL weir:a",
        "EXEC",
        "FLUSHALL",
        "QUIT x",
    ] {
        users.peers.check(text);
    }
}
