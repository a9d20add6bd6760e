//! What bans say about subjects that need attention: who is banned already, and how to ban others.

use std::time::Duration;

use weir_config::Settings;
use weir_console::findings::{
    Finding as ShownFinding, FindingKind, FoundBan, GatewayFinding, GatewayFindingKind, Remedy,
    RemedyAction,
};
use weir_limit::time::Nanos;
use weir_rules::{Ban, KeySource, Limit};
use weir_telemetry::Refusals;
use weir_yaml::{HumanDuration, pluralized};

use super::admin::{self, BanStores, BanTarget};
use crate::app::admin_api::error::ApiError;
use crate::app::admin_api::findings::{Finding, MAX_LOOKUPS, Measure, command};
use crate::app::admin_api::responses::finite_seconds;
use crate::app::wording::was_or_were;

/// A ban that holds for a subject, or for all those of a finding.
struct BanInForce {
    ban: String,
    left: Nanos,
}

impl BanInForce {
    fn new(ban: &Ban, left: Nanos) -> Self {
        let ban = ban.name().to_string();
        Self { ban, left }
    }
}

impl Measure for BanInForce {
    fn kind(&self) -> FindingKind {
        FindingKind::Banned
    }

    fn name(&self) -> &str {
        &self.ban
    }

    fn text(&self, sent: &str) -> String {
        let left = match self.left {
            Nanos::NEVER => "for good".to_owned(),
            left => format!("for another {}", in_seconds(left)),
        };
        format!("is banned by {} {left}, and sent {sent}", self.ban)
    }

    fn remedy(&self, of: &Finding<'_>) -> Remedy {
        let advice = "It is dealt with. If it is an honest client, lift the ban";
        Remedy {
            action: Some(RemedyAction::Lift),
            ban: Some(self.ban.clone()),
            command: command(&["ban", "lift", &self.ban], of.shown_id(), &[]),
            ..Remedy::advice(advice)
        }
    }

    fn show(&self, of: &Finding<'_>, shown: &mut ShownFinding) {
        shown.banned = Some(FoundBan {
            ban: self.ban.clone(),
            ends_in: finite_seconds(self.left),
            network: !of.members().iter().any(|member| member == of.id()),
        });
    }
}

/// How to ban a subject, if a ban counts the same as its limit; if none does, how to have one.
pub(super) fn remedy(settings: &Settings, of: &Finding<'_>) -> Remedy {
    let Some(ban) = ban_for(settings, of.limit()) else {
        return remedy_by_hand(of.limit());
    };
    let length = HumanDuration(ban.schedule().first()).to_string();
    let advice = match of.is_network() {
        true => "Ban the network for a while",
        false => "Ban it for a while",
    };
    let options = ["--for", &length];
    Remedy {
        action: Some(RemedyAction::Ban),
        ban: Some(ban.name().to_string()),
        command: command(&["ban", "add", ban.name()], of.shown_id(), &options),
        ..Remedy::advice(advice)
    }
}

/// What can be done about a limit's subject that no ban can end.
fn remedy_by_hand(limit: &Limit) -> Remedy {
    let is_per_address = matches!(limit.per(), [KeySource::Address { .. }]);
    Remedy::advice(match is_per_address {
        true => {
            "The limit holds it off. To stop it, write it under `block`, or configure a ban with \
             the same `per`"
        }
        false => {
            "The limit holds it off. Ask its owner to wait as Retry-After says, or configure a ban \
             with the same `per`"
        }
    })
}

/// The ban that counts the same as a limit, so that its subjects can be banned.
fn ban_for<'s>(settings: &'s Settings, limit: &Limit) -> Option<&'s Ban> {
    let mut bans = settings.access.bans.iter();
    let acts = bans.find(|policy| policy.ban.per() == limit.per() && policy.acts());
    acts.map(|policy| &*policy.ban)
}

/// Finds out who is banned already: a network when it is, or all of those in it are.
pub(super) async fn look_up(
    settings: &Settings,
    found: &mut [Finding<'_>],
    by: BanStores<'_>,
) -> Result<(), ApiError> {
    // Standing bans hold whatever became of the store.
    let standing = match by.standing().await {
        Ok(standing) => standing,
        Err(_) => by.known_standing(),
    };
    let (mut indices, mut members) = (Vec::new(), Vec::new());
    for (index, finding) in found.iter_mut().enumerate() {
        let ban = ban_for(settings, finding.limit()).filter(|_| !finding.is_dry_run());
        let Some(ban) = ban else { continue };
        let target = |id: &String| BanTarget::find(settings, ban.name(), id).ok();
        let target_of_finding = BanTarget::find(settings, ban.name(), finding.id()).ok();
        let longest = target_of_finding.and_then(|target| target.longest_standing(&standing));
        if let Some(longest) = longest {
            let network = longest.is_network.then_some(&*longest.of);
            finding.found(
                BanInForce::new(ban, admin::left_of(longest, by.now)),
                network,
            );
            continue;
        }
        let of_finding: Vec<_> = finding.members().iter().filter_map(target).collect();
        if members.len() + of_finding.len() <= MAX_LOOKUPS {
            indices.extend(of_finding.iter().map(|_| index));
            members.extend(of_finding);
        }
    }
    let left = admin::time_left(&members, by).await?;
    for (index, finding) in found.iter_mut().enumerate() {
        let of_members = indices.iter().zip(&left).filter(|(of, _)| **of == index);
        let shortest = of_members.map(|(_, left)| *left).min();
        let shortest = shortest.filter(|left| !left.is_zero());
        if let Some((left, ban)) = shortest.zip(ban_for(settings, finding.limit())) {
            finding.found(BanInForce::new(ban, left), None);
        }
    }
    Ok(())
}

fn in_seconds(span: Nanos) -> String {
    let seconds = Duration::from_secs(Duration::from(span).as_secs().max(1));
    HumanDuration(seconds).to_string()
}

/// Clients whose connections are refused: a flood of them is in no access log. Nothing is said of
/// those who do not come, unless there are too many.
pub(super) fn refused(refusals: Refusals) -> Option<GatewayFinding> {
    let Refusals {
        peers,
        left_out,
        is_by_kernel,
        connections,
    } = refusals;
    let number = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let of_peers = |count: u64| pluralized(number(count), "banned or blocked peer");
    let packets = || pluralized(number(connections), "SYN packet");
    let (text, remedy) = if is_by_kernel && left_out > 0 {
        let text = format!(
            "the kernel drops connections of {} ({} in the last minute), and has no room for \
             {left_out} more, whose connections are closed when they are accepted",
            of_peers(peers),
            packets()
        );
        let remedy = "Ban or block whole networks: one takes the room of one address";
        (text, remedy)
    } else if connections == 0 {
        return None;
    } else if is_by_kernel {
        let text = format!(
            "the kernel drops connections of {}: {} in the last minute",
            of_peers(peers),
            packets()
        );
        let remedy = "Nothing need be done. To let somebody in again, lift the ban";
        (text, remedy)
    } else {
        let text = format!(
            "{} of {} in the last minute {} closed at accept, as the kernel does not drop them",
            pluralized(number(connections), "connection"),
            of_peers(peers + left_out),
            was_or_were(connections),
        );
        let remedy =
            "Grant the gateway CAP_NET_ADMIN; what its log says of the kernel has the reason";
        (text, remedy)
    };
    Some(GatewayFinding::new(
        GatewayFindingKind::Refused,
        text,
        remedy,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_refused_connections_is_who_refuses_them_and_how_many_do_not_fit() {
        let said = |peers, left_out, is_by_kernel, connections| {
            let found = refused(Refusals {
                peers,
                left_out,
                is_by_kernel,
                connections,
            });
            found.map(|finding| finding.text)
        };
        assert_eq!(said(0, 0, false, 0), None);
        assert_eq!(said(3, 0, true, 0), None, "nobody comes");
        assert_eq!(
            said(1, 0, true, 7).as_deref(),
            Some(
                "the kernel drops connections of 1 banned or blocked peer: 7 SYN packets in the last \
                 minute"
            )
        );
        assert_eq!(
            said(2_900, 12, true, 0).as_deref(),
            Some(
                "the kernel drops connections of 2900 banned or blocked peers (0 SYN packets in the \
                 last minute), and has no room for 12 more, whose connections are closed when they \
                 are accepted"
            )
        );
        assert_eq!(
            said(2_900, 12, false, 5).as_deref(),
            Some(
                "5 connections of 2912 banned or blocked peers in the last minute were closed at \
                 accept, as the kernel does not drop them"
            )
        );
        assert_eq!(
            said(1, 0, false, 1).as_deref(),
            Some(
                "1 connection of 1 banned or blocked peer in the last minute was closed at accept, as \
                 the kernel does not drop them"
            )
        );
    }
}
