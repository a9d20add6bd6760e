//! A client of Envoy's rate limit service, by tonic.

use std::net::SocketAddr;

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

pub(crate) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

pub(crate) const OK: i32 = 1;
pub(crate) const OVER_LIMIT: i32 = 2;

/// The messages by the numbers of Envoy's files, beside those of the gateway.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Call {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Pair>,
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<Limit>,
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Pair {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Limit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Reply {
    #[prost(int32, tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) response_headers_to_add: Vec<Pair>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<Limit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Duration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
}

impl Call {
    pub(crate) fn new(domain: &str, descriptors: Vec<Descriptor>) -> Self {
        Self {
            domain: domain.to_owned(),
            descriptors,
            hits_addend: 0,
        }
    }
}

impl Reply {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.response_headers_to_add.iter();
        Some(&fields.find(|field| field.key == name)?.value)
    }

    pub(crate) fn codes(&self) -> Vec<i32> {
        self.statuses.iter().map(|status| status.code).collect()
    }
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
    let pair = |(key, value): &(&str, &str)| Pair {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    Descriptor {
        entries: entries.iter().map(pair).collect(),
        ..Descriptor::default()
    }
}

pub(crate) async fn client(address: SocketAddr) -> Grpc<Channel> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    Grpc::new(channel.connect().await.unwrap())
}

pub(crate) async fn ask(client: &mut Grpc<Channel>, call: Call) -> Result<Reply, Status> {
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static(SHOULD_RATE_LIMIT);
    let codec = ProstCodec::<Call, Reply>::default();
    let reply = client.unary(Request::new(call), path, codec).await?;
    Ok(reply.into_inner())
}
