//! What a listener does with something that is configured, where it decides about requests which
//! other proxies forward. A room says it beside its keys; `Settings::for_decisions` applies it, and the
//! warnings of `weir check` are made of the same.

use weir_yaml::{Lowering, Span};

const FORWARD_INSTEAD: &str = "let Weir forward such requests, if that matters";

/// What a listener that decides does with something that is configured. Its settings and the
/// warnings of `weir check` are both made of this, so that neither has what the other one lacks.
pub(crate) enum Capability<T> {
    /// What a listener that forwards does.
    Full,
    /// Less: what is left, and what `weir check` says.
    Reduced(T, String),
}

impl<T> Capability<T> {
    /// Puts what is left in the place of the whole.
    pub(crate) fn replace(self, whole: &mut T) {
        if let Self::Reduced(left, _) = self {
            *whole = left;
        }
    }

    pub(crate) const fn is_full(&self) -> bool {
        matches!(self, Self::Full)
    }

    /// Says at this place what is not done.
    pub(crate) fn warn(self, cx: &mut Lowering<'_>, span: Span) {
        if let Self::Reduced(_, warning) = self {
            cx.warn(span, warning).help(FORWARD_INSTEAD);
        }
    }
}
