//! gRPC through the gateway, between a client and a server of tonic.

use std::net::{SocketAddr, TcpListener};

use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::{HealthReporter, health_reporter};

use crate::support::*;

/// A server of `grpc.health.v1.Health`, until the runtime ends.
pub(crate) fn serve() -> (SocketAddr, HealthReporter) {
    let (reporter, service) = health_reporter();
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    let server = Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    (address, reporter)
}

pub(crate) fn before(server: SocketAddr, keys: &str) -> Setup {
    let servers = format!("servers: [\"http://{server}\"], protocol: http2");
    Setup::with_upstreams(&format!("{{app: {{{servers}{keys}}}}}"))
}

async fn client(gateway: &Gateway) -> HealthClient<Channel> {
    let channel = Channel::from_shared(format!("http://{}", gateway.address())).unwrap();
    HealthClient::new(channel.connect().await.unwrap())
}

fn about(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

async fn check(client: &mut HealthClient<Channel>, service: &str) -> Result<i32, Status> {
    let answer = client.check(about(service)).await?;
    Ok(answer.into_inner().status)
}

#[test]
fn calls_and_streams_pass_with_their_status() {
    http2::run(async {
        let (server, reporter) = serve();
        let gateway = before(server, "").start();
        let mut client = client(&gateway).await;
        for _ in 0..3 {
            let serving = ServingStatus::Serving as i32;
            assert_eq!(check(&mut client, "").await.unwrap(), serving);
        }
        let unknown = check(&mut client, "no.Such").await.unwrap_err();
        assert_eq!(unknown.code(), Code::NotFound);
        assert!(!unknown.message().is_empty());
        let mut stream = client.watch(about("")).await.unwrap().into_inner();
        for status in [ServingStatus::Serving, ServingStatus::NotServing] {
            reporter.set_service_status("", status).await;
            let got = stream.message().await.unwrap().unwrap();
            assert_eq!(got.status, status as i32);
        }
        reporter
            .set_service_status("", ServingStatus::Serving)
            .await;
        assert!(stream.message().await.unwrap().is_some());
    });
}

#[test]
fn a_denied_call_is_told_that_resources_are_exhausted_and_when_to_call_again() {
    http2::run(async {
        let (server, _reporter) = serve();
        let setup = before(server, "").limited_by("Calls");
        let limit = "Calls: {per: address, burst: 1, count: 1, period: 1h}";
        let gateway = setup.limits(&[limit]).start();
        let mut client = client(&gateway).await;
        check(&mut client, "").await.unwrap();
        let denied = check(&mut client, "").await.unwrap_err();
        assert_eq!(denied.code(), Code::ResourceExhausted);
        let metadata = denied.metadata();
        let number = |name| metadata.get(name).unwrap().to_str().unwrap().parse::<u64>();
        let pushback = number("grpc-retry-pushback-ms").unwrap();
        assert!((3_500_000..=3_600_000).contains(&pushback), "{pushback}");
        assert_eq!(pushback, 1000 * number("retry-after").unwrap());
        assert!(metadata.contains_key("ratelimit"), "{metadata:?}");
        // Another client learns it by HTTP.
        assert_eq!(
            gateway
                .send(&post("/grpc.health.v1.Health/Check", ""))
                .status,
            429
        );
    });
}

#[test]
fn a_server_out_of_reach_is_unavailable_and_one_that_keeps_silent_exceeds_the_deadline() {
    http2::run(async {
        // It accepts connections, and nothing reads from them.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = silent.local_addr().unwrap();
        let keys = ", response_timeout: 100ms, connect_timeout: 100ms";
        let gateway = before(server, keys).start();
        let mut client = client(&gateway).await;
        let slow = check(&mut client, "").await.unwrap_err();
        assert_eq!(slow.code(), Code::DeadlineExceeded);
        drop(silent);
        let gone = check(&mut client, "").await.unwrap_err();
        assert_eq!(gone.code(), Code::Unavailable);
    });
}
