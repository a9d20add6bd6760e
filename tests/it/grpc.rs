//! gRPC through the gateway, between a client and a server of tonic.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

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

/// A gateway whose limit is spent by a call of this client.
async fn after_the_only_call_of_the_hour(server: SocketAddr) -> (Gateway, HealthClient<Channel>) {
    let setup = before(server, "").limited_by("Calls");
    let limit = "Calls: {per: address, burst: 1, count: 1, period: 1h}";
    let gateway = setup.limits(&[limit]).start();
    let mut client = client(&gateway).await;
    check(&mut client, "").await.unwrap();
    (gateway, client)
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
        let (gateway, mut client) = after_the_only_call_of_the_hour(server).await;
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

/// A client with a policy for retries sleeps for the pushback, and one whose deadline came first
/// reported that the deadline was exceeded.
#[test]
fn a_call_whose_deadline_comes_before_the_wait_is_told_not_to_retry() {
    http2::run(async {
        let (server, _reporter) = serve();
        let (_gateway, mut client) = after_the_only_call_of_the_hour(server).await;
        for (timeout, is_told) in [(60, false), (36_000, true)] {
            let mut call = tonic::Request::new(about(""));
            call.set_timeout(Duration::from_secs(timeout));
            let denied = client.check(call).await.unwrap_err();
            assert_eq!(denied.code(), Code::ResourceExhausted);
            let pushback = denied.metadata().get("grpc-retry-pushback-ms").unwrap();
            assert_eq!(pushback != "-1", is_told, "{timeout}: {pushback:?}");
            assert!(denied.metadata().contains_key("retry-after"));
        }
    });
}

#[test]
fn a_call_that_costs_more_than_ever_passes_is_told_not_to_retry() {
    http2::run(async {
        let (server, _reporter) = serve();
        let setup = before(server, "").limited_by("{limit: Calls, cost: {request_header: x-cost}}");
        let limit = "Calls: {per: address, burst: 5, count: 1, period: 1h}";
        let gateway = setup.limits(&[limit]).start();
        let mut client = client(&gateway).await;
        let mut call = tonic::Request::new(about(""));
        call.metadata_mut().insert("x-cost", "6".parse().unwrap());
        let denied = client.check(call).await.unwrap_err();
        assert_eq!(denied.code(), Code::ResourceExhausted);
        assert_eq!(
            denied.metadata().get("grpc-retry-pushback-ms").unwrap(),
            "-1"
        );
        assert!(!denied.metadata().contains_key("retry-after"));
        let plain = post("/grpc.health.v1.Health/Check", "").with("x-cost", "6");
        let plain = gateway.send(&plain);
        assert_eq!(plain.status, 403);
        assert_eq!(
            plain.json()["violated-policies"],
            serde_json::json!(["Calls"])
        );
        check(&mut client, "").await.unwrap();
    });
}

/// Clients reported UNKNOWN, as there were no trailers, and `via` told HTTP/1.1 until a real
/// response had come.
#[test]
fn a_decoy_is_a_reply_like_those_of_the_server_before_and_after_the_first_of_them() {
    http2::run(async {
        let (server, _reporter) = serve();
        let decoy = "{status: 200, headers: {content-type: application/json}, body: '{}'}";
        let route = |burst: u32| {
            let setup = before(server, "").key(&format!("decoys: {{served: {decoy}}}"));
            let limit = format!("Calls: {{per: address, burst: {burst}, count: 1, period: 1000h}}");
            setup.limits(&[&limit]).routes(&[
                "{name: all, match: {}, upstream: app, on_denied: {shadow: served}, \
                 limits: [{limit: Calls, cost: {request_header: x-cost, default: 1}}]}",
            ])
        };
        for real_calls in [0, 2] {
            let gateway = route(2).start();
            let mut client = client(&gateway).await;
            let mut real = None;
            for _ in 0..real_calls {
                real = Some(client.check(about("")).await.unwrap());
            }
            let mut call = tonic::Request::new(about(""));
            call.metadata_mut().insert("x-cost", "3".parse().unwrap());
            let decoy = client.check(call).await.unwrap();
            // The empty message; a real one says SERVING.
            assert_eq!(decoy.get_ref().status, ServingStatus::Unknown as i32);
            assert_eq!(decoy.metadata().get("via").unwrap(), "2 weir");
            let Some(real) = real else { continue };
            let names = |reply: &tonic::Response<_>| -> Vec<String> {
                let headers = reply.metadata().clone().into_headers();
                headers.keys().map(ToString::to_string).collect()
            };
            assert_eq!(names(&decoy), names(&real));
            let content_type =
                |reply: &tonic::Response<_>| reply.metadata().get("content-type").cloned();
            assert_eq!(content_type(&decoy), content_type(&real));
        }
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
