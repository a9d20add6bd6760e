//! How requests get to a server over one connection, and what becomes of their failures.

use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::sync::oneshot::error::RecvError;

use super::check::{is_right_of_some, redirection};
use super::connection::RequestResult;
use super::manager::Session;
use super::resp::{Replies, Request};
use crate::store::StoreError;

/// What a server answers that has become a replica, or lost its primary.
const REPLICA: [ServerErrorKind; 2] = [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown];

impl Session {
    /// Sends commands. Their replies are not looked at.
    pub(super) async fn ask(self: &Arc<Self>, request: Request) -> Result<Replies, StoreError> {
        let answer = self.connection.send(request).await;
        self.answered(answer)
    }

    /// The replies, unless the connection broke. Then it is given up.
    pub(super) fn answered(
        self: &Arc<Self>,
        answer: Result<RequestResult, RecvError>,
    ) -> Result<Replies, StoreError> {
        // Without an answer the task that drives the connection is gone: the runtime is ending.
        let error = match answer {
            Ok(Ok(replies)) => return Ok(replies),
            Ok(Err(error)) => error,
            Err(_) => return Err(StoreError::OutOfReach),
        };
        Err(self.lost(error))
    }

    /// The error among replies that do not fit the commands. Without one, replies and commands are
    /// out of step: what comes next may be the answer to anything.
    pub(super) fn unfit(self: &Arc<Self>, replies: &Replies) -> StoreError {
        if let Err(error) = replies.values() {
            return self.failed(error);
        }
        let what = "a reply that does not fit the commands";
        let error = Arc::new(io::Error::new(io::ErrorKind::InvalidData, what).into());
        self.connection.close(&error);
        self.lost(error)
    }

    /// A server that has become a replica stays one for its present connections, while its name may
    /// lead to the new primary. One node of a Cluster is of no use where all keys should be.
    pub(super) fn failed(self: &Arc<Self>, error: RedisError) -> StoreError {
        if REPLICA.map(ErrorKind::Server).contains(&error.kind()) {
            return self.lost(Arc::new(error));
        }
        match redirection(&error) {
            Some(why) if self.member.is_none() => self.lost(why),
            _ if is_right_of_some(&error) => StoreError::Forbidden(Box::new(error)),
            _ => StoreError::Failed(Box::new(error)),
        }
    }

    /// Gives the connection up, for this reason.
    pub(super) fn lost(self: &Arc<Self>, error: Arc<RedisError>) -> StoreError {
        self.give_up(Some(Arc::clone(&error)));
        StoreError::Lost(Box::new(error))
    }

    /// Counts how a call went, if it is a node of a Cluster. Others are guarded as a whole.
    pub(super) fn record(&self, failure: Option<&StoreError>) {
        if let Some(member) = &self.member {
            member.record(failure);
        }
    }

    /// A failure as one of this node, if it is one of several.
    pub(super) fn failure(&self, source: StoreError) -> StoreError {
        match &self.member {
            Some(member) => member.failure(source),
            None => source,
        }
    }
}
