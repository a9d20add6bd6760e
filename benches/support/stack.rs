//! Every layer of the gateway over an upstream that answers at once.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{ServiceExt, service_fn};
use weir::internals::{
    ActiveUpstreams, Backend, BoxedRequest, Layers, LimitedBody, Metered, SharedState,
    UpstreamRouter,
};
use weir::middleware::{Peer, RequestContext};
use weir::rules::HashKey;
use weir::store::{Memory, MemorySettings};
use weir::telemetry::Metrics;

type Body = Full<bytes::Bytes>;

/// A route for each number of limits, and one whose only bucket is empty.
pub(crate) const PATHS: [&str; 4] = ["/none", "/one", "/three", "/denied"];

/// One where requests get a decoy once 300 responses have come from the upstream, which takes
/// [`DECOY_LATENCY`] for each; and so does each decoy, which waits for it. So many have decoys forget
/// how long the first took, when nothing was warm.
pub(crate) const DECOY: &str = "/decoy";
pub(crate) const DECOY_LATENCY: Duration = Duration::from_millis(2);

const GATEWAY: &str = "
upstreams: {app: {servers: ['http://127.0.0.1:3000']}}
decoys:
  hello: {status: 200, headers: {content-type: text/plain}, body: hello}
routes:
  - {name: none, match: {path: /none}, upstream: app, limits: []}
  - {name: one, match: {path: /one}, upstream: app, limits: [A]}
  - {name: three, match: {path: /three}, upstream: app, limits: [A, B, C]}
  - {name: denied, match: {path: /denied}, upstream: app, limits: [Denied]}
  - {name: fixed, match: {path: /fixed}, response: {body: hello}}
  - {name: decoy, match: {path: /decoy}, upstream: app, limits: [AfterReal],
     on_denied: {shadow: hello}}
";

const DEFAULTS: &str = "
A: {per: address, burst: 1000000000, count: 1000000000, period: 10s}
B: {per: host, burst: 1000000000, count: 1000000000, period: 10s}
C: {per: [address, method], burst: 1000000000, count: 1000000000, period: 10s}
Denied: {per: address, burst: 1, count: 1, period: 24h}
AfterReal: {per: address, burst: 300, count: 1, period: 24h}
";

/// The layers over the routes of [`PATHS`] and [`DECOY`], and `/fixed`, which responds itself.
pub(crate) fn layers() -> Layers {
    layers_with("")
}

/// The same layers, with these keys.
pub(crate) fn layers_with(keys: &str) -> Layers {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("limits")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("gateway.yaml", &format!("{keys}\n{GATEWAY}"));
    write("limits/defaults.yaml", DEFAULTS);
    let path = folder.path().join("gateway.yaml");
    let settings = weir::internals::load(&path, &HashKey::random()).unwrap();
    let metrics = Metrics::new();
    Layers::new(
        &settings,
        &ActiveUpstreams::default(),
        &SharedState::new(&settings.process, &metrics, None),
    )
}

fn request(path: &str) -> Request<Body> {
    let peer = Peer {
        address: IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9)),
        secure: false,
    };
    let request = Request::get(path).header("host", "app.example.com");
    let request = request
        .header("user-agent", "bench")
        .header("accept", "*/*");
    let request = request.extension(RequestContext::new(peer));
    request.body(Body::default()).unwrap()
}

/// Sends requests for a path through the whole stack, and waits for the body. The first request for
/// `/denied` is let through.
pub(crate) fn asking() -> impl FnMut(&str) -> bytes::Bytes {
    let layers = layers();
    let max_buckets = 1_000_000.try_into().unwrap();
    let store = Arc::new(Memory::new(MemorySettings { max_buckets }));
    let upstream = service_fn(
        |request: BoxedRequest<Metered<LimitedBody<Body>>>| async move {
            if request.head.uri.path() == DECOY {
                tokio::time::sleep(DECOY_LATENCY).await;
            }
            Ok::<_, Infallible>(Response::new(Body::from("hello")))
        },
    );
    let leases = Arc::new(store.leases().clone());
    let services = UpstreamRouter::new(vec![Some(upstream); 8], []);
    let backend = Backend {
        leases,
        ..Backend::new(store)
    };
    let service = layers.stack(backend, services);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    move |path| {
        runtime.block_on(async {
            let response = service.clone().oneshot(request(path)).await.unwrap();
            response.into_body().collect().await.unwrap().to_bytes()
        })
    }
}
