//! A Sentinel: what it says about the primary, and what it publishes when that changes.

use std::fs;

use weir_sim::redis::{Sentinel, Watched};
use weir_testing::RedisServer;
use weir_testing::sentinels::{PRIMARY, Sentinels};

use super::peers::{Likeness, Peers, written};

#[test]
fn a_sentinel_says_where_the_primary_is_and_knows_few_commands() {
    let real = RedisServer::start_with(|folder| {
        let text = "sentinel monitor main 127.0.0.1 1 1\n";
        fs::write(folder.path().join("sentinel.conf"), text).unwrap();
        ["sentinel.conf", "--sentinel", "--port", "0"]
            .map(str::to_owned)
            .into()
    });
    let mut simulated = Sentinel::new(Vec::new());
    simulated.watch("main", Watched::new("127.0.0.1", 1));
    let mut peers = Peers::new(&real, simulated);
    for text in [
        "SENTINEL GET-MASTER-ADDR-BY-NAME main",
        "sentinel get-master-addr-by-name other",
        "SENTINEL MASTER other",
        "SENTINEL MASTER",
        "SENTINEL GET-MASTER-ADDR-BY-NAME",
        "SENTINEL nonsense",
        "SENTINEL",
        "PING",
        "ROLE",
        "GET a",
        "QUIT",
        "TIME",
        "CLUSTER SLOTS",
        "AUTH secret",
        "CLIENT SETINFO LIB-NAME redis-rs",
        "CLIENT SETNAME weir",
        "SUBSCRIBE +switch-master",
        "PING",
        "SENTINEL MASTER main",
        "UNSUBSCRIBE",
    ] {
        peers.check(text);
    }
    peers.check_likeness("HELLO", Likeness::Form);
    let texts = peers.replies("SENTINEL MASTER main").map(|reply| {
        let text = String::from_utf8(reply).unwrap();
        text.split("\r\n").map(str::to_owned).collect::<Vec<_>>()
    });
    let [real, simulated] = &texts;
    assert_eq!(real[0], simulated[0]);
    let names = |lines: &[String]| lines[2..].iter().step_by(4).cloned().collect::<Vec<_>>();
    assert_eq!(names(real), names(simulated));
    peers.check_likeness("HELLO 3", Likeness::Form);
    peers.check("SENTINEL GET-MASTER-ADDR-BY-NAME other");
    peers.check_likeness("SENTINEL MASTER main", Likeness::Form);
}

#[test]
fn a_failover_is_published_in_the_same_words() {
    let deployment = Sentinels::start();
    let primary = deployment.ports[0];
    let mut simulated = Sentinel::new(Vec::new());
    simulated.watch(PRIMARY, Watched::new("127.0.0.1", primary));
    let mut peers = Peers::new(&deployment.sentinels[0], simulated);
    for channel in [
        "+failover-state-wait-promotion",
        "+promoted-slave",
        "+switch-master",
    ] {
        peers.check(&format!("SUBSCRIBE {channel}"));
    }
    deployment.fail_over(0);
    let published = peers.hear_real(3);
    let now = deployment.ports[deployment.primary_by(0)];
    let replica = ("127.0.0.1", now);
    let mut told = peers.simulated.choose(PRIMARY, replica);
    told.extend(peers.simulated.promote(PRIMARY, replica, 1));
    told.extend(peers.simulated.switch(PRIMARY, replica, 1));
    let told = written(told);
    assert_eq!(
        published.concat().escape_ascii().to_string(),
        told.escape_ascii().to_string()
    );
    peers.check(&format!("UNSUBSCRIBE {}", "+switch-master"));
    peers.reconnect(&deployment.sentinels[0]);
    peers.check(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {PRIMARY}"));
}
