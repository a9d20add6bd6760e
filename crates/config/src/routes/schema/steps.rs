//! The steps on responses of a route: their keys, which stand in a route and in the `defaults` of
//! routes, and what becomes of them. A new step with keys of its own has its two lines here, and
//! one for its field of the log; each is lowered apart from the others, so that all errors are
//! reported. Edits of headers have a key for requests as well.

use weir_compression::{Compress, Compression};
use weir_middleware::ResponseSteps;
use weir_telemetry::StepField;
use weir_yaml::{Lowered, Lowering, Spanned, WordOr, keys_or_off};

use super::{Route, RouteDefaults};
use crate::lowered_steps::LoweredSteps;

/// The fields that steps add to lines of the access log: `log.access_format` may name them, and
/// docs/LOGS.md has their table.
pub(crate) const LOG_FIELDS: &[&StepField] = &[weir_compression::CODING.described()];

/// Makes a struct with the keys of steps behind its own. Their comments end with this default.
macro_rules! with_step_keys {
    (
        $default:literal
        $(#[$of_struct:meta])*
        $visible:vis struct $name:ident { $($own:tt)* }
    ) => {
        $(#[$of_struct])*
        $visible struct $name {
            $($own)*
            /// What is changed about [headers of requests](#headers).
            #[doc = $default]
            pub(crate) request_headers: Option<Spanned<weir_middleware::HeaderEditsKeys>>,
            /// What is changed about [headers of responses](#headers).
            #[doc = $default]
            pub(crate) response_headers: Option<Spanned<weir_middleware::HeaderEditsKeys>>,
            /// [What web pages of other origins may do](#cors). Type: `mirror`, or keys.
            #[doc = $default]
            pub(crate) cors: Option<Spanned<WordOr<weir_middleware::CorsKeys>>>,
            /// Which responses are [compressed](#compression). Type: `off`, or keys.
            #[doc = $default]
            pub(crate) compression: Option<Spanned<WordOr<weir_compression::Compression>>>,
        }
    };
}

/// What the route says under a key, or else the defaults.
macro_rules! written {
    ($route:expr, $defaults:expr, $key:ident) => {{
        let inherited = || $defaults.and_then(|defaults| defaults.$key.as_ref());
        $route.$key.as_ref().or_else(inherited)
    }};
}

pub(super) use with_step_keys;
pub(in crate::routes) use written;

impl Route {
    /// What is done with the route's responses, beside what its `cors` and its edits of headers do:
    /// those are lowered together with its other parts, which need them.
    pub(in crate::routes) fn response_steps(
        &self,
        cx: &mut Lowering<'_>,
        defaults: Option<&RouteDefaults>,
    ) -> Lowered<ResponseSteps> {
        let compression = written!(self, defaults, compression);
        let steps = LoweredSteps::new().with(compress(cx, compression));
        steps.into_steps()
    }
}

fn compress(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<WordOr<Compression>>>,
) -> Lowered<Option<Compress>> {
    let keys = written.map(|written| keys_or_off(cx, written, "compression"));
    let keys = keys.transpose()?.flatten();
    Ok(keys.cloned().map(Compress::from))
}
