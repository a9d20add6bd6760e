//! A warning of bans for which programs sleep in silence.

use std::time::Duration;

use weir_yaml::{HumanDuration, Lowering};

use super::schema::Ban;

/// Nobody who started a program still waits for it after as long.
const LONG_WAIT: Duration = Duration::from_secs(3600);

/// Some clients sleep for all of `Retry-After`, and say nothing.
pub(super) fn warn_of_silent_wait(cx: &mut Lowering<'_>, ban: &Ban) {
    let written = ban.on_denied.as_ref();
    let asks_again = written.is_none_or(|written| written.asks_again());
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
