//! Aliases: parts of a file that are repeated elsewhere in it.

use super::build::{Builder, Fatal};
use super::document::{Content, NodeId, Position, Step};

/// So many nodes may be repeated, lest a few lines of aliases of aliases fill the memory.
const MAX_COPIES: usize = 100_000;

/// So many bytes of text may be repeated, for the same reason.
const MAX_COPIED_BYTES: usize = 4 << 20;

impl Builder<'_> {
    /// Repeats what an alias refers to, with the positions that it has at its anchor.
    pub(super) fn alias(&mut self, anchor: usize, position: Position) -> Result<(), Fatal> {
        let target = self.anchors.get(&anchor).copied();
        let closed = target.filter(|target| self.open.iter().all(|open| open.node != *target));
        let Some(target) = closed else {
            return Err(Fatal(position, "an alias refers to itself".to_owned()));
        };
        if self.awaits_key() {
            return Err(Fatal(position, "a key must be plain text".to_owned()));
        }
        let (parent, step) = self.next_step();
        let copy = self.copy(target, parent, step, position)?;
        self.attach(copy);
        Ok(())
    }

    fn copy(
        &mut self,
        from: NodeId,
        parent: Option<NodeId>,
        step: Step,
        alias: Position,
    ) -> Result<NodeId, Fatal> {
        self.copies += 1;
        let Some(source) = self.document.node(from) else {
            return Err(Fatal(alias, "an alias refers to nothing".to_owned()));
        };
        self.copied_bytes += source.bytes();
        if self.copies > MAX_COPIES || self.copied_bytes > MAX_COPIED_BYTES {
            return Err(Fatal(alias, "aliases repeat too much".to_owned()));
        }
        let (content, position) = (source.content.clone(), source.position);
        let copy = self.push(parent, step, Content::Sequence(Vec::new()), position)?;
        let content = match content {
            Content::Scalar { .. } => content,
            Content::Sequence(items) => Content::Sequence(self.copy_all(items, copy, alias)?),
            Content::Mapping(items) => Content::Mapping(self.copy_all(items, copy, alias)?),
        };
        if let Some(node) = self.document.node_mut(copy) {
            node.content = content;
        }
        Ok(copy)
    }

    fn copy_all(
        &mut self,
        items: Vec<NodeId>,
        parent: NodeId,
        alias: Position,
    ) -> Result<Vec<NodeId>, Fatal> {
        let copies = items.into_iter().map(|item| {
            let step = self.document.node(item).map(|node| node.step.clone());
            self.copy(item, Some(parent), step.unwrap_or(Step::Root), alias)
        });
        copies.collect()
    }
}
