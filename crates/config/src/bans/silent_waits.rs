//! A warning of bans for which programs sleep in silence.

use std::time::Duration;

use weir_yaml::{HumanDuration, Lowering};

use super::schema::{Ban, Treatment};

/// Nobody who started a program still waits for it after as long.
const LONG_WAIT: Duration = Duration::from_secs(3600);

/// Some clients sleep for all of `Retry-After`, and say nothing.
pub(super) fn warn_of_silent_wait(cx: &mut Lowering<'_>, ban: &Ban) {
    let asks_again = match ban.on_denied.as_ref().map(|written| &written.value) {
        None | Some(Treatment::Reject(None)) => true,
        Some(Treatment::Reject(Some(rejection))) => rejection
            .status
            .is_none_or(|status| matches!(status.value.0.as_u16(), 429 | 503)),
        Some(_) => false,
    };
    let Some(HumanDuration(length)) = ban.length.value.0 else {
        return;
    };
    if asks_again && length > LONG_WAIT {
        let message = format!(
            "pip, urllib3 and others sleep for {} if a ban tells them to, without a word",
            HumanDuration(length)
        );
        cx.warn(ban.length.span, message).help(
            "say `on_denied: {reject: {status: 403}}`, at which clients stop and show the error",
        );
    }
}
