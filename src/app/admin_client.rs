//! The admin API from its other side, for commands.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_telemetry::{printable, printable_lines};
use weir_yaml::Diagnostics;

/// Longer than the deadline of the gateway's own store. An answer is over by then.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Upper bound on an answer, and on the pages of a list together: some 50,000 subjects. What listens
/// at the address may never come to an end. Parsed, an answer may take 40 times its bytes.
const MAX_BYTES: usize = 16 << 20;

/// How many items a page of a list has at most.
const MAX_PAGE_ITEMS: usize = 1000;

/// Upper bound on the time that the pages of a list take, of which some may be empty.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// The error of a request to the admin API.
#[derive(Debug, Error)]
pub enum AdminError {
    /// The configuration does not tell where the admin listener is, as it is in error.
    #[error("{0}")]
    Configuration(Diagnostics),
    /// The configuration has no admin listener.
    #[error(
        "there is no admin listener; configure `admin: {{address: ...}}`, or say --admin ADDRESS"
    )]
    NoListener,
    /// The token cannot stand in a header.
    #[error("the token has characters that no token has")]
    Token,
    /// Nothing responds there.
    #[error("no gateway answers at {address}: {cause}")]
    Unreachable {
        /// The address of the admin listener.
        address: SocketAddr,
        /// Why.
        cause: String,
    },
    /// What responds there says more than any gateway does.
    #[error("the answer of {0} is longer than {mib} MiB", mib = MAX_BYTES >> 20)]
    TooLong(SocketAddr),
    /// The pages of a list exceed a bound together.
    #[error("the answer of {address} {excess}: ask for fewer with --count")]
    TooMany {
        /// The address of the admin listener.
        address: SocketAddr,
        /// What they exceed, in words.
        excess: String,
    },
    /// The gateway has no such thing.
    #[error("{0}")]
    NotFound(String),
    /// The gateway refuses.
    #[error("{0}")]
    Refused(String),
}

/// The address of an admin listener, and the token for it.
#[derive(Clone, Debug)]
pub struct AdminClient {
    address: SocketAddr,
    token: Option<String>,
}

impl AdminClient {
    /// The listener at this address, or that of the configuration at `path`.
    ///
    /// # Errors
    /// When the configuration does not say where, or has none. What else is in error does not matter.
    pub fn new(
        path: &Path,
        address: Option<SocketAddr>,
        token: Option<String>,
    ) -> Result<Self, AdminError> {
        let configured = || {
            let address = weir_config::admin_address(path).map_err(AdminError::Configuration)?;
            address.ok_or(AdminError::NoListener)
        };
        let address = address.map_or_else(configured, Ok)?;
        let address = SocketAddr::new(reachable(address.ip()), address.port());
        Ok(Self { address, token })
    }

    /// Sends a request for a path such as `/v1/top?count=10`, and returns the response of the API.
    ///
    /// # Errors
    /// When nothing responds, or the API refuses.
    pub fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, AdminError> {
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let answer = self.response(method, path, body, MAX_BYTES)?;
        self.value(&answer)
    }

    /// Lists what stands under `items` in the pages of a path, up to `count`, as one page.
    ///
    /// # Errors
    /// When nothing responds, or the API refuses.
    pub fn list(&self, path: &str, items: &str, count: usize) -> Result<Value, AdminError> {
        self.list_within(LIST_TIMEOUT, path, items, count)
    }

    fn list_within(
        &self,
        time: Duration,
        path: &str,
        items: &str,
        count: usize,
    ) -> Result<Value, AdminError> {
        let (mut listed, mut cursor) = (Vec::new(), String::new());
        let (mut left, since) = (MAX_BYTES, Instant::now());
        loop {
            let page_count = (count - listed.len()).clamp(1, MAX_PAGE_ITEMS);
            let path = format!("{path}?count={page_count}{cursor}");
            let answer = self.response(Method::GET, &path, Bytes::new(), left);
            let answer = answer.map_err(|error| match error {
                AdminError::TooLong(_) => {
                    self.too_many(format!("is longer than {} MiB", MAX_BYTES >> 20))
                }
                error => error,
            })?;
            left -= answer.1.len();
            let mut page = self.value(&answer)?;
            if let Some(found) = page.get_mut(items).and_then(Value::as_array_mut) {
                listed.append(found);
            }
            match page.get("next").and_then(Value::as_str) {
                Some(_) if since.elapsed() > time => {
                    return Err(self.too_many(format!("takes longer than {} s", time.as_secs())));
                }
                Some(next) if listed.len() < count => cursor = format!("&cursor={next}"),
                _ => {
                    listed.truncate(count);
                    if let Some(members) = page.as_object_mut() {
                        members.insert(items.to_owned(), listed.into());
                    }
                    return Ok(page);
                }
            }
        }
    }

    /// The answer of the API, or its error.
    fn value(&self, (status, body): &(StatusCode, Bytes)) -> Result<Value, AdminError> {
        let json: Option<Value> = serde_json::from_slice(body).ok();
        match json {
            Some(json) if status.is_success() => Ok(json),
            Some(problem) => {
                let detail = problem.get("detail").and_then(Value::as_str);
                let detail = detail.map(|detail| printable(detail).into_owned());
                let detail = detail.unwrap_or_else(|| status.to_string());
                Err(match *status {
                    StatusCode::NOT_FOUND => AdminError::NotFound(detail),
                    _ => AdminError::Refused(detail),
                })
            }
            None => Err(self.unreachable(format!("{status}, and not as an admin listener does"))),
        }
    }

    /// The status and the text of a page for monitors, such as `/livez`.
    ///
    /// # Errors
    /// When nothing responds.
    pub fn get_text(&self, path: &str) -> Result<(StatusCode, String), AdminError> {
        let (status, body) = self.response(Method::GET, path, Bytes::new(), MAX_BYTES)?;
        let text = String::from_utf8_lossy(&body);
        Ok((status, printable_lines(text.trim_end()).into_owned()))
    }

    fn response(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        max_bytes: usize,
    ) -> Result<(StatusCode, Bytes), AdminError> {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(HOST, self.address.to_string());
        if let Some(token) = &self.token {
            let bearer = HeaderValue::try_from(format!("Bearer {token}"));
            let mut bearer = bearer.map_err(|_| AdminError::Token)?;
            bearer.set_sensitive(true);
            request = request.header(AUTHORIZATION, bearer);
        }
        let request = request.body(Full::new(body));
        let request = request.map_err(|error| self.unreachable(error))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| self.unreachable(error))?;
        runtime.block_on(async {
            let response = timeout(TIMEOUT, self.send(request, max_bytes)).await;
            response.map_err(|_| self.unreachable("it takes too long"))?
        })
    }

    async fn send(
        &self,
        request: Request<Full<Bytes>>,
        max_bytes: usize,
    ) -> Result<(StatusCode, Bytes), AdminError> {
        let stream = TcpStream::connect(self.address).await;
        let stream = TokioIo::new(stream.map_err(|error| self.unreachable(error))?);
        let connected = hyper::client::conn::http1::handshake(stream).await;
        let (mut sender, connection) = connected.map_err(|error| self.unreachable(error))?;
        let exchange = async move {
            let response = sender.send_request(request).await;
            let (head, body) = response
                .map_err(|error| self.unreachable(error))?
                .into_parts();
            let body = Limited::new(body, max_bytes).collect().await;
            let body = body.map_err(|error| match error.is::<LengthLimitError>() {
                true => AdminError::TooLong(self.address),
                false => self.unreachable(error),
            })?;
            Ok((head.status, body.to_bytes()))
        };
        // The connection would go on with a body that is too long. Where it breaks, the exchange
        // has the error.
        let connection = async {
            let _ = connection.await;
            std::future::pending().await
        };
        tokio::select! {
            response = exchange => response,
            none = connection => none,
        }
    }

    fn too_many(&self, excess: String) -> AdminError {
        AdminError::TooMany {
            address: self.address,
            excess,
        }
    }

    fn unreachable(&self, cause: impl ToString) -> AdminError {
        AdminError::Unreachable {
            address: self.address,
            cause: cause.to_string(),
        }
    }
}

/// The address by which this machine reaches a listener on it.
fn reachable(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    use super::*;

    /// A listener that answers each request by this head and then by `piece`, again and again until
    /// nobody reads any more. The thread ends with how many bytes it got rid of.
    fn answering(
        head: &'static str,
        piece: &'static [u8],
        times: usize,
        requests: usize,
    ) -> (AdminClient, JoinHandle<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = thread::spawn(move || {
            let mut sent = 0;
            for _ in 0..requests {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                stream.write_all(head.as_bytes()).unwrap();
                for _ in 0..times {
                    match stream.write_all(piece) {
                        Ok(()) => sent += piece.len(),
                        Err(_) => break,
                    }
                }
            }
            sent
        });
        let client = AdminClient::new(Path::new("none"), Some(address), None).unwrap();
        (client, served)
    }

    const ENDLESS: &str = "HTTP/1.1 200 OK\r\n\r\n";

    /// An answer without an end took 3.6 GB in ten seconds.
    #[test]
    fn an_answer_without_an_end_is_given_up_and_never_kept() {
        for path in ["/v1/top", "/livez"] {
            let (client, served) = answering(ENDLESS, &[b'['; 64 * 1024], usize::MAX, 1);
            let error = match path {
                "/livez" => client.get_text(path).unwrap_err(),
                _ => client.request(Method::GET, path, None).unwrap_err(),
            };
            let expected = format!("the answer of {} is longer than 16 MiB", client.address);
            assert_eq!(error.to_string(), expected);
            // What the sockets hold comes on top.
            let sent = served.join().unwrap();
            assert!(sent < MAX_BYTES + (32 << 20), "{sent}");
        }
    }

    /// Each page is small, and says that another follows.
    #[test]
    fn the_pages_of_a_list_are_bounded_together() {
        const PAGE: &[u8] = &[b' '; 8 << 20];
        let head = "HTTP/1.1 200 OK\r\n\r\n{\"bans\": [], \"next\": \"on\"}";
        let (client, served) = answering(head, PAGE, 1, 2);
        let error = client.list("/v1/bans", "bans", 1000).unwrap_err();
        let expected = format!(
            "the answer of {} is longer than 16 MiB: ask for fewer with --count",
            client.address
        );
        assert_eq!(error.to_string(), expected);
        assert!(served.join().unwrap() <= 2 * PAGE.len());
    }

    #[test]
    fn a_list_that_takes_too_long_is_not_said_to_come_from_no_gateway() {
        let head = "HTTP/1.1 200 OK\r\n\r\n{\"bans\": [], \"next\": \"on\"}";
        let (client, _) = answering(head, b" ", 1, 1);
        let listed = client.list_within(Duration::ZERO, "/v1/bans", "bans", 1000);
        let expected = format!(
            "the answer of {} takes longer than 0 s: ask for fewer with --count",
            client.address
        );
        assert_eq!(listed.unwrap_err().to_string(), expected);
    }

    #[test]
    fn nothing_that_a_terminal_obeys_is_in_an_error_of_a_gateway() {
        let problem = b"{\"detail\": \"\\u001b[2J\\u202egnp\\nforged\\u009b\"}";
        let (client, _) = answering("HTTP/1.1 403 No\r\n\r\n", problem, 1, 1);
        let error = client.request(Method::GET, "/v1/top", None).unwrap_err();
        assert_eq!(error.to_string(), r"\u{1b}[2J\u{202e}gnp\nforged\u{9b}");
        let (client, _) = answering(ENDLESS, "ready\n\u{1b}[2J\u{202e}\n".as_bytes(), 1, 1);
        let (_, text) = client.get_text("/readyz").unwrap();
        assert_eq!(text, "ready\n\\u{1b}[2J\\u{202e}");
    }
}
