//! Stands in for `otlp` in a build without that feature: the same names, and no values. No request
//! is traced then, and the layers need no second version.

use std::convert::Infallible;
use std::sync::Arc;

use http::HeaderMap;

use super::RequestFinished;

/// The tracer, which does not exist in this build.
#[derive(Debug)]
pub struct Tracer(Infallible);

/// The trace of a request, which does not exist in this build.
#[derive(Debug)]
pub struct ActiveTrace(Infallible);

impl Tracer {
    /// Sends what waits.
    pub fn end(&self) {
        match self.0 {}
    }

    /// Begins the trace of a request.
    pub fn begin(self: &Arc<Self>, _: &HeaderMap, _: bool) -> ActiveTrace {
        match self.0 {}
    }
}

impl ActiveTrace {
    /// Adds the headers by which the upstream continues the trace.
    pub fn inject(&self, _: &mut HeaderMap) {
        match self.0 {}
    }

    /// Records a request that is over.
    pub fn finish(&self, _: &RequestFinished<'_>) {
        match self.0 {}
    }
}
