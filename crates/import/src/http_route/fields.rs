//! Objects of a YAML file, from which known keys are taken. What is left is not translated.

use serde_json::{Map, Value};

/// An object, and the path of keys to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    members: Map<String, Value>,
    path: String,
}

impl Fields {
    pub(super) fn new(value: Value, path: String) -> Self {
        let members = match value {
            Value::Object(members) => members,
            _ => Map::new(),
        };
        Self { members, path }
    }

    /// Takes a value that `is_fit`; any other stays.
    fn take(&mut self, key: &str, is_fit: impl Fn(&Value) -> bool) -> Option<Value> {
        self.members.get(key).filter(|value| is_fit(value))?;
        self.members.remove(key)
    }

    pub(super) fn text(&mut self, key: &str) -> Option<String> {
        let text = self.take(key, Value::is_string)?;
        text.as_str().map(str::to_owned)
    }

    pub(super) fn number(&mut self, key: &str) -> Option<u64> {
        self.take(key, Value::is_u64)?.as_u64()
    }

    pub(super) fn object(&mut self, key: &str) -> Option<Self> {
        let path = self.path_to(key);
        Some(Self::new(self.take(key, Value::is_object)?, path))
    }

    pub(super) fn list(&mut self, key: &str) -> Vec<Value> {
        match self.take(key, Value::is_array) {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        }
    }

    pub(super) fn objects(&mut self, key: &str) -> Vec<Self> {
        let path = self.path_to(key);
        let items = self.list(key).into_iter().enumerate();
        items
            .map(|(index, item)| Self::new(item, format!("{path}[{index}]")))
            .collect()
    }

    pub(super) fn ignore(&mut self, keys: &[&str]) {
        self.members.retain(|key, _| !keys.contains(&key.as_str()));
    }

    /// The paths of the keys that were not taken.
    pub(super) fn left(&self) -> impl Iterator<Item = String> {
        self.members.keys().map(|key| self.path_to(key))
    }

    fn path_to(&self, key: &str) -> String {
        let dot = if self.path.is_empty() { "" } else { "." };
        format!("{}{dot}{key}", self.path)
    }
}
