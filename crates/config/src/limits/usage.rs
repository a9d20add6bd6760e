//! Limits as routes use them, and what a request costs there.

use std::num::NonZeroU64;
use std::sync::Arc;

use weir_limit::Mode;
use weir_rules::{
    Cost, Enforcement, JsonPointer, KeySource, Limit, LimitUse, MeasuredCost, SpendWhen, YieldsTo,
};
use weir_yaml::{
    ByteSize, FieldName, Lowered, Lowering, OneOrMany, Reported, Span, SpanOf, Spanned, WordOr,
    whole_number,
};

use super::key_sources;
use super::quota::{enforcement, refuse_beside_in_flight};
use super::schema;
use super::statuses::status_set;
use super::table::{LimitDef, LimitTable};
use crate::foreign::Parsed;

/// A limit as a route uses it, enforced at most as the route is.
pub(crate) fn limit_use(
    cx: &mut Lowering<'_>,
    table: &LimitTable,
    written: &Spanned<WordOr<schema::LimitUse>>,
    of_route: Enforcement,
) -> Lowered<LimitUse> {
    let usage = &expanded(written);
    let per = usage.per.as_ref();
    let per = per
        .map(|per| key_sources(cx, per, written.span, table.ipv6_prefix))
        .transpose();
    let spend = spend_when(cx, usage);
    let Some(def) = table.find(&usage.limit) else {
        return Err(table.unknown(cx, &usage.limit));
    };
    let cost = cost(cx, def, usage);
    require_effect(cx, def, usage);
    let limit = limit(cx, def, usage, per)?;
    if let Some(reported) = in_error(cx, def, written.span) {
        return Err(reported);
    }
    Ok(LimitUse {
        limit,
        mode: mode(def, usage),
        cost: cost?,
        spend: spend?,
        enforcement: of_route
            .min(enforcement(usage.enforce.as_ref()))
            .min(def.enforcement),
        yields_to: None,
    })
}

/// Lets the limits of a route yield to each other, as they are written.
pub(crate) fn yield_denials(
    cx: &mut Lowering<'_>,
    written_list: &[&Spanned<WordOr<schema::LimitUse>>],
    limits: &mut [Lowered<LimitUse>],
) {
    for (index, written) in written_list.iter().enumerate() {
        let WordOr::More(usage) = &written.value else {
            continue;
        };
        let Some(name) = &usage.yields_to else {
            continue;
        };
        let is_own = usage.limit.value == name.value;
        let found = match !is_own && yields_on(name, written_list) {
            true => Err(chain(name)),
            false => yielded(name, limits.get(index), limits),
        };
        let found = found.map_err(|(message, help)| cx.error(name.span, message).help(help));
        let Some(slot) = limits.get_mut(index) else {
            continue;
        };
        match (slot.as_mut(), found) {
            (Ok(usage), Ok(to)) => usage.yields_to = to,
            (Ok(_), Err(reported)) => *slot = Err(reported),
            (Err(_), _) => {}
        }
    }
}

/// Whether the limit of this name leaves denials to another one itself: of two that yield to each
/// other, none would deny.
fn yields_on(name: &Spanned<String>, written: &[&Spanned<WordOr<schema::LimitUse>>]) -> bool {
    written.iter().any(|written| match &written.value {
        WordOr::More(usage) => usage.limit.value == name.value && usage.yields_to.is_some(),
        WordOr::Word(_) => false,
    })
}

fn chain(name: &Spanned<String>) -> (String, &'static str) {
    (
        format!("\"{}\" leaves denials to another limit itself", name.value),
        "let it deny, or name the limit that denies in the end",
    )
}

/// The limit of this name among those of the route; none where one of the two is in error.
///
/// # Errors
/// What is wrong, and what to do about it.
fn yielded(
    name: &Spanned<String>,
    usage: Option<&Lowered<LimitUse>>,
    limits: &[Lowered<LimitUse>],
) -> Result<Option<Box<YieldsTo>>, (String, &'static str)> {
    let Some(Ok(usage)) = usage else {
        return Ok(None);
    };
    if usage.response_use().is_some() || !usage.mode.checks() {
        let own = usage.limit.name();
        let message = format!("\"{own}\" denies nothing here by the head of a request alone");
        return Err((
            message,
            "`yields_to` is for a limit that denies, and that spends at once",
        ));
    }
    let mut others = limits.iter().flatten();
    let to = others.find(|other| other.limit.name() == name.value);
    let to = to.filter(|to| !Arc::ptr_eq(&to.limit, &usage.limit) && to.mode.checks());
    match to {
        Some(to) => Ok(Some(Box::new(YieldsTo {
            limit: Arc::clone(&to.limit),
            enforcement: to.enforcement,
        }))),
        // It may be in error.
        None if limits.iter().any(Result::is_err) => Ok(None),
        None => Err((
            format!(
                "no other limit of this route that denies is called \"{}\"",
                name.value
            ),
            "list it in the same `limits`, so that one of the two denies",
        )),
    }
}

/// The proof that some key is in error of a use at this span, or of the limit's definition. Without
/// the key, it would be another use.
fn in_error(cx: &Lowering<'_>, def: &LimitDef, usage: Span) -> Option<Reported> {
    let definition = def.definition.as_ref().map(|definition| definition.span);
    let mut spans = [Some(usage), definition].into_iter().flatten();
    spans.find_map(|span| cx.sources.child_in_error(span))
}

/// The limit itself, which is counted per the same everywhere: its buckets have one form.
fn limit(
    cx: &mut Lowering<'_>,
    def: &LimitDef,
    usage: &schema::LimitUse,
    per: Lowered<Option<Vec<KeySource>>>,
) -> Lowered<Arc<Limit>> {
    let name = &def.name.value;
    if let (Some(known), Some(per)) = (def.per.as_ref().map_err(|reported| *reported)?, per?)
        && *known != per
    {
        let message = format!("\"{name}\" is counted per something else already");
        return Err(cx
            .error(usage.limit.span, message)
            .help("leave `per` out here, or define a limit of another name"));
    }
    def.limit(usage.missing).unwrap_or_else(|| {
        let message = format!("nothing says what \"{name}\" is counted per");
        Err(cx
            .error(usage.limit.span, message)
            .help("add `per: address` or the like, here or where it is defined"))
    })
}

/// Makes sure that all that is said of a use has an effect.
fn require_effect(cx: &mut Lowering<'_>, def: &LimitDef, usage: &schema::LimitUse) {
    let cost = usage.cost.as_ref().and_then(|cost| match &cost.value {
        WordOr::More(measured) => Some(measured),
        WordOr::Word(_) => None,
    });
    let later = [
        (usage.spend_on.span(), "spend_on"),
        (usage.refund_on.span(), "refund_on"),
        (
            cost.and_then(|cost| cost.response_json.span()),
            "response_json",
        ),
        (
            cost.and_then(|cost| cost.response_trailer.span()),
            "response_trailer",
        ),
        (
            cost.and_then(|cost| cost.response_header.span()),
            "response_header",
        ),
    ];
    let check_only = usage
        .kind
        .is_some_and(|kind| kind.value.0 == Mode::CheckOnly);
    let counts_denied = def
        .algorithm
        .is_ok_and(|algorithm| algorithm.counts_denied());
    for (span, key) in later {
        let Some(span) = span else { continue };
        if def.is_in_flight() {
            refuse_beside_in_flight(cx, [(key, Some(span))]);
        } else if check_only {
            let message = format!("`{key}` has no effect, as `kind: check_only` spends nothing");
            cx.error(span, message).help("leave one of them out");
        } else if counts_denied && key != "refund_on" {
            let name = &def.name.value;
            let message = format!("\"{name}\" counts no denied requests here");
            cx.warn(span, message).help(format!(
                "with `{key}` only answered requests are counted, whatever `count_denied` says"
            ));
        }
    }
}

/// A use with nothing but a name is a use of the limit as it is defined.
fn expanded(written: &Spanned<WordOr<schema::LimitUse>>) -> schema::LimitUse {
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
            yields_to: None,
            per: None,
            missing: None,
            enforce: None,
        },
    }
}

/// What a request does with the bucket. A limit that is switched off stays off.
fn mode(def: &LimitDef, usage: &schema::LimitUse) -> Mode {
    if def.is_off() || usage.enabled == Some(false) {
        return Mode::AllowOnly;
    }
    usage.kind.map(|kind| kind.value.0).unwrap_or_default()
}

/// The cost of a request, which every bucket of the limit must be able to hold.
fn cost(cx: &mut Lowering<'_>, def: &LimitDef, usage: &schema::LimitUse) -> Lowered<Cost> {
    let Some(written) = &usage.cost else {
        return Ok(Cost::default());
    };
    if def.is_in_flight() {
        let message = format!("\"{}\" counts requests, whatever they cost", def.name.value);
        return Err(cx.error(written.span, message).help("leave `cost` out"));
    }
    match &written.value {
        WordOr::Word(number) => fixed_cost(cx, def, written.span, number),
        WordOr::More(measured) => measured_cost(cx, def, written.span, measured),
    }
}

fn fixed_cost(cx: &mut Lowering<'_>, def: &LimitDef, span: Span, number: &str) -> Lowered<Cost> {
    let written = whole_number(number);
    let Some(cost) = written.and_then(NonZeroU64::new) else {
        let found = match written {
            Some(zero) => zero.to_string(),
            None => format!("`{number}`"),
        };
        let message = format!("expected a whole number that is at least 1, found {found}");
        return Err(cx.error(span, message).into());
    };
    require_burst(cx, def, span, cost.get())?;
    Ok(Cost::Fixed(cost))
}

fn measured_cost(
    cx: &mut Lowering<'_>,
    def: &LimitDef,
    span: Span,
    written: &schema::MeasuredCost,
) -> Lowered<Cost> {
    let says = [
        written.response_json.span(),
        written.response_trailer.span(),
        written.response_header.span(),
        written.request_header.span(),
        written.request_bytes.span(),
    ];
    let mut says = says.into_iter().flatten();
    let is_said = says.next().map(|_| ()).ok_or_else(|| {
        cx.lacking(
            span,
            &[
                "response_json",
                "response_trailer",
                "response_header",
                "request_header",
                "request_bytes",
            ],
            "nothing says what a request costs",
            "add `response_json`, `response_trailer`, `response_header`, `request_header` or \
             `request_bytes`, or write the number alone",
        )
    });
    let response_json = written.response_json.as_ref();
    let response_json = response_json.map(|pointers| json_pointers(cx, pointers));
    let header = |name: &Option<Spanned<FieldName>>| name.as_ref().map(|name| name.0.clone());
    let request_bytes = written.request_bytes.map(|bytes| unit(cx, bytes));
    let default = written.default.map(|default| {
        let fits = require_burst(cx, def, default.span, default.value);
        fits.map(|()| default.value)
    });
    is_said?;
    Ok(Cost::Measured(Arc::new(MeasuredCost {
        response_json: response_json.transpose()?.unwrap_or_default(),
        response_trailer: header(&written.response_trailer),
        response_header: header(&written.response_header),
        request_header: header(&written.request_header),
        request_bytes: request_bytes.transpose()?,
        default: default.unwrap_or(Ok(1))?,
    })))
}

/// The numbers in a response's JSON that make up a cost.
fn json_pointers(
    cx: &mut Lowering<'_>,
    written: &Spanned<OneOrMany<Spanned<Parsed<JsonPointer>>>>,
) -> Lowered<Arc<[JsonPointer]>> {
    let pointers = cx.filled(
        written,
        "there are no JSON pointers",
        "write one such as /usage/total_tokens",
    )?;
    Ok(pointers.iter().map(|pointer| pointer.0.clone()).collect())
}

/// Bytes that make a unit of cost.
fn unit(cx: &mut Lowering<'_>, written: Spanned<ByteSize>) -> Lowered<NonZeroU64> {
    NonZeroU64::new(written.value.0).ok_or_else(|| {
        cx.error(written.span, "a unit has at least one byte")
            .help("say how many bytes cost 1, such as 1KiB")
    })
}

fn require_burst(cx: &mut Lowering<'_>, def: &LimitDef, span: Span, cost: u64) -> Lowered<()> {
    let smallest = def.smallest_burst();
    let Some((burst, defined)) = smallest.filter(|(burst, _)| burst.get() < cost) else {
        return Ok(());
    };
    let at = cx.sources.location(defined);
    let message = format!("a cost of {cost} never passes \"{}\"", def.name.value);
    let help = format!("its burst is only {burst} at {at} {}", at.path);
    Err(cx.error(span, message).help(help))
}

/// Which requests take their cost.
fn spend_when(cx: &mut Lowering<'_>, usage: &schema::LimitUse) -> Lowered<SpendWhen> {
    match (&usage.spend_on, &usage.refund_on) {
        (None, None) => Ok(SpendWhen::Always),
        (Some(on), None) => status_set(cx, &on.status).map(SpendWhen::On),
        (None, Some(except)) => status_set(cx, &except.status).map(SpendWhen::ExceptOn),
        (Some(_), Some(refund_on)) => {
            let message = "`spend_on` and `refund_on` do not go together";
            let help = "what only some responses spend need not be given back; leave one out";
            Err(cx.error(refund_on.span, message).help(help))
        }
    }
}
