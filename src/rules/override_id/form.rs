//! How ids are written, by example, for error messages.

use crate::rules::KeySource;
use crate::rules::part::GLOBAL;

/// How the ids of a limit are written, by example.
pub(in crate::rules) fn form(per: &[KeySource]) -> String {
    let composite = per.len() > 1;
    let forms: Vec<_> = per.iter().map(|it| part_form(it, composite)).collect();
    forms.join(":")
}

/// How a part is written, by example; of several, IPv6 has brackets.
pub(super) fn part_form(source: &KeySource, composite: bool) -> String {
    match source {
        KeySource::Address { .. } if composite => {
            let form = source_form(source);
            form.replace(" or ", " or [") + "]"
        }
        _ => source_form(source),
    }
}

fn source_form(source: &KeySource) -> String {
    match source {
        KeySource::Address {
            v4_prefix,
            v6_prefix,
        } => {
            let v4 = if *v4_prefix == 32 {
                "203.0.113.9".to_owned()
            } else {
                format!("203.0.0.0/{v4_prefix}")
            };
            let v6 = if *v6_prefix == 128 {
                "2001:db8::1".to_owned()
            } else {
                format!("2001:db8::/{v6_prefix}")
            };
            format!("{v4} or {v6}")
        }
        KeySource::Account => "ACCOUNT".to_owned(),
        KeySource::Host => "app.example.com".to_owned(),
        KeySource::Domain => "example.com".to_owned(),
        KeySource::Method => "POST".to_owned(),
        KeySource::Route => "ROUTE".to_owned(),
        KeySource::Header(_) | KeySource::Cookie(_) | KeySource::Query(_) => "VALUE".to_owned(),
        KeySource::Path(_) => "SEGMENT".to_owned(),
        KeySource::Global => GLOBAL.to_owned(),
    }
}
