//! What the banned and the blocked get.

use std::num::NonZeroU32;
use std::time::Duration;

use http::StatusCode;

use super::decoys::Decoys;
use super::upstreams::Upstreams;
use super::{Lowered, Lowering};
use crate::config::duration::HumanDuration;
use crate::config::schema;
use crate::config::yaml::Spanned;
use crate::middleware::{Rejection, Tarpit, Treatment, UpstreamId};

/// How long requests are held unless told otherwise: longer than most scanners wait.
const DEFAULT_HOLD: Duration = Duration::from_secs(30);

/// No client waits for longer.
const LONGEST_HOLD: Duration = Duration::from_secs(3600);

/// How many requests are held unless told otherwise: as many connections have to be there for them.
const DEFAULT_MOST: NonZeroU32 = NonZeroU32::new(1000).unwrap();

impl Lowering<'_> {
    /// What the banned or blocked get: an honest answer of this status, unless told otherwise.
    pub(super) fn treatment(
        &mut self,
        written: Option<&Spanned<schema::Treatment>>,
        status: StatusCode,
        upstreams: &Upstreams<'_>,
        decoys: &Decoys<'_>,
    ) -> Lowered<Treatment> {
        let rejection = Rejection {
            status,
            ..Rejection::default()
        };
        let Some(written) = written else {
            return Ok(Treatment::Reject(rejection));
        };
        match &written.value {
            schema::Treatment::Reject(None) => Ok(Treatment::Reject(rejection)),
            schema::Treatment::Reject(Some(it)) => {
                self.rejection(it, status).map(Treatment::Reject)
            }
            schema::Treatment::Shadow(name) => self.shadow_everywhere(name, decoys),
            schema::Treatment::Divert(name) => {
                let upstream = self.find_upstream(name, upstreams)?;
                Ok(Treatment::Divert(UpstreamId(upstream)))
            }
            schema::Treatment::Tarpit(it) => Ok(Treatment::Tarpit(Tarpit {
                hold: self.hold(it.as_ref().and_then(|it| it.hold))?,
                most: it
                    .as_ref()
                    .and_then(|it| it.most)
                    .map_or(DEFAULT_MOST, |it| it.value),
                rejection,
            })),
            schema::Treatment::Drop => Ok(Treatment::Drop),
        }
    }

    /// A decoy for requests of any route, of which none need capture what it uses.
    fn shadow_everywhere(
        &mut self,
        name: &Spanned<String>,
        decoys: &Decoys<'_>,
    ) -> Lowered<Treatment> {
        let decoy = self.find_decoy(name, decoys)?;
        for used in decoy.captures_used() {
            let message = format!(
                "decoy \"{}\" uses path.{used}, which few routes capture",
                name.value
            );
            self.error(name.span, message)
                .help("choose one without captured segments, as the banned get it on every route");
        }
        Ok(Treatment::Shadow(decoy))
    }

    fn hold(&mut self, written: Option<Spanned<HumanDuration>>) -> Lowered<Duration> {
        let Some(written) = written else {
            return Ok(DEFAULT_HOLD);
        };
        let hold = self.positive(written);
        if hold > LONGEST_HOLD {
            let message = format!("nobody waits for {}", written.value);
            self.error(written.span, message)
                .help("a request is held for 1h at most");
        }
        Ok(hold)
    }
}
