//! What is malformed, channels, and commands whose replies come in no order.

use weir_sim::redis::{Config, Server};
use weir_testing::RedisServer;

use super::peers::{Likeness, Peers, split_all};

fn both() -> (RedisServer, Peers) {
    let real = RedisServer::start();
    let peers = Peers::new(&real, Server::new(Config::default()));
    (real, peers)
}

#[test]
fn what_is_no_command_ends_the_connection_with_the_same_words() {
    let (real, mut peers) = both();
    let long = [b"*1\r\n$".as_slice(), &[b'1'; 70_000]].concat();
    let wide = [b"*".as_slice(), &[b'1'; 70_000]].concat();
    let line = vec![b'a'; 70_000];
    for bytes in [
        &b"*1\r\nPING\r\n"[..],
        b"*x\r\n",
        b"*2147483648\r\n",
        b"*01\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$536870913\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n$4\r\nPING\r\n*1\r\n\r\n",
        b"PING \"a\r\n",
        b"PING \"a\"b\r\n",
        b"PING 'a\\'\r\n",
        b"*-1\r\n*0\r\n\r\n*1\r\n$4\r\nQUIT\r\n*1\r\n$4\r\nPING\r\n",
        b"PING \"\\x41\\n\"\r\nquit\r\n",
        &long,
        &wide,
        &line,
    ] {
        peers.check_until_closed(bytes);
        peers.reconnect(&real);
    }
}

#[test]
fn a_listener_in_resp2_may_do_little_else() {
    let (_real, mut peers) = both();
    for text in [
        "UNSUBSCRIBE",
        "SUBSCRIBE a",
        "SUBSCRIBE a",
        "SUBSCRIBE b",
        "PING",
        "PING x",
        "GET a",
        "HELLO 3",
        "CLIENT GETNAME",
        "MULTI",
        "UNSUBSCRIBE c",
        "UNSUBSCRIBE a",
        "UNSUBSCRIBE",
        "GET a",
    ] {
        peers.check(text);
    }
    peers.check_likeness("HELLO 3", Likeness::Form);
    for text in [
        "SUBSCRIBE a",
        "GET a",
        "PING",
        "UNSUBSCRIBE a",
        "UNSUBSCRIBE",
    ] {
        peers.check(text);
    }
}

#[test]
fn fields_of_a_hash_of_any_size_are_all_there() {
    let (_real, mut peers) = both();
    for field in 0..300 {
        peers.check(&format!("HINCRBY h {field} {field}"));
    }
    peers.check_likeness("HELLO 3", Likeness::Form);
    peers.check_likeness("CLIENT ID", Likeness::Form);
    let elements = |reply: &[u8]| {
        let line = reply.windows(2).position(|pair| pair == b"\r\n").unwrap();
        let flat = split_all(&reply[line + 2..]);
        let mut pairs: Vec<_> = flat.chunks(2).map(<[_]>::to_vec).collect();
        pairs.sort();
        pairs
    };
    let [real, simulated] = peers.replies("HGETALL h");
    assert_eq!(elements(&real), elements(&simulated));
}

#[test]
fn a_scan_finds_all_keys_that_match_and_no_others() {
    let (_real, mut peers) = both();
    for number in 0..500 {
        peers.check(&format!("SET weir:L:{number} {number}"));
        peers.check(&format!("SET weir*L:{number} {number}"));
    }
    peers.check("PEXPIREAT weir:L:7 1");
    peers.check("SET weir:L:8 1 PXAT 1");
    for options in [
        "MATCH weir:L:* COUNT 1000",
        "MATCH weir:L:1? COUNT 7",
        "MATCH weir\\*L:[3-5^]* COUNT 100",
        "COUNT 3",
        "match *9",
    ] {
        let [real, simulated] = [0, 1].map(|at| {
            let (mut cursor, mut keys) = ("0".to_owned(), Vec::new());
            loop {
                let replies = peers.replies(&format!("SCAN {cursor} {options}"));
                let reply = String::from_utf8(replies[at].clone()).unwrap();
                let lines: Vec<_> = reply.split("\r\n").collect();
                keys.extend(
                    lines[4..]
                        .iter()
                        .filter(|line| line.contains("weir"))
                        .map(|line| (*line).to_owned()),
                );
                cursor = lines[2].to_owned();
                if cursor == "0" {
                    keys.sort();
                    keys.dedup();
                    return keys;
                }
            }
        });
        assert!(!real.is_empty(), "{options}");
        assert_eq!(real, simulated, "{options}");
    }
    for text in [
        "SCAN",
        "SCAN x",
        "SCAN 0 MATCH",
        "SCAN 0 COUNT 0",
        "SCAN 0 COUNT x",
        "SCAN 0 FOO BAR",
        "SCAN 0 COUNT -1",
    ] {
        peers.check(text);
    }
}
