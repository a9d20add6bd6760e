//! What keys refer to by name: limits, upstreams, and decoys.

use std::sync::Arc;

use http::StatusCode;
use weir_middleware::decoy::Decoys;
use weir_middleware::{Delay, OnDenied, OnDeniedKeys, Treatment, TreatmentKeys};
use weir_yaml::{Lowered, Lowering, Spanned};

use crate::gateway::schema::Gateway;
use crate::limits::LimitTable;
use crate::routes::{Upstreams, find_upstream};

pub(crate) struct Named<'w> {
    pub(crate) table: LimitTable,
    pub(crate) upstreams: Upstreams<'w>,
    decoys: Decoys<'w>,
}

impl<'w> Named<'w> {
    pub(crate) fn read(
        cx: &mut Lowering<'_>,
        gateway: &'w Gateway,
        table: LimitTable,
        upstreams: Upstreams<'w>,
    ) -> Self {
        let decoys = Decoys::read(cx, gateway.decoys.as_ref());
        // What the defaults name is used, though each route may say otherwise.
        let defaults = gateway.defaults.as_ref();
        if let Some(on_denied) = defaults.and_then(|defaults| defaults.on_denied.as_ref()) {
            on_denied.note_decoy(&decoys);
        }
        Self {
            table,
            upstreams,
            decoys,
        }
    }

    /// What a request gets that a limit of a route denies, and how it waits before.
    pub(crate) fn on_denied(
        &self,
        cx: &mut Lowering<'_>,
        written: Option<&Spanned<OnDeniedKeys>>,
    ) -> (Lowered<OnDenied>, Lowered<Option<Arc<Delay>>>) {
        match written {
            Some(written) => OnDeniedKeys::lower(written, cx, &self.decoys),
            None => (Ok(OnDenied::default()), Ok(None)),
        }
    }

    /// What banned or blocked clients get: by default an honest response of this status.
    pub(crate) fn treatment(
        &self,
        cx: &mut Lowering<'_>,
        written: Option<&Spanned<TreatmentKeys>>,
        status: StatusCode,
    ) -> Lowered<Treatment> {
        let find = |cx: &mut Lowering<'_>, name: &Spanned<String>| {
            find_upstream(cx, name, &self.upstreams).map(|_| name.as_str().into())
        };
        TreatmentKeys::lower(written, cx, status, &self.decoys, &find)
    }

    /// Reports what nothing refers to.
    pub(crate) fn warn_of_unused(&self, cx: &mut Lowering<'_>, gateway: &Gateway) {
        self.upstreams.warn_of_unused(cx, gateway.upstreams());
        self.decoys.warn_of_unused(cx);
    }
}
