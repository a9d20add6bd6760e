//! What a route is called and what it matches, in words.

use crate::config::schema::{Match, Route};

impl Route {
    /// The route's name, or one that is made of what it matches: `POST app.example.com/login`.
    pub(super) fn spelt_name(&self) -> String {
        if let Some(name) = &self.name {
            return name.value.clone();
        }
        let host = self.matches.host.as_ref().map_or("", |it| it.as_str());
        let path = self.matches.path.as_ref().map_or("/*", |it| it.as_str());
        let name = format!("{} {host}{path}", self.matches.methods().join(","));
        name.trim().to_owned()
    }
}

impl Match {
    /// What matches: `host app.example.com, path /login, method POST`.
    pub(super) fn description(&self) -> String {
        let host = self.host.iter().map(|it| format!("host {}", it.value));
        let path = self.path.iter().map(|it| format!("path {}", it.value));
        let methods = self.methods.iter();
        let methods = methods.map(|_| format!("method {}", self.methods().join(" or ")));
        let headers = self.headers.iter().flat_map(|it| &it.0);
        let headers = headers.map(|(name, it)| format!("header {}: {}", name.value, it.value));
        let parts: Vec<String> = host.chain(path).chain(methods).chain(headers).collect();
        if parts.is_empty() {
            return "everything".to_owned();
        }
        parts.join(", ")
    }

    fn methods(&self) -> Vec<&str> {
        let methods = self.methods.iter().flat_map(|it| &it.0);
        methods.map(|it| it.value.as_str()).collect()
    }
}
