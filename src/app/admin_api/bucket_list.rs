//! The known subjects of a limit, page by page, each with what remains.
//!
//! Redis has the keys of its buckets, and is gone through by `SCAN`, a bounded number of steps for
//! a page. The memory store keeps hashes in place of keys, so that a bucket takes 18 bytes; there
//! the subjects are known that `GET /v1/top` knows, the heaviest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weir_config::Settings;
use weir_limit::time::Timestamp;
use weir_limit::{Batch, Claims, Decision, Transaction};
use weir_rules::Limit;
use weir_store::{KeyScan, ScanPosition, StoreError};
use weir_telemetry::{Metrics, Period};

use super::Api;
use super::bucket::{BucketTarget, limit_named};
use super::endpoint::{Call, Endpoint, Reply, json_response};
use super::error::ApiError;
use super::request::{Cursor, Page};
use super::responses::{BucketNotes, BucketPage, BucketSource};
use crate::app::stores::AdminStores;

pub(super) const ENDPOINTS: &[Endpoint] = &[Endpoint::new(
    "/v1/buckets/{limit}",
    "GET, HEAD",
    |api, call| Box::pin(respond(api, call)),
)];

/// For the scan of one page, which has the buckets that were found by then.
const SCAN_TIMEOUT: Duration = Duration::from_secs(1);

/// Buckets that are read at once. A read of the memory store locks out others.
const BATCH_SIZE: usize = 32;

async fn respond(api: &Api, call: Call<'_>) -> Reply {
    let snapshot = api.snapshot();
    let settings = &snapshot.settings;
    let page = Page::parse(call.query())?;
    let list = BucketList::new(settings, call.parameter(0), page)?;
    let stores = api.admin_stores().await?;
    json_response(
        &list
            .response(settings, stores, &api.metrics, call.now)
            .await?,
    )
}

struct BucketList<'s> {
    limit: &'s Arc<Limit>,
    page: Page,
}

/// The keys of a page, and where the next begins.
struct Keys {
    keys: Vec<String>,
    next: Option<Cursor>,
}

impl<'s> BucketList<'s> {
    fn new(settings: &'s Settings, limit: &str, page: Page) -> Result<Self, ApiError> {
        let limit = limit_named(settings, limit)?;
        Ok(Self { limit, page })
    }

    async fn response(
        &self,
        settings: &Settings,
        stores: &AdminStores,
        metrics: &Metrics,
        now: Timestamp,
    ) -> Result<BucketPage, ApiError> {
        let (keys, source) = match &stores.scan {
            Some(scan) => (self.scan(&**scan).await?, BucketSource::Store),
            None => (self.heaviest(metrics, now), BucketSource::Top),
        };
        let buckets = keys.keys.iter();
        let buckets = buckets.filter_map(|key| BucketTarget::with_key(self.limit, key, now));
        let buckets: Vec<BucketTarget> = buckets.collect();
        let names = self.names(settings, metrics, now);
        let mut described = Vec::with_capacity(buckets.len());
        for some in buckets.chunks(BATCH_SIZE) {
            let decisions = read(some, stores, now).await?;
            let both = some.iter().zip(decisions);
            described.extend(both.map(|(bucket, decision)| {
                let notes = BucketNotes {
                    name: Some(names.get(bucket.key.as_str()).cloned()),
                    warning: None,
                };
                bucket.response(settings, &decision, notes)
            }));
        }
        Ok(BucketPage {
            limit: self.limit.name().to_owned(),
            source,
            buckets: described,
            next: keys.next.map(|next| next.to_string()),
        })
    }

    /// The names of accounts that this gateway has seen, by their keys, where names are shown.
    fn names(
        &self,
        settings: &Settings,
        metrics: &Metrics,
        now: Timestamp,
    ) -> HashMap<String, String> {
        if !settings.account.keeps_names {
            return HashMap::new();
        }
        let known = metrics.subjects(self.limit.name(), Period::Hour, now.as_secs());
        let named = known.into_iter();
        named
            .filter_map(|subject| Some((subject.key, subject.name?)))
            .collect()
    }

    /// The subjects that are known without a store that knows any, in the order of their keys.
    fn heaviest(&self, metrics: &Metrics, now: Timestamp) -> Keys {
        let known = metrics.subjects(self.limit.name(), Period::Hour, now.as_secs());
        let mut keys: Vec<String> = known.into_iter().map(|subject| subject.key).collect();
        keys.sort_unstable();
        let cursor = self.page.cursor.clone().unwrap_or_default();
        cut(keys, &cursor, self.page.count, None)
    }

    async fn scan(&self, store: &dyn KeyScan) -> Result<Keys, ApiError> {
        let began = Instant::now();
        let mut cursor = self.page.cursor.clone().unwrap_or_default();
        let mut keys = Vec::new();
        loop {
            let position = ScanPosition {
                position: cursor.position,
                node: cursor.node.clone(),
            };
            let step = store.scan(self.limit.key_prefix(), position).await?;
            let next = step.next.map(|next| Cursor {
                position: next.position,
                node: next.node,
                after: String::new(),
            });
            let room = self.page.count - keys.len();
            let found = cut(step.keys, &cursor, room, next);
            keys.extend(found.keys);
            match found.next {
                Some(next) if keys.len() < self.page.count && began.elapsed() < SCAN_TIMEOUT => {
                    cursor = next;
                }
                next => return Ok(Keys { keys, next }),
            }
        }
    }
}

/// The first keys behind a cursor, of sorted ones that all stand at its position. The next page
/// goes on among these, or, if these are all, at `next`.
fn cut(mut keys: Vec<String>, cursor: &Cursor, room: usize, next: Option<Cursor>) -> Keys {
    keys.retain(|key| *key > cursor.after);
    if keys.len() <= room {
        return Keys { keys, next };
    }
    keys.truncate(room);
    let next = keys.last().map(|last| Cursor {
        after: last.clone(),
        ..cursor.clone()
    });
    Keys { keys, next }
}

async fn read(
    buckets: &[BucketTarget],
    stores: &AdminStores,
    now: Timestamp,
) -> Result<Vec<Decision>, ApiError> {
    let looks: Batch = buckets.iter().map(BucketTarget::peek).collect();
    let claims: Claims = looks.iter().filter_map(Transaction::claim).collect();
    let outcome = match claims.is_empty() {
        true => stores.read.decide(&looks, now).await?,
        false => stores.leases.acquire(claims, now).await?.outcome,
    };
    let decisions: Option<Vec<Decision>> = outcome.decisions.into_iter().collect();
    // Without a fallback, a store decides or fails.
    decisions.ok_or(ApiError::Store(StoreError::OutOfReach))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(all: &[&str], count: usize) -> Vec<Vec<String>> {
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        let mut cursor = Some(Cursor::default());
        let mut pages = Vec::new();
        while let Some(from) = cursor {
            let page = cut(all.clone(), &from, count, None);
            pages.push(page.keys);
            cursor = page.next;
        }
        pages
    }

    #[test]
    fn pages_show_each_key_once_and_none_has_too_many() {
        let all = ["L:a", "L:b", "L:c", "L:d", "L:e"];
        for count in 1..7 {
            let pages = pages(&all, count);
            assert!(pages.iter().all(|page| page.len() <= count), "{pages:?}");
            assert_eq!(pages.concat(), all, "{count}");
            assert_eq!(pages.len(), all.len().div_ceil(count));
        }
    }
}
