//! What pages of other origins may do, and the pages for people.

use bytes::Bytes;
use http::{HeaderValue, Uri};

use super::schema;
use crate::config::diagnostics::{Lowered, all};
use crate::config::lowering::Lowering;
use crate::config::yaml::{Entries, Spanned};
use crate::middleware::{Cors, ErrorPages, HeaderForms, Origins};
use crate::rules::Statuses;

const EXAMPLE: &str = "write it as browsers do, such as https://app.example.com";

pub(super) fn cors(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<schema::Cors>>,
    forms: &Lowered<HeaderForms>,
) -> Lowered<Option<Cors>> {
    let Some(written) = written else {
        return Ok(None);
    };
    let origins = origins(cx, written)?;
    let credentials = written
        .credentials
        .is_some_and(|credentials| credentials.value);
    if let (Some(span), Origins::Any) = (
        written.credentials.filter(|credentials| credentials.value),
        &origins,
    ) {
        let message = "browsers take no credentials for all origins";
        return Err(cx
            .error(span.span, message)
            .help("name the origins, or leave out `credentials`"));
    }
    Ok(Some(Cors {
        origins,
        credentials,
        counts_preflights: written.count_preflights.unwrap_or_default(),
        exposed: Cors::exposed((*forms)?),
    }))
}

/// Whether the list of origins is empty as it was written.
pub(super) fn allows_none(cx: &Lowering<'_>, written: &schema::Cors) -> bool {
    let origins = &written.origins;
    origins.value.0.is_empty() && cx.sources.child_in_error(origins.span).is_none()
}

fn origins(cx: &mut Lowering<'_>, written: &schema::Cors) -> Lowered<Origins> {
    let texts = &written.origins.value.0;
    if let [any] = texts.as_slice()
        && any.value == "*"
    {
        return Ok(Origins::Any);
    }
    all(texts.iter().map(|text| origin(cx, text))).map(Origins::Listed)
}

/// An origin in the one form that browsers write (RFC 6454, section 6.2).
fn origin(cx: &mut Lowering<'_>, text: &Spanned<String>) -> Lowered<HeaderValue> {
    let canonical = canonical(text);
    match canonical.as_deref() {
        Some(origin) if *origin == *text.value => cx.header_value(text),
        Some(origin) => {
            let message = format!("no browser calls an origin `{}`", text.value);
            Err(cx
                .error(text.span, message)
                .help(format!("write `{origin}`")))
        }
        None => {
            let message = format!("`{}` is not an origin", text.value);
            Err(cx.error(text.span, message).help(EXAMPLE))
        }
    }
}

/// Pages for people, by status.
pub(crate) fn error_pages(
    cx: &mut Lowering<'_>,
    written: Option<&Entries<Spanned<String>>>,
) -> Lowered<ErrorPages> {
    let written = written.into_iter().flat_map(|pages| &pages.0);
    all(written.map(|(status, file)| error_page(cx, status, file)))
}

fn error_page(
    cx: &mut Lowering<'_>,
    status: &Spanned<String>,
    file: &Spanned<String>,
) -> Lowered<(Statuses, Bytes)> {
    let statuses = cx.ok(status.span, status.value.parse::<Statuses>());
    let page = cx.read_file(file, file.span);
    Ok((statuses?, page?.into()))
}

/// The origin of a URL; none where it is none.
fn canonical(text: &str) -> Option<String> {
    let uri: Uri = text.parse().ok()?;
    let (scheme, host) = (uri.scheme_str()?, uri.host()?);
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let port = uri.port_u16().filter(|port| *port != usual);
    let port = port.map_or_else(String::new, |port| format!(":{port}"));
    Some(format!("{scheme}://{}{port}", host.to_ascii_lowercase()))
}
