//! A small table of texts that gateways share: a hash, of which one field is the table's version.
//!
//! ```text
//! HGET key version                      has it changed?
//! HGETALL key                           all of it
//! WATCH key                             a change goes by what was read: the transaction fails if
//! HGET key version                      another gateway has changed the table since
//! MULTI
//! HSET key field text ... version new
//! HDEL key field ...
//! EXEC
//! ```
//!
//! All is in one key, so that the commands of a transaction go to one node of a Cluster. A version is
//! unlike all others, so that a table that was lost and begun anew is not taken for the old one.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::Value;

use super::Redis;
use super::client::{Client, Key};
use super::manager::Session;
use super::node::in_time;
use super::resp::Request;
use crate::store::StoreError;

/// The field with the version. Others must not have its name.
const VERSION: &str = "version";

/// A table, as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// None if there is no table.
    pub version: Option<String>,
    /// The texts by their fields.
    pub texts: BTreeMap<String, String>,
}

/// What is to be changed in a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableChange {
    /// Texts to add or to replace, by their fields.
    pub set: BTreeMap<String, String>,
    /// Fields to delete.
    pub deleted: Vec<String>,
}

impl Redis {
    /// The version of a table; none if there is no table.
    ///
    /// # Errors
    /// When the server that has it gives no answer.
    pub async fn table_version(&self, name: &str) -> Result<Option<String>, StoreError> {
        let key = self.client.table_key(name);
        let mut request = Request::default();
        request
            .command(3, "HGET")
            .word(&key)
            .word(VERSION.as_bytes());
        let reply = self.ask_table(&key, request).await?;
        Ok(reply.first().and_then(text))
    }

    /// All of a table.
    ///
    /// # Errors
    /// When the server that has it gives no answer.
    pub async fn table(&self, name: &str) -> Result<Table, StoreError> {
        let key = self.client.table_key(name);
        let mut request = Request::default();
        request.command(2, "HGETALL").word(&key);
        let reply = self.ask_table(&key, request).await?;
        let Some(Value::Array(flat)) = reply.first() else {
            return Ok(Table::default());
        };
        let pairs = flat.chunks_exact(2).filter_map(|pair| match pair {
            [field, value] => Some((text(field)?, text(value)?)),
            _ => None,
        });
        let mut texts: BTreeMap<String, String> = pairs.collect();
        Ok(Table {
            version: texts.remove(VERSION),
            texts,
        })
    }

    /// Changes a table that is of this version. False, and nothing is changed, if it is of another.
    ///
    /// # Errors
    /// When the server that has it gives no answer. Then it may have been changed or not.
    pub async fn change_table(
        &self,
        name: &str,
        version: Option<&str>,
        change: &TableChange,
        next: &str,
    ) -> Result<bool, StoreError> {
        let key = self.client.table_key(name);
        let work = async |session: Arc<Session>| {
            let mut watch = Request::default();
            watch.command(2, "WATCH").word(&key);
            watch.command(3, "HGET").word(&key).word(VERSION.as_bytes());
            let seen = answers(&session, watch).await?;
            if seen.get(1).and_then(text).as_deref() != version {
                let mut unwatch = Request::default();
                unwatch.command(1, "UNWATCH");
                answers(&session, unwatch).await?;
                return Ok(false);
            }
            let answers = answers(&session, transaction(&key, change, next)).await?;
            // The reply of a transaction that was given up is nothing.
            Ok(matches!(answers.last(), Some(Value::Array(_))))
        };
        self.on_node(&key, work).await
    }

    /// Asks the server that has a key, and follows where it may have moved.
    async fn ask_table(&self, key: &Key, request: Request) -> Result<Vec<Value>, StoreError> {
        let client = &self.client;
        self.on_node(key, async |session| client.send(&session, request).await)
            .await
    }

    /// Does something on the server that has a key, with a deadline. A connection that does not
    /// answer is given up.
    async fn on_node<T>(
        &self,
        key: &Key,
        work: impl AsyncFnOnce(Arc<Session>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let node = self.client.node_of(key).ok_or(StoreError::OutOfReach)?;
        let session = node.session()?;
        let done = in_time(work(Arc::clone(&session))).await;
        if matches!(done, Err(StoreError::Deadline)) {
            session.give_up(None);
        }
        done
    }
}

impl Client {
    /// The key of a table. That of a bucket has one more colon at least.
    fn table_key(&self, name: &str) -> Key {
        self.key(&name.into())
    }
}

/// Sends commands to this server and no other, as those of a transaction belong together.
async fn answers(session: &Arc<Session>, request: Request) -> Result<Vec<Value>, StoreError> {
    let replies = session.ask(request).await?;
    replies.values().map_err(|error| session.failed(error))
}

fn transaction(key: &Key, change: &TableChange, next: &str) -> Request {
    let mut request = Request::default();
    request.command(1, "MULTI");
    let set = request.command(4 + 2 * change.set.len(), "HSET").word(key);
    for (field, text) in &change.set {
        set.word(field.as_bytes()).word(text.as_bytes());
    }
    set.word(VERSION.as_bytes()).word(next.as_bytes());
    if !change.deleted.is_empty() {
        let delete = request.command(2 + change.deleted.len(), "HDEL").word(key);
        for field in &change.deleted {
            delete.word(field.as_bytes());
        }
    }
    request.command(1, "EXEC");
    request
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::resp;
    use super::*;

    #[test]
    fn a_change_is_one_transaction_with_a_version_of_its_own() {
        let change = TableChange {
            set: BTreeMap::from([("L:a".to_owned(), "{}".to_owned())]),
            deleted: vec!["L:b".to_owned(), "L:c".to_owned()],
        };
        let key = Key::from_slice(b"weir:overrides");
        let text = resp::text(|request| *request = transaction(&key, &change, "v2"));
        insta::assert_snapshot!(text, @r"
        MULTI
        HSET weir:overrides L:a {} version v2
        HDEL weir:overrides L:b L:c
        EXEC
        ");
    }
}
