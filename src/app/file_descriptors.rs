//! Divides the process's file descriptors, so that clients cannot take those that requests in
//! flight, the store and the admin listener need.

use std::num::NonZeroUsize;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weir_proxy::ConnectionBudget;

use weir_config::Settings;

/// The descriptors of a process with any configuration: standard streams, files that a reload
/// reads, the runtimes of the main and the admin thread, name resolution, and the admin listener's
/// connections.
const RESERVED_FOR_PROCESS: usize = 96;

/// A worker's runtime and its connections to the store.
const RESERVED_PER_WORKER: usize = 8;

/// A worker's listening socket, a second handle to it for a successor, and an accepted connection
/// that waits for its permit.
const RESERVED_PER_LISTENER: usize = 3;

/// A worker's socket for UDP, on listeners that have one.
const RESERVED_PER_UDP_LISTENER: usize = 1;

/// A file descriptor is an `int`, whatever the limit says.
const MAX_DESCRIPTORS: usize = i32::MAX as usize;

/// Upper bounds on open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileDescriptors {
    pub(super) clients: NonZeroUsize,
    upstreams: usize,
}

/// The descriptors to divide, and the parties that get them.
#[derive(Clone, Copy, Debug)]
struct Shares {
    limit: usize,
    workers: usize,
    listeners: usize,
    udp_listeners: usize,
    servers: usize,
    /// This process serves the demo upstream, so it has both ends of such a connection.
    serves_demo: bool,
}

impl FileDescriptors {
    /// Divides as many as the process may have, after raising its soft limit to the hard one: the
    /// lower one is for programs that use `select`. A configured `max_connections` that exceeds
    /// what is there is lowered, with a warning.
    pub(super) fn for_process(settings: &Settings) -> Self {
        let limit = raise_limit();
        let shares = Shares::new(settings, limit);
        let wanted = settings.process.connections.max_connections;
        let descriptors = shares.divide(wanted);
        if let Some(warning) = shares.too_many_servers(&descriptors) {
            tracing::warn!("{warning}");
        }
        if let Some(wanted) = wanted.filter(|wanted| *wanted > descriptors.clients) {
            tracing::warn!(
                max_connections = wanted,
                lowered_to = descriptors.clients,
                descriptors = limit,
                "max_connections is lowered to what the limit of file descriptors leaves; raise \
                 that (LimitNOFILE, ulimit -n)",
            );
        }
        descriptors
    }

    pub(super) fn upstreams(&self) -> ConnectionBudget {
        ConnectionBudget::new(self.upstreams)
    }
}

impl Shares {
    fn new(settings: &Settings, limit: usize) -> Self {
        let upstreams = &settings.upstreams;
        Self {
            limit,
            workers: settings.process.workers.get(),
            listeners: settings.listen.len(),
            udp_listeners: settings
                .listen
                .iter()
                .filter(|listener| listener.listens_by_udp())
                .count(),
            servers: upstreams
                .iter()
                .map(|upstream| upstream.settings.servers.len())
                .sum(),
            serves_demo: upstreams.iter().any(|upstream| upstream.is_demo),
        }
    }

    /// Each request in flight over HTTP/1.1 needs a connection to an upstream, and there is room
    /// for half as many idle ones: so clients get two fifths and upstreams three.
    fn divide(self, wanted: Option<NonZeroUsize>) -> FileDescriptors {
        let spare = self.spare();
        let ends = if self.serves_demo { 2 } else { 1 };
        let most = spare / 5 * 4;
        let clients = wanted.map_or(spare * 2 / (2 + 3 * ends), |wanted| wanted.get().min(most));
        let clients = NonZeroUsize::new(clients).unwrap_or(NonZeroUsize::MIN);
        let upstreams = (spare.saturating_sub(clients.get()) / ends).max(1);
        FileDescriptors { clients, upstreams }
    }

    /// A warning, unless each server may have an idle connection on each worker. A quarter of the
    /// descriptors is kept free of idle connections.
    fn too_many_servers(&self, descriptors: &FileDescriptors) -> Option<String> {
        let FileDescriptors { upstreams, .. } = descriptors;
        let Self { servers, limit, .. } = self;
        (self.workers * servers > upstreams / 4 * 3).then(|| {
            format!(
                "there are more servers ({servers}) than can each keep an idle connection on each \
                 worker, by this process's limit of {limit} file descriptors, {upstreams} of them for \
                 upstreams: requests connect anew; raise that limit (LimitNOFILE, ulimit -n)"
            )
        })
    }

    /// The descriptors for connections: half of them at least, if there are very few.
    fn spare(self) -> usize {
        let of_listeners =
            RESERVED_PER_LISTENER * self.listeners + RESERVED_PER_UDP_LISTENER * self.udp_listeners;
        let of_worker = RESERVED_PER_WORKER + of_listeners;
        let own = RESERVED_FOR_PROCESS + of_worker * self.workers;
        self.limit.saturating_sub(own).max(self.limit / 2)
    }
}

/// The warning of a gateway with this configuration and this process's limit, if there is one.
pub fn too_many_servers(settings: &Settings) -> Option<String> {
    let shares = Shares::new(settings, descriptors(getrlimit(Resource::Nofile).maximum));
    let wanted = settings.process.connections.max_connections;
    shares.too_many_servers(&shares.divide(wanted))
}

/// Raises the soft limit of file descriptors to the hard one, and says what it is then.
fn raise_limit() -> usize {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: before.maximum,
        ..before
    };
    // If the system refuses, the limit stays as it was.
    let _ = setrlimit(Resource::Nofile, raised);
    descriptors(getrlimit(Resource::Nofile).current)
}

/// The descriptors of a limit; none is "unlimited".
fn descriptors(limit: Option<u64>) -> usize {
    let limit = limit.and_then(|limit| usize::try_from(limit).ok());
    limit.map_or(MAX_DESCRIPTORS, |limit| limit.min(MAX_DESCRIPTORS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Shares = Shares {
        limit: 256,
        workers: 2,
        listeners: 1,
        udp_listeners: 0,
        servers: 1,
        serves_demo: false,
    };

    /// Everything that may be open at the same time.
    fn all(shares: Shares, descriptors: FileDescriptors) -> usize {
        let ends = if shares.serves_demo { 2 } else { 1 };
        shares.limit - shares.spare() + descriptors.clients.get() + descriptors.upstreams * ends
    }

    #[test]
    fn each_client_finds_an_upstream_connection() {
        for (limit, serves_demo) in [(256, false), (256, true), (1024, false), (1 << 20, true)] {
            let shares = Shares {
                limit,
                serves_demo,
                ..SMALL
            };
            let descriptors = shares.divide(None);
            assert!(all(shares, descriptors) <= limit);
            assert!(descriptors.clients.get() <= descriptors.upstreams);
            assert!(descriptors.clients.get() >= limit / 8);
        }
    }

    #[test]
    fn each_worker_has_a_descriptor_for_a_listener_of_udp() {
        let limit = 1024;
        let without = Shares { limit, ..SMALL };
        let with = Shares {
            udp_listeners: 3,
            ..without
        };
        assert_eq!(without.spare() - with.spare(), 3 * SMALL.workers);
    }

    #[test]
    fn too_many_servers_to_keep_idle_connections_are_told_of() {
        for (servers, are_kept) in [(2_000, true), (20_000, false)] {
            let shares = Shares {
                limit: 20_000,
                workers: 4,
                servers,
                ..SMALL
            };
            let warning = shares.too_many_servers(&shares.divide(None));
            assert_eq!(warning.is_none(), are_kept, "{warning:?}");
            let by_limit = |text: String| text.contains("limit of 20000 file descriptors");
            assert!(warning.is_none_or(by_limit));
        }
    }

    #[test]
    fn a_configured_bound_is_kept_and_lowered_only_where_upstreams_would_get_nothing() {
        let bound = |most| SMALL.divide(NonZeroUsize::new(most)).clients.get();
        assert_eq!((bound(1), bound(100), bound(1000)), (1, 100, 108));
        let descriptors = SMALL.divide(NonZeroUsize::new(1000));
        assert!(all(SMALL, descriptors) <= SMALL.limit);
        assert!(descriptors.upstreams > 20);
    }

    #[test]
    fn a_process_with_hardly_any_descriptors_serves_some_clients_all_the_same() {
        let shares = Shares { limit: 64, ..SMALL };
        assert_eq!(shares.divide(None).clients.get(), 12);
    }

    #[test]
    fn no_limit_at_all_is_no_overflow() {
        for limit in [None, Some(u64::MAX), Some(u64::MAX - 1)] {
            let shares = Shares {
                limit: descriptors(limit),
                ..SMALL
            };
            assert!(shares.divide(None).clients.get() > 1 << 28);
            assert!(shares.divide(Some(NonZeroUsize::MAX)).clients.get() > 1 << 28);
            let _ = shares.divide(None).upstreams();
        }
    }
}
