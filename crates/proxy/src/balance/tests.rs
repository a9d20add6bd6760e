use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::StatusCode;
use proptest::prelude::*;
use tokio::time::{Instant, advance};

use super::picker::Picker;
use super::server_state::{Failure, ServerState, ServerStatus};
use super::*;
use crate::settings::{Server, UpstreamSettings};

fn servers(weights: &[u32]) -> Vec<Server> {
    let server = |(place, weight): (usize, &u32)| {
        let uri = format!("http://10.0.0.{place}:3000");
        let server = uri.parse::<Server>().unwrap();
        server.with_weight(*weight)
    };
    weights.iter().enumerate().map(server).collect()
}

fn settings(weights: &[u32]) -> UpstreamSettings {
    UpstreamSettings::new("app", servers(weights))
}

fn states(settings: &UpstreamSettings) -> Vec<Arc<ServerState>> {
    UpstreamState::new(settings).servers().to_vec()
}

/// What becomes of a request to a server that must be able to get one.
fn request(server: &Arc<ServerState>, failure: Option<Failure>) {
    let now = Instant::now();
    let mut attempt = server.begin(now).unwrap();
    match failure {
        Some(failure) => attempt.failed(failure),
        None => attempt.responded(StatusCode::OK, now),
    }
}

fn statuses(servers: &[Arc<ServerState>]) -> Vec<ServerStatus> {
    let now = Instant::now();
    servers.iter().map(|server| server.status(now)).collect()
}

use ServerStatus::{Available, ProbeDue, Unavailable};

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_connected_to_is_out_at_once_and_back_after_a_probe() {
    let servers = states(&settings(&[1, 1]));
    request(&servers[0], Some(Failure::Connect));
    assert_eq!(statuses(&servers), [Unavailable, Available]);
    advance(Duration::from_millis(999)).await;
    assert_eq!(statuses(&servers), [Unavailable, Available]);
    advance(Duration::from_millis(1)).await;
    assert_eq!(statuses(&servers), [ProbeDue, Available]);
    request(&servers[0], None);
    assert_eq!(statuses(&servers), [Available, Available]);
}

#[tokio::test(start_paused = true)]
async fn each_probe_that_fails_keeps_the_server_out_for_twice_as_long_up_to_a_bound() {
    let servers = states(&settings(&[1, 1]));
    request(&servers[0], Some(Failure::Connect));
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        advance(Duration::from_secs(seconds) - Duration::from_millis(1)).await;
        assert_eq!(servers[0].status(Instant::now()), Unavailable, "{seconds}");
        advance(Duration::from_millis(1)).await;
        assert_eq!(servers[0].status(Instant::now()), ProbeDue, "{seconds}");
        request(&servers[0], Some(Failure::Timeout));
    }
}

#[tokio::test(start_paused = true)]
async fn only_one_request_at_a_time_is_the_probe() {
    let servers = states(&settings(&[1, 1]));
    request(&servers[0], Some(Failure::Connect));
    advance(Duration::from_secs(1)).await;
    let now = Instant::now();
    let probe = servers[0].begin(now).unwrap();
    assert_eq!(servers[0].status(now), Unavailable);
    // Its client leaves, and the next request is the probe when as much time has passed again.
    drop(probe);
    assert_eq!(servers[0].status(Instant::now()), Unavailable);
    advance(Duration::from_secs(1)).await;
    assert_eq!(servers[0].status(Instant::now()), ProbeDue);
}

/// It was out without being counted. When it was readmitted once more, the count wrapped, and no
/// server of the upstream was ever ejected again.
#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_when_another_request_has_just_readmitted_the_server_changes_nothing() {
    let settings = settings(&[1, 1]);
    let servers = states(&settings);
    request(&servers[0], Some(Failure::Connect));
    let now = Instant::now();
    let respond = || {
        let mut other = servers[0].begin_as_last_resort(now);
        other.responded(StatusCode::OK, now);
    };
    respond();
    servers[0].probe_failed(Failure::Connect, 1);
    assert_eq!(statuses(&servers), [Available, Available]);
    respond();
    request(&servers[0], Some(Failure::Connect));
    assert_eq!(statuses(&servers), [Unavailable, Available]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_again_soon_is_out_for_longer_and_later_for_as_long_as_at_first() {
    let servers = states(&settings(&[1, 1]));
    let out_for = async || {
        request(&servers[0], Some(Failure::Connect));
        let mut seconds = 0;
        while servers[0].status(Instant::now()) == Unavailable {
            advance(Duration::from_secs(1)).await;
            seconds += 1;
        }
        request(&servers[0], None);
        seconds
    };
    assert_eq!((out_for().await, out_for().await), (1, 2));
    advance(Ejection::MAX_TIME + Duration::from_secs(1)).await;
    assert_eq!(out_for().await, 1);
}

#[tokio::test(start_paused = true)]
async fn failures_in_a_row_eject_a_server_and_others_do_not() {
    for failure in [Failure::Response, Failure::Status] {
        let servers = states(&settings(&[1, 1]));
        for _ in 0..3 {
            for _ in 0..4 {
                request(&servers[0], Some(failure));
            }
            request(&servers[0], None);
        }
        assert_eq!(statuses(&servers), [Available, Available], "{failure:?}");
        for _ in 0..5 {
            request(&servers[0], Some(failure));
        }
        assert_eq!(statuses(&servers), [Unavailable, Available], "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn statuses_are_failures_as_configured() {
    let mut settings = settings(&[1, 1]);
    settings.ejection.as_mut().unwrap().status = ["503".parse().unwrap()].into_iter().collect();
    let servers = states(&settings);
    for status in [500, 503] {
        assert_eq!(statuses(&servers), [Available, Available], "{status}");
        for _ in 0..5 {
            let now = Instant::now();
            let mut attempt = servers[0].begin(now).unwrap();
            attempt.responded(StatusCode::from_u16(status).unwrap(), now);
        }
    }
    assert_eq!(statuses(&servers), [Unavailable, Available]);
}

#[tokio::test(start_paused = true)]
async fn one_timeout_ejects_a_server_that_answers_nothing_and_not_one_that_answers_others() {
    for answers_others in [false, true] {
        let servers = states(&settings(&[1, 1]));
        let mut slow = servers[0].begin(Instant::now()).unwrap();
        advance(Duration::from_secs(30)).await;
        if answers_others {
            request(&servers[0], None);
        }
        advance(Duration::from_secs(30)).await;
        slow.failed(Failure::Timeout);
        let is_out = servers[0].status(Instant::now()) == Unavailable;
        assert_eq!(is_out, !answers_others);
    }
}

#[tokio::test(start_paused = true)]
async fn clients_that_leave_do_not_hide_that_a_server_answers_nothing() {
    let servers = states(&settings(&[1, 1]));
    for waited in [Duration::from_millis(900), Duration::from_millis(1100)] {
        assert_eq!(statuses(&servers), [Available, Available]);
        for _ in 0..5 {
            let abandoned = servers[0].begin(Instant::now()).unwrap();
            advance(waited).await;
            drop(abandoned);
        }
    }
    assert_eq!(statuses(&servers), [Unavailable, Available]);
}

#[tokio::test(start_paused = true)]
async fn never_more_servers_are_ejected_than_the_share_and_never_all() {
    for (count, share, most) in [(1, 100, 0), (2, 50, 1), (3, 50, 2), (4, 100, 3), (4, 0, 0)] {
        let mut settings = settings(&vec![1; count]);
        settings.ejection.as_mut().unwrap().max_ejected = share;
        let servers = states(&settings);
        for server in servers.iter().cycle().take(3 * count) {
            if server.status(Instant::now()) == Available {
                request(server, Some(Failure::Connect));
            }
        }
        let out = statuses(&servers)
            .into_iter()
            .filter(|status| *status == Unavailable);
        assert_eq!(out.count(), most, "{share}% of {count}");
        // The place of one that is back is free for another.
        advance(Duration::from_secs(1)).await;
        if let Some(back) = servers
            .iter()
            .find(|server| server.status(Instant::now()) == ProbeDue)
        {
            request(back, None);
            let other = servers
                .iter()
                .rfind(|server| server.status(Instant::now()) == Available);
            request(other.unwrap(), Some(Failure::Connect));
            assert_eq!(other.unwrap().status(Instant::now()), Unavailable);
        }
    }
}

/// They serve nobody, whatever the share is, so each request would try them.
#[tokio::test(start_paused = true)]
async fn servers_that_refuse_connections_are_out_beyond_the_share_but_never_all() {
    for (count, share) in [(1, 50), (2, 50), (4, 50), (4, 0), (9, 34)] {
        let mut settings = settings(&vec![1; count]);
        settings.ejection.as_mut().unwrap().max_ejected = share;
        let servers = states(&settings);
        let out = || {
            let statuses = statuses(&servers).into_iter();
            statuses.filter(|status| *status == Unavailable).count()
        };
        for server in &servers {
            request(server, Some(Failure::Refused));
        }
        assert_eq!(out(), count - 1, "{share}% of {count}");
        // They count for the share of others.
        request(servers.last().unwrap(), Some(Failure::Connect));
        assert_eq!(out(), count - 1);
        advance(Duration::from_secs(1)).await;
        for server in &servers[..count - 1] {
            request(server, None);
        }
        assert_eq!(statuses(&servers), vec![Available; count]);
    }
    let mut off = settings(&[1, 1]);
    off.ejection = None;
    let servers = states(&off);
    request(&servers[0], Some(Failure::Refused));
    assert_eq!(statuses(&servers), [Available, Available]);
}

/// One server of ten served all clients for up to a minute after an outage of all.
#[tokio::test(start_paused = true)]
async fn half_of_the_servers_are_back_after_the_base_time_when_all_have_refused_connections() {
    let servers = states(&settings(&[1; 10]));
    let count = |wanted| {
        let statuses = statuses(&servers).into_iter();
        statuses.filter(|status| *status == wanted).count()
    };
    let request_all = |failure| {
        for server in &servers {
            if server.status(Instant::now()) != Unavailable {
                request(server, failure);
            }
        }
    };
    for _ in 0..60 {
        request_all(Some(Failure::Refused));
        assert_eq!(count(Unavailable), 9);
        advance(Duration::from_secs(1)).await;
    }
    request_all(None);
    assert!(count(Available) >= 5, "{:?}", statuses(&servers));
    // Those of the share are probed ever less often.
    assert!(count(Unavailable) >= 4, "{:?}", statuses(&servers));
}

/// To try one that does not answer costs somebody the time-out.
#[tokio::test(start_paused = true)]
async fn a_server_beyond_the_share_is_out_for_longer_if_it_hangs_or_the_others_are_back() {
    for (others_are_back, failure, is_longer) in [
        (false, Failure::Refused, false),
        (false, Failure::Timeout, true),
        (true, Failure::Refused, true),
    ] {
        let servers = states(&settings(&[1; 4]));
        for server in &servers {
            request(server, Some(Failure::Refused));
        }
        advance(Duration::from_secs(1)).await;
        if others_are_back {
            request(&servers[0], None);
        }
        request(&servers[2], Some(failure));
        advance(Duration::from_secs(1)).await;
        let is_out = servers[2].status(Instant::now()) == Unavailable;
        assert_eq!(is_out, is_longer, "{failure:?} {others_are_back}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_tried_for_want_of_others_is_back_when_it_responds() {
    let servers = states(&settings(&[1, 1]));
    request(&servers[0], Some(Failure::Connect));
    let mut attempt = servers[0].begin_as_last_resort(Instant::now());
    attempt.responded(StatusCode::OK, Instant::now());
    assert_eq!(statuses(&servers), [Available, Available]);
}

#[tokio::test(start_paused = true)]
async fn it_is_known_which_servers_are_out_because_they_do_not_answer() {
    let servers = states(&settings(&[1, 1, 1]));
    let mut hung = servers[0].begin(Instant::now()).unwrap();
    hung.failed(Failure::Timeout);
    request(&servers[1], Some(Failure::Connect));
    let silent = || {
        servers
            .iter()
            .map(|server| server.is_silent())
            .collect::<Vec<_>>()
    };
    assert_eq!(statuses(&servers), [Unavailable, Unavailable, Available]);
    assert_eq!(silent(), [true, false, false]);
    advance(Duration::from_secs(1)).await;
    request(&servers[0], Some(Failure::Connect));
    assert_eq!(
        silent(),
        [false, false, false],
        "it refuses connections now"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_back_gets_its_share_little_by_little() {
    let mut settings = settings(&[4, 4]);
    settings.slow_start = Duration::from_secs(30);
    let servers = states(&settings);
    let full = servers[1].weight(Instant::now());
    assert_eq!(servers[0].weight(Instant::now()), full, "at the start");
    request(&servers[0], Some(Failure::Connect));
    advance(Duration::from_secs(1)).await;
    request(&servers[0], None);
    let mut shares = Vec::new();
    for _ in 0..5 {
        shares.push(servers[0].weight(Instant::now()) * 100 / full);
        advance(Duration::from_millis(7500)).await;
    }
    assert_eq!(shares, [6, 25, 50, 75, 100]);
}

#[tokio::test(start_paused = true)]
async fn what_health_checks_say_holds_beside_ejections() {
    let servers = states(&settings(&[1, 1]));
    servers[0].set_healthy(false, "503");
    assert_eq!(statuses(&servers), [Unavailable, Available]);
    servers[0].set_healthy(true, "");
    assert_eq!(statuses(&servers), [Available, Available]);
}

#[tokio::test(start_paused = true)]
async fn retries_are_bounded_by_a_share_of_the_requests_in_flight_and_a_few_are_always_allowed() {
    let upstream = UpstreamState::new(&settings(&[1, 1]));
    let retries = Retries::default();
    let most = |upstream: &Arc<UpstreamState>, retries: &Retries| {
        let permit = || upstream.retry(retries).now_or_never().flatten();
        let held: Vec<_> = std::iter::from_fn(permit).take(100).collect();
        held.len()
    };
    assert_eq!(most(&upstream, &retries), 3);
    let server = &upstream.servers()[0];
    let _attempts: Vec<_> = (0..50).map(|_| server.begin(Instant::now())).collect();
    assert_eq!(most(&upstream, &retries), 10);
    assert_eq!(most(&upstream, &retries), 10, "what is over is given back");
    let none = Retries {
        budget: 0,
        ..retries
    };
    assert_eq!(most(&upstream, &none), 0);
}

/// All but as many requests of a server that died as the budget allows at a time used to fail.
#[tokio::test(start_paused = true)]
async fn a_retry_beyond_the_budget_waits_for_its_turn_but_not_for_long() {
    let upstream = UpstreamState::new(&settings(&[1, 1]));
    let retries = Retries::default();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(upstream.retry(&retries).await.unwrap());
    }
    let mut waiting = FuturesUnordered::new();
    for _ in 0..20 {
        waiting.push(upstream.retry(&retries));
    }
    assert!(waiting.next().now_or_never().is_none());
    drop(held.pop());
    // Each of them is over at once, and the next one begins.
    for _ in 0..19 {
        assert!(waiting.next().now_or_never().flatten().flatten().is_some());
    }
    let last = waiting.next().await.unwrap().unwrap();
    let start = Instant::now();
    assert!(upstream.retry(&retries).await.is_none());
    assert_eq!(start.elapsed(), Retries::MAX_WAIT);
    drop(last);
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_as_long_as_nothing_could_be_reached_since_something_was() {
    let upstream = UpstreamState::new(&settings(&[1]));
    assert_eq!(
        upstream.unreachable_for(Instant::now()),
        Duration::MAX,
        "it was never reached"
    );
    upstream.reached();
    assert_eq!(upstream.unreachable_for(Instant::now()), Duration::ZERO);
    advance(Duration::from_secs(3)).await;
    assert_eq!(
        upstream.unreachable_for(Instant::now()),
        Duration::from_secs(3)
    );
    upstream.reached();
    assert_eq!(upstream.unreachable_for(Instant::now()), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn servers_that_stay_on_the_list_keep_what_is_known_of_them_and_those_that_go_eject_no_other()
{
    let before = settings(&[1, 1, 1, 1]);
    let state = UpstreamState::new(&before);
    state.reached();
    let old = state.servers().to_vec();
    for server in &old[..2] {
        request(server, Some(Failure::Connect));
    }
    request(&old[2], Some(Failure::Connect));
    assert_eq!(
        statuses(&old),
        [Unavailable, Unavailable, Available, Available]
    );
    let mut attempt = old[1].begin_as_last_resort(Instant::now());
    // The second of those that are out leaves, the third server comes first, another is new.
    let mut after = settings(&[5, 1, 7, 1]);
    after.servers.swap(0, 2);
    after.servers[1] = "http://10.0.0.9:3000".parse().unwrap();
    let next = UpstreamState::replacing(&after, Some((&before, &state)));
    let new = next.servers();
    assert!(Arc::ptr_eq(&new[0], &old[2]) && Arc::ptr_eq(&new[2], &old[0]));
    let weights = [0, 1, 2].map(|index| new[index].weight(Instant::now()));
    assert_eq!(weights.map(|weight| weight / 1024), [7, 1, 5]);
    assert_eq!(next.unreachable_for(Instant::now()), Duration::ZERO);
    assert_eq!(
        statuses(new),
        [Available, Available, Unavailable, Available]
    );
    // Half of them may be out, and the one that has gone is none of them.
    drop(state);
    attempt.failed(Failure::Connect);
    request(&new[0], Some(Failure::Connect));
    request(&new[1], Some(Failure::Connect));
    assert_eq!(
        statuses(new),
        [Unavailable, Available, Unavailable, Available]
    );
    // Another ejection, or a server that is listed twice, makes for no shared state.
    let mut twice = after.clone();
    twice.servers[1] = twice.servers[0].clone();
    let doubled = UpstreamState::replacing(&twice, Some((&after, &next)));
    assert!(!Arc::ptr_eq(&doubled.servers()[0], &doubled.servers()[1]));
    let mut other = after.clone();
    other.slow_start = Duration::from_secs(1);
    let anew = UpstreamState::replacing(&other, Some((&after, &next)));
    assert_eq!(statuses(anew.servers()), [Available; 4]);
}

/// How often each server is picked.
fn picked(picker: &Picker, times: usize, servers: usize) -> Vec<usize> {
    let now = Instant::now();
    let mut counts = vec![0; servers];
    for _ in 0..times {
        let place = picker.pick(None, |_, server| Some(server.weight(now)));
        counts[place.unwrap()] += 1;
    }
    counts
}

#[tokio::test]
async fn servers_take_turns_by_their_weights_without_bursts() {
    let states = states(&settings(&[1, 3, 1]));
    let picker = Picker::new(Balance::RoundRobin, &states);
    let now = Instant::now();
    let turns: Vec<_> = (0..10)
        .map(|_| {
            picker
                .pick(None, |_, server| Some(server.weight(now)))
                .unwrap()
        })
        .collect();
    assert_eq!(turns, [1, 0, 1, 2, 1, 1, 0, 1, 2, 1]);
}

#[tokio::test]
async fn equal_servers_take_turns_and_what_one_that_is_out_would_get_is_shared_by_all_others() {
    let states = states(&settings(&[2; 6]));
    let picker = Picker::new(Balance::RoundRobin, &states);
    let now = Instant::now();
    let turns = |out: &[usize], times| {
        let weight = |place: usize, server: &ServerState| {
            (!out.contains(&place)).then(|| server.weight(now))
        };
        let turn = |_| picker.pick(None, weight);
        (0..times).map(turn).collect::<Option<Vec<_>>>()
    };
    assert_eq!(turns(&[], 8).unwrap(), [0, 1, 2, 3, 4, 5, 0, 1]);
    assert_eq!(turns(&[2, 3, 4], 6).unwrap(), [5, 0, 1, 5, 0, 1]);
    assert_eq!(turns(&[0, 1, 2, 3, 4, 5], 1), None);
    assert_eq!(turns(&[], 2).unwrap(), [2, 3]);
}

#[tokio::test]
async fn of_many_equal_servers_each_that_is_not_out_is_drawn_as_often_as_the_others() {
    let states = states(&settings(&[1; 40]));
    let picker = Picker::new(Balance::LeastRequests, &states);
    let now = Instant::now();
    // Most draws meet one that is out.
    let weight = |place: usize, server: &ServerState| (place < 4).then(|| server.weight(now));
    let mut counts = [0; 40];
    for _ in 0..4000 {
        counts[picker.pick(None, weight).unwrap()] += 1;
    }
    assert!(
        counts[..4].iter().all(|count| (800..1200).contains(count)),
        "{counts:?}"
    );
}

#[tokio::test]
async fn a_server_with_fewer_requests_in_flight_gets_more() {
    let states = states(&settings(&[1, 1, 1]));
    let picker = Picker::new(Balance::LeastRequests, &states);
    let _busy: Vec<_> = (0..20).map(|_| states[1].begin(Instant::now())).collect();
    let counts = picked(&picker, 600, 3);
    assert_eq!(counts[1], 0, "each pair has one that is less busy");
    assert!(counts[0] > 200 && counts[2] > 200, "{counts:?}");
}

#[tokio::test]
async fn requests_in_flight_count_for_a_servers_weight() {
    let states = states(&settings(&[1, 9]));
    let picker = Picker::new(Balance::LeastRequests, &states);
    let (mut held, mut counts) = (Vec::new(), [0; 2]);
    let now = Instant::now();
    for _ in 0..100 {
        let place = picker
            .pick(None, |_, server| Some(server.weight(now)))
            .unwrap();
        held.push(states[place].begin(now));
        counts[place] += 1;
    }
    assert!((8..=12).contains(&counts[0]), "{counts:?}");
}

/// Where the keys go if only `eligible` servers get any.
fn placed(weights: &[u32], keys: &[u64], eligible: impl Fn(usize) -> bool) -> Vec<usize> {
    let states = states(&settings(weights));
    let picker = Picker::new(Balance::Hash, &states);
    let now = Instant::now();
    let weight = |place: usize, server: &ServerState| eligible(place).then(|| server.weight(now));
    let place = |key: &u64| picker.pick(Some(*key), weight).unwrap();
    keys.iter().map(place).collect()
}

proptest! {
    #[test]
    fn a_server_that_goes_takes_only_its_own_keys_with_it(
        keys in prop::collection::vec(any::<u64>(), 1..200),
        weights in prop::collection::vec(1_u32..5, 2..8),
        gone in any::<prop::sample::Index>(),
    ) {
        let gone = gone.index(weights.len());
        let before = placed(&weights, &keys, |_| true);
        let after = placed(&weights, &keys, |place| place != gone);
        for (before, after) in before.iter().zip(&after) {
            prop_assert!(before == after || *before == gone);
            prop_assert_ne!(*after, gone);
        }
    }

    #[test]
    fn a_server_that_comes_takes_keys_only_to_itself(
        keys in prop::collection::vec(any::<u64>(), 1..200),
        weights in prop::collection::vec(1_u32..5, 2..8),
    ) {
        let newest = weights.len() - 1;
        let before = placed(&weights[..newest], &keys, |_| true);
        let after = placed(&weights, &keys, |_| true);
        for (before, after) in before.iter().zip(&after) {
            prop_assert!(before == after || *after == newest);
        }
    }
}

#[test]
fn keys_are_shared_out_by_weight_and_stay_where_they_were_in_the_last_version() {
    let keys: Vec<u64> = (0..10_000).collect();
    let places = placed(&[1, 2, 1], &keys, |_| true);
    let mut counts = HashMap::new();
    for place in &places {
        *counts.entry(*place).or_insert(0) += 1;
    }
    assert!((2300..2700).contains(&counts[&0]), "{counts:?}");
    assert!((4700..5300).contains(&counts[&1]), "{counts:?}");
    assert_eq!(
        places[..12],
        [1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 2, 1],
        "gateways of two versions serve side by side"
    );
}
