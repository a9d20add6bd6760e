//! The response to a denied request, which an `error_page` may be.

use serde_json::{Value, json};

use super::parse::Directive;
use super::responses::{added_headers, headers_of_text};
use super::returns::{CLOSE, Return};
use super::scopes::{Scopes, named};
use crate::configuration::{Configuration, Keys};

/// What a client gets whose request is denied.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Denial {
    pub(super) status: u16,
    headers: Keys,
    body: String,
}

impl Denial {
    /// A response without a page of its own.
    pub(super) fn plain(status: u16) -> Self {
        Self {
            status,
            headers: Keys::new(),
            body: String::new(),
        }
    }

    /// The response of the `error_page` that holds for a status.
    ///
    /// # Errors
    /// The `error_page`, if Weir has no words for its response.
    pub(super) fn of_status<'d>(
        scopes: &Scopes<'d>,
        status: u16,
        configuration: &mut Configuration,
    ) -> Result<Self, &'d Directive> {
        let code = status.to_string();
        let pages = scopes.all(&["error_page"]);
        // The target may be called as a status.
        let mut pages = pages
            .into_iter()
            .filter(|it| it.arguments.iter().rev().skip(1).any(|it| *it == code));
        let Some(page) = pages.next() else {
            return Ok(Self::plain(status));
        };
        let denial = Self::of_page(scopes, page, status, configuration).ok_or(page)?;
        let is_own = |it: &String| *it == code || it.starts_with('=');
        let target = page.arguments.len().saturating_sub(1);
        // It may be for the errors of upstreams as well, which go untranslated.
        if page.arguments.iter().take(target).all(is_own) {
            page.is_reached.set(true);
        }
        Ok(denial)
    }

    fn of_page(
        scopes: &Scopes<'_>,
        page: &Directive,
        status: u16,
        configuration: &mut Configuration,
    ) -> Option<Self> {
        let (target, others) = page.arguments.split_last()?;
        let change = others.last().and_then(|it| it.strip_prefix('='));
        let changed: Option<u16> = change
            .filter(|it| !it.is_empty())
            .map(str::parse)
            .transpose()
            .ok()?;
        if target.contains("://") {
            let status = changed.filter(|it| matches!(it, 301 | 302 | 303 | 307 | 308));
            return Self::redirect(scopes, status.unwrap_or(302), target, configuration);
        }
        let location = scopes
            .0
            .get(1)
            .and_then(|server| location(server, target))?;
        let server = scopes.0.iter().take(2).copied().collect();
        let scopes = Scopes(server).within(&location.block);
        match Return::of_block(&location.block, scopes.server_name())? {
            Return::Redirect { to, status } => Self::redirect(&scopes, status, &to, configuration),
            // Without a text, the status is that of the page which nginx has for it. It has none for
            // those below 400, and closes the connection at 444.
            Return::Response { status, body } if body.is_empty() => {
                let has_page = status >= 400 && status != CLOSE;
                has_page.then(|| Self {
                    headers: added_headers(&scopes, status, configuration),
                    ..Self::plain(status)
                })
            }
            Return::Response { status: own, body } => {
                let kept = if change.is_some() { own } else { status };
                let status = changed.unwrap_or(kept);
                // A location by its name leaves the path of the request.
                let path = Some(target.as_str()).filter(|path| !path.starts_with('@'));
                Some(Self {
                    status,
                    headers: headers_of_text(&scopes, (status, path), location, configuration),
                    body,
                })
            }
            Return::Unknown => None,
        }
    }

    fn redirect(
        scopes: &Scopes<'_>,
        status: u16,
        to: &str,
        configuration: &mut Configuration,
    ) -> Option<Self> {
        if to.contains(['$', '{']) {
            return None;
        }
        let mut headers = added_headers(scopes, status, configuration);
        headers.insert("location".to_owned(), json!(to));
        Some(Self {
            headers,
            ..Self::plain(status)
        })
    }

    /// The value of `reject`; none for what Weir does without being told.
    pub(super) fn reject(self) -> Option<Value> {
        if self == Self::plain(429) {
            return None;
        }
        let mut keys = Keys::from_iter([("status".to_owned(), json!(self.status))]);
        if !self.headers.is_empty() {
            keys.insert("headers".to_owned(), json!(self.headers));
        }
        if !self.body.is_empty() {
            keys.insert("body".to_owned(), json!(self.body));
        }
        Some(json!({"reject": keys}))
    }
}

/// The location of a target, if it is surely that one.
fn location<'d>(server: &'d [Directive], target: &str) -> Option<&'d Directive> {
    let mut locations = named(server, "location");
    locations.find(|it| match &it.arguments[..] {
        [name] => name == target && name.starts_with('@') || *name == format!("={target}"),
        [modifier, path] => modifier == "=" && path == target,
        _ => false,
    })
}
