//! Who is told how a remote store does.

use std::error::Error;
use std::time::Duration;

use crate::store::{ClockOffset, StoreError};

/// What a remote store is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// To decide a batch.
    Decide,
    /// To give back what was taken: for a caller, or because another limit denied the request.
    Refund,
    /// To make a bucket full.
    Reset,
    /// To cut what a greater limit has left behind.
    Clamp,
    /// To set the expiry of buckets that were found to have none, or too short a one.
    Expire,
    /// To lease places to a request.
    Acquire,
    /// To go on leasing places to requests that last.
    Renew,
    /// To take back the places of requests that are over.
    Release,
}

/// Is told how a remote store does, to log and count it.
pub trait Observer: Send + Sync + 'static {
    /// A call was answered, or failed, after so long. Calls that were not sent because the store
    /// is known to be out of reach are not reported.
    fn called(&self, call: Call, took: Duration, failure: Option<&StoreError>);

    /// The store went out of reach of this process, for this cause, or came back. Told once each
    /// time, however many workers there are.
    fn state_changed(&self, reachable: bool, cause: Option<&StoreError>);

    /// The gateway's clock was held against the store's, or could not be, for this reason. Told
    /// by each worker, about once a second.
    fn clock_measured(&self, offset: Result<ClockOffset, &dyn Error>);
}

/// An observer that keeps everything to itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn called(&self, _: Call, _: Duration, _: Option<&StoreError>) {}

    fn state_changed(&self, _: bool, _: Option<&StoreError>) {}

    fn clock_measured(&self, _: Result<ClockOffset, &dyn Error>) {}
}
