//! Stands in for `decoy` in a build without the feature `decoys`: the same names, and no values.
//! A policy then cannot shadow-ban, and the layers need no second version.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, Response, request};

use crate::middleware::ResponseBody;

/// An invented answer. There is none in this build.
#[derive(Debug)]
pub struct Decoy(Infallible);

/// A decoy on a route. There is none in this build.
#[derive(Debug)]
pub struct Shadow(Infallible);

impl Shadow {
    pub(crate) fn new(decoy: Arc<Decoy>) -> Self {
        match decoy.0 {}
    }

    pub(crate) fn learn<B>(&self, _: &Response<B>, _: &Sample) {
        match self.0 {}
    }

    pub(crate) async fn answer<B, R>(
        self: Arc<Self>,
        _: request::Parts,
        _: B,
    ) -> Response<ResponseBody<R>> {
        match self.0 {}
    }
}

/// What a request says of the form of its answer.
#[derive(Clone, Debug)]
pub(crate) struct Requested;

impl Requested {
    pub(crate) fn of(_: &Method, _: &HeaderMap) -> Self {
        Self
    }
}

/// How a real answer came about.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) requested: Requested,
    pub(crate) client: u64,
    pub(crate) latency: Option<Duration>,
}
