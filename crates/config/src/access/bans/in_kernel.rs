//! Where the kernel may drop connections of the banned and the blocked: only where a connection is
//! one client's, and its address says who that is.

use weir_middleware::{BanPolicy, Treatment, TreatmentKeys};
use weir_rules::KeySource;
use weir_yaml::{Lowered, Lowering, Span, Spanned};

use crate::gateway::listen::Listener;
use crate::gateway::schema::Gateway;

/// Leaves the kernel out where a connection is not one client's alone, and warns of it.
pub(crate) fn keep_to_peers(
    cx: &mut Lowering<'_>,
    gateway: &Gateway,
    listening: &[Listener],
    bans: &mut [Lowered<BanPolicy>],
    blocked: &mut Lowered<Treatment>,
) {
    let of_all = of_all(gateway, listening);
    let written = gateway.bans.iter().flat_map(|bans| &bans.value.0);
    for ((_, written), ban) in written.zip(bans) {
        let (Ok(ban), Some(span)) = (ban, in_kernel(written.on_denied.as_ref())) else {
            continue;
        };
        if let Some(obstacle) = of_all.as_ref().or(of_ban(ban).as_ref()) {
            obstacle.warn(cx, span);
            ban.treatment = Treatment::Drop { in_kernel: false };
        }
    }
    let of_block = gateway.block.as_ref();
    let on_denied = of_block.and_then(|block| block.on_denied.as_ref());
    if let (Ok(blocked), Some(span), Some(obstacle)) = (blocked, in_kernel(on_denied), of_all) {
        obstacle.warn(cx, span);
        *blocked = Treatment::Drop { in_kernel: false };
    }
}

/// Where it is written that the kernel may, if it is.
fn in_kernel(on_denied: Option<&Spanned<TreatmentKeys>>) -> Option<Span> {
    on_denied?.in_kernel()
}

/// Why the kernel must not drop connections.
struct Obstacle {
    message: String,
    help: &'static str,
}

impl Obstacle {
    fn new(message: &str, help: &'static str) -> Self {
        Self {
            message: format!("the kernel drops no connections here: {message}"),
            help,
        }
    }

    fn warn(&self, cx: &mut Lowering<'_>, span: Span) {
        cx.warn(span, self.message.clone()).help(self.help);
    }
}

fn of_all(gateway: &Gateway, listening: &[Listener]) -> Option<Obstacle> {
    let address = gateway.client_address.as_ref();
    let proxies = address.and_then(|address| address.trusted_proxies.as_ref());
    if proxies.is_some_and(|proxies| !proxies.value.is_empty()) {
        return Some(Obstacle::new(
            "trusted proxies stand in front, so a connection is not one client's",
            "block clients at the proxy, and leave `in_kernel` out",
        ));
    }
    let allow = gateway.allow.as_ref();
    if allow.is_some_and(|allow| allow.accounts.is_some()) {
        return Some(Obstacle::new(
            "an account of the allow list may come from any address",
            "allow addresses alone, or leave `in_kernel` out",
        ));
    }
    // Without any, there is an error.
    if !listening.is_empty() && !listening.iter().any(Listener::takes_clients) {
        return Some(Obstacle::new(
            "a proxy stands in front of each listener",
            "block clients at the proxy, and leave `in_kernel` out",
        ));
    }
    None
}

fn of_ban(ban: &BanPolicy) -> Option<Obstacle> {
    match ban.ban.per() {
        [KeySource::Address { .. }] => None,
        _ => Some(Obstacle::new(
            "the ban is not per address alone",
            "write `per: address`, or leave `in_kernel` out",
        )),
    }
}
