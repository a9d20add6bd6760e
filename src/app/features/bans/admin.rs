//! Bans: those of all, page by page; and that of one subject or network, found, shown, set and
//! lifted.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use ipnet::IpNet;
use serde::Deserialize;
use smallvec::smallvec;
use thiserror::Error;
use tokio::time::Instant;
use tracing::info;
use weir_config::{Settings, Until};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{Batch, BucketKey, Decision, Mode, Transaction};
use weir_middleware::{BanCause, BegunBan};
use weir_rules::{Ban, Banned, BannedError};
use weir_server::RequestBody;
use weir_store::{Outcome, Owed, SharedEntry, StoreError};
use weir_telemetry::audit::AUDIT_TARGET;
use weir_yaml::{HumanDuration, suggest};

use super::responses::{self, BanPage, ListedBan};
use super::{BegunEntry, ListedCause, MAX_SHORT_BANS, SharedBans, StandingBan};
use crate::app::admin_api::Api;
use crate::app::admin_api::authorization::Operator;
use crate::app::admin_api::endpoint::{Call, Endpoint, Reply, json_response};
use crate::app::admin_api::error::{ApiError, ResponseError};
use crate::app::admin_api::findings::LookUp;
use crate::app::admin_api::request::{Cursor, Page, parse_body, read_body};
use crate::app::admin_api::responses::{DateTime, finite_seconds, seconds};
use crate::app::shared_list::{ListEntry, ListError, millis, moment};
use crate::app::stores::AdminStores;

pub(super) const ENDPOINTS: &[Endpoint] = &[
    Endpoint::new("/v1/bans", "GET, HEAD", |api, call| {
        Box::pin(show_all(api, call))
    }),
    Endpoint::new(
        "/v1/bans/{ban}/{subject}",
        "GET, HEAD, PUT, DELETE",
        |api, call| Box::pin(show(api, call)),
    ),
];

/// An example of the body that sets a ban.
const FORM: &str = "{\"for\": \"1h\"}, {\"for\": \"forever\"} or {\"until\": \"2026-12-31\"}";

/// The length of a ban that does not end.
const FOREVER: &str = "forever";

/// In characters.
const MAX_COMMENT: usize = 200;

/// Upper bound on the difference between the end of a ban and its end in a list.
const SAME_END_MILLIS: u64 = 1000;

/// For the search of a page of bans.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(1);

/// Bans that are read from the store in one call.
const BATCH_SIZE: usize = 32;

/// The node of cursors among bans that have begun, which follow the standing ones.
const BEGUN: &str = "begun";

/// Why a ban is not shown or not changed.
#[derive(Debug, Error)]
enum BanError {
    /// `help` names a similar ban that may be meant.
    #[error("There is no ban \"{name}\"; {}", help.as_deref().unwrap_or(NO_BANS))]
    NoSuchBan { name: String, help: Option<String> },
    /// The subject has no ban of its own any more, and is in a network that is banned.
    #[error(
        "{subject} is still banned, as it is in {network}: to let all of that in, lift the ban of \
         {network} (`weir ban lift {ban} {network}`)"
    )]
    StillBanned {
        ban: String,
        subject: String,
        network: String,
    },
}

const NO_BANS: &str = "gateway.yaml has none, and a ban by hand needs one for its name and treatment: \
    `bans: {abusers: {per: address, for: 1h}}`";

impl ResponseError for BanError {
    fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchBan { .. } => StatusCode::NOT_FOUND,
            Self::StillBanned { .. } => StatusCode::CONFLICT,
        }
    }
}

/// The ban has neither such a subject nor such a network.
impl ResponseError for BannedError {
    fn status(&self) -> StatusCode {
        StatusCode::BAD_REQUEST
    }
}

/// Standing bans cannot be read or changed. They are in the store, as the buckets of bans are.
fn of_standing(cause: ListError) -> ApiError {
    match cause {
        ListError::Store(cause) => ApiError::Store(cause),
        cause => ApiError::List(cause),
    }
}

async fn show_all(api: &Api, call: Call<'_>) -> Reply {
    let snapshot = api.snapshot();
    let page = Page::parse(call.query())?;
    let by = BanStores::new(api, call.now).await?;
    json_response(&list(&snapshot.settings, &page, by).await?)
}

/// Shows a ban, after it is set by `PUT`, or lifted by `DELETE`.
async fn show(api: &Api, call: Call<'_>) -> Reply {
    let snapshot = api.snapshot();
    let (ban, subject) = (call.parameter(0), call.parameter(1));
    let target = BanTarget::find(&snapshot.settings, ban, subject)?;
    let act = target.act(&call.head.method, call.body, call.now).await?;
    let by = BanStores::new(api, call.now).await?;
    target.change(by, &act, call.operator).await?;
    json_response(&target.response(by).await?)
}

/// A subject of a ban in force, or a network.
pub(super) struct BanTarget<'s> {
    ban: &'s Ban,
    id: String,
    banned: Banned,
}

enum BanAction {
    Show,
    Lift,
    Set(BanDuration),
}

struct BanDuration {
    /// `None` is for good.
    length: Option<Duration>,
    comment: Option<String>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(in crate::app) struct Setting {
    /// A duration such as `2h`, or `forever`.
    #[serde(rename = "for")]
    length: Option<String>,
    /// A day, to its end in UTC, or a moment; in place of `for`.
    until: Option<String>,
    #[cfg_attr(test, schemars(length(max = MAX_COMMENT)))]
    comment: Option<String>,
}

#[derive(Clone, Copy)]
pub(super) struct BanStores<'s> {
    stores: &'s AdminStores,
    shared: &'s SharedBans,
    pub(super) now: Timestamp,
}

impl<'s> BanStores<'s> {
    async fn new(api: &'s Api, now: Timestamp) -> Result<Self, ApiError> {
        Ok(Self {
            stores: api.admin_stores().await?,
            shared: api.shared().bans(),
            now,
        })
    }

    pub(super) const fn of_look_up(by: LookUp<'s>) -> Self {
        Self {
            stores: by.stores,
            shared: by.shared.bans(),
            now: by.now,
        }
    }

    /// The standing bans of all gateways.
    pub(super) async fn standing(&self) -> Result<Vec<Arc<StandingBan>>, ApiError> {
        let standing = self.shared.standing().await;
        standing.map_err(of_standing)
    }

    /// The standing bans that are in force here, whatever became of the store.
    pub(super) fn known_standing(&self) -> Vec<Arc<StandingBan>> {
        self.shared.standing.holding(self.now)
    }
}

impl<'s> BanTarget<'s> {
    /// The subject or network with this id of the ban with this name.
    pub(super) fn find(settings: &'s Settings, name: &str, id: &str) -> Result<Self, ApiError> {
        let Some(ban) = ban_named(settings, name) else {
            let bans = settings.access.bans.iter();
            let refusal = BanError::NoSuchBan {
                name: name.to_owned(),
                help: suggest(name, bans.map(|policy| &**policy.ban.name())),
            };
            return Err(refusal.into());
        };
        Ok(Self {
            ban,
            id: id.to_owned(),
            banned: ban.banned(id)?,
        })
    }

    async fn act(
        &self,
        method: &Method,
        body: RequestBody,
        now: Timestamp,
    ) -> Result<BanAction, ApiError> {
        match *method {
            Method::DELETE => Ok(BanAction::Lift),
            Method::PUT => self
                .duration(&read_body(body, FORM).await?, now)
                .map(BanAction::Set),
            _ => Ok(BanAction::Show),
        }
    }

    /// The duration that the body asks for, or that of a first ban if it is empty.
    fn duration(&self, body: &[u8], now: Timestamp) -> Result<BanDuration, ApiError> {
        let first = Some(self.ban.schedule().first());
        if body.is_empty() {
            let comment = None;
            return Ok(BanDuration {
                length: first,
                comment,
            });
        }
        let setting: Setting = parse_body(body, FORM)?;
        let refused = |cause: String| ApiError::Body { form: FORM, cause };
        let length = match (setting.length.as_deref(), setting.until.as_deref()) {
            (Some(_), Some(_)) => {
                return Err(refused("`for` and `until` are both there".to_owned()));
            }
            (None, None) => first,
            (Some(FOREVER), None) => None,
            (Some(length), None) => {
                let length = length.parse().map(|HumanDuration(length)| length);
                Some(length.map_err(|cause| refused(cause.to_string()))?)
            }
            (None, Some(until)) => {
                let until = until.parse().map(|Until(until)| until);
                let until = until.map_err(|cause| refused(cause.to_string()))?;
                Some(until.since(now).into())
            }
        };
        if length.is_some_and(|length| length.is_zero()) {
            return Err(refused("the ban would be over already".to_owned()));
        }
        let comment = setting.comment.as_ref();
        if comment.is_some_and(|comment| comment.chars().count() > MAX_COMMENT) {
            let cause = format!("the comment has more than {MAX_COMMENT} characters");
            return Err(refused(cause));
        }
        let comment = setting.comment;
        Ok(BanDuration { length, comment })
    }

    async fn change(
        &self,
        by: BanStores<'_>,
        act: &BanAction,
        operator: &Operator,
    ) -> Result<(), ApiError> {
        match act {
            BanAction::Show => Ok(()),
            BanAction::Lift => self.lift(by, operator).await,
            BanAction::Set(duration) => self.set(by, duration, operator).await,
        }
    }

    async fn lift(&self, by: BanStores<'_>, operator: &Operator) -> Result<(), ApiError> {
        let was_standing = self.lift_standing(by).await?;
        let mut was_banned = was_standing;
        if let Some(subject) = self.subject() {
            let peek: Batch = self.ban.peek(&subject);
            // What cannot be known may have been there.
            was_banned |= match by.stores.read.decide(&peek, by.now).await {
                Ok(known) => (known.decisions.iter().flatten()).any(|it| !it.reset_in.is_zero()),
                Err(_) => true,
            };
            let lifted = by.stores.change.reset(self.ban.keys(&subject)).await;
            lifted.map_err(|cause| match was_standing {
                true => ApiError::Partly(cause),
                false => ApiError::Store(cause),
            })?;
            let refused = by.shared.known().refused_peers();
            refused.lift(self.ban.name(), &subject);
        }
        let standing = by.known_standing();
        let outer = self.longest_standing(&standing);
        if was_banned || outer.is_none() {
            log_lifted(operator, self.ban, &self.as_listed());
        }
        match outer {
            None => Ok(()),
            Some(outer) => {
                let refusal = BanError::StillBanned {
                    ban: self.ban.name().to_string(),
                    subject: self.id.clone(),
                    network: outer.of.clone(),
                };
                Err(refusal.into())
            }
        }
    }

    async fn set(
        &self,
        by: BanStores<'_>,
        duration: &BanDuration,
        operator: &Operator,
    ) -> Result<(), ApiError> {
        let longest = self.ban.schedule().longest();
        let fits = duration.length.filter(|length| *length <= longest);
        let short = self.subject().zip(fits);
        let kept = match short.is_some() && self.finds_last_places(by) {
            true => Err(ApiError::List(ListError::Full(StandingBan::full()))),
            false => self.keep(by, duration, operator).await,
        };
        match (short, kept) {
            // A bucket alone holds as well, as long as the store keeps it.
            (Some((subject, length)), Err(error)) if has_no_room(&error) => {
                self.begin_listed(by, &subject, length, duration, operator)
                    .await?;
            }
            (_, Err(error)) => return Err(error),
            // By its bucket, other gateways know of it with the next request.
            (Some((subject, length)), Ok(())) => {
                let begun = self.begin(by, &subject, length).await;
                begun.map_err(ApiError::after_a_part)?;
            }
            (None, Ok(())) => {}
        }
        let subject = self.as_listed();
        log_set(operator, self.ban, &subject, duration.length);
        Ok(())
    }

    /// Whether those places alone are left which are for bans that cannot be without one.
    fn finds_last_places(&self, by: BanStores<'_>) -> bool {
        let standing = by.known_standing();
        let has_place = || standing.iter().any(|ban| ban.key() == self.standing_key());
        standing.len() >= MAX_SHORT_BANS && !has_place()
    }

    /// Adds it to the standing bans, of which each gateway has a copy.
    async fn keep(
        &self,
        by: BanStores<'_>,
        duration: &BanDuration,
        operator: &Operator,
    ) -> Result<(), ApiError> {
        let end = |length: Duration| millis(by.now + Nanos::from(length));
        let (ban, of, is_network) = self.standing_key();
        let standing = StandingBan {
            ban,
            of,
            is_network,
            since: millis(by.now),
            until: duration.length.map(end),
            by: operator.name().to_owned(),
            comment: duration.comment.clone(),
        };
        let set = by.shared.standing_changes.set(standing).await;
        set.map(drop).map_err(of_standing)
    }

    async fn begin(
        &self,
        by: BanStores<'_>,
        subject: &BucketKey,
        length: Duration,
    ) -> Result<(), ApiError> {
        bring_to(self.ban, subject, length, by.stores, by.now).await?;
        // So that this process knows of the ban at once, as if it had begun it itself. Without an
        // answer it learns of it with the subject's next request.
        let check = self.ban.check(subject);
        let _ = by.stores.change.decide(&smallvec![check], by.now).await;
        Ok(())
    }

    /// Begins a ban that is not kept as a standing ban, and lists it among those that have begun.
    async fn begin_listed(
        &self,
        by: BanStores<'_>,
        subject: &BucketKey,
        length: Duration,
        duration: &BanDuration,
        operator: &Operator,
    ) -> Result<(), ApiError> {
        let now = by.now;
        self.begin(by, subject, length).await?;
        by.shared.known().begun(BegunBan {
            ban: self.ban.name().clone(),
            subject: subject.as_str().to_owned(),
            since: now,
            until: now + Nanos::from(length),
            cause: BanCause::Operator {
                name: operator.name().into(),
                comment: duration.comment.as_deref().map(Into::into),
            },
        });
        Ok(())
    }

    fn standing_key(&self) -> <StandingBan as ListEntry>::Key {
        let is_network = matches!(self.banned, Banned::Network(_));
        (self.ban.name().to_string(), self.as_listed(), is_network)
    }

    /// Lifts the standing ban. Returns whether there was one.
    async fn lift_standing(&self, by: BanStores<'_>) -> Result<bool, ApiError> {
        let lifted = by.shared.standing_changes.delete(self.standing_key());
        let lifted = lifted.await.map_err(of_standing)?;
        Ok(lifted.is_some())
    }

    /// The subject's key, unless it is a network.
    fn subject(&self) -> Option<BucketKey> {
        match &self.banned {
            Banned::Subject(subject) => Some(subject.as_str().into()),
            Banned::Network(_) => None,
        }
    }

    /// The target, with possible secrets hashed.
    fn as_listed(&self) -> String {
        match &self.banned {
            Banned::Subject(subject) => subject.clone(),
            Banned::Network(network) => network.to_string(),
        }
    }

    async fn response(&self, by: BanStores<'_>) -> Result<responses::Ban, ApiError> {
        let standing = match by.standing().await {
            Err(error) if error.is_out_of_reach() => by.known_standing(),
            standing => standing?,
        };
        let standing = self.longest_standing(&standing);
        let standing_left = standing.map(|ban| left_of(ban, by.now));
        let standing = standing.map(|ban| responses::StandingBan {
            subject: self.shown(&ban.of, ban.is_network),
            since: date_time(ban.since),
            until: ban.until.map(date_time),
            by: ban.by.clone(),
            comment: ban.comment.clone(),
        });
        let response = responses::Ban {
            ban: self.ban.name().to_string(),
            subject: self.id.clone(),
            key: None,
            banned: standing.is_some(),
            ends_in: standing_left.map_or(Some(0.0), finite_seconds),
            strikes: None,
            offences: None,
            standing,
            warning: None,
        };
        let Some(subject) = self.subject() else {
            return Ok(response);
        };
        let peek: Batch = self.ban.peek(&subject);
        let decisions = match by.stores.read.decide(&peek, by.now).await {
            // That much is known, and holds.
            Err(error) if error.is_out_of_reach() && response.banned => {
                return Ok(responses::Ban {
                    warning: Some(WITHOUT_STORE.to_owned()),
                    ..response
                });
            }
            outcome => outcome?.decisions,
        };
        let mut decisions = decisions.into_iter();
        let mut next = || decisions.next().flatten();
        // Without a fallback, a store decides or fails.
        let refused = || ApiError::Store(StoreError::OutOfReach);
        let (held, strikes) = (next().ok_or_else(refused)?, next().ok_or_else(refused)?);
        let offences = next();
        let left = standing_left.unwrap_or(Nanos::ZERO).max(held.reset_in);
        let lengths = self.ban.schedule().lengths().len() as u64;
        let warning = self.ban.id_warning(&self.id);
        Ok(responses::Ban {
            key: Some(self.ban.ban_key(&subject).as_str().to_owned()),
            banned: !left.is_zero(),
            ends_in: finite_seconds(left),
            strikes: Some(taken(self.ban.strikes().burst().get(), &strikes)),
            offences: Some(offences.map(|decision| taken(lengths, &decision))),
            warning: warning.map(|warning| warning.to_string()),
            ..response
        })
    }

    /// Whether a standing ban holds for it: for itself, or for a network that it is in.
    fn is_banned_by(&self, standing: &StandingBan) -> bool {
        let is_in = || {
            let outer: Option<IpNet> = standing.of.parse().ok();
            let network = self.as_listed().parse::<IpNet>();
            let address = || self.as_listed().parse::<IpAddr>().map(IpNet::from).ok();
            let inner = network.ok().or_else(address);
            outer
                .zip(inner)
                .is_some_and(|(outer, inner)| outer.contains(&inner))
        };
        standing.key() == self.standing_key()
            || standing.is_network && standing.ban == **self.ban.name() && is_in()
    }

    /// Of these standing bans, the one that holds longest for the target.
    pub(super) fn longest_standing<'b>(
        &self,
        standing: &'b [Arc<StandingBan>],
    ) -> Option<&'b Arc<StandingBan>> {
        let of_target = standing.iter().filter(|ban| self.is_banned_by(ban));
        of_target.max_by_key(|ban| ban.until.unwrap_or(u64::MAX))
    }

    /// The rest of these standing bans for the target; zero if none holds.
    fn standing_left(&self, standing: &[Arc<StandingBan>], now: Timestamp) -> Nanos {
        let longest = self.longest_standing(standing);
        longest.map_or(Nanos::ZERO, |ban| left_of(ban, now))
    }

    fn shown(&self, of: &str, is_network: bool) -> String {
        match is_network {
            true => of.to_owned(),
            false => self.ban.id_of(of),
        }
    }
}

/// Whether the list of standing bans takes no more, or is not for the user of Redis.
fn has_no_room(error: &ApiError) -> bool {
    match error {
        ApiError::List(ListError::Full(_)) => true,
        ApiError::Store(cause) => cause.is_forbidden(),
        _ => false,
    }
}

/// Makes a subject's ban this long from now on. One call changes it, so that it is what it was, or
/// what it is to be, whatever becomes of the store.
async fn bring_to(
    ban: &Ban,
    subject: &BucketKey,
    length: Duration,
    stores: &AdminStores,
    now: Timestamp,
) -> Result<(), StoreError> {
    let outcome = stores
        .read
        .decide(&smallvec![ban.left(subject)], now)
        .await?;
    let left = outcome.decisions.first().copied().flatten();
    let left = Duration::from(left.ok_or(StoreError::OutOfReach)?.reset_in);
    if length >= left {
        let begin = ban.begin(subject, length - left);
        stores.change.decide(&smallvec![begin], now).await.map(drop)
    } else {
        let shortening = ban.shortening(subject, left - length);
        let shortening = smallvec![Owed::whole(shortening)];
        stores.change.refund(shortening, now).await
    }
}

/// The rest of each ban; zero for those that do not hold.
pub(super) async fn time_left(
    targets: &[BanTarget<'_>],
    by: BanStores<'_>,
) -> Result<Vec<Nanos>, ApiError> {
    let standing = by.standing().await?;
    let standing_left = |target: &BanTarget<'_>| target.standing_left(&standing, by.now);
    let mut all_left: Vec<Nanos> = targets.iter().map(standing_left).collect();
    let subjects = targets.iter().enumerate();
    let subjects =
        subjects.filter_map(|(index, target)| Some((index, target.ban, target.subject()?)));
    let subjects: Vec<_> = subjects.collect();
    for some in subjects.chunks(BATCH_SIZE) {
        let looks = some.iter().map(|(_, ban, subject)| Transaction {
            mode: Mode::Peek,
            ..ban.check(subject)
        });
        let looks: Batch = looks.collect();
        let Outcome { decisions, .. } = by.stores.read.decide(&looks, by.now).await?;
        for ((index, ..), decision) in some.iter().zip(decisions) {
            if let Some((left, decision)) = all_left.get_mut(*index).zip(decision) {
                *left = decision.reset_in.max(*left);
            }
        }
    }
    Ok(all_left)
}

pub(super) fn left_of(standing: &StandingBan, now: Timestamp) -> Nanos {
    let end = standing.until.map(moment);
    end.map_or(Nanos::NEVER, |end| end.since(now))
}

/// What is shown is not all while the store is out of reach.
const WITHOUT_STORE: &str = "the store is out of reach: the standing bans that this gateway knows \
    hold meanwhile; other bans are not shown, and those by strikes from before hold only where \
    connections are refused already";

fn ban_named<'s>(settings: &'s Settings, name: &str) -> Option<&'s Ban> {
    let mut bans = settings.access.bans.iter().map(|policy| &*policy.ban);
    bans.find(|ban| **ban.name() == *name)
}

async fn list(settings: &Settings, page: &Page, by: BanStores<'_>) -> Result<BanPage, ApiError> {
    let cursor = page.cursor.clone().unwrap_or_default();
    let mut bans = Vec::new();
    if cursor.node != BEGUN {
        let (standing, warning) = match by.standing().await {
            Err(error) if error.is_out_of_reach() => (by.known_standing(), Some(WITHOUT_STORE)),
            standing => (standing?, None),
        };
        let behind = standing.iter().filter(|ban| position(ban) > cursor.after);
        let mut behind = behind.peekable();
        for ban in behind.by_ref().take(page.count) {
            bans.push(describe_standing(settings, ban, by.now));
        }
        if bans.len() == page.count && behind.peek().is_some() {
            let last = standing.iter().filter(|ban| position(ban) > cursor.after);
            let last = last.take(page.count).last();
            let next = last.map(|last| Cursor {
                after: position(last),
                ..Cursor::default()
            });
            return Ok(BanPage {
                warning,
                ..ban_page(bans, next)
            });
        }
        if warning.is_some() {
            return Ok(BanPage {
                warning,
                ..ban_page(bans, None)
            });
        }
    }
    let from = match cursor.node.as_str() {
        BEGUN => cursor,
        _ => Cursor {
            node: BEGUN.to_owned(),
            ..Cursor::default()
        },
    };
    let next = list_begun(settings, &mut bans, from, page.count, by).await?;
    Ok(ban_page(bans, next))
}

/// Adds bans that have begun, until there are `count`, and returns where the next page begins.
async fn list_begun(
    settings: &Settings,
    bans: &mut Vec<ListedBan>,
    mut from: Cursor,
    count: usize,
    by: BanStores<'_>,
) -> Result<Option<Cursor>, ApiError> {
    let began = Instant::now();
    loop {
        // One more than has room says whether there is a next page.
        let room = count - bans.len();
        let most = (room + 1).min(BATCH_SIZE);
        let behind = (from.position, from.after.as_str());
        let (found, is_last) = by.shared.begun(behind, most).await?;
        let last = found.last().cloned();
        let (holding, stale) = check(settings, found, by).await?;
        by.shared.forget(stale).await?;
        for checked in holding {
            if bans.len() == count {
                return Ok(Some(from));
            }
            from.position = checked.entry.until;
            from.after = checked.entry.text;
            bans.extend(checked.described);
        }
        if is_last {
            return Ok(None);
        }
        if let Some(last) = last {
            from.position = last.until;
            from.after = last.text;
        }
        if began.elapsed() > SEARCH_TIMEOUT {
            return Ok(Some(from));
        }
    }
}

/// An entry, described if its ban holds and is of this configuration.
struct Checked {
    entry: SharedEntry,
    described: Option<ListedBan>,
}

/// Which entries are of bans that hold, in their order, and the texts of those that are not.
async fn check(
    settings: &Settings,
    entries: Vec<SharedEntry>,
    by: BanStores<'_>,
) -> Result<(Vec<Checked>, Vec<String>), ApiError> {
    let parsed = |entry: &SharedEntry| -> Option<BegunEntry> {
        let begun: BegunEntry = serde_json::from_str(&entry.text).ok()?;
        ban_named(settings, &begun.ban).is_some().then_some(begun)
    };
    let both: Vec<_> = entries
        .into_iter()
        .map(|entry| (parsed(&entry), entry))
        .collect();
    let looks = both.iter().filter_map(|(begun, _)| {
        let begun = begun.as_ref()?;
        let look = ban_named(settings, &begun.ban)?.check(&begun.subject.as_str().into());
        let mode = Mode::Peek;
        Some(Transaction { mode, ..look })
    });
    let looks: Batch = looks.collect();
    let mut decisions = match looks.is_empty() {
        true => Vec::new().into_iter(),
        false => {
            let outcome = by.stores.read.decide(&looks, by.now).await?;
            let decisions: Option<Vec<Decision>> = outcome.decisions.into_iter().collect();
            let decisions = decisions.ok_or(ApiError::Store(StoreError::OutOfReach))?;
            decisions.into_iter()
        }
    };
    let (mut checked, mut stale) = (Vec::new(), Vec::new());
    for (begun, entry) in both {
        let decision = begun.as_ref().and_then(|_| decisions.next());
        let Some((begun, decision)) = begun.zip(decision) else {
            checked.push(Checked {
                entry,
                described: None,
            });
            continue;
        };
        let end = millis(by.now + decision.reset_in);
        if decision.reset_in.is_zero() || end.abs_diff(entry.until) > SAME_END_MILLIS {
            stale.push(entry.text);
            continue;
        }
        let described = describe_begun(settings, begun, end, decision.reset_in);
        checked.push(Checked {
            entry,
            described: Some(described),
        });
    }
    Ok((checked, stale))
}

fn ban_page(bans: Vec<ListedBan>, next: Option<Cursor>) -> BanPage {
    let next = next.map(|next| next.to_string());
    BanPage {
        bans,
        next,
        warning: None,
    }
}

/// The position of a standing ban among the others.
fn position(ban: &StandingBan) -> String {
    format!("{}\0{}", ban.ban, ban.of)
}

fn describe_standing(settings: &Settings, standing: &StandingBan, now: Timestamp) -> ListedBan {
    let ban = ban_named(settings, &standing.ban).filter(|_| !standing.is_network);
    ListedBan {
        ban: standing.ban.clone(),
        subject: ban.map_or_else(|| standing.of.clone(), |ban| ban.id_of(&standing.of)),
        since: date_time(standing.since),
        until: standing.until.map(date_time),
        ends_in: standing
            .until
            .map(|until| seconds(moment(until).since(now))),
        why: ListedCause::Operator {
            name: standing.by.clone(),
            comment: standing.comment.clone(),
        },
    }
}

fn describe_begun(settings: &Settings, begun: BegunEntry, until: u64, left: Nanos) -> ListedBan {
    let id = ban_named(settings, &begun.ban).map(|ban| ban.id_of(&begun.subject));
    ListedBan {
        ban: begun.ban,
        subject: id.unwrap_or(begun.subject),
        since: date_time(begun.since),
        until: Some(date_time(until)),
        ends_in: Some(seconds(left)),
        why: begun.why,
    }
}

fn date_time(millis: u64) -> DateTime {
    DateTime(moment(millis))
}

fn taken(burst: u64, decision: &Decision) -> u64 {
    burst.saturating_sub(decision.remaining)
}

/// An operator banned a subject, for good if there is no `length`.
fn log_set(operator: &Operator, ban: &Ban, subject: &str, length: Option<Duration>) {
    let (by, ban) = (operator.name(), &**ban.name());
    let duration_s = length.map(|length| length.as_secs_f64());
    info!(target: AUDIT_TARGET, by, ban, subject, duration_s, "ban set");
}

/// An operator lifted a ban.
fn log_lifted(operator: &Operator, ban: &Ban, subject: &str) {
    let (by, ban) = (operator.name(), &**ban.name());
    info!(target: AUDIT_TARGET, by, ban, subject, "ban lifted");
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use weir_limit::{BucketKeys, Quota};
    use weir_rules::{BanSchedule, HashKey, KeySource};
    use weir_store::{Memory, MemorySettings, OwedBatch, Store, StoreFuture};

    const NOW: Timestamp = Timestamp::from_nanos(1_750_000_000_000_000_000);
    const HOUR: Duration = Duration::from_secs(3600);

    /// A store that is out of reach after so many calls.
    struct Failing {
        store: Arc<Memory>,
        calls_left: AtomicUsize,
    }

    impl Failing {
        fn call<T>(&self, call: impl FnOnce(&Memory) -> StoreFuture<T>) -> StoreFuture<T> {
            let one_less = |left: usize| left.checked_sub(1);
            let (relaxed, left) = (Ordering::Relaxed, &self.calls_left);
            match left.fetch_update(relaxed, relaxed, one_less) {
                Ok(_) => call(&self.store),
                Err(_) => StoreFuture::failed(StoreError::OutOfReach),
            }
        }
    }

    impl Store for Failing {
        fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
            self.call(|store| store.decide(batch, now))
        }

        fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
            self.call(|store| store.refund(owed, now))
        }

        fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
            self.call(|store| store.reset(keys))
        }
    }

    fn ban() -> Ban {
        let per = vec![KeySource::parse("address", 64).unwrap()];
        let strikes = Quota::new(1, 1, HOUR).unwrap();
        let schedule = BanSchedule::new(HOUR, NonZeroU32::MIN, HOUR, HOUR).unwrap();
        Ban::new("B", per, HashKey::random(), strikes, schedule).unwrap()
    }

    /// What is left of a ban that was `before`, when it is set to `length` and the store fails
    /// after so many calls; and whether it did.
    async fn left_after(before: Duration, length: Duration, calls: usize) -> (Duration, bool) {
        let (ban, subject) = (ban(), BucketKey::from("203.0.113.9"));
        let memory = Arc::new(Memory::new(MemorySettings::default()));
        let held = Transaction {
            quota: ban.left(&subject).quota,
            ..ban.shortening(&subject, before)
        };
        memory.decide(&smallvec![held], NOW).await.unwrap();
        let failing = Arc::new(Failing {
            store: Arc::clone(&memory),
            calls_left: calls.into(),
        });
        let stores = AdminStores {
            read: failing.clone(),
            change: failing,
            leases: Arc::new(memory.leases().clone()),
            scan: None,
        };
        let set = bring_to(&ban, &subject, length, &stores, NOW).await;
        let left = memory.decide(&smallvec![ban.left(&subject)], NOW).await;
        let left = left.unwrap().decisions[0].unwrap().reset_in;
        (left.into(), set.is_err())
    }

    #[tokio::test]
    async fn a_ban_that_is_set_while_the_store_fails_is_the_old_one_or_the_new_one_and_never_gone()
    {
        for (before, length) in [(HOUR, HOUR / 6), (HOUR / 6, HOUR), (24 * HOUR, HOUR / 6)] {
            for calls in 0..4 {
                let (left, failed) = left_after(before, length, calls).await;
                let expected = if failed { before } else { length };
                assert_eq!(left, expected, "{before:?} {length:?} {calls}");
                assert_eq!(failed, calls < 2);
            }
        }
    }
}
