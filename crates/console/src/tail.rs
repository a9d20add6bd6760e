//! Which lines of the log somebody watches.

use weir_telemetry::{Disposition, TailFilter};

use crate::query::RefusedParameter;

/// The parameters of a query, for a client that wrote another.
const PARAMETERS: &str = "there are tail=true, decision=denied,would_deny, by=LIMIT, route=ROUTE and \
                          text=TEXT";

/// The filter of lines in a query; `None` if it wants no lines.
///
/// # Errors
/// When there is no such parameter.
pub fn filter(query: &str) -> Result<Option<TailFilter>, RefusedParameter> {
    let mut filter = TailFilter::default();
    let mut has_tail = false;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let refused = || RefusedParameter {
            pair: format!("{name}={value}"),
            known: PARAMETERS,
        };
        let value = (!value.is_empty()).then(|| value.clone().into_owned());
        match (&*name, value) {
            ("tail", Some(value)) if value == "true" => has_tail = true,
            ("decision", Some(words)) => {
                let known = words.split(',').map(Disposition::from_word);
                filter.decisions = known.collect::<Option<_>>().ok_or_else(refused)?;
            }
            ("by", name) => filter.decided_by = name,
            ("route", name) => filter.route = name,
            ("text", text) => filter.text = text,
            _ => return Err(refused()),
        }
    }
    let has_filter = filter != TailFilter::default();
    Ok((has_tail || has_filter).then_some(filter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Option<TailFilter> {
        filter(query).unwrap()
    }

    #[test]
    fn lines_are_only_made_for_those_who_ask() {
        assert_eq!(parsed(""), None);
        assert_eq!(parsed("tail=true"), Some(TailFilter::default()));
        assert_eq!(parsed("by=&route=&text="), None);
        let query = parsed("decision=denied,would_deny&by=L&route=a%20b&text=%3Cb%3E");
        let expected = TailFilter {
            decisions: vec![Disposition::Denied, Disposition::WouldDeny],
            decided_by: Some("L".to_owned()),
            route: Some("a b".to_owned()),
            text: Some("<b>".to_owned()),
        };
        assert_eq!(query, Some(expected));
    }

    #[test]
    fn unknown_parameters_and_decisions_are_refused() {
        for query in ["tail=maybe", "decision=denied,nonsense", "limit=L", "x"] {
            assert!(filter(query).is_err(), "{query}");
        }
    }
}
