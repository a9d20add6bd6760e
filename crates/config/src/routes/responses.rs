//! What clients are told of limits.

use weir_middleware::{HeaderForm, HeaderForms};
use weir_yaml::{Lowered, Lowering, Spanned};

use super::schema::{self, HeaderFormsList, RouteDefaults};
use crate::foreign::Word;

/// Which headers a route sends. One whose denials look like answers of the app sends none unless it
/// asks for them itself: on the answers of other routes they would tell a ban from a real answer.
pub(super) fn header_forms(
    cx: &mut Lowering<'_>,
    route: &schema::Route,
    defaults: Option<&RouteDefaults>,
    looks_real: bool,
) -> Lowered<HeaderForms> {
    let inherited = default_header_forms(cx, defaults);
    let own = by_either_name(cx, route.ratelimit_headers.as_ref(), route.headers.as_ref());
    match (own?, inherited?) {
        (Some(own), _) => forms(cx, own),
        (None, _) if looks_real => Ok(HeaderForms::NONE),
        (None, inherited) => Ok(inherited),
    }
}

/// Which headers are sent where no route says otherwise.
pub(crate) fn default_header_forms(
    cx: &mut Lowering<'_>,
    defaults: Option<&RouteDefaults>,
) -> Lowered<HeaderForms> {
    let Some(defaults) = defaults else {
        return Ok(HeaderForms::default());
    };
    let (current, former) = (&defaults.ratelimit_headers, &defaults.headers);
    match by_either_name(cx, current.as_ref(), former.as_ref())? {
        Some(written) => forms(cx, written),
        None => Ok(HeaderForms::default()),
    }
}

/// What `ratelimit_headers` says, or `headers`, as it was called before.
fn by_either_name<'w>(
    cx: &mut Lowering<'_>,
    current: Option<&'w HeaderFormsList>,
    former: Option<&'w HeaderFormsList>,
) -> Lowered<Option<&'w HeaderFormsList>> {
    let Some(former) = former else {
        return Ok(current);
    };
    if current.is_some() {
        let message = "`headers` is the former name of `ratelimit_headers`, which is there too";
        return Err(cx.error(former.span, message).help("leave `headers` out"));
    }
    cx.warn(former.span, "`headers` is called `ratelimit_headers` now")
        .help("rename it");
    Ok(Some(former))
}

fn forms(cx: &mut Lowering<'_>, written: &HeaderFormsList) -> Lowered<HeaderForms> {
    let is_none = |form: &Spanned<Word<HeaderForms>>| form.value.0 == HeaderForms::NONE;
    if written.0.len() > 1 && written.0.iter().any(is_none) {
        let error = cx.error(written.span, "\"none\" stands alone");
        return Err(error.help("leave it out, or leave the others out"));
    }
    let mut all = HeaderForms::NONE;
    for word in written.0.iter() {
        for form in word.value.0.iter() {
            let clash = all
                .iter()
                .find_map(|other| Some((other, shared_field(other, form)?)));
            if let Some((other, field)) = clash {
                let [other, form] = [other, form].map(HeaderForm::name);
                let message = format!("\"{other}\" and \"{form}\" both write {field}");
                return Err(cx.error(word.span, message).help("leave one of them out"));
            }
            all = all.with(form);
        }
    }
    Ok(all)
}

/// A field that two forms write with different meanings.
fn shared_field(one: HeaderForm, other: HeaderForm) -> Option<&'static str> {
    let mut fields = one.fields().iter().copied();
    fields.find(|field| one != other && other.fields().contains(field))
}
