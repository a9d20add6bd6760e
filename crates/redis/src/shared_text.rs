//! Texts beside the buckets that end by themselves: a string with an expiry for each.

use std::time::Duration;

use weir_limit::BucketKey;
use weir_store::{SharedTexts, StoreFuture};

use super::Redis;
use super::client::Key;
use super::resp::Request;

/// The longest text: twice what a gateway publishes of its limits at most.
const MAX_TEXT_BYTES: usize = 512 * 1024;

impl SharedTexts for Redis {
    fn put(&self, name: &str, text: String, length: Duration) -> StoreFuture<()> {
        let key = self.text_key(name);
        let fill = |request: &mut Request| set(request, &key, &text, length);
        self.call_node(&key, fill, |replies| replies.next().map(drop))
    }

    fn text(&self, name: &str) -> StoreFuture<Option<Vec<u8>>> {
        let key = self.text_key(name);
        self.call_node(
            &key,
            |request| get(request, &key),
            |replies| {
                let text: Vec<u8> = redis::from_redis_value(replies.next()?).ok()?;
                let is_whole = text.len() <= MAX_TEXT_BYTES;
                is_whole.then(|| Some(text).filter(|text| !text.is_empty()))
            },
        )
    }
}

impl Redis {
    fn text_key(&self, name: &str) -> Key {
        // No bucket has such a key: the name of a limit is not empty.
        let mut key = BucketKey::from(":");
        key.push_str(name);
        self.client.key(&key)
    }
}

/// Reads no more of what others may have written there than tells that it is not Weir's.
fn get(request: &mut Request, key: &[u8]) {
    let range = request.command(4, "GETRANGE").word(key);
    range.int(0).int(MAX_TEXT_BYTES);
}

fn set(request: &mut Request, key: &[u8], text: &str, length: Duration) {
    let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let put = request.command(5, "SET").word(key).word(text.as_bytes());
    put.word(b"PX").int(millis.max(1));
}

#[cfg(test)]
mod tests {
    use super::super::resp;
    use super::*;

    #[test]
    fn a_text_never_stays_for_good() {
        for (length, millis) in [(Duration::from_secs(10), 10_000), (Duration::ZERO, 1)] {
            assert_eq!(
                resp::text(|request| set(request, b"k", "{}", length)),
                format!("SET k {{}} PX {millis}")
            );
        }
    }
}
