//! Bans.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::decoys::Decoys;
use super::upstreams::Upstreams;
use super::{LimitTable, Lowered, LoweredRoute, Lowering};
use crate::config::schema::{self, Gateway};
use crate::config::yaml::{OneOrMany, Spanned};
use crate::limit::{Quota, QuotaError};
use crate::middleware::BanPolicy;
use crate::rules::{Ban, KeySource, PathPattern, PathSet, StatusSet, Terms, TermsError};

/// The longest ban where bans grow, unless told otherwise.
const DEFAULT_LONGEST: Duration = Duration::from_secs(24 * 3600);

/// How long a bucket of a limit may take to fill.
fn longest_kept(routes: &[LoweredRoute]) -> Duration {
    let limits = routes.iter().flat_map(LoweredRoute::limits);
    let quotas = limits.flat_map(|limit| {
        let overridden = limit.overrides().map(|it| it.quota);
        limit.quota().into_iter().chain(overridden)
    });
    let longest = quotas.map(|quota| quota.tolerance()).max();
    longest.unwrap_or_default().into()
}

impl Lowering<'_> {
    /// All bans; none in the place of one in error.
    pub(super) fn bans(
        &mut self,
        gateway: &Spanned<Gateway>,
        table: &LimitTable,
        routes: &[LoweredRoute],
        upstreams: &Upstreams<'_>,
        decoys: &Decoys<'_>,
    ) -> Vec<Lowered<BanPolicy>> {
        let of_all = self.enforcement(gateway.enforce.as_ref());
        let kept = longest_kept(routes);
        let bans = gateway.bans.iter().flat_map(|it| &it.value.0);
        bans.map(|(name, ban)| {
            let treatment = self.treatment(
                ban.on_denied.as_ref(),
                StatusCode::TOO_MANY_REQUESTS,
                upstreams,
                decoys,
            );
            let enforcement = self.enforcement(ban.enforce.as_ref());
            let per = self.sources(&ban.per, name.span, table.ipv6_prefix);
            self.require_subjects(name, per.as_deref().unwrap_or_default(), gateway, routes);
            let lowered = self.ban(name, ban, per, table, kept);
            let limits = self.striking_limits(&ban.strikes, table);
            let statuses = match &ban.strikes.status {
                Some(statuses) => self.status_set(statuses),
                None => Ok(StatusSet::default()),
            };
            let paths = self.striking_paths(&ban.strikes);
            self.require_strikes(&ban.strikes);
            Ok(BanPolicy {
                ban: Arc::new(lowered?),
                limits: limits?,
                statuses: statuses?,
                paths: paths?,
                treatment: treatment?,
                enforcement: enforcement?.min(of_all?),
            })
        })
        .collect()
    }

    fn ban(
        &mut self,
        name: &Spanned<String>,
        written: &Spanned<schema::Ban>,
        per: Lowered<Vec<KeySource>>,
        table: &LimitTable,
        kept: Duration,
    ) -> Lowered<Ban> {
        let strikes = self.strike_quota(&written.strikes);
        let terms = self.terms(written).map(|terms| terms.outliving(kept));
        if name.is_empty() {
            let complaint = self.error(name.span, "a ban needs a name, such as scanners");
            return Err(complaint.into());
        }
        let ban = Ban::new(name, per?, table.key.clone(), strikes?, terms?);
        self.ok(name.span, ban)
    }

    /// Refuses a ban per what no request has.
    fn require_subjects(
        &mut self,
        name: &Spanned<String>,
        per: &[KeySource],
        gateway: &Spanned<Gateway>,
        routes: &[LoweredRoute],
    ) {
        for source in per {
            let help = match source {
                KeySource::Account if self.lacks_accounts(gateway) => {
                    "say under `account` where requests name their account".to_owned()
                }
                KeySource::Path(segment) if !routes.iter().any(|it| it.may_capture(segment)) => {
                    format!("capture it in a route's path as `{{{segment}}}`")
                }
                _ => continue,
            };
            let message = format!("\"{}\" bans per {source}, which is never there", name.value);
            self.error(name.span, message).help(help);
        }
    }

    fn strike_quota(&mut self, written: &schema::Strikes) -> Lowered<Quota> {
        let (count, period) = (written.count, written.period);
        let quota = Quota::new(count.value, count.value, period.value.0);
        let span = match quota {
            Err(QuotaError::ZeroPeriod | QuotaError::PeriodTooLong) => period.span,
            _ => count.span,
        };
        // Strikes have no burst of their own.
        let quota = quota.map_err(|error| match error {
            QuotaError::ZeroBurst => QuotaError::ZeroCount,
            error => error,
        });
        self.ok(span, quota)
    }

    fn terms(&mut self, written: &schema::Ban) -> Lowered<Terms> {
        let first = written.length.value.0;
        let factor = written.factor.map_or(NonZeroU32::MIN, |it| it.value);
        let longest = written
            .max
            .map_or(DEFAULT_LONGEST.max(first), |it| it.value.0);
        let forget = written.forget.map_or(longest, |it| it.value.0);
        self.require_growth(written);
        let terms = Terms::new(first, factor, longest, forget);
        let span = match terms {
            Err(TermsError::LongestTooShort | TermsError::TooLong) => written.max.map(|it| it.span),
            Err(TermsError::ForgottenTooSoon | TermsError::Forgetting(_)) => {
                written.forget.or(written.max).map(|it| it.span)
            }
            _ => None,
        };
        self.ok(span.unwrap_or(written.length.span), terms)
    }

    /// Refuses what says how bans grow where they do not.
    fn require_growth(&mut self, written: &schema::Ban) {
        if written.factor.is_some_and(|factor| factor.value.get() > 1) {
            return;
        }
        for (key, span) in [("max", written.max), ("forget", written.forget)] {
            if let Some(span) = span {
                self.error(
                    span.span,
                    format!("`{key}` is of no use to bans that do not grow"),
                )
                .help("say by how much they do, such as `factor: 4`, or leave it out");
            }
        }
    }

    /// The limits whose denials are strikes.
    fn striking_limits(
        &mut self,
        written: &schema::Strikes,
        table: &LimitTable,
    ) -> Lowered<Vec<Arc<str>>> {
        let all: Vec<_> = items(written.limits.as_ref())
            .map(|name| match table.find(name) {
                Some(entry) => Ok(Arc::from(entry.name.as_str())),
                None => Err(self.unknown_limit(name, table)),
            })
            .collect();
        all.into_iter().collect()
    }

    /// The paths whose requests are strikes.
    fn striking_paths(&mut self, written: &schema::Strikes) -> Lowered<PathSet> {
        let all: Vec<_> = items(written.paths.as_ref())
            .map(|path| self.ok(path.span, PathPattern::parse(path)))
            .collect();
        all.into_iter().collect()
    }

    fn require_strikes(&mut self, written: &Spanned<schema::Strikes>) {
        let lists = [
            written.limits.as_ref(),
            written.status.as_ref().map(|it| &it.value),
            written.paths.as_ref(),
        ];
        let nothing = lists.iter().all(|list| items(*list).next().is_none());
        let keys = ["limits", "status", "paths"];
        // A list that is in error was told of.
        if nothing && self.sources.key_in_error(written.span, &keys).is_none() {
            self.error(written.span, "nothing is a strike").help(
                "say what is: denials by `limits: [NAME]`, a `status` such as 404, or `paths`",
            );
        }
    }
}

fn items(list: Option<&OneOrMany<Spanned<String>>>) -> impl Iterator<Item = &Spanned<String>> {
    list.into_iter().flat_map(|list| &list.0)
}
