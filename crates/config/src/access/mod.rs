//! Who is kept out, and who is let through in any case: bans, and the lists of the allowed and the
//! blocked.

pub(crate) mod bans;
mod lists;
pub(crate) mod schema;

use http::StatusCode;
use weir_middleware::{AccessSettings, BanPolicy, Rejection, Treatment};
use weir_rules::AccessLists;
use weir_yaml::{Lowered, Lowering, Spanned, all};

use crate::capability::Capability;
use crate::gateway::Share;
use crate::gateway::listen::Listener;
use crate::gateway::schema::Gateway;
use crate::named::Named;
use crate::routes::LoweredRoute;

pub(crate) use lists::access_list;

/// What comes of it.
pub(crate) struct Access {
    bans: Vec<Lowered<BanPolicy>>,
    lists: Lowered<AccessLists>,
    blocked: Lowered<Treatment>,
}

impl Access {
    pub(crate) fn read(
        cx: &mut Lowering<'_>,
        gateway: &Spanned<Gateway>,
        named: &Named<'_>,
        routes: &[LoweredRoute],
    ) -> Self {
        let bans = bans::bans(cx, gateway, named, routes);
        let lists = lists::access_lists(cx, gateway, &named.table);
        let block = gateway.block.as_ref();
        let on_denied = block.and_then(|block| block.on_denied.as_ref());
        Self {
            bans,
            lists,
            blocked: named.treatment(cx, on_denied, StatusCode::FORBIDDEN),
        }
    }

    /// What is kept apart by a hash, as errors call it, if anything is.
    pub(crate) fn hashed(&self) -> Option<String> {
        bans::hashed(&self.bans)
    }

    /// What is enforced on a part of those who are known by their hash.
    pub(crate) fn shares<'a>(&'a self, gateway: &'a Gateway) -> impl Iterator<Item = Share> {
        bans::shares(gateway, &self.bans)
    }

    /// Leaves out, and reports, what does not go with these listeners.
    pub(crate) fn fit(&mut self, cx: &mut Lowering<'_>, gateway: &Gateway, listen: &[Listener]) {
        bans::keep_to_peers(cx, gateway, listen, &mut self.bans, &mut self.blocked);
    }

    /// Reports what a listener that decides cannot do.
    pub(crate) fn warn_of_undecided(&self, cx: &mut Lowering<'_>, gateway: &Gateway) {
        if gateway.decide.is_none() {
            return;
        }
        bans::warn_of_undecided(cx, gateway, &self.bans);
        let on_denied = gateway.block.as_ref().and_then(|it| it.on_denied.as_ref());
        if let (Some(on_denied), Ok(blocked)) = (on_denied, &self.blocked) {
            of_blocked(blocked).warn(cx, on_denied.span);
        }
    }

    pub(crate) fn into_settings(self) -> Lowered<AccessSettings> {
        Ok(AccessSettings {
            lists: self.lists?,
            blocked: self.blocked?,
            bans: all(self.bans.into_iter())?,
        })
    }
}

/// Leaves what a listener can do that decides.
pub(crate) fn reduce(settings: &mut AccessSettings) {
    settings.bans.iter_mut().for_each(bans::reduce);
    of_blocked(&settings.blocked).replace(&mut settings.blocked);
}

fn of_blocked(treatment: &Treatment) -> Capability<Treatment> {
    as_rejection(treatment, StatusCode::FORBIDDEN)
}

/// The treatment as a response that the proxy can send on.
fn as_rejection(treatment: &Treatment, status: StatusCode) -> Capability<Treatment> {
    let Some(what) = treatment.beyond_decisions() else {
        return Capability::Full;
    };
    let honest = Treatment::Reject(Rejection {
        status,
        ..Rejection::default()
    });
    let number = status.as_u16();
    Capability::Reduced(
        honest,
        format!("`decide` cannot {what}, and denies with {number}"),
    )
}
