//! How overrides are shown and changed.

use super::admin;
use crate::app::admin_api::endpoint::Endpoint;
use crate::app::features::Room;

/// Overrides of limits by operators.
pub(in crate::app::features) struct OverridesRoom;

impl Room for OverridesRoom {
    fn endpoints(&self) -> &'static [Endpoint] {
        admin::ENDPOINTS
    }
}
