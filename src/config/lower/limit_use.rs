//! Limits as routes use them.

use std::sync::Arc;

use super::book::{LimitDef, LimitTable};
use super::{Lowered, Lowering, Reported};
use crate::config::schema::{self, MissingValue, UseKind};
use crate::config::yaml::{Span, Spanned, WordOr};
use crate::limit::Mode;
use crate::rules::{Enforcement, HashKey, KeySource, Limit, LimitUse, Missing};

impl Lowering<'_> {
    /// A limit as a route uses it, enforced at most as the route is.
    pub(super) fn limit_use(
        &mut self,
        table: &mut LimitTable,
        written: &Spanned<WordOr<schema::LimitUse>>,
        of_route: Lowered<Enforcement>,
    ) -> Lowered<LimitUse> {
        let usage = &spelt_out(written);
        let prefix = table.ipv6_prefix;
        let per = usage.per.as_ref();
        let per = per
            .map(|per| self.sources(per, written.span, prefix))
            .transpose();
        let key = table.key.clone();
        let spend = self.spend_when(usage);
        let own = self.enforcement(usage.enforce.as_ref());
        let entry = self.find_limit(table, &usage.limit)?;
        entry.used = true;
        let cost = self.cost(entry, usage);
        self.require_sense(entry, usage);
        let kind = kind(entry, usage);
        let of_limit = entry.enforcement;
        self.agree_on_per(entry, per, usage.limit.span)?;
        let limit = self.build(entry, usage.missing, &key)?;
        Ok(LimitUse {
            limit,
            kind,
            cost: cost?,
            spend: spend?,
            enforcement: of_route?.min(own?).min(of_limit?),
        })
    }

    /// Makes sure that all that is said of a use has an effect.
    fn require_sense(&mut self, entry: &LimitDef, usage: &schema::LimitUse) {
        let later = [
            (usage.spend_on.as_ref().map(|it| it.span), "spend_on"),
            (usage.refund_on.as_ref().map(|it| it.span), "refund_on"),
            (response_header(usage).map(|it| it.span), "response_header"),
        ];
        let check_only = usage.kind.is_some_and(|it| it.value == UseKind::CheckOnly);
        let counts_denied = entry.algorithm.is_ok_and(|it| it.counts_denied());
        for (span, key) in later {
            let Some(span) = span else { continue };
            if entry.is_in_flight() {
                self.of_no_use_in_flight([(key, Some(span))]);
            } else if check_only {
                let message =
                    format!("`{key}` has no effect, as `kind: check_only` spends nothing");
                self.error(span, message).help("leave one of them out");
            } else if counts_denied && key != "refund_on" {
                let name = &entry.name.value;
                let message = format!("\"{name}\" counts no denied requests here");
                self.warn(span, message).help(format!(
                    "with `{key}` only answered requests are counted, whatever `count_denied` says"
                ));
            }
        }
    }

    fn find_limit<'b>(
        &mut self,
        table: &'b mut LimitTable,
        name: &Spanned<String>,
    ) -> Lowered<&'b mut LimitDef> {
        if table.find(name).is_none() {
            return Err(self.unknown_limit(name, table));
        }
        Ok(table.find_or_add(name))
    }

    /// Reports a limit that is defined nowhere, unless what cannot be read may define it.
    pub(super) fn unknown_limit(&mut self, name: &Spanned<String>, table: &LimitTable) -> Reported {
        let hint = format!("limits are defined in {}", table.file);
        let may_be = table.may_have(name, self.sources);
        may_be.unwrap_or_else(|| self.unknown("limit", name, table.span(), &hint))
    }

    /// Makes sure that a limit is counted per the same everywhere: its buckets have one form.
    fn agree_on_per(
        &mut self,
        entry: &mut LimitDef,
        per: Lowered<Option<Vec<KeySource>>>,
        span: Span,
    ) -> Lowered<()> {
        let name = &entry.name.value;
        match (entry.per.as_ref().map_err(|it| *it)?, per?) {
            (None, None) => {
                let message = format!("nothing says what \"{name}\" is counted per");
                let complaint = self.error(span, message);
                let help = "add `per: address` or the like, here or where it is defined";
                return Err(complaint.help(help));
            }
            (Some(known), Some(per)) if *known != per => {
                let message = format!("\"{name}\" is counted per something else already");
                let complaint = self.error(span, message);
                let help = "leave `per` out here, or define a limit of another name";
                return Err(complaint.help(help));
            }
            (None, per @ Some(_)) => entry.per = Ok(per),
            (Some(_), _) => {}
        }
        Ok(())
    }

    /// The limit with its overrides; ids are checked when it is first built.
    fn build(
        &mut self,
        entry: &mut LimitDef,
        missing: Option<MissingValue>,
        key: &HashKey,
    ) -> Lowered<Arc<Limit>> {
        let defined = entry.written.as_ref().and_then(|it| it.missing);
        let missing = match missing.or(defined) {
            Some(MissingValue::Deny) => Missing::Deny,
            _ => Missing::Skip,
        };
        if let Some((_, limit)) = entry.built.iter().find(|(it, _)| *it == missing) {
            return limit.clone();
        }
        let limit = self.new_limit(entry, missing, key).map(Arc::new);
        entry.built.push((missing, limit.clone()));
        limit
    }

    fn new_limit(&mut self, entry: &LimitDef, missing: Missing, key: &HashKey) -> Lowered<Limit> {
        // The first time tells of all that is wrong.
        let built = entry.built.first();
        if let Some(reported) = built.and_then(|(_, it)| it.as_ref().err()) {
            return Err(*reported);
        }
        let per = entry.per.clone()?.unwrap_or_default();
        let limit = Limit::new(&entry.name, per, entry.quota?, missing, key.clone());
        let mut limit = self.ok(entry.name.span, limit)?;
        if let Some(id) = entry.written.as_ref().and_then(|it| it.id) {
            limit = limit.with_id(id.value);
        }
        self.add_overrides(&mut limit, entry, built.is_none());
        Ok(limit)
    }

    /// Builds what no route uses, so that its ids are checked as well.
    pub(super) fn check_unused(&mut self, table: &mut LimitTable) {
        self.refuse_overrides_of_nothing(table);
        let key = table.key.clone();
        for entry in table.entries.iter_mut().filter(|it| !it.used) {
            if entry.per != Ok(None) {
                let _ = self.build(entry, None, &key);
            } else if entry.written.is_some() {
                self.check_formless(entry, &key);
            }
        }
    }

    /// Of a limit that nothing says the sources of, the ids may look like anything; but it needs a
    /// name all the same, and they may not be empty.
    fn check_formless(&mut self, entry: &LimitDef, key: &HashKey) {
        let nameable = Limit::new(&entry.name, Vec::new(), None, Missing::Skip, key.clone());
        let _ = self.ok(entry.name.span, nameable);
        self.refuse_empty_ids(entry);
    }
}

/// A use with nothing but a name is a use of the limit as it is defined.
fn spelt_out(written: &Spanned<WordOr<schema::LimitUse>>) -> schema::LimitUse {
    match &written.value {
        WordOr::More(usage) => usage.clone(),
        WordOr::Word(name) => schema::LimitUse {
            limit: Spanned {
                span: written.span,
                value: name.clone(),
            },
            enabled: None,
            kind: None,
            cost: None,
            spend_on: None,
            refund_on: None,
            per: None,
            missing: None,
            enforce: None,
        },
    }
}

/// What a request does with the bucket. A limit that is switched off stays off.
fn kind(entry: &LimitDef, usage: &schema::LimitUse) -> Mode {
    if entry.is_off() || usage.enabled == Some(false) {
        return Mode::AllowOnly;
    }
    match usage.kind.map(|it| it.value) {
        None | Some(UseKind::CheckAndSpend) => Mode::CheckAndSpend,
        Some(UseKind::CheckOnly) => Mode::CheckOnly,
        Some(UseKind::SpendOnly) => Mode::SpendOnly,
    }
}

fn response_header(usage: &schema::LimitUse) -> Option<&Spanned<String>> {
    match &usage.cost.as_ref()?.value {
        WordOr::More(measured) => measured.response_header.as_ref(),
        WordOr::Word(_) => None,
    }
}
