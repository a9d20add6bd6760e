//! The list of steps that are taken with all responses. Those of a route are in `routes/schema/steps.rs`.

use weir_middleware::{ErrorPages, ResponseSteps};
use weir_yaml::{Lowered, Lowering};

use super::https::hsts;
use super::listen::Listener;
use super::schema::Gateway;

pub(super) fn response_steps(
    cx: &mut Lowering<'_>,
    gateway: &Gateway,
    listen: &[Listener],
) -> Lowered<ResponseSteps> {
    let hsts = hsts(cx, gateway, listen);
    let error_pages = ErrorPages::read(cx, gateway.errors.as_ref());
    let steps = ResponseSteps::default();
    Ok(steps.with(hsts?).with(Some(error_pages?)))
}
