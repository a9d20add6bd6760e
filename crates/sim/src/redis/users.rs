//! Users, and what they may do.

use std::collections::BTreeSet;

/// A user of the server, as `ACL SETUSER` makes one.
#[derive(Clone, Debug)]
pub struct User {
    /// The name; clients that say none are `default`.
    pub name: String,
    /// None for a user who needs no password (`nopass`).
    pub password: Option<String>,
    /// Which commands the user may give.
    pub rights: Rights,
    /// How all keys begin that the user may touch (`~prefix*`).
    pub key_prefix: String,
}

/// Commands by their names in lower case, those of a container as `cluster|slots`. A container's
/// name stands for all of its commands.
#[derive(Clone, Debug)]
pub enum Rights {
    /// All commands but these.
    AllBut(BTreeSet<String>),
    /// No command but these.
    Only(BTreeSet<String>),
}

impl User {
    /// A user who needs no password and may do everything.
    pub fn unlimited(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            password: None,
            rights: Rights::AllBut(BTreeSet::new()),
            key_prefix: String::new(),
        }
    }

    pub(super) fn may_run(&self, command: &str) -> bool {
        let container = command
            .split_once('|')
            .map_or(command, |(container, _)| container);
        let names = |set: &BTreeSet<String>| set.contains(command) || set.contains(container);
        match &self.rights {
            Rights::AllBut(denied) => !names(denied),
            Rights::Only(allowed) => names(allowed),
        }
    }

    pub(super) fn may_touch(&self, key: &[u8]) -> bool {
        key.starts_with(self.key_prefix.as_bytes())
    }
}
