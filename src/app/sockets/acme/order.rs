//! Orders one certificate: account, order, challenge, and the signed certificate (RFC 8555,
//! section 7.1). No request waits for that.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use instant_acme::{
    Account, AuthorizationStatus, BodyWrapper, BytesResponse, ChallengeType, ExternalAccountKey,
    HttpClient, Identifier, NewAccount, NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use thiserror::Error;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tower::Service;
use weir_config::gateway::listen::acme::{AcmeChallenge, AcmeSettings};
use weir_proxy::{Proxy, Server, Upstream, UpstreamSettings, UpstreamTls};
use weir_server::{CertificateError, Challenge, ChallengeError, ChallengeGuard, Challenges};
use weir_telemetry::UpstreamFailed;

use super::cache::{Cache, StoredAccount};

const ORDER_TIMEOUT: Duration = Duration::from_secs(300);

/// For the server to check a challenge or to sign.
const POLL_TIMEOUT: Duration = Duration::from_secs(90);

/// From connecting to the last byte.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest response; real ones have a few kilobytes.
const MAX_BYTES: usize = 1 << 20;

/// The server does not know the account, as happens with servers for tests.
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// Why there is no certificate.
#[derive(Debug, Error)]
pub(super) enum OrderError {
    #[error("the order took longer than {} s", ORDER_TIMEOUT.as_secs())]
    TooSlow,
    #[error(transparent)]
    Acme(#[from] instant_acme::Error),
    #[error("the server offers no {0} for it")]
    NotOffered(AcmeChallenge),
    #[error("the server finds the challenge {0} not to be answered: {1}")]
    Unanswered(AcmeChallenge, String),
    #[error("the order became {0:?}")]
    Failed(OrderStatus),
    #[error(transparent)]
    Challenge(#[from] ChallengeError),
    #[error("the certificate that the server sent {0}")]
    Certificate(CertificateError),
    #[error("certificates cannot be kept")]
    Cache(#[from] io::Error),
}

impl OrderError {
    /// Whether the server has refused it, which it does only so many times an hour.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Acme(instant_acme::Error::Api(_))
                | Self::NotOffered(_)
                | Self::Unanswered(..)
                | Self::Failed(_)
        )
    }
}

pub(super) struct Ordering<'a> {
    pub(super) domain: &'a str,
    pub(super) settings: &'a AcmeSettings,
    pub(super) cache: &'a Cache,
    pub(super) challenges: &'a Challenges,
    pub(super) challenge: AcmeChallenge,
}

impl Ordering<'_> {
    pub(super) async fn obtain(&self) -> Result<String, OrderError> {
        let obtained = timeout(ORDER_TIMEOUT, self.try_obtain()).await;
        obtained.unwrap_or(Err(OrderError::TooSlow))
    }

    async fn try_obtain(&self) -> Result<String, OrderError> {
        let retries = RetryPolicy::default().timeout(POLL_TIMEOUT);
        let mut order = self.order().await?;
        let answers = self.answer(&mut order).await?;
        // What the server says of a failed challenge stands with the challenge.
        let status = order.poll_ready(&retries).await;
        let status = match status {
            Ok(OrderStatus::Invalid) | Err(instant_acme::Error::Api(_)) => {
                match self.why_unanswered(&mut order).await {
                    Some(why) => return Err(OrderError::Unanswered(self.challenge, why)),
                    None => status?,
                }
            }
            other => other?,
        };
        drop(answers);
        if status != OrderStatus::Ready {
            return Err(OrderError::Failed(status));
        }
        let key = order.finalize().await?;
        let chain = order.poll_certificate(&retries).await?;
        Ok(format!("{}\n{chain}", key.trim_end()))
    }

    async fn order(&self) -> Result<Order, OrderError> {
        let identifiers = [Identifier::Dns(self.domain.to_owned())];
        let order = NewOrder::new(&identifiers);
        match self.account().await?.new_order(&order).await {
            Err(instant_acme::Error::Api(problem)) if is_no_account(&problem) => {
                let cache = self.cache.clone();
                blocking(move || cache.remove_account()).await?;
                Ok(self.account().await?.new_order(&order).await?)
            }
            order => Ok(order?),
        }
    }

    /// The account at the server, which is made if there is none.
    async fn account(&self) -> Result<Account, OrderError> {
        let builder = || {
            let tls = self.settings.tls.clone();
            Account::builder_with_http(Box::new(Client { tls }))
        };
        let cache = self.cache.clone();
        let stored = blocking(move || cache.account()).await?;
        if let Some(stored) = stored.filter(|stored| stored.fits(self.settings)) {
            return Ok(builder().from_credentials(stored.credentials).await?);
        }
        let (email, external) = (&self.settings.email, &self.settings.external_account);
        let contact = email.as_ref().map(|email| format!("mailto:{email}"));
        let account = NewAccount {
            contact: &contact.iter().map(String::as_str).collect::<Vec<_>>(),
            // Whoever configures `acme` agrees to them, as its documentation says.
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let binding = external
            .as_ref()
            .map(|account| ExternalAccountKey::new(account.key_id.clone(), &account.hmac_key));
        let directory = self.settings.directory.to_string();
        let created = builder().create(&account, directory, binding.as_ref());
        let (account, credentials) = created.await?;
        let stored = StoredAccount {
            email: email.clone(),
            external_account: external.as_ref().map(|account| account.key_id.clone()),
            credentials,
        };
        let cache = self.cache.clone();
        blocking(move || cache.keep_account(&stored)).await?;
        Ok(account)
    }

    /// Sets up the response to the challenge, and requests its validation. The response stays for
    /// as long as the returned guards live.
    async fn answer(&self, order: &mut Order) -> Result<Vec<ChallengeGuard>, OrderError> {
        let mut answers = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let offered = authorization.challenge(match self.challenge {
                AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
                AcmeChallenge::Http01 => ChallengeType::Http01,
            });
            let mut offered = offered.ok_or(OrderError::NotOffered(self.challenge))?;
            let key = offered.key_authorization();
            answers.push(self.challenges.answer(match self.challenge {
                AcmeChallenge::TlsAlpn01 => Challenge::TlsAlpn01 {
                    domain: self.domain.to_owned(),
                    digest: key.digest().as_ref().to_vec(),
                },
                AcmeChallenge::Http01 => Challenge::Http01 {
                    token: offered.token.clone(),
                    key_authorization: key.as_str().to_owned(),
                },
            })?);
            offered.set_ready().await?;
        }
        Ok(answers)
    }

    async fn why_unanswered(&self, order: &mut Order) -> Option<String> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.ok()?;
            let state = authorization.refresh().await.ok()?;
            let mut challenges = state.challenges.iter();
            let problem = challenges.find_map(|challenge| challenge.error.as_ref());
            if let Some(problem) = problem {
                let detail = problem.detail.clone().or_else(|| problem.r#type.clone());
                return Some(detail.unwrap_or_else(|| "it does not say why".to_owned()));
            }
        }
        None
    }
}

fn is_no_account(problem: &Problem) -> bool {
    problem.r#type.as_deref() == Some(NO_ACCOUNT)
}

/// Files may be on a file system that hangs.
pub(super) async fn blocking<T: Send + 'static>(
    task: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(task).await.map_err(io::Error::other)?
}

/// The proxy's client, which trusts whom the settings say.
struct Client {
    tls: UpstreamTls,
}

/// Why a request to the ACME server has no response.
#[derive(Debug, Error)]
enum RequestError {
    #[error("no response from {0} within 30 s")]
    TooSlow(Uri),
    #[error("the request to {0} failed: {1}")]
    Failed(Uri, &'static str),
    #[error("the server names {0}, which is not a URL with https://")]
    Url(Uri),
    #[error("the request cannot be made")]
    Request(#[from] http::Error),
    #[error("the response has more than 1 MiB, or broke off")]
    Body(#[source] Box<dyn Error + Send + Sync>),
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let tls = self.tls.clone();
        Box::pin(async move {
            let uri = request.uri().clone();
            let response = timeout(REQUEST_TIMEOUT, send(request, &tls)).await;
            let response = response.unwrap_or(Err(RequestError::TooSlow(uri)));
            let response = response.map_err(|error| instant_acme::Error::Other(error.into()))?;
            Ok(response.into())
        })
    }
}

/// Sends a request on a connection of its own: an order has a dozen.
async fn send(
    mut request: Request<BodyWrapper<Bytes>>,
    tls: &UpstreamTls,
) -> Result<Response<Full<Bytes>>, RequestError> {
    let uri = request.uri().clone();
    let authority = uri
        .authority()
        .filter(|_| uri.scheme_str() == Some("https"));
    let server = authority.map(|authority| format!("https://{authority}").parse::<Server>());
    let (Some(authority), Some(Ok(server))) = (authority, server) else {
        return Err(RequestError::Url(uri));
    };
    let mut upstream = UpstreamSettings::new("acme", vec![server.with_tls(tls)]);
    upstream.timeouts.connect = REQUEST_TIMEOUT;
    upstream.timeouts.response = REQUEST_TIMEOUT;
    upstream.max_idle = 0;
    let host = authority.as_str().parse().map_err(http::Error::from)?;
    request.headers_mut().insert(HOST, host);
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    *request.uri_mut() = target.parse().map_err(http::Error::from)?;
    let Ok(response) = Proxy::new(Upstream::new(upstream)).call(request).await;
    let (head, body) = response.into_parts();
    if let Some(failed) = head.extensions.get::<UpstreamFailed>() {
        return Err(RequestError::Failed(uri, failed.reason));
    }
    let body = Limited::new(body, MAX_BYTES).collect().await;
    let body = body.map_err(RequestError::Body)?.to_bytes();
    Ok(Response::from_parts(head, Full::new(body)))
}
