//! Steps on responses as their keys are lowered: what is in error about one hides nothing of the next.

use weir_middleware::{ResponseStep, ResponseSteps};
use weir_yaml::Lowered;

/// The steps so far, unless one of them is in error.
pub(crate) struct LoweredSteps(Lowered<ResponseSteps>);

impl LoweredSteps {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self(Ok(ResponseSteps::default()))
    }

    /// The same and this one, if it is configured. To pass it, its keys have been lowered, and what is
    /// wrong with them is reported, whatever came before.
    pub(crate) fn with(self, step: Lowered<Option<impl ResponseStep>>) -> Self {
        Self(self.0.and_then(|steps| Ok(steps.with(step?))))
    }

    pub(crate) fn into_steps(self) -> Lowered<ResponseSteps> {
        self.0
    }
}
