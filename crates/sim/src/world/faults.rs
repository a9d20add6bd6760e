//! What goes wrong, as the scenario says.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::servers::Node;
use super::{Planned, World};
use crate::redis::{Rights, User};
use crate::scenario::{FaultKind, Keeps, LinkFault, Topology};
use crate::trace::What;

/// What is wrong with the network at present.
pub(super) struct ActiveLink {
    fault: usize,
    gateway: Option<usize>,
    server: Option<usize>,
    pub(super) what: LinkFault,
    pub(super) until: Duration,
}

impl ActiveLink {
    pub(super) fn concerns(&self, gateway: usize, node: Node) -> bool {
        self.gateway.is_none_or(|own| own == gateway)
            && self.server.is_none_or(|own| node == Node::Server(own))
    }
}

/// A step of a fault, by the number of the fault.
pub(super) enum FaultEvent {
    /// A server's data is kept, as of before the fault.
    Keep(usize),
    Begin(usize),
    End(usize),
    /// Nobody does anything about it any more.
    Over(usize),
}

/// How long Sentinels, and the nodes of a Cluster, are busy with a failover.
const SETTLES: Duration = Duration::from_millis(5500);
const SETTLES_IN_CLUSTER: Duration = Duration::from_millis(2500);

impl World<'_> {
    pub(super) fn plan_faults(&mut self) {
        for (number, fault) in self.scenario.faults.iter().enumerate() {
            if let FaultKind::RestartServer {
                keeps: Keeps::AllBut(lost),
                ..
            } = fault.kind
            {
                let kept = FaultEvent::Keep(number);
                self.at(fault.at.saturating_sub(lost), Planned::Fault(kept));
            }
            self.at(fault.at, Planned::Fault(FaultEvent::Begin(number)));
        }
    }

    pub(super) fn fault(&mut self, event: FaultEvent) -> io::Result<()> {
        match event {
            FaultEvent::Keep(number) => self.keep(number),
            FaultEvent::Begin(number) => {
                self.note(What::FaultBegan { fault: number });
                match self.begin(number) {
                    Some(lasts) => self.after(lasts, Planned::Fault(FaultEvent::End(number))),
                    None => self.note(What::FaultEnded { fault: number }),
                }
            }
            FaultEvent::End(number) => {
                self.mend(number);
                let settles = self.settles(number);
                self.after(settles, Planned::Fault(FaultEvent::Over(number)));
            }
            FaultEvent::Over(number) => self.note(What::FaultEnded { fault: number }),
        }
        Ok(())
    }

    fn keep(&mut self, number: usize) {
        if let Some(FaultKind::RestartServer { server, .. }) = self.fault_kind(number)
            && let Some(machine) = self.servers.get(*server)
        {
            let kept = machine.server.snapshot();
            machine.kept.insert(number, kept);
        }
    }

    /// Begins a fault, and tells how long it lasts, unless it is over already.
    fn begin(&mut self, number: usize) -> Option<Duration> {
        match self.fault_kind(number)? {
            FaultKind::Link {
                gateway,
                server,
                lasts,
                what,
            } => Some(self.begin_link(number, (*gateway, *server), *what, *lasts)),
            FaultKind::KillGateway {
                gateway,
                restarts_after,
            } => {
                self.ended(*gateway);
                self.restart_gateway(*gateway, *restarts_after)
            }
            FaultKind::StopGateway {
                gateway,
                restarts_after,
            } => {
                self.stop(*gateway);
                self.restart_gateway(*gateway, *restarts_after)
            }
            FaultKind::FreezeGateway { gateway, lasts } => {
                let until = self.now + *lasts;
                let host = self.host(*gateway)?;
                host.frozen_until = host.frozen_until.max(Some(until));
                Some(*lasts)
            }
            FaultKind::StepGatewayClock { gateway, by } => {
                let own = self.gateways.get_mut(*gateway)?;
                own.stepped = own.stepped.saturating_add(*by);
                if let Some(host) = &mut own.host {
                    host.step_wall(*by);
                }
                None
            }
            FaultKind::StepServerClock { server, by } => {
                for index in 0..self.servers.count() {
                    if server.is_none_or(|server| server == index) {
                        self.servers.step(index, *by);
                    }
                }
                None
            }
            FaultKind::FreezeServer { server, lasts } => {
                let until = self.now + *lasts;
                let machine = self.servers.get(*server)?;
                machine.frozen_until = machine.frozen_until.max(Some(until));
                self.lacks(*server, *lasts);
                Some(*lasts)
            }
            FaultKind::RestartServer {
                server,
                down,
                keeps,
            } => {
                let machine = self.servers.get(*server)?;
                machine.downs += 1;
                if *keeps == Keeps::Everything {
                    let kept = machine.server.snapshot();
                    machine.kept.insert(number, kept);
                }
                let server = *server;
                self.break_where(|_, node| node == Node::Server(server));
                self.lacks(server, *down);
                Some(*down)
            }
            FaultKind::OutOfMemory { server, lasts } => {
                let machine = self.servers.get(*server)?;
                machine.server.config_mut().max_memory = Some(0);
                Some(*lasts)
            }
            FaultKind::Refuse {
                server,
                lasts,
                command,
            } => {
                let machine = self.servers.get(*server)?;
                machine.server.set_user(User {
                    rights: Rights::AllBut([command.to_lowercase()].into()),
                    ..User::unlimited("default")
                });
                Some(*lasts)
            }
            FaultKind::Flush { server } => {
                self.flush(*server);
                None
            }
            FaultKind::Evict { server, left } => {
                self.evict(*server, *left);
                None
            }
            FaultKind::SlowApp { lasts, by } => {
                let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
                self.slowness.fetch_add(by, Ordering::Relaxed);
                Some(*lasts)
            }
            FaultKind::Failover { server } => {
                self.fail_over(*server);
                Some(Duration::ZERO)
            }
            FaultKind::MoveSlots {
                slots,
                from,
                to,
                lasts,
            } => {
                self.move_slots(*slots, *from, *to, *lasts);
                Some(*lasts * u32::from(*slots))
            }
        }
    }

    fn begin_link(
        &mut self,
        fault: usize,
        (gateway, server): (Option<usize>, Option<usize>),
        what: LinkFault,
        lasts: Duration,
    ) -> Duration {
        let link = ActiveLink {
            fault,
            gateway,
            server,
            what,
            until: self.now + lasts,
        };
        let is_concerned = |own: usize, node: Node| {
            gateway.is_none_or(|gateway| gateway == own)
                && server.is_none_or(|server| node == Node::Server(server))
        };
        match what {
            LinkFault::HalfOpen => self.lose_where(is_concerned),
            LinkFault::Refused | LinkFault::Reset => self.break_where(is_concerned),
            _ => {}
        }
        self.links.push(link);
        lasts
    }

    fn restart_gateway(&mut self, gateway: usize, after: Option<Duration>) -> Option<Duration> {
        let after = after?;
        self.after(after, Planned::Start(gateway));
        Some(after)
    }

    /// How long servers are busy with a fault that is undone.
    fn settles(&self, number: usize) -> Duration {
        let is_of_server = matches!(
            self.fault_kind(number),
            Some(
                FaultKind::Failover { .. }
                    | FaultKind::FreezeServer { .. }
                    | FaultKind::RestartServer { .. }
                    | FaultKind::MoveSlots { .. }
            )
        );
        match self.scenario.store.topology {
            Topology::Sentinel { .. } if is_of_server => SETTLES,
            Topology::Cluster { .. } if is_of_server => SETTLES_IN_CLUSTER,
            _ => Duration::ZERO,
        }
    }

    fn mend(&mut self, number: usize) {
        self.links.retain(|link| link.fault != number);
        let now = self.now;
        match self.fault_kind(number) {
            Some(FaultKind::FreezeGateway { gateway, .. }) => {
                if let Some(host) = self.host(*gateway)
                    && host.frozen_until.is_some_and(|until| until <= now)
                {
                    host.thaw(now);
                }
            }
            Some(FaultKind::RestartServer { server, .. }) => {
                let Some(machine) = self.servers.get(*server) else {
                    return;
                };
                let kept = machine.kept.remove(&number);
                machine.downs -= 1;
                if machine.is_down() {
                    return;
                }
                machine.server.restart(kept.as_ref());
                machine.reign += 1;
                self.returned(*server);
            }
            Some(FaultKind::FreezeServer { server, .. }) => self.returned(*server),
            Some(FaultKind::OutOfMemory { server, .. }) => {
                if let Some(machine) = self.servers.get(*server) {
                    machine.server.config_mut().max_memory = None;
                }
            }
            Some(FaultKind::Refuse { server, .. }) => {
                if let Some(machine) = self.servers.get(*server) {
                    machine.server.set_user(User::unlimited("default"));
                }
            }
            Some(FaultKind::SlowApp { by, .. }) => {
                let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
                self.slowness.fetch_sub(by, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}
