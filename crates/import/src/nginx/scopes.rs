//! Where a directive holds: in its block, and in the blocks within it that do not have it.

use std::collections::BTreeSet;

use super::parse::Directive;

/// The directives of a block and of those around it, the innermost last.
#[derive(Clone)]
pub(super) struct Scopes<'d>(pub(super) Vec<&'d [Directive]>);

impl<'d> Scopes<'d> {
    /// The scopes of a block within these.
    pub(super) fn within(&self, block: &'d [Directive]) -> Self {
        Self(self.0.iter().copied().chain([block]).collect())
    }

    /// The directives of some names that hold here: those of the innermost block that has any.
    pub(super) fn all(&self, names: &[&str]) -> Vec<&'d Directive> {
        let of_block = |block: &&'d [Directive]| -> Vec<_> {
            let is_meant = |directive: &&Directive| names.contains(&directive.name.as_str());
            block.iter().filter(is_meant).collect()
        };
        let mut blocks = self.0.iter().rev().map(of_block);
        blocks.find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// The guards that hold here: those of each name in the innermost block that has it.
    pub(super) fn guards(&self) -> Vec<&'d Directive> {
        let directives = self.0.iter().flat_map(|block| block.iter());
        let names = directives
            .filter(|it| it.is_guard())
            .map(|it| it.name.as_str());
        let names: BTreeSet<&str> = names.collect();
        names
            .into_iter()
            .flat_map(|name| self.all(&[name]))
            .collect()
    }

    /// The first argument of the directive of a name that holds here.
    pub(super) fn value(&self, name: &str) -> &'d str {
        self.all(&[name])
            .last()
            .map_or("", |directive| directive.argument(0))
    }

    /// The first name of the server, as `$server_name` has it; empty for none.
    pub(super) fn server_name(&self) -> &'d str {
        self.0.get(1).map_or("", |server| server_name(server))
    }

    /// The directive of a name in the innermost block.
    pub(super) fn own(&self, name: &str) -> Option<&'d Directive> {
        named(self.0.last()?, name).last()
    }
}

/// The directives of a name in a block.
pub(super) fn named<'d>(block: &'d [Directive], name: &str) -> impl Iterator<Item = &'d Directive> {
    block.iter().filter(move |directive| directive.name == name)
}

/// The first name of a server, as `$server_name` has it; empty for none.
pub(super) fn server_name(server: &[Directive]) -> &str {
    named(server, "server_name")
        .next()
        .map_or("", |names| names.argument(0))
}
