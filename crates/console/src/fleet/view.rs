//! The gateways of one store as one: which there are, and their subjects, added up.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use weir_telemetry::Period;

use super::differences::LimitDifference;
use super::published::{
    Figures, FiguresState, GatewayEntry, INTERVAL, LimitFigures, PeriodFigures, SubjectFigures,
};
use crate::subjects::CountedSubject;

/// For how long nothing is heard of a gateway that is behind: it has missed one publication.
const BEHIND_AFTER: Duration = INTERVAL.saturating_mul(2).saturating_add(SLACK);

/// For how long nothing is heard of a gateway that is silent: it has missed three publications.
pub const SILENT_AFTER: Duration = INTERVAL.saturating_mul(3).saturating_add(SLACK);

/// Upper bound on the gateways that are shown.
pub const MAX_GATEWAYS: usize = 200;

/// How late a publication may be.
const SLACK: Duration = Duration::from_millis(800);

/// All gateways that this one knows of.
pub struct FleetView {
    /// This one is the first.
    pub gateways: Vec<KnownGateway>,
    /// Other configurations than that of this gateway.
    pub configurations: Vec<OtherConfiguration>,
    /// There may be more gateways than are shown.
    pub is_cut: bool,
    /// Why this gateway shows its own figures alone; none if it does not.
    pub alone: Option<Solitude>,
}

/// Why a gateway knows nothing of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Solitude {
    /// It has nothing to do with others by its configuration.
    Configured(&'static str),
    /// It should know of them.
    Failed(String),
}

/// A gateway, as this one knows it.
pub struct KnownGateway {
    /// How it is listed.
    pub entry: GatewayEntry,
    /// It is the one that is asked.
    pub is_self: bool,
    /// How long ago it has published.
    pub seen: Duration,
    /// Another has started in its place since then.
    pub is_replaced: bool,
    /// What it has published, or why that is not known.
    pub figures: Result<Figures, FiguresState>,
}

/// A configuration that other gateways have.
pub struct OtherConfiguration {
    /// What names it.
    pub digest: String,
    /// The names of the gateways.
    pub gateways: Vec<String>,
    /// The limits that differ; none where they are not known.
    pub limits: Option<Vec<LimitDifference>>,
}

/// Whether a gateway publishes in time.
#[allow(
    missing_docs,
    reason = "docs/openapi.json describes members by their comments, and some need none"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GatewayState {
    Up,
    /// It has missed a publication.
    Behind,
    /// It has missed three: it has ended, hangs, or does not reach the store.
    Silent,
}

impl KnownGateway {
    /// Whether it publishes in time.
    pub fn state(&self) -> GatewayState {
        match self.seen {
            seen if seen > SILENT_AFTER => GatewayState::Silent,
            seen if seen > BEHIND_AFTER => GatewayState::Behind,
            _ => GatewayState::Up,
        }
    }

    /// The name and the address, as several may run on one machine.
    pub fn title(&self) -> String {
        format!("{} ({})", self.entry.name, self.entry.address)
    }

    /// Whether it hashes names by another key than `own`, so that it counts them apart.
    pub fn has_other_key(&self, own: &GatewayEntry) -> bool {
        let keys = self.entry.hash_key.as_ref().zip(own.hash_key.as_ref());
        self.state() != GatewayState::Silent && keys.is_some_and(|(key, own)| key != own)
    }

    /// Whether its subjects are known.
    fn is_counted(&self) -> bool {
        let figures = self.figures.as_ref();
        figures.is_ok_and(|figures| figures.counts_subjects)
    }

    /// Whether its figures are known.
    pub fn figures_state(&self) -> FiguresState {
        match &self.figures {
            Ok(_) => FiguresState::Shared,
            Err(state) => *state,
        }
    }
}

impl Solitude {
    /// In words.
    pub fn why(&self) -> String {
        match self {
            Self::Configured(why) => (*why).to_owned(),
            Self::Failed(why) => why.clone(),
        }
    }
}

impl FleetView {
    /// Whether the gateway shares its store, by its configuration.
    pub fn is_fleet(&self) -> bool {
        !matches!(self.alone, Some(Solitude::Configured(_)))
    }

    /// The figures of all gateways that share them.
    pub fn figures(&self) -> impl Iterator<Item = (&KnownGateway, &Figures)> {
        let gateways = self.gateways.iter();
        gateways.filter_map(|gateway| Some((gateway, gateway.figures.as_ref().ok()?)))
    }

    /// How many gateways are counted.
    pub fn counted(&self) -> usize {
        let gateways = self.gateways.iter();
        gateways.filter(|gateway| gateway.is_counted()).count()
    }

    /// How many gateways would have to be counted.
    pub fn known(&self) -> usize {
        let gateways = self.gateways.iter();
        let known = gateways
            .filter(|gateway| gateway.is_counted() || gateway.state() != GatewayState::Silent);
        known.count()
    }

    /// Peers that name other clients and are no trusted proxies, of any gateway.
    pub fn forwarders(&self) -> Vec<IpAddr> {
        let peers = self.figures().flat_map(|(_, figures)| &figures.forwarders);
        let mut peers: Vec<IpAddr> = peers.copied().collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    pub(crate) fn subjects(&self, limit: &str, period: Period) -> Vec<CountedSubject> {
        let of_limit: Vec<(&LimitFigures, bool)> = self
            .figures()
            .filter_map(|(gateway, figures)| {
                Some((figures.limits.get(limit)?, !gateway.is_replaced))
            })
            .collect();
        let are_all_counted = self.counted() == self.known() && !self.is_cut;
        merged(&of_limit, period, are_all_counted)
    }
}

/// Adds up what gateways have counted of a limit. A gateway that does not list a subject may have
/// left it out, and each may have lost some of its requests. The rate of a gateway that was killed
/// goes on where another is in its place, so its own does not count.
pub(crate) fn merged(
    gateways: &[(&LimitFigures, bool)],
    period: Period,
    are_all_counted: bool,
) -> Vec<CountedSubject> {
    // The average of a minute hides a flood that has just begun.
    let rate_period = match period {
        Period::Minute => Period::Recent,
        period => period,
    };
    let missing = gateways.iter().map(|(figures, _)| {
        let (counted, of_rate) = (figures.period(period), figures.period(rate_period));
        let requests = of_rate.uncounted.saturating_add(of_rate.left_out);
        let missing = counted.uncounted.saturating_add(counted.left_out);
        (missing, of_rate.rate(requests))
    });
    let missing = are_all_counted.then(|| {
        missing.fold((0, 0.0), |(sum, rates), (missing, rate)| {
            (missing.saturating_add(sum), rates + rate)
        })
    });
    let mut merged: HashMap<&str, CountedSubject> = HashMap::new();
    for (figures, has_rate) in gateways {
        let (counted, of_rate) = (figures.period(period), figures.period(rate_period));
        for subject in &figures.subjects {
            let known = merged
                .entry(subject.key())
                .or_insert_with(|| CountedSubject {
                    activity: SubjectFigures::new(subject.key().to_owned()).activity(period),
                    rate: 0.0,
                    uncounted: missing,
                });
            if *has_rate {
                known.rate += of_rate.rate(subject.activity(rate_period).requests);
            }
            known.add(subject.activity(period));
            known.uncounted = known.uncounted.map(|(missing, rate)| {
                let rate = rate - of_rate.rate(of_rate.left_out);
                (missing.saturating_sub(counted.left_out), rate)
            });
        }
    }
    let active = merged.into_values();
    active
        .filter(|subject| subject.activity.requests > 0)
        .collect()
}

impl PeriodFigures {
    /// So many requests in the time of these figures, each second.
    fn rate(self, requests: u64) -> f64 {
        requests as f64 / self.seconds.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use weir_telemetry::SubjectActivity;

    use super::*;
    use crate::scope::Scope;

    fn subject(key: &str, requests: u64, denied: u64) -> SubjectFigures {
        let mut figures = SubjectFigures::new(key.to_owned());
        let activity = SubjectActivity {
            key: key.to_owned(),
            name: None,
            requests,
            denied,
            used_percent: 50,
        };
        figures.add(Period::Minute, activity.clone());
        let recent = SubjectActivity {
            requests: requests / 10,
            ..activity
        };
        figures.add(Period::Recent, recent);
        figures
    }

    fn gateway(subjects: Vec<SubjectFigures>, period: PeriodFigures) -> KnownGateway {
        let recent = PeriodFigures {
            seconds: period.seconds / 10.0,
            ..period
        };
        let limit = LimitFigures::new([recent, period, period], subjects);
        KnownGateway {
            entry: GatewayEntry::new("1", "gw", "127.0.0.1:9901", 0),
            is_self: false,
            seen: Duration::ZERO,
            is_replaced: false,
            figures: Ok(Figures {
                counts_subjects: true,
                limits: BTreeMap::from([("L".to_owned(), limit)]),
                ..Figures::new()
            }),
        }
    }

    fn period(seconds: f64, uncounted: u64, left_out: u64) -> PeriodFigures {
        PeriodFigures {
            seconds,
            uncounted,
            left_out,
        }
    }

    fn fleet(gateways: Vec<KnownGateway>) -> FleetView {
        FleetView {
            gateways,
            configurations: Vec::new(),
            is_cut: false,
            alone: None,
        }
    }

    #[test]
    fn a_subject_never_has_fewer_requests_than_are_shown_or_more_than_may_be_missing() {
        let silent = KnownGateway {
            figures: Err(FiguresState::Missing),
            seen: Duration::from_secs(60),
            ..gateway(vec![subject("a", 9, 9)], period(60.0, 9, 9))
        };
        let mut fleet = fleet(vec![
            gateway(
                vec![subject("a", 60, 30), subject("b", 6, 0)],
                period(60.0, 5, 2),
            ),
            // It has begun to count twenty seconds ago.
            gateway(
                vec![subject("a", 10, 10), subject("c", 0, 0)],
                period(20.0, 1, 7),
            ),
            silent,
        ]);
        let mut counted = Scope::Fleet(&fleet).subjects("L", Period::Minute);
        counted.sort_by(|one, other| one.activity.key.cmp(&other.activity.key));
        let shown: Vec<_> = counted
            .iter()
            .map(|subject| {
                let SubjectActivity {
                    key,
                    requests,
                    denied,
                    ..
                } = &subject.activity;
                let (rate, (uncounted, of_rate)) = (subject.rate, subject.uncounted.unwrap());
                format!("{key} {requests} {denied} {rate:.2} {uncounted} {of_rate:.2}")
            })
            .collect();
        // Both list a, so neither can have left it out; the second may have left out b.
        assert_eq!(shown, ["a 70 40 1.50 6 1.33", "b 6 0 0.00 13 4.83"]);
        assert_eq!((fleet.counted(), fleet.known()), (2, 2));
        assert!(
            Scope::Fleet(&fleet)
                .subjects("Other", Period::Minute)
                .is_empty()
        );

        // Without an admin listener, no subjects are counted.
        let figures = Figures::new();
        fleet.gateways[2].figures = Ok(figures);
        fleet.gateways[2].seen = Duration::ZERO;
        // Another has started in place of the second.
        fleet.gateways[1].is_replaced = true;
        let counted = Scope::Fleet(&fleet).subjects("L", Period::Minute);
        let of_a = counted.iter().find(|subject| subject.activity.key == "a");
        let of_a = of_a.unwrap();
        assert_eq!((of_a.activity.requests, of_a.rate), (70, 1.0));
        assert_eq!(of_a.uncounted, None);
        assert_eq!((fleet.counted(), fleet.known()), (2, 3));
    }

    #[test]
    fn a_gateway_that_misses_three_publications_is_never_shown_as_up() {
        let seen = |seconds: f64| {
            let known = KnownGateway {
                seen: Duration::from_secs_f64(seconds),
                ..gateway(Vec::new(), period(60.0, 0, 0))
            };
            known.state()
        };
        assert_eq!(seen(0.0), GatewayState::Up);
        assert_eq!(seen(4.5), GatewayState::Up);
        assert_eq!(seen(5.0), GatewayState::Behind);
        assert_eq!(seen(7.0), GatewayState::Silent);
    }
}
