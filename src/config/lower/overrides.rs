//! Overrides as limits have them: one for each id that is listed.

use std::collections::HashMap;

use super::book::{LimitDef, Overriding};
use super::{Lowering, Reported};
use crate::config::yaml::{Span, WordOr};
use crate::rules::{IdError, Limit, Override};

impl Lowering<'_> {
    /// Gives a limit its overrides. What is wrong with their ids is told when a limit is built for
    /// the first time.
    pub(super) fn add_overrides(&mut self, limit: &mut Limit, entry: &LimitDef, is_first: bool) {
        let mut spans: HashMap<String, Span> = HashMap::new();
        for (span, parameters) in entry.overrides.iter().flat_map(parameters) {
            let id = parameters.id.clone();
            match limit.add_override(parameters) {
                Ok(()) => {
                    if is_first && let Some(doubt) = limit.looks_hashed(&id) {
                        self.doubt(span, &doubt);
                    }
                    spans.insert(id, span);
                }
                Err(error) if is_first => {
                    self.refuse_id(span, &error, &spans);
                }
                Err(_) => {}
            }
        }
    }

    /// For limits whose ids have no form that is known.
    pub(super) fn refuse_empty_ids(&mut self, entry: &LimitDef) {
        let ids = entry.overrides.iter().flat_map(parameters);
        for (span, _) in ids.filter(|(_, it)| it.id.trim().is_empty()) {
            self.error(span, "the id is empty")
                .help("write whom the override is for, or leave it out");
        }
    }

    fn refuse_id(
        &mut self,
        span: Span,
        error: &IdError,
        spans: &HashMap<String, Span>,
    ) -> Reported {
        let earlier = match error {
            IdError::Duplicate { earlier, .. } => spans.get(earlier),
            _ => None,
        };
        let Some(earlier) = earlier else {
            return self.refuse(span, error);
        };
        let at = self.sources.location(*earlier);
        let message = error.to_string();
        let what = message.split("; ").next().unwrap_or_default();
        self.error(span, what).help(format!(
            "remove one of them; the other is at {at} {}",
            at.path
        ))
    }
}

/// The overrides of all ids of an entry, with their places.
fn parameters(overriding: &Overriding) -> impl Iterator<Item = (Span, Override)> {
    let quota = overriding.quota.into_iter();
    quota.flat_map(move |quota| {
        let ids = overriding.written.ids.iter();
        ids.map(move |id| {
            let (text, comment) = match &id.value {
                WordOr::Word(text) => (text, None),
                WordOr::More(it) => (&it.id, it.comment.0.clone()),
            };
            let parameters = Override {
                quota,
                comment,
                id: text.clone(),
                until: overriding.written.until.map(|it| it.value.0),
            };
            (id.span, parameters)
        })
    })
}
