//! How ids are written, by example, for error messages.

use crate::rules::Source;
use crate::rules::part::GLOBAL;

/// How the ids of a limit are written, by example.
pub(in crate::rules) fn form(per: &[Source]) -> String {
    let composite = per.len() > 1;
    let forms: Vec<_> = per.iter().map(|it| part_form(it, composite)).collect();
    forms.join(":")
}

/// How a part is written, by example; of several, IPv6 has brackets.
pub(super) fn part_form(source: &Source, composite: bool) -> String {
    match source {
        Source::Address { .. } if composite => {
            let form = source_form(source);
            form.replace(" or ", " or [") + "]"
        }
        _ => source_form(source),
    }
}

fn source_form(source: &Source) -> String {
    match source {
        Source::Address {
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
        Source::Account => "ACCOUNT".to_owned(),
        Source::Host => "app.example.com".to_owned(),
        Source::Domain => "example.com".to_owned(),
        Source::Method => "POST".to_owned(),
        Source::Route => "ROUTE".to_owned(),
        Source::Header(_) | Source::Cookie(_) | Source::Query(_) => "VALUE".to_owned(),
        Source::Path(_) => "SEGMENT".to_owned(),
        Source::Global => GLOBAL.to_owned(),
    }
}
