//! A made-up set of overrides gives a subject the one that a walk through all of them finds best.

use std::net::IpAddr;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// How exactly a part matches.
type Rank = (u8, usize, usize);

/// A part of a made-up override, for the reference below.
#[derive(Clone, Debug)]
enum Made {
    Exact(String),
    Network(String),
    Around(String, String),
    Any,
}

impl Made {
    fn written(&self) -> String {
        match self {
            Self::Exact(text) | Self::Network(text) => text.clone(),
            Self::Around(before, after) => format!("{before}*{after}"),
            Self::Any => "*".to_owned(),
        }
    }

    /// How exactly it matches a text; none when it does not. A part that is left out is below all.
    fn rank(&self, text: &str) -> Option<Rank> {
        match self {
            Self::Exact(exact) => (exact == text).then_some((4, 0, 0)),
            Self::Network(network) => {
                let network: IpNet = network.parse().unwrap();
                let inside = network.contains(&text.parse::<IpAddr>().unwrap());
                inside.then(|| (3, network.prefix_len().into(), 0))
            }
            Self::Around(before, after) => {
                let length = before.len() + after.len();
                let fits =
                    text.len() >= length && text.starts_with(before) && text.ends_with(after);
                fits.then_some((2, length, before.len()))
            }
            Self::Any => Some((1, 0, 0)),
        }
    }
}

fn made_text() -> impl Strategy<Value = Made> {
    let around =
        ("[ab]{0,2}", "[ab]{0,2}").prop_filter("as Any", |(a, b)| !(a.is_empty() && b.is_empty()));
    prop_oneof![
        "[ab]{1,3}".prop_map(Made::Exact),
        around.prop_map(|(before, after)| Made::Around(before, after)),
        Just(Made::Any),
    ]
}

fn made_address() -> impl Strategy<Value = Made> {
    let networks = vec![
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.0.0.0/31",
        "10.0.0.0/16",
        "10.1.0.0/16",
        "::/0",
    ];
    prop_oneof![
        select(ADDRESSES).prop_map(|text| Made::Exact(text.to_owned())),
        select(networks).prop_map(|text| Made::Network(text.to_owned())),
        Just(Made::Any),
    ]
}

const ADDRESSES: &[&str] = &["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.1.0.1", "11.0.0.1"];

/// Its parts, the first few of which it has, and when it ends.
fn made() -> impl Strategy<Value = (Vec<Made>, Option<u64>)> {
    let parts = (made_text(), made_address(), made_text(), 1..=3_usize);
    let parts = parts.prop_map(|(account, address, host, count)| {
        let mut parts = vec![account, address, host];
        parts.truncate(count);
        parts
    });
    (parts, proptest::option::weighted(0.3, 0..20_u64))
}

proptest! {
    #[test]
    fn the_override_that_is_picked_is_the_best_of_all_that_match(
        all in prop::collection::vec(made(), 0..24),
        account in "[ab]{1,3}",
        address in select(ADDRESSES),
        host in "[ab]{1,3}",
    ) {
        let now = 10;
        let subject = [account.as_str(), address, host.as_str()];
        let mut limit = limit_per(&["account", "address", "host"]);
        let mut best: Option<(Vec<Rank>, String)> = None;
        for (parts, until) in all {
            let id: Vec<String> = parts.iter().map(Made::written).collect();
            let id = id.join(":");
            let Ok(more) = added(limit.clone(), &id, until.map(at)) else {
                continue;
            };
            limit = more;
            let ranks = parts.iter().zip(subject).map(|(part, text)| part.rank(text));
            let matching = ranks.collect::<Option<Vec<_>>>();
            let matching = matching.filter(|_| until.is_none_or(|until| now < until));
            if let Some(ranks) = matching {
                // If one id begins with another, the shorter one ranks lower.
                best = best.max(Some((ranks, id)));
            }
        }
        let best = best.map(|(_, id)| id);
        let of_id = limit.override_of(&subject.join(":"), at(now)).unwrap();
        prop_assert_eq!(of_id.map(|overridden| overridden.id.clone()), best.clone());
        let client = address.parse().unwrap();
        let sent = Sent { account: &account, client, host: &host, uri: "/" };
        prop_assert_eq!(found(limit, &sent, at(now)).1, best);
    }
}
