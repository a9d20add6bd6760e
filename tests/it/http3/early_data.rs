//! Requests that come before the handshake ends.

use quinn::{Connecting, Endpoint};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use super::*;

const MARK: &str = "early-data";

/// A client that was there before, so that it may send early data.
struct Returning {
    endpoint: Endpoint,
}

impl Returning {
    async fn to(gateway: &Gateway, secure: &Secure) -> Self {
        let mut config = (*secure.config).clone();
        config.enable_early_data = true;
        let endpoint = endpoint(&Arc::new(config));
        let connection = quic(&endpoint, gateway.address(), NAME).await.unwrap();
        let mut client = Http3::over(endpoint.clone(), connection).await;
        // Tickets and tokens have arrived by then.
        assert_eq!(client.get("/before").await.unwrap().status(), 200);
        Self { endpoint }
    }

    fn connecting(&self, to: SocketAddr) -> Connecting {
        self.endpoint.connect(to, NAME).unwrap()
    }

    /// Begins another connection, with early data. Returns whether that is accepted in the end.
    async fn early(&self, to: SocketAddr) -> (Http3, quinn::ZeroRttAccepted) {
        let Ok((connection, accepted)) = self.connecting(to).into_0rtt() else {
            panic!("no early data is offered");
        };
        (
            Http3::over(self.endpoint.clone(), connection).await,
            accepted,
        )
    }
}

/// Stands between a client and a gateway, and keeps what the client sends.
struct Relay {
    address: SocketAddr,
    /// Whether the gateway gets what the client sends, and the client what the gateway sends. What
    /// does not pass is lost.
    passes: watch::Sender<(bool, bool)>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    has_answered: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Relay {
    /// The gateway takes it for a client at `source`.
    async fn at(source: &str, gateway: SocketAddr, passes: (bool, bool)) -> Self {
        let front = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let back = UdpSocket::bind((source, 0)).await.unwrap();
        back.connect(gateway).await.unwrap();
        let address = front.local_addr().unwrap();
        let (passes, state) = watch::channel(passes);
        let sent = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let (answers, has_answered) = watch::channel(false);
        let task = tokio::spawn(relay((front, back), state, Arc::clone(&sent), answers));
        Self {
            address,
            passes,
            sent,
            has_answered,
            task,
        }
    }

    /// What the client has sent.
    fn sent(&self) -> Vec<Vec<u8>> {
        self.sent.lock().unwrap().clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay(
    (front, back): (UdpSocket, UdpSocket),
    passes: watch::Receiver<(bool, bool)>,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    answers: watch::Sender<bool>,
) {
    let (mut up, mut down) = ([0; 65_536], [0; 65_536]);
    let mut client = None;
    loop {
        tokio::select! {
            received = front.recv_from(&mut up) => {
                let (length, from) = received.unwrap();
                client = Some(from);
                sent.lock().unwrap().push(up[..length].to_vec());
                if passes.borrow().0 {
                    back.send(&up[..length]).await.unwrap();
                }
            }
            Ok(length) = back.recv(&mut down) => {
                answers.send_replace(true);
                let to_client = passes.borrow().1;
                if let Some(client) = client.filter(|_| to_client) {
                    front.send_to(&down[..length], client).await.unwrap();
                }
            }
        }
    }
}

fn upstream() -> Upstream {
    Upstream::answering(|received| {
        let mut answer = text("real");
        if received.target == "/careful" && !received.lines(MARK).is_empty() {
            *answer.status_mut() = http::StatusCode::TOO_EARLY;
        }
        answer
    })
}

const ON: &str = "{early_data: true}";

fn setup(secure: &Secure, upstream: &Upstream) -> Setup {
    secure.setup(Setup::before(upstream), ON)
}

/// The requests for a path that have arrived.
fn arrived_at(upstream: &Upstream, path: &str) -> Vec<upstream::Received> {
    let all = upstream.all().into_iter();
    all.filter(|received| received.target == path).collect()
}

async fn arrives_at(upstream: &Upstream, path: &str) -> upstream::Received {
    loop {
        if let Some(received) = arrived_at(upstream, path).into_iter().next() {
            return received;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn safe_requests_pass_with_a_mark_and_others_wait_for_the_handshakes_end() {
    let (upstream, secure) = (upstream(), Secure::new());
    // With so many, a head that may wait has at most some 2,000 bytes.
    let setup = setup(&secure, &upstream).key("connections: {max_streams: 1000}");
    let gateway = setup.start();
    http2::run(async {
        let client = Returning::to(&gateway, &secure).await;
        // The client gets nothing, and so cannot finish the handshake.
        let relay = Relay::at("127.0.0.1", gateway.address(), (true, false)).await;
        let (early, accepted) = client.early(relay.address).await;
        let send = |mut request: http::Request<()>, body: &'static [u8]| {
            let mut sender = early.sender.clone();
            // Whatever a client says of it itself, the app finds one mark (RFC 8470, section 5.1).
            let own = HeaderValue::from_static("0");
            request.headers_mut().insert(MARK, own.clone());
            request.headers_mut().append(MARK, own);
            tokio::spawn(async move {
                let mut stream = sender.send_request(request).await.unwrap();
                if !body.is_empty() {
                    stream.send_data(Bytes::from_static(body)).await.unwrap();
                }
                stream.finish().await.unwrap();
                stream.recv_response().await.unwrap().status().as_u16()
            })
        };
        let unsafe_one = send(http3::post("/unsafe"), b"some");
        let careful = send(http3::get("/careful"), b"");
        let safe = send(http3::get("/safe"), b"");
        assert_eq!(arrives_at(&upstream, "/safe").await.lines(MARK), ["1"]);
        arrives_at(&upstream, "/careful").await;
        assert!(arrived_at(&upstream, "/unsafe").is_empty());
        // What waits is in no bound of heads, so a large head does not wait. The client's congestion
        // window (14,720 bytes in quinn 0.11) has room for it twice: it would not send the end of its
        // handshake if all of that were early data whose acknowledgement is lost.
        let mut large = http3::post("/large");
        let value = HeaderValue::from_str(&"x".repeat(3 * 1024)).unwrap();
        large.headers_mut().insert("x-large", value);
        let mut sender = early.sender.clone();
        let large = tokio::spawn(async move {
            let mut stream = sender.send_request(large).await.unwrap();
            let _ = stream.finish().await;
            stream.recv_response().await.is_err()
        });
        while relay.sent().iter().map(Vec::len).sum::<usize>() < 3 * 1024 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Requests are begun in their order.
        let behind = send(http3::get("/behind"), b"");
        arrives_at(&upstream, "/behind").await;
        relay.passes.send_replace((true, true));
        assert_eq!(safe.await.unwrap(), 200);
        assert_eq!(behind.await.unwrap(), 200);
        assert_eq!(careful.await.unwrap(), 425, "the app's own word passes");
        assert_eq!(unsafe_one.await.unwrap(), 200);
        assert!(large.await.unwrap(), "it may be sent again");
        assert!(arrived_at(&upstream, "/large").is_empty());
        assert!(accepted.await);
        let received = arrived_at(&upstream, "/unsafe");
        assert_eq!((received.len(), &received[0].body[..]), (1, &b"some"[..]));
        // Its own field is not touched: no such field may be removed.
        assert_eq!(received[0].lines(MARK), ["0", "0"]);
    });
    let mut after = secure.over_tcp(&gateway);
    assert_eq!(after.send(&get("/careful")).status, 200);
    assert_eq!(after.send(&get("/careful").with(MARK, "1")).status, 425);
}

#[test]
fn a_request_of_early_data_that_is_sent_again_is_served_and_charged_once() {
    let (upstream, secure) = (upstream(), Secure::new());
    let limit = "PerAddress: {per: address, burst: 10, count: 10, period: 24h}";
    let setup = setup(&secure, &upstream)
        .limited_by("PerAddress")
        .key("connections: {header_timeout: 2s}");
    let gateway = setup.limits(&[limit]).start();
    http2::run(async {
        let client = Returning::to(&gateway, &secure).await;
        let relay = Relay::at("127.0.0.1", gateway.address(), (false, false)).await;
        let (early, _accepted) = client.early(relay.address).await;
        let mut sender = early.sender.clone();
        let mut stream = sender.send_request(http3::get("/copied")).await.unwrap();
        stream.finish().await.unwrap();
        // None of it reaches the gateway but by somebody who has seen it.
        let copied = async |to: &UdpSocket| {
            for datagram in relay.sent() {
                to.send_to(&datagram, gateway.address()).await.unwrap();
            }
        };
        let first = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        while arrived_at(&upstream, "/copied").is_empty() {
            copied(&first).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(arrived_at(&upstream, "/copied")[0].lines(MARK), ["1"]);
        // Until the first of its kind is forgotten, it is that one's packets. A new handshake is
        // answered.
        let again = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut answer = [0; 2000];
        loop {
            copied(&again).await;
            let answered = again.recv(&mut answer);
            let wait = Duration::from_millis(200);
            if tokio::time::timeout(wait, answered).await.is_ok() {
                break;
            }
        }
        copied(&again).await;
        let mut other = secure.connect(&gateway).await;
        let answer = other.get("/after").await.unwrap();
        // `/before`, the copy, and this one.
        assert!(answer.header("ratelimit").unwrap().contains("r=7"));
        assert_eq!(arrived_at(&upstream, "/copied").len(), 1);
    });
}

#[test]
fn no_request_of_early_data_is_served_for_an_address_that_is_not_validated() {
    let (upstream, secure) = (upstream(), Secure::new());
    let gateway = setup(&secure, &upstream).start();
    http2::run(async {
        let client = Returning::to(&gateway, &secure).await;
        // The token is one of another address.
        let mut relay = Relay::at("127.0.0.2", gateway.address(), (true, false)).await;
        let (mut early, accepted) = client.early(relay.address).await;
        let response = tokio::spawn(async move { early.get("/early").await });
        // The gateway has the request when it answers.
        relay
            .has_answered
            .wait_for(|answered| *answered)
            .await
            .unwrap();
        let mut other = secure.connect(&gateway).await;
        assert_eq!(other.get("/other").await.unwrap().status(), 200);
        assert!(arrived_at(&upstream, "/early").is_empty());
        relay.passes.send_replace((true, true));
        assert_eq!(response.await.unwrap().unwrap().status(), 200);
        assert!(accepted.await);
        assert!(arrived_at(&upstream, "/early")[0].lines(MARK).is_empty());
    });
}
