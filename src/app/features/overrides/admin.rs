//! Overrides: lists those of files and of the admin API, and sets and deletes the latter.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Map, Value};
use thiserror::Error;
use weir_config::{ApiOverride, Settings, Until};
use weir_console::query;
use weir_limit::time::Timestamp;
use weir_rules::{Limit, Override, OverrideOrigin};
use weir_server::RequestBody;
use weir_telemetry::audit;
use weir_yaml::HumanDuration;

use super::responses::{ListedOverride, OverridePage};
use super::{CheckedOverride, CheckedOverrides, KeptOverride};
use crate::app::admin_api::Api;
use crate::app::admin_api::authorization::Operator;
use crate::app::admin_api::bucket::limit_named;
use crate::app::admin_api::endpoint::{Call, Endpoint, Reply, json_response};
use crate::app::admin_api::error::{ApiError, ResponseError};
use crate::app::admin_api::request::{parse_body, read_body};
use crate::app::admin_api::responses::Origin;
use crate::app::shared_list::{ListChanges, ListEntry};

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint::new("/v1/overrides", "GET, HEAD", |api, call| {
        Box::pin(respond(api, call))
    }),
    Endpoint::new("/v1/overrides/{limit}", "GET, HEAD", |api, call| {
        Box::pin(respond(api, call))
    }),
    Endpoint::new(
        "/v1/overrides/{limit}/{id}",
        "GET, HEAD, PUT, DELETE",
        |api, call| Box::pin(respond(api, call)),
    ),
];

/// There is no such override by the admin API.
#[derive(Debug, Error)]
#[error(
    "the admin API has set no override of \"{limit}\" for {id:?}; `weir override list` shows \
     those that there are, and those of files are changed in their files"
)]
struct NoSuchOverride {
    limit: String,
    id: String,
}

impl ResponseError for NoSuchOverride {
    fn status(&self) -> StatusCode {
        StatusCode::NOT_FOUND
    }
}

/// An example of the body that sets an override.
const FORM: &str = "{\"burst\": 50, \"count\": 50, \"period\": \"1m\", \
                    \"comment\": \"incident 7\", \"for\": \"2h\"}";

/// The keys of that body; `for` stands for an `until`.
const KEYS: [&str; 7] = [
    "burst",
    "count",
    "period",
    "in_flight",
    "comment",
    "until",
    "for",
];

const PARAMETERS: &str = "there are origin=api or file, offset=NUMBER, and count=NUMBER";

/// Overrides that an answer lists where the request does not say.
const COUNT: usize = 1_000;

async fn respond(api: &Api, call: Call<'_>) -> Reply {
    let Call { operator, now, .. } = call;
    let query = OverridesRequest::parse(&call.head.method, call.head.uri.query(), call.parameters)?;
    let snapshot = api.snapshot();
    let changes = api.shared().override_changes();
    let changed = query.change(&snapshot.settings, call.body, operator, changes, now);
    let warnings = changed.await?;
    // What was changed is in force by now.
    let (snapshot, now) = (api.snapshot(), api.now());
    let in_force = (&snapshot.settings, &snapshot.overrides);
    match query.is_set() {
        true => json_response(&query.set(in_force, warnings, now)?),
        false => json_response(&query.page(in_force, now)?),
    }
}

/// The settings in force, and the overrides by the admin API that they are with.
type InForce<'a> = (&'a Settings, &'a CheckedOverrides);

struct OverridesRequest {
    method: Method,
    limit: Option<String>,
    id: Option<String>,
    /// None for those of files and of the admin API.
    origin: Option<Origin>,
    offset: usize,
    count: usize,
}

impl OverridesRequest {
    fn parse(method: &Method, query: Option<&str>, named: &[String]) -> Result<Self, ApiError> {
        let mut named = named.iter().cloned();
        let request = Self {
            method: method.clone(),
            limit: named.next(),
            id: named.next(),
            origin: None,
            offset: 0,
            count: COUNT,
        };
        request.with_query(query)
    }

    fn with_query(mut self, query: Option<&str>) -> Result<Self, ApiError> {
        for (pair, (name, value)) in query::parameters(query) {
            if self.is_change() {
                return Err(ApiError::Query { form: FORM });
            }
            let refused = || ApiError::parameter(pair, PARAMETERS);
            match (name, &*value) {
                ("origin", "api") => self.origin = Some(Origin::Api),
                ("origin", "file") => self.origin = Some(Origin::File),
                ("offset", number) => self.offset = number.parse().map_err(|_| refused())?,
                ("count", number) => self.count = number.parse().map_err(|_| refused())?,
                _ => return Err(refused()),
            }
        }
        Ok(self)
    }

    fn is_change(&self) -> bool {
        matches!(self.method, Method::PUT | Method::DELETE)
    }

    /// Changes an override, if that is asked for, and returns what is doubtful about it.
    async fn change(
        &self,
        settings: &Settings,
        body: RequestBody,
        operator: &Operator,
        changes: &ListChanges<KeptOverride>,
        now: Timestamp,
    ) -> Result<Vec<String>, ApiError> {
        let (Some(limit), Some(id)) = (&self.limit, &self.id) else {
            return Ok(Vec::new());
        };
        let by = operator.name();
        let logged = &settings.logged_id(limit, id);
        match self.method {
            Method::PUT => {
                limit_named(settings, limit)?;
                let wanted = KeptOverride {
                    written: Arc::new(ApiOverride {
                        limit: limit.clone(),
                        id: id.clone(),
                        parameters: parameters(&read_body(body, FORM).await?, now)?,
                    }),
                    set_by: by.to_owned(),
                    // To the millisecond, so that no two overrides are one text.
                    set_at: format!("{:.3}", Until(now)),
                };
                let parameters = Value::Object(wanted.written.parameters.clone());
                let parameters = parameters.to_string();
                let warnings = changes.set(wanted).await?;
                audit::override_set(by, limit, logged, &parameters);
                Ok(warnings)
            }
            Method::DELETE => {
                let deleted = changes.delete((limit.clone(), id.clone())).await?;
                deleted.ok_or_else(|| not_set(limit, id))?;
                audit::override_deleted(by, limit, logged);
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        }
    }

    fn is_set(&self) -> bool {
        self.method == Method::PUT
    }

    /// The override that was set; none if it was deleted meanwhile.
    fn set(
        &self,
        in_force: InForce<'_>,
        warnings: Vec<String>,
        now: Timestamp,
    ) -> Result<Option<ListedOverride>, ApiError> {
        let mut listed = self.listed(in_force, now)?.into_iter();
        let set = listed.find(|listed| listed.origin == Origin::Api);
        Ok(set.map(|set| ListedOverride { warnings, ..set }))
    }

    fn page(&self, in_force: InForce<'_>, now: Timestamp) -> Result<OverridePage, ApiError> {
        let mut listed = self.listed(in_force, now)?;
        let is_asked = self.method != Method::DELETE && listed.is_empty();
        if let (true, Some(limit), Some(id)) = (is_asked, &self.limit, &self.id) {
            return Err(not_set(limit, id));
        }
        listed.sort_by(|one, other| {
            let rank = |of: &ListedOverride| (of.limit.clone(), of.id.clone(), of.origin);
            rank(one).cmp(&rank(other))
        });
        let total = listed.len();
        let page = listed.into_iter().skip(self.offset).take(self.count);
        Ok(OverridePage {
            total,
            overrides: page.collect(),
        })
    }

    fn listed(
        &self,
        (settings, overrides): InForce<'_>,
        now: Timestamp,
    ) -> Result<Vec<ListedOverride>, ApiError> {
        let by_api = || overrides.0.iter();
        // An override of a limit that is gone can be deleted.
        if let Some(name) = self
            .limit
            .as_ref()
            .filter(|_| self.method != Method::DELETE)
            && !by_api().any(|checked| checked.kept.written.limit == *name)
        {
            limit_named(settings, name)?;
        }
        let is_of = |limit: &str, id: &str| {
            let (own_limit, own_id) = (self.limit.as_deref(), self.id.as_deref());
            own_limit.is_none_or(|own| own == limit) && own_id.is_none_or(|own| own == id)
        };
        let by_api = by_api().filter(|checked| {
            let written = &checked.kept.written;
            is_of(&written.limit, &written.id)
        });
        let by_api = by_api.map(|checked| by_api_listed(checked, now));
        let limits = settings.limits().into_iter();
        let by_files = limits.flat_map(|limit| {
            let all = limit.overrides_at(now);
            let of_files = all.filter(|(known, _)| {
                known.origin == OverrideOrigin::Configuration && is_of(limit.name(), &known.id)
            });
            of_files.map(|(known, in_force)| by_file_listed(settings, limit, known, in_force, now))
        });
        let wanted = |listed: &ListedOverride| self.origin.is_none_or(|own| own == listed.origin);
        Ok(by_api.chain(by_files).filter(wanted).collect())
    }
}

fn not_set(limit: &str, id: &str) -> ApiError {
    let (limit, id) = (limit.to_owned(), id.to_owned());
    NoSuchOverride { limit, id }.into()
}

/// The members of a body, with `for` replaced by the time that it leads to.
fn parameters(body: &[u8], now: Timestamp) -> Result<Map<String, Value>, ApiError> {
    let refused = |cause: String| ApiError::Body { form: FORM, cause };
    let mut members: Map<String, Value> = parse_body(body, FORM)?;
    members.retain(|_, value| !value.is_null());
    if let Some(unknown) = members.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let keys = KEYS.join(", ");
        return Err(refused(format!(
            "{unknown:?} is not a key; there are {keys}"
        )));
    }
    let Some(length) = members.remove("for") else {
        return Ok(members);
    };
    if members.contains_key("until") {
        return Err(refused("`for` and `until` do not go together".to_owned()));
    }
    let length = length.as_str().unwrap_or_default().parse();
    let HumanDuration(length) =
        length.map_err(|cause: weir_yaml::HumanDurationError| refused(format!("for: {cause}")))?;
    if length < Duration::from_secs(1) {
        return Err(refused("for: the duration must be at least 1s".to_owned()));
    }
    let until = format!("{:.3}", Until(now + length.into()));
    members.insert("until".to_owned(), until.into());
    Ok(members)
}

fn by_api_listed(checked: &CheckedOverride, now: Timestamp) -> ListedOverride {
    let CheckedOverride { kept, check } = checked;
    let mut parameters = kept.written.parameters.clone();
    if let Some(until) = kept.until() {
        let until = format!("{:.3}", Until(until));
        parameters.insert("until".to_owned(), until.into());
    }
    let reason = match check {
        Err(reasons) => Some(reasons.join("; ")),
        Ok(_) => kept.has_ended(now).then(|| ENDED.to_owned()),
    };
    ListedOverride {
        limit: kept.written.limit.clone(),
        id: kept.written.id.clone(),
        origin: Origin::Api,
        parameters,
        set_by: Some(kept.set_by.clone()),
        set_at: Some(kept.set_at.clone()),
        in_force: reason.is_none(),
        reason,
        warnings: Vec::new(),
    }
}

fn by_file_listed(
    settings: &Settings,
    limit: &Limit,
    known: &Override,
    in_force: bool,
    now: Timestamp,
) -> ListedOverride {
    let quota = known.quota;
    let mut parameters = Map::new();
    let mut add = |name: &str, value: Option<Value>| {
        parameters.extend(value.map(|value| (name.to_owned(), value)));
    };
    if quota.is_in_flight() {
        add("in_flight", Some(quota.burst().get().into()));
    } else {
        let written = settings.parameters_of(limit.name(), &quota);
        let count = written.and_then(|written| written.count);
        let period = written.and_then(|written| written.period);
        add("burst", Some(quota.burst().get().into()));
        add("count", count.map(Value::from));
        add("period", period.map(|period| period.to_string().into()));
    }
    add("comment", known.comment.clone().map(Value::from));
    let until = known.until.map(|until| Until(until).to_string());
    add("until", until.map(Value::from));
    let reason = match known.holds(now) {
        true => "one by the admin API takes its place",
        false => ENDED,
    };
    ListedOverride {
        limit: limit.name().to_owned(),
        id: known.id.clone(),
        origin: Origin::File,
        parameters,
        set_by: None,
        set_at: None,
        in_force,
        reason: (!in_force).then(|| reason.to_owned()),
        warnings: Vec::new(),
    }
}

/// Why an override is not in force whose `until` is over.
const ENDED: &str = "it has ended";

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::app::admin_api::paths::Target;

    fn parsed(method: Method, path: &str) -> Result<OverridesRequest, u16> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(())
            .unwrap();
        let head = request.into_parts().0;
        let target = Target::find(head.uri.path()).map_err(|_| 404_u16)?;
        target.check(&head.method).map_err(|_| 405_u16)?;
        let query = head.uri.query();
        let parsed = OverridesRequest::parse(&head.method, query, target.parameters());
        parsed.map_err(|error| error.into_response().status().as_u16())
    }

    #[test]
    fn a_path_names_all_overrides_or_those_of_a_limit_or_one() {
        for (path, limit, id) in [
            ("/v1/overrides", None, None),
            ("/v1/overrides/L", Some("L"), None),
            ("/v1/overrides/L/acme", Some("L"), Some("acme")),
            (
                "/v1/overrides/L/10.0.0.0%2F8",
                Some("L"),
                Some("10.0.0.0/8"),
            ),
            ("/v1/overrides/L/caf%C3%A9", Some("L"), Some("caf\u{e9}")),
        ] {
            let query = parsed(Method::GET, path).unwrap();
            assert_eq!((query.limit.as_deref(), query.id.as_deref()), (limit, id));
        }
        for path in [
            "/v1/overridesx",
            "/v1/overrides/L/a/b",
            "/v1/overrides/L/%FF",
        ] {
            assert_eq!(parsed(Method::GET, path).err(), Some(404), "{path}");
        }
    }

    #[test]
    fn only_one_override_can_be_changed_and_queries_are_for_lists() {
        for (method, path, status) in [
            (Method::PUT, "/v1/overrides", 405),
            (Method::DELETE, "/v1/overrides/L", 405),
            (Method::POST, "/v1/overrides/L/a", 405),
            (Method::PUT, "/v1/overrides/L/a?burst=5", 400),
            (Method::GET, "/v1/overrides?orign=api", 400),
            (Method::GET, "/v1/overrides?count=-1", 400),
        ] {
            assert_eq!(parsed(method, path).err(), Some(status), "{path}");
        }
        let query = parsed(Method::GET, "/v1/overrides?origin=api&offset=5&count=7");
        let query = query.unwrap();
        assert_eq!((query.offset, query.count), (5, 7));
        assert_eq!(query.origin, Some(Origin::Api));
    }

    fn said(body: &str) -> Result<String, u16> {
        let now = Timestamp::from_nanos(1_700_000_000_000_000_000);
        let said = parameters(body.as_bytes(), now);
        said.map(|members| Value::Object(members).to_string())
            .map_err(|error| error.into_response().status().as_u16())
    }

    #[test]
    fn a_length_becomes_the_moment_that_it_leads_to() {
        assert_eq!(
            said("{\"burst\": 5, \"comment\": null, \"for\": \"2h\"}").unwrap(),
            "{\"burst\":5,\"until\":\"2023-11-15T00:13:20Z\"}"
        );
        for body in [
            "",
            "5",
            "[]",
            "{\"brust\": 5}",
            "{\"for\": \"2h\", \"until\": \"2200-01-01\"}",
            "{\"for\": 2}",
            "{\"for\": \"0s\"}",
            "{\"for\": \"soon\"}",
        ] {
            assert_eq!(said(body), Err(400), "{body}");
        }
    }

    /// It was rounded up to a second.
    #[test]
    fn an_override_for_two_seconds_lasts_no_longer() {
        let now = Timestamp::from_nanos(1_750_000_000_123_000_000);
        let body = b"{\"burst\": 5, \"for\": \"2s\"}";
        let until = parameters(body, now).unwrap().remove("until").unwrap();
        let Until(until) = until.as_str().unwrap().parse().unwrap();
        assert_eq!(until, Timestamp::from_nanos(1_750_000_002_123_000_000));
    }
}
