//! The gateways of one store, as each of them shows the others: what they publish, added up.

mod differences;
mod figures;
mod findings;
mod gateways;
mod published;
mod view;

pub use self::differences::{LimitDifference, differences};
pub use self::figures::limit_figures;
pub use self::findings::{findings, published};
pub use self::gateways::{Gateways, gateways};
pub use self::published::{
    ENTRY_KEPT, FIGURES_KEPT, Figures, FiguresState, GatewayEntry, INTERVAL, LIMITS_INTERVAL,
    LIMITS_KEPT, LimitDefinition, MAX_LIMITS_BYTES, PublishedFinding, PublishedLimits,
    figures_name, limits_name,
};
pub(crate) use self::view::merged;
pub use self::view::{
    FleetView, GatewayState, KnownGateway, MAX_GATEWAYS, OtherConfiguration, SILENT_AFTER, Solitude,
};
