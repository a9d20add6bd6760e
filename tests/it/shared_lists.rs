//! What operators set, where Redis fails over and gateways restart: overrides and bans of networks hold
//! on all gateways until they end or are deleted.

use serde_json::{Value, json};

use crate::support::*;
use crate::{redis, redis_cluster, sentinel};

const OVERRIDE: &str = "/v1/overrides/Calls/acme";
const NETWORK: &str = "/v1/bans/abusers/203.0.113.0%2F24";

fn setup(upstream: &Upstream, store: &str) -> Setup {
    Setup::before(upstream)
        .limits(&["Calls: {per: account, burst: 3, count: 1, period: 1000h}"])
        .limited_by("Calls")
        .key("account: [header: x-api-key]")
        .file("hash.key", "a key that gateways share")
        .key("hash_key: {file: hash.key}")
        .key("client_address: {trusted_proxies: [127.0.0.1]}")
        .key(
            "bans: {abusers: {per: address, strikes: {paths: /trap, count: 1, period: 1h}, \
             for: 1h}}",
        )
        .key(store)
}

fn ask(gateway: &Gateway, request: Request) -> Response {
    gateway.admin(&request.with("host", "localhost"))
}

/// Asks until the store takes it: a failover may not be over yet.
fn done(gateway: &Gateway, request: &Request) -> Value {
    eventually("an answer of the admin API", || {
        let response = ask(gateway, request.clone());
        (response.status == 200).then(|| response.json())
    })
}

fn body(burst: u64) -> String {
    json!({ "burst": burst, "count": 1, "period": "1000h" }).to_string()
}

fn burst(gateway: &Gateway) -> Option<u64> {
    let shown = ask(gateway, get("/v1/overrides/Calls/acme"));
    shown.json()["overrides"][0]["burst"].as_u64()
}

fn is_banned(gateway: &Gateway, address: &str) -> bool {
    let request = get("/").with("x-forwarded-for", address);
    gateway.send(&request).status == 403
}

fn holds(gateways: [&Gateway; 2], expected: u64) {
    for gateway in gateways {
        eventually(&format!("a burst of {expected}"), || {
            (burst(gateway) == Some(expected)).then_some(())
        });
        eventually("a ban of a network", || {
            is_banned(gateway, "203.0.113.77").then_some(())
        });
    }
}

/// Sets both through one gateway and sees them on the other, before `fail_over` and after it.
fn what_operators_set_outlives(setup: &Setup, fail_over: impl FnOnce()) {
    let (one, other) = (setup.start(), setup.start());
    done(&one, &put(OVERRIDE, &body(5)));
    done(&other, &put(NETWORK, "{\"for\": \"forever\"}"));
    holds([&one, &other], 5);
    fail_over();
    holds([&one, &other], 5);
    done(&other, &put(OVERRIDE, &body(7)));
    holds([&one, &other], 7);

    drop(one);
    let one = setup.start();
    // They are known before the first request.
    assert_eq!(burst(&one), Some(7));
    assert!(is_banned(&one, "203.0.113.9"));

    let lasting = json!({ "burst": 9, "count": 1, "period": "1000h", "for": "3s" });
    done(&one, &put(OVERRIDE, &lasting.to_string()));
    done(&one, &request("DELETE", NETWORK));
    for gateway in [&one, &other] {
        eventually("the override has ended", || {
            burst(gateway).is_none().then_some(())
        });
        eventually("the ban is lifted", || {
            (!is_banned(gateway, "203.0.113.78")).then_some(())
        });
    }
}

#[test]
fn what_operators_set_is_not_lost_when_a_node_of_a_cluster_dies() {
    for list in ["weir::list:overrides", "weir::list:standing-bans"] {
        let cluster = RedisCluster::start(1);
        let upstream = Upstream::start();
        let slot = cluster.command(0, &["CLUSTER", "KEYSLOT", list]);
        let slot = slot.lines().next().unwrap().trim_start_matches(':');
        let primary = cluster.primary_of(slot.parse().unwrap());
        let store = redis_cluster::store(&cluster, "deny");
        what_operators_set_outlives(&setup(&upstream, &store), || {
            let replica = cluster.replicas_of(primary).next().unwrap();
            cluster.await_in_step(primary, replica);
            cluster.kill(primary);
        });
    }
}

#[test]
fn what_operators_set_is_not_lost_when_sentinels_name_another_primary() {
    let mut sentinels = Sentinels::start();
    let upstream = Upstream::start();
    let setup = setup(&upstream, &sentinel::store(&sentinels));
    what_operators_set_outlives(&setup, || {
        let primary = sentinels.primary_by(0);
        sentinels.await_replicated(primary);
        sentinels.servers[primary].kill();
        sentinels.fail_over_from(primary);
    });
}

/// A ban as findings advise it was in Redis alone: when its data was lost, the client saw the app, and
/// the finding about it said to raise its limit.
#[test]
fn a_ban_by_hand_outlives_a_redis_that_forgets_it_and_one_that_was_lifted_stays_lifted() {
    const BANNED: &str = "/v1/bans/abusers/203.0.113.9";
    const LIFTED: &str = "/v1/bans/abusers/203.0.113.8";
    let mut server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = setup(&upstream, &redis::store(&server.url()));
    let (mut one, other) = (setup.start(), setup.start());
    let status = |gateway: &Gateway, address: &str| {
        gateway
            .send(&get("/").with("x-forwarded-for", address))
            .status
    };
    for ban in [BANNED, LIFTED] {
        done(&one, &put(ban, "{\"for\": \"30m\"}"));
    }
    // Before it has looked at the list again.
    assert_eq!(status(&other, "203.0.113.9"), 429);
    eventually("a copy of both on the other gateway", || {
        let shown = ask(&other, get(LIFTED)).json();
        (shown["standing"]["subject"] == "203.0.113.8").then_some(())
    });
    done(&other, &request("DELETE", LIFTED));
    eventually("one of them is lifted", || {
        (status(&one, "203.0.113.8") == 200).then_some(())
    });
    let look = |one: &Gateway| {
        for gateway in [one, &other] {
            eventually("the ban of one client, and not of the other", || {
                let banned = status(gateway, "203.0.113.9");
                assert_ne!(banned, 200);
                (banned == 429 && status(gateway, "203.0.113.8") == 200).then_some(())
            });
        }
    };
    for restarts in [false, true] {
        match restarts {
            false => drop(server.command(&["FLUSHALL"])),
            true => {
                server.kill();
                server.restart();
            }
        }
        look(&one);
        eventually("the list is there again", || {
            let exists = server.command(&["EXISTS", "weir::list:standing-bans"]);
            exists.starts_with(":1").then_some(())
        });
        look(&one);
        let listed = done(&other, &get("/v1/bans"));
        assert_eq!(listed["bans"].as_array().unwrap().len(), 1, "{listed}");
        assert_eq!(listed["bans"][0]["subject"], "203.0.113.9");
        // One that starts now has it from the list.
        drop(one);
        one = setup.start();
        look(&one);
    }
}

/// A Redis that keeps nothing has lost all of it, and gets it back from any gateway.
#[test]
fn what_operators_set_is_not_lost_when_redis_forgets_it() {
    let mut server = RedisServer::start();
    let upstream = Upstream::start();
    let setup = setup(&upstream, &redis::store(&server.url()));
    what_operators_set_outlives(&setup, || {
        server.kill();
        server.restart();
        // Each gateway looks once a second.
        eventually("both lists are there again", || {
            let lists = ["EXISTS", "weir::list:overrides", "weir::list:standing-bans"];
            server.command(&lists).starts_with(":2").then_some(())
        });
    });
}
