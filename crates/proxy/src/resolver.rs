//! Looks names up in the DNS itself: SRV records, which the system's resolver does not give, and
//! addresses where an upstream has DNS servers of its own.
//!
//! Each query has a resolver of its own. So a change of `/etc/resolv.conf` is seen, and no socket
//! belongs to a worker that has ended.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use domain::base::iana::Rcode;
use domain::base::{Name, Rtype};
use domain::rdata::Srv;
use domain::resolv::lookup::host::FoundHosts;
use domain::resolv::stub::Answer;
use domain::resolv::stub::StubResolver;
use domain::resolv::stub::conf::{ResolvConf, ServerConf, Transport};

use tokio::time::timeout;

use super::settings::{Server, SrvRecord};

/// How long one server may take to answer one query.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// The usable SRV records of a name, in an order of their own, and how long they may be kept. With
/// no `resolvers`, those of `/etc/resolv.conf` are asked.
///
/// # Errors
/// When no resolver answers, or none of the records can be used.
pub async fn lookup_srv(
    resolvers: &[SocketAddr],
    name: &str,
) -> io::Result<(Vec<SrvRecord>, Duration)> {
    let answer = query(resolvers, name, Rtype::SRV).await?;
    let records = answer.answer().map_err(invalid)?;
    // Those of aliases on the way count as well.
    let ttls = records.filter_map(|record| Some(record.ok()?.ttl().as_secs()));
    let ttl = Duration::from_secs(ttls.min().unwrap_or_default().into());
    let records = records.limit_to_in::<Srv<_>>();
    let mut found = BTreeMap::new();
    for record in records {
        let record = record.map_err(invalid)?;
        let data = record.data();
        let target = data.target().to_string().to_ascii_lowercase();
        let record = SrvRecord {
            target: target.trim_end_matches('.').to_owned(),
            port: data.port(),
            priority: data.priority(),
            weight: data.weight(),
        };
        if is_usable(&record) {
            // A server that is named twice is there once.
            let key = (record.target.clone(), record.port);
            let known = found.entry(key).or_insert_with(|| record.clone());
            if record.priority < known.priority {
                *known = record;
            }
        }
    }
    if found.is_empty() {
        let error = "the name has no SRV record of a server";
        return Err(io::Error::new(io::ErrorKind::NotFound, error));
    }
    Ok((found.into_values().collect(), ttl))
}

/// Whether requests can be sent there. The target `.` says that there is no such service.
fn is_usable(record: &SrvRecord) -> bool {
    let url = format!("http://{}:{}", record.target, record.port);
    url.parse::<Server>().is_ok()
}

/// The addresses of a host, by these resolvers.
pub(super) async fn lookup_host(
    resolvers: &[SocketAddr],
    host: &str,
    port: u16,
) -> io::Result<Vec<SocketAddr>> {
    let (a, aaaa) = tokio::join!(
        query(resolvers, host, Rtype::A),
        query(resolvers, host, Rtype::AAAA),
    );
    let found = FoundHosts::<StubResolver>::new(aaaa, a)?;
    Ok(found.port_iter(port).collect())
}

/// The first answer that says what there is, be it nothing. Each server is asked twice, as a
/// datagram may be lost, and another one if it fails.
async fn query(resolvers: &[SocketAddr], name: &str, kind: Rtype) -> io::Result<Answer> {
    let name: Name<Vec<u8>> = Name::vec_from_str(name).map_err(invalid)?;
    let servers: Vec<_> = match resolvers {
        [] => ResolvConf::default()
            .servers
            .iter()
            .map(|server| server.addr)
            .collect(),
        given => given.to_vec(),
    };
    // Some servers, such as Consul's, send a part of a long list by UDP, and do not say so.
    let transports = match kind {
        Rtype::SRV => [Transport::Tcp, Transport::UdpTcp],
        _ => [Transport::UdpTcp; 2],
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "there is no DNS server");
    for transport in transports {
        for server in &servers {
            let mut conf = ResolvConf::new();
            conf.servers = vec![ServerConf::new(*server, transport)];
            conf.finalize();
            let resolver = StubResolver::from_conf(conf);
            let asked = timeout(ATTEMPT_TIMEOUT, resolver.query((&name, kind))).await;
            last = match asked.unwrap_or_else(|late| Err(late.into())) {
                Err(error) => error,
                Ok(answer) => match answer.header().rcode() {
                    Rcode::NOERROR | Rcode::NXDOMAIN => return Ok(answer),
                    rcode => io::Error::other(format!("the DNS server responded with {rcode}")),
                },
            };
        }
    }
    Err(last)
}

fn invalid(error: impl Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
