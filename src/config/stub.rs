//! stub
#![allow(missing_docs)]
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
