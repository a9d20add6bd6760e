//! A YAML file as a tree of nodes, and all files of a configuration.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::{Map, Number, Value};

use crate::diagnostics::{Location, Reported};

/// Says which file of several a document is.
pub type FileId = u16;

/// An index into a document's nodes.
pub(super) type NodeId = u32;

/// A point in a file: line and column, both from 1.
pub(super) type Position = (usize, usize);

/// Where a value, or the key before it, stands.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash)]
#[serde(from = "u64")]
pub struct Span {
    pub(super) file: FileId,
    pub(super) node: NodeId,
    /// The key rather than the value.
    pub(super) on_key: bool,
}

/// A file of YAML: its values with their places.
pub struct Document {
    pub(super) id: FileId,
    pub(super) file: String,
    pub(super) nodes: Vec<Node>,
    pub(super) root: Option<NodeId>,
    /// Why nothing of it can be read.
    pub(super) broken: Option<Reported>,
    /// What was cut out of the tree.
    pub(super) pruned_nodes: Vec<PrunedNode>,
}

/// A node that is in error, which was reported.
pub(super) struct PrunedNode {
    pub(super) node: NodeId,
    /// The known keys that an unknown one was written for.
    pub(super) stands_for: Vec<&'static str>,
}

/// One value, with the key under which it stands.
pub(super) struct Node {
    pub(super) parent: Option<NodeId>,
    pub(super) step: Step,
    pub(super) position: Position,
    pub(super) depth: usize,
    pub(super) content: Content,
    /// Cut out of the tree, because it is in error, which was reported.
    pub(super) pruned: Option<Reported>,
    /// A merge key stands in this mapping, which was reported; it may have brought any key.
    pub(super) merges: Option<Reported>,
}

/// How a node is reached from its parent.
#[derive(Clone)]
pub(super) enum Step {
    Root,
    Index(usize),
    Key(String, Position),
}

#[derive(Clone)]
pub(super) enum Content {
    Scalar { text: String, plain: bool },
    Sequence(Vec<NodeId>),
    Mapping(Vec<NodeId>),
}

impl Node {
    /// How many bytes of text the node holds, with its key and without its children.
    pub(super) fn bytes(&self) -> usize {
        let key = match &self.step {
            Step::Key(key, _) => key.len(),
            Step::Root | Step::Index(_) => 0,
        };
        let text = match &self.content {
            Content::Scalar { text, .. } => text.len(),
            Content::Sequence(_) | Content::Mapping(_) => 0,
        };
        key + text
    }
}

impl Span {
    /// The file in which it is.
    pub fn file(self) -> FileId {
        self.file
    }

    /// The span as one number, to pass it through serde.
    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.file) << 33 | u64::from(self.on_key) << 32 | u64::from(self.node)
    }
}

/// What a scalar without quotes is in JSON. A number that JSON would write in another way is a text.
fn plain_scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" => Value::Null,
        "true" => true.into(),
        "false" => false.into(),
        text => {
            let number: Option<Number> = text.parse().ok();
            let number = number.filter(|number| number.to_string() == text);
            number.map_or_else(|| text.into(), Value::Number)
        }
    }
}

impl From<u64> for Span {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the halves are taken apart again"
    )]
    fn from(bits: u64) -> Self {
        Self {
            file: (bits >> 33) as FileId,
            node: bits as NodeId,
            on_key: bits >> 32 & 1 == 1,
        }
    }
}

impl Document {
    /// The document as JSON, where `show` says what stands in the place of each scalar, by the keys
    /// that lead to it; in lists, that of the list.
    pub fn to_json(&self, show: &dyn Fn(&[&str], &str) -> Option<String>) -> Value {
        let root = self.root.and_then(|root| self.node(root));
        root.map_or(Value::Null, |root| {
            self.node_to_json(root, &mut Vec::new(), show)
        })
    }

    fn node_to_json<'d>(
        &'d self,
        node: &'d Node,
        path: &mut Vec<&'d str>,
        show: &dyn Fn(&[&str], &str) -> Option<String>,
    ) -> Value {
        match &node.content {
            Content::Scalar { text, plain } => match show(path, text) {
                Some(shown) => shown.into(),
                None if *plain => plain_scalar(text),
                None => text.as_str().into(),
            },
            Content::Sequence(items) => {
                let items = items.iter().filter_map(|item| self.node(*item));
                items
                    .map(|item| self.node_to_json(item, path, show))
                    .collect()
            }
            Content::Mapping(members) => {
                let mut object = Map::new();
                for member in members.iter().filter_map(|member| self.node(*member)) {
                    if let Step::Key(key, _) = &member.step {
                        path.push(key);
                        object.insert(key.clone(), self.node_to_json(member, path, show));
                        path.pop();
                    }
                }
                object.into()
            }
        }
    }

    pub(super) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(usize::try_from(id).ok()?)
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(usize::try_from(id).ok()?)
    }

    pub(super) fn span(&self, node: NodeId) -> Span {
        Span {
            file: self.id,
            node,
            on_key: false,
        }
    }

    pub(super) fn key_span(&self, node: NodeId) -> Span {
        Span {
            on_key: true,
            ..self.span(node)
        }
    }

    /// The nodes right below one, without those that were cut out.
    pub(super) fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        self.all_children(id)
            .filter(|child| self.pruned(*child).is_none())
    }

    pub(super) fn all_children(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        let children = match self.node(id).map(|node| &node.content) {
            Some(Content::Sequence(items) | Content::Mapping(items)) => items.as_slice(),
            _ => &[],
        };
        children.iter().copied()
    }

    /// The proof that a node is in error, if it is.
    pub(super) fn pruned(&self, id: NodeId) -> Option<Reported> {
        self.node(id)?.pruned
    }

    /// The proof that one of some keys is missing only because of an error, if it is: what stands
    /// under it was cut out, or it was written under another name.
    pub fn key_in_error(&self, span: Span, keys: &[&str]) -> Option<Reported> {
        let is_meant = |pruned: &&PrunedNode| {
            let key = self.key(pruned.node);
            key.is_some_and(|key| keys.contains(&key))
                || pruned.stands_for.iter().any(|key| keys.contains(key))
        };
        let pruned = self.pruned_below(span).find(is_meant);
        pruned
            .and_then(|pruned| self.pruned(pruned.node))
            .or(self.node(span.node)?.merges)
    }

    /// As [`Self::key_in_error`], for a key of any item of a list.
    pub fn key_of_item_in_error(&self, list: Span, key: &str) -> Option<Reported> {
        let mut items = self.pruned_nodes.iter().filter_map(|pruned| {
            let item = self.node(pruned.node)?.parent?;
            (self.node(item)?.parent? == list.node).then_some(item)
        });
        items.find_map(|item| self.key_in_error(self.span(item), &[key]))
    }

    /// The proof that something right below a node is in error, if anything is.
    pub fn child_in_error(&self, span: Span) -> Option<Reported> {
        let pruned = self.pruned_below(span).next()?;
        self.pruned(pruned.node)
    }

    /// What was cut out right below a node. There is little of it, where a node may have any number
    /// of children.
    fn pruned_below(&self, span: Span) -> impl Iterator<Item = &PrunedNode> {
        self.pruned_nodes.iter().filter(move |pruned| {
            let parent = self.node(pruned.node).and_then(|node| node.parent);
            parent == Some(span.node)
        })
    }

    /// The key of a node that stands in a mapping.
    pub(super) fn key(&self, id: NodeId) -> Option<&str> {
        match self.node(id).map(|node| &node.step) {
            Some(Step::Key(key, _)) => Some(key),
            _ => None,
        }
    }

    /// The keys that a mapping has in the file, those included whose values are in error.
    pub fn keys_at(&self, span: Span) -> impl Iterator<Item = &str> {
        self.all_children(span.node).filter_map(|id| self.key(id))
    }

    /// Where a span is: file, line, and the path of keys to it.
    pub fn location(&self, span: Span) -> Location {
        Location {
            file: self.file.clone(),
            position: self.position(span),
            path: self.path(span.node),
        }
    }

    /// Help with a text that names a variable of the environment.
    pub fn variable_help(&self, span: Span) -> Option<String> {
        match &self.node(span.node)?.content {
            Content::Scalar { text, .. } if text.contains("${") && !span.on_key => Some(
                "write the value; for a secret, write {env: NAME}; or fill the file in before: \
                 `envsubst < FILE | weir --config -`"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    /// A key's position for a key, and for what begins on a later line than its key.
    fn position(&self, span: Span) -> Option<Position> {
        let node = self.node(span.node)?;
        let whole = !matches!(node.content, Content::Scalar { .. });
        match &node.step {
            Step::Key(_, position) if span.on_key || whole => Some(*position),
            _ => Some(node.position),
        }
    }

    fn path(&self, id: NodeId) -> String {
        let mut steps = Vec::new();
        let mut next = self.node(id);
        while let Some(node) = next {
            steps.push(&node.step);
            next = node.parent.and_then(|parent| self.node(parent));
        }
        let mut path = String::new();
        for step in steps.into_iter().rev() {
            // Writing to a string cannot fail.
            let _ = match step {
                Step::Root => Ok(()),
                Step::Index(index) => write!(path, "[{index}]"),
                Step::Key(key, _) if path.is_empty() => write!(path, "{key}"),
                Step::Key(key, _) => write!(path, ".{key}"),
            };
        }
        path
    }
}

/// All documents that were read, by their ids.
#[derive(Default)]
pub struct Sources(Vec<Document>);

impl Sources {
    /// The id of the next document that is added.
    pub fn next_id(&self) -> FileId {
        FileId::try_from(self.0.len()).unwrap_or(FileId::MAX)
    }

    /// Keeps a document, whose id must be the number of those before it.
    pub fn add(&mut self, document: Document) {
        self.0.push(document);
    }

    /// Where a span is: file, line, and the path of keys to it.
    pub fn location(&self, span: Span) -> Location {
        self.document(span)
            .map(|document| document.location(span))
            .unwrap_or_default()
    }

    /// Help with a text that names a variable of the environment.
    pub fn variable_help(&self, span: Span) -> Option<String> {
        self.document(span)?.variable_help(span)
    }

    /// The keys that a mapping has in its file, those included whose values are in error.
    pub fn keys_at(&self, span: Span) -> impl Iterator<Item = &str> {
        self.document(span)
            .into_iter()
            .flat_map(move |document| document.keys_at(span))
    }

    /// The proof that a value is in error, if it is.
    pub fn in_error(&self, span: Span) -> Option<Reported> {
        self.document(span)?.pruned(span.node)
    }

    /// The proof that what stands under one of some keys of a mapping is in error, if it is.
    pub fn key_in_error(&self, span: Span, keys: &[&str]) -> Option<Reported> {
        self.document(span)?.key_in_error(span, keys)
    }

    /// The proof that a key of an item of a list is in error, if it is.
    pub fn key_of_item_in_error(&self, list: Span, key: &str) -> Option<Reported> {
        self.document(list)?.key_of_item_in_error(list, key)
    }

    /// The proof that something right within a list or mapping is in error, if anything is.
    pub fn child_in_error(&self, span: Span) -> Option<Reported> {
        self.document(span)?.child_in_error(span)
    }

    fn document(&self, span: Span) -> Option<&Document> {
        self.0.get(usize::from(span.file))
    }
}
