//! stub
#![allow(missing_docs)]
use std::num::NonZeroUsize;
use std::time::Duration;
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardSettings {
    pub timeout: Duration,
    pub on_failure: OnFailure,
}
impl Default for GuardSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(20),
            on_failure: OnFailure::Local,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    Allow,
    Deny,
    Local,
}
#[derive(Clone, Debug)]
pub struct RedisSettings {
    url: String,
    pub prefix: String,
}
#[derive(Debug, thiserror::Error)]
#[error("not the URL of a Redis")]
pub struct E;
impl RedisSettings {
    pub fn parse(url: &str, _u: Option<String>, _p: Option<String>) -> Result<Self, E> {
        if url.starts_with("redis") {
            Ok(Self {
                url: url.to_owned(),
                prefix: "weir".into(),
            })
        } else {
            Err(E)
        }
    }
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            ..self
        }
    }
    pub fn with_ca(self, _pem: &[u8]) -> Result<Self, E> {
        Ok(self)
    }
    pub fn address(&self) -> String {
        self.url.clone()
    }
}
impl std::fmt::Display for crate::rules::Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{self:?}").to_lowercase();
        f.write_str(text.split(['(', ' ']).next().unwrap_or_default())
    }
}
