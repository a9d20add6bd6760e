//! The list of steps that are taken with all responses. Those of a route are in `routes/schema/steps.rs`.

use weir_middleware::{ErrorPages, ResponseSteps};
use weir_yaml::{Lowered, Lowering};

use super::https::hsts;
use super::listen::Listener;
use super::schema::Gateway;
use crate::lowered_steps::LoweredSteps;

pub(super) fn response_steps(
    cx: &mut Lowering<'_>,
    gateway: &Gateway,
    listen: &[Listener],
) -> Lowered<ResponseSteps> {
    let steps = LoweredSteps::new()
        .with(hsts(cx, gateway, listen))
        .with(ErrorPages::read(cx, gateway.errors.as_ref()).map(Some));
    steps.into_steps()
}
