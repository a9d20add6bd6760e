//! Lists and bans of a configuration: what they ask of a log, and what a replay counts and reports
//! of bans. Who is blocked is counted among the totals.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::Serialize;
use weir_middleware::{AccessControl, AccessSettings, AccessState};
use weir_rules::KeySource;
use weir_telemetry::{Metrics, Verdict};

use super::{Gap, LogFields};
use crate::format::{Name, Names};

/// Lists and bans that begin with nobody banned.
pub(super) fn control(settings: &AccessSettings, metrics: &Metrics) -> AccessControl {
    AccessState::new(metrics).control(settings.clone(), metrics)
}

/// Whether the log has what a list or a ban takes.
pub(super) fn is_replayed(settings: &AccessSettings, log: &LogFields) -> bool {
    let has_subjects = |per: &[KeySource]| lacks(per, log).is_none();
    has_listed_addresses(settings)
        || has_listed_accounts(settings) && log.lacks(&KeySource::Account).is_none()
        || settings.subjects().any(has_subjects)
}

/// What of them cannot be replayed. Their names are added to those that decisions go by.
pub(super) fn gaps(settings: &AccessSettings, log: &LogFields, names: &mut Names) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for policy in &settings.bans {
        let name = policy.ban.name();
        names.add(name);
        gaps.extend(lacks(policy.ban.per(), log).map(|why| Gap {
            what: format!("ban {name}"),
            why,
        }));
    }
    let unlogged = log.lacks(&KeySource::Account);
    let unlogged = unlogged.filter(|_| has_listed_accounts(settings));
    gaps.extend(unlogged.map(|_| Gap {
        what: "accounts of allow and block".to_owned(),
        why: "the log does not have accounts".to_owned(),
    }));
    gaps
}

fn lacks(per: &[KeySource], log: &LogFields) -> Option<String> {
    per.iter().find_map(|source| log.lacks(source))
}

/// Whether accounts are allowed or blocked.
pub(super) fn has_listed_accounts(settings: &AccessSettings) -> bool {
    let lists = &settings.lists;
    lists.allow.len().1 + lists.block.len().1 > 0
}

fn has_listed_addresses(settings: &AccessSettings) -> bool {
    let lists = &settings.lists;
    lists.allow.len().0 + lists.block.len().0 > 0
}

/// Requests that each ban kept out, or would have.
#[derive(Debug, Default)]
pub struct AccessTally(BTreeMap<Name, u64>);

impl AccessTally {
    pub fn decided(&mut self, verdict: &Verdict, names: &Names) {
        if let Some(ban) = &verdict.banned_by {
            *self.0.entry(names.find(ban)).or_default() += 1;
        }
    }

    pub fn add(&mut self, other: Self) {
        for (ban, held) in other.0 {
            *self.0.entry(ban).or_default() += held;
        }
    }

    pub fn report(&self, names: &Names) -> AccessReport {
        let bans = self.0.iter();
        let bans = bans.map(|(ban, held)| (names.name(*ban).to_owned(), *held));
        AccessReport {
            bans: bans.collect(),
        }
    }
}

/// The part of a report about them.
#[derive(Debug, Serialize)]
pub struct AccessReport {
    /// Each ban that held, or would have.
    bans: BTreeMap<String, u64>,
}

impl AccessReport {
    pub fn write_text(&self, out: &mut String) -> fmt::Result {
        for (ban, held) in &self.bans {
            writeln!(out, "\nban {ban}: held, or would have, for {held} requests")?;
        }
        Ok(())
    }
}
