//! What the app's responses said of who may read them, on a route with `cors: mirror`.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use http::header::{ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN};
use http::{HeaderMap, HeaderValue};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

/// Upper bound on remembered origins. An app that allows every origin makes a client's inventions
/// known here; those that were seen last are kept.
const MAX_ORIGINS: usize = 64;

/// The longest origin: a scheme, the longest host, and a port.
const MAX_ORIGIN_BYTES: usize = 280;

/// What the app said once holds for so long. An app that takes an origin back is followed then.
const KEPT: Duration = Duration::from_secs(3600);

/// How old the time of an entry may be before a response that says the same renews it, so that most
/// responses only read.
const RENEWED_AFTER: Duration = Duration::from_secs(60);

/// Preflights that pass uncounted at once, and how many more each second.
const PREFLIGHT_BURST: u32 = 200;
const PREFLIGHTS_PER_SECOND: u32 = 20;

const ANY: HeaderValue = HeaderValue::from_static("*");

/// Origins that the app of a route lets read its responses. All workers share them.
pub struct MirroredOrigins {
    by_origin: RwLock<HashMap<HeaderValue, AppGrant>>,
    /// Of origins that are known.
    allowance: Mutex<Allowance>,
    /// Of all others, which a client can invent.
    strangers: Mutex<Allowance>,
}

/// What the app allows pages of an origin.
#[derive(Clone, Copy)]
struct AppGrant {
    /// When it last allowed credentials: an app may do so for some of a route's paths.
    with_credentials: Option<Instant>,
    seen: Instant,
    /// Whether it was seen again after a while, as no origin is that a client makes up for once.
    is_renewed: bool,
}

/// Uncounted preflights that are left.
struct Allowance {
    left: u32,
    since: Instant,
}

/// What a response of Weir's own tells a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) origin: HeaderValue,
    pub(super) credentials: bool,
}

/// The same for all, as it is no setting of the route.
impl fmt::Debug for MirroredOrigins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MirroredOrigins")
    }
}

impl Default for MirroredOrigins {
    fn default() -> Self {
        let allowance = || {
            Mutex::new(Allowance {
                left: PREFLIGHT_BURST,
                since: Instant::now(),
            })
        };
        Self {
            by_origin: RwLock::default(),
            allowance: allowance(),
            strangers: allowance(),
        }
    }
}

impl MirroredOrigins {
    /// Learns from a response of the app to a page of this origin, who may read it.
    pub(super) fn learn(&self, origin: &HeaderValue, headers: &HeaderMap) {
        let Some(allowed) = allowed(origin, headers) else {
            return;
        };
        let credentials = headers.get(ACCESS_CONTROL_ALLOW_CREDENTIALS);
        let credentials = allowed != ANY && credentials.is_some_and(|value| value == "true");
        let known = self.by_origin.read().get(&allowed).copied();
        if known.is_some_and(|known| known.says_already(credentials)) {
            return;
        }
        let found = AppGrant::after(known, credentials);
        let mut by_origin = self.by_origin.write();
        if by_origin.len() >= MAX_ORIGINS && !by_origin.contains_key(&allowed) {
            let weight = |grant: &AppGrant| (grant.is_recent() && grant.is_renewed, grant.seen);
            let oldest = by_origin.iter().min_by_key(|(_, grant)| weight(grant));
            if let Some(oldest) = oldest.map(|(origin, _)| origin.clone()) {
                by_origin.remove(&oldest);
            }
        }
        by_origin.insert(allowed, found);
    }

    /// What the app told pages of this origin, if it let them read a response.
    pub(super) fn grant(&self, origin: &HeaderValue) -> Option<Grant> {
        self.find(origin).map(|(origin, known)| Grant {
            origin,
            credentials: known
                .with_credentials
                .is_some_and(|last| last.elapsed() < KEPT),
        })
    }

    /// Whether a preflight of this origin passes uncounted: the app lets its pages read responses,
    /// and there were not too many.
    pub(super) fn admits_preflight(&self, origin: &HeaderValue) -> bool {
        self.find(origin).is_some() && take_from(&self.allowance)
    }

    /// Whether a preflight may lack what limits need: within the bound of origins that are known, or
    /// that of all others together.
    pub(super) fn excuses_preflight(&self, origin: &HeaderValue) -> bool {
        take_from(match self.find(origin) {
            Some(_) => &self.allowance,
            None => &self.strangers,
        })
    }

    /// What was said of this origin, or else of all.
    fn find(&self, origin: &HeaderValue) -> Option<(HeaderValue, AppGrant)> {
        let by_origin = self.by_origin.read();
        let recent = |origin: &HeaderValue| {
            let (origin, known) = by_origin.get_key_value(origin)?;
            known.is_recent().then(|| (origin.clone(), *known))
        };
        recent(origin).or_else(|| recent(&ANY))
    }
}

/// Takes one of the preflights that may pass. A client can imitate a preflight, and this is the
/// bound of all that do.
fn take_from(allowance: &Mutex<Allowance>) -> bool {
    let mut allowance = allowance.lock();
    allowance.refill(Instant::now());
    let is_left = allowance.left > 0;
    allowance.left = allowance.left.saturating_sub(1);
    is_left
}

impl AppGrant {
    /// What is known after a response, with credentials or without.
    fn after(known: Option<Self>, credentials: bool) -> Self {
        let now = Instant::now();
        let known = known.filter(Self::is_recent);
        let before = known.and_then(|known| known.with_credentials);
        Self {
            with_credentials: credentials.then_some(now).or(before),
            seen: now,
            is_renewed: known.is_some_and(|it| it.is_renewed || !is_fresh(it.seen)),
        }
    }

    fn is_recent(&self) -> bool {
        self.seen.elapsed() < KEPT
    }

    /// Whether a response with credentials, or one without, says nothing new.
    fn says_already(&self, credentials: bool) -> bool {
        is_fresh(self.seen) && (!credentials || self.with_credentials.is_some_and(is_fresh))
    }
}

fn is_fresh(seen: Instant) -> bool {
    seen.elapsed() < RENEWED_AFTER
}

impl Allowance {
    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.since);
        let more = elapsed.as_millis() * u128::from(PREFLIGHTS_PER_SECOND) / 1000;
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(more).min(PREFLIGHT_BURST);
            self.since = now;
        }
    }
}

/// The value by which a response lets pages of this origin read it; `None` if it does not. An app may
/// send back what it got, so what is no origin teaches nothing.
fn allowed(origin: &HeaderValue, headers: &HeaderMap) -> Option<HeaderValue> {
    let text = origin.to_str().ok()?;
    let is_origin = text == "null" || text.contains("://");
    let mut lines = headers.get_all(ACCESS_CONTROL_ALLOW_ORIGIN).iter();
    let allowed = lines.next().filter(|_| lines.next().is_none())?;
    let is_allowed = allowed == origin || *allowed == ANY;
    (is_origin && is_allowed && text.len() <= MAX_ORIGIN_BYTES).then(|| allowed.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: HeaderValue = HeaderValue::from_static("https://app.example.com");
    const OTHER: HeaderValue = HeaderValue::from_static("https://evil.example");

    fn headers(origin: &HeaderValue) -> HeaderMap {
        HeaderMap::from_iter([(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone())])
    }

    fn learned(origin: &HeaderValue, allowed: &HeaderValue) -> MirroredOrigins {
        let mirrored = MirroredOrigins::default();
        mirrored.learn(origin, &headers(allowed));
        mirrored
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_is_granted_what_the_app_granted_it_and_no_other_page_anything() {
        let mirrored = learned(&PAGE, &PAGE);
        let grant = Grant {
            origin: PAGE,
            credentials: false,
        };
        assert_eq!(mirrored.grant(&PAGE), Some(grant));
        assert_eq!(mirrored.grant(&OTHER), None);
        // The app names somebody else.
        assert_eq!(learned(&OTHER, &PAGE).grant(&OTHER), None);
        assert_eq!(learned(&OTHER, &PAGE).grant(&PAGE), None);
        let any = learned(&PAGE, &ANY);
        assert_eq!(any.grant(&OTHER).unwrap().origin, ANY);
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_app_sends_back_is_no_wildcard() {
        for origin in ["*", "app.example.com", ""] {
            let origin = HeaderValue::from_static(origin);
            let mirrored = learned(&origin, &origin);
            assert_eq!(mirrored.grant(&PAGE), None);
            assert_eq!(mirrored.grant(&origin), None);
        }
        let mut two = headers(&PAGE);
        two.append(ACCESS_CONTROL_ALLOW_ORIGIN, ANY);
        let mirrored = MirroredOrigins::default();
        mirrored.learn(&PAGE, &two);
        assert_eq!(mirrored.grant(&PAGE), None);
        let long = format!("https://{}.example", "a".repeat(MAX_ORIGIN_BYTES));
        let long = HeaderValue::from_str(&long).unwrap();
        assert_eq!(learned(&long, &long).grant(&long), None);
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_are_mirrored_where_the_app_allows_them_to_one_origin() {
        let credentials = |allowed: &HeaderValue| {
            let mut headers = headers(allowed);
            let value = HeaderValue::from_static("true");
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, value);
            let mirrored = MirroredOrigins::default();
            mirrored.learn(&PAGE, &headers);
            mirrored.grant(&PAGE).unwrap().credentials
        };
        assert!(credentials(&PAGE));
        assert!(!credentials(&ANY));
    }

    /// An app allows credentials on some of a route's paths.
    #[tokio::test(start_paused = true)]
    async fn a_response_without_credentials_never_takes_those_of_another() {
        let mirrored = MirroredOrigins::default();
        let with = {
            let mut headers = headers(&PAGE);
            let value = HeaderValue::from_static("true");
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, value);
            headers
        };
        let has_credentials = || mirrored.grant(&PAGE).unwrap().credentials;
        mirrored.learn(&PAGE, &with);
        for _ in 0..2 {
            tokio::time::advance(RENEWED_AFTER).await;
            mirrored.learn(&PAGE, &headers(&PAGE));
            assert!(has_credentials());
        }
        tokio::time::advance(KEPT - RENEWED_AFTER).await;
        mirrored.learn(&PAGE, &headers(&PAGE));
        assert!(!has_credentials());
    }

    #[tokio::test(start_paused = true)]
    async fn origins_that_a_client_invents_push_out_none_that_pages_have_used_for_a_while() {
        let mirrored = learned(&PAGE, &PAGE);
        tokio::time::advance(RENEWED_AFTER).await;
        mirrored.learn(&PAGE, &headers(&PAGE));
        for number in 0..3 * MAX_ORIGINS {
            let invented = HeaderValue::from_str(&format!("https://{number}.example")).unwrap();
            mirrored.learn(&invented, &headers(&invented));
        }
        assert!(mirrored.grant(&PAGE).is_some());
        assert!(mirrored.by_origin.read().len() <= MAX_ORIGINS);
    }

    #[tokio::test(start_paused = true)]
    async fn preflights_of_invented_origins_take_nothing_from_those_of_known_ones() {
        let mirrored = learned(&PAGE, &PAGE);
        while mirrored.excuses_preflight(&OTHER) {}
        assert!(mirrored.excuses_preflight(&PAGE));
        assert!(mirrored.admits_preflight(&PAGE));
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_app_said_an_hour_ago_holds_no_more() {
        let mirrored = learned(&PAGE, &PAGE);
        tokio::time::advance(KEPT - Duration::from_secs(1)).await;
        assert!(mirrored.grant(&PAGE).is_some());
        mirrored.learn(&PAGE, &headers(&PAGE));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(mirrored.grant(&PAGE).is_some());
        tokio::time::advance(KEPT).await;
        assert_eq!(mirrored.grant(&PAGE), None);
    }

    #[tokio::test(start_paused = true)]
    async fn invented_origins_take_no_memory_without_bound_and_make_room_for_others() {
        let mirrored = MirroredOrigins::default();
        for n in 0..1000 {
            tokio::time::advance(Duration::from_millis(1)).await;
            let origin = HeaderValue::from_str(&format!("https://{n}.example")).unwrap();
            mirrored.learn(&origin, &headers(&origin));
        }
        tokio::time::advance(Duration::from_millis(1)).await;
        mirrored.learn(&PAGE, &headers(&PAGE));
        assert_eq!(mirrored.by_origin.read().len(), MAX_ORIGINS);
        assert!(mirrored.grant(&PAGE).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn preflights_of_pages_that_the_app_allows_pass_and_not_without_end() {
        let mirrored = learned(&PAGE, &PAGE);
        assert!(!mirrored.admits_preflight(&OTHER));
        let flood = || {
            (0..10_000)
                .filter(|_| mirrored.admits_preflight(&PAGE))
                .count()
        };
        assert_eq!(flood(), 200);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(flood(), 60);
        tokio::time::advance(Duration::from_secs(3600 - 60)).await;
        assert_eq!(flood(), 200);
    }
}
