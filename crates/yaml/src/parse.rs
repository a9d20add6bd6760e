//! From the parser's events to a [`Document`], with what aliases repeat.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use super::document::{Content, Document, FileId, Node, NodeId, Position, Step};
use crate::diagnostics::{Diagnostics, Location, Reported};

/// No real configuration is nested deeper; deeper ones would make recursion dangerous.
const MAX_DEPTH: usize = 64;

/// The key by which YAML 1.1 merges mappings; YAML 1.2 has none.
const MERGE: &str = "<<";

/// How many nodes aliases may repeat: a few lines of aliases of aliases could exhaust the memory.
const MAX_COPIES: usize = 100_000;

/// How many bytes of text they may repeat, for the same reason.
const MAX_COPIED_BYTES: usize = 4 << 20;

/// Why reading stops, and where.
struct SyntaxError(Position, String);

/// A mapping or sequence that is not yet closed.
struct OpenNode {
    node: NodeId,
    key: Option<(String, Position)>,
    /// The lines of the keys so far.
    lines: HashMap<String, usize>,
    /// The latest key was there before, or is none, and what stands under it is left out.
    dropped: bool,
}

struct Builder<'d> {
    document: Document,
    open: Vec<OpenNode>,
    anchors: HashMap<usize, NodeId>,
    /// How many nodes aliases have repeated.
    copies: usize,
    /// How many bytes of text those hold.
    copied_bytes: usize,
    diagnostics: &'d mut Diagnostics,
}

impl Document {
    /// Reads a text. What is wrong with it is added to `diagnostics`; the rest is in the document.
    pub fn parse(id: FileId, file: &str, text: &str, diagnostics: &mut Diagnostics) -> Self {
        let mut builder = Builder {
            document: Self {
                id,
                file: file.to_owned(),
                nodes: Vec::new(),
                root: None,
                broken: None,
                pruned_nodes: Vec::new(),
            },
            open: Vec::new(),
            anchors: HashMap::new(),
            copies: 0,
            copied_bytes: 0,
            diagnostics,
        };
        if let Err(SyntaxError(position, message)) = builder.read(text) {
            builder.document.broken = Some(builder.report(position, &message));
        }
        builder.document
    }
}

impl Builder<'_> {
    fn read(&mut self, text: &str) -> Result<(), SyntaxError> {
        let text = text.trim_start_matches('\u{feff}');
        let mut parser = Parser::new_from_str(text);
        while let Some(event) = parser.next_event() {
            let (event, span) = event.map_err(|error| syntax(&error, text))?;
            self.take(event, &span)?;
        }
        Ok(())
    }

    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<(), SyntaxError> {
        let position = (span.start.line(), span.start.col() + 1);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_tag(tag.is_some(), position);
                self.scalar(text.into_owned(), style, anchor, position)
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), position);
                self.open(Content::Sequence(Vec::new()), anchor, position)
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), position);
                self.open(Content::Mapping(Vec::new()), anchor, position)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.open.pop();
                Ok(())
            }
            Event::Alias(anchor) => self.alias(anchor, position),
            Event::DocumentStart(_) if self.document.root.is_some() => Err(SyntaxError(
                position,
                "a second YAML document begins here\nkeep to one document a file".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    fn scalar(
        &mut self,
        text: String,
        style: ScalarStyle,
        anchor: usize,
        position: Position,
    ) -> Result<(), SyntaxError> {
        if self.awaits_key() {
            self.key(text, position);
            return Ok(());
        }
        let plain = style == ScalarStyle::Plain;
        let node = self.add(Content::Scalar { text, plain }, position)?;
        self.anchors.insert(anchor, node);
        Ok(())
    }

    fn open(
        &mut self,
        content: Content,
        anchor: usize,
        position: Position,
    ) -> Result<(), SyntaxError> {
        if self.awaits_key() {
            return Err(SyntaxError(position, "a key must be plain text".to_owned()));
        }
        let node = self.add(content, position)?;
        self.anchors.insert(anchor, node);
        self.open.push(OpenNode {
            node,
            key: None,
            lines: HashMap::new(),
            dropped: false,
        });
        Ok(())
    }

    /// Whether the next scalar is a key: the innermost open node is a mapping that has none yet.
    fn awaits_key(&self) -> bool {
        self.open.last().is_some_and(|open| {
            let node = self.document.node(open.node);
            let mapping = node.is_some_and(|node| matches!(node.content, Content::Mapping(_)));
            mapping && open.key.is_none()
        })
    }

    fn key(&mut self, key: String, position: Position) {
        let Some(open) = self.open.last_mut() else {
            return;
        };
        let first = open.lines.get(&key).copied();
        let mapping = open.node;
        open.dropped = first.is_some() || key == MERGE;
        open.lines.entry(key.clone()).or_insert(position.0);
        open.key = Some((key.clone(), position));
        if key == MERGE {
            let reported = self.report(
                position,
                "merge keys are not known here\nrepeat the keys that are meant, or give the whole value an alias",
            );
            if let Some(node) = self.document.node_mut(mapping) {
                node.merges = Some(reported);
            }
        } else if let Some(line) = first {
            let message = format!("the key \"{key}\" is there twice\nit is first in line {line}");
            self.report(position, &message);
        }
    }

    fn add(&mut self, content: Content, position: Position) -> Result<NodeId, SyntaxError> {
        let (parent, step) = self.next_step();
        let id = self.push(parent, step, content, position)?;
        self.attach(id);
        Ok(id)
    }

    /// Where the next node belongs.
    fn next_step(&mut self) -> (Option<NodeId>, Step) {
        let Some(open) = self.open.last_mut() else {
            return (None, Step::Root);
        };
        let parent = open.node;
        let step = match open.key.take() {
            Some((key, position)) => Step::Key(key, position),
            None => Step::Index(self.document.all_children(parent).count()),
        };
        (Some(parent), step)
    }

    fn push(
        &mut self,
        parent: Option<NodeId>,
        step: Step,
        content: Content,
        position: Position,
    ) -> Result<NodeId, SyntaxError> {
        let depth = parent
            .and_then(|parent| self.document.node(parent))
            .map_or(0, |parent| parent.depth + 1);
        let id = NodeId::try_from(self.document.nodes.len()).unwrap_or(NodeId::MAX);
        if depth > MAX_DEPTH || id == NodeId::MAX {
            return Err(SyntaxError(position, "this is nested too deep".to_owned()));
        }
        self.document.nodes.push(Node {
            parent,
            step,
            position,
            depth,
            content,
            pruned: None,
            merges: None,
        });
        Ok(id)
    }

    /// Makes a node its parent's child; of two children with one key the first stays.
    fn attach(&mut self, id: NodeId) {
        let parent = self.document.node(id).and_then(|node| node.parent);
        let Some(parent) = parent else {
            self.document.root = Some(id);
            return;
        };
        let dropped = self.open.last().is_some_and(|open| open.dropped);
        match self.document.node_mut(parent).map(|node| &mut node.content) {
            Some(Content::Sequence(items) | Content::Mapping(items)) if !dropped => items.push(id),
            _ => {}
        }
    }

    fn refuse_tag(&mut self, tagged: bool, position: Position) {
        if tagged {
            self.report(position, "YAML tags are not known here\nleave it out");
        }
    }

    /// Reports at a position; the first line of `message` says what is wrong, the rest the help.
    fn report(&mut self, position: Position, message: &str) -> Reported {
        let location = Location {
            file: self.document.file.clone(),
            position: Some(position),
            path: String::new(),
        };
        let (what, help) = match message.split_once('\n') {
            Some((what, help)) => (what, Some(help.to_owned())),
            None => (message, None),
        };
        self.diagnostics.error(location, what).maybe_help(help)
    }
}

impl Builder<'_> {
    /// Repeats what an alias refers to, with the positions that it has at its anchor.
    fn alias(&mut self, anchor: usize, position: Position) -> Result<(), SyntaxError> {
        let target = self.anchors.get(&anchor).copied();
        let closed = target.filter(|target| self.open.iter().all(|open| open.node != *target));
        let Some(target) = closed else {
            return Err(SyntaxError(
                position,
                "an alias refers to itself".to_owned(),
            ));
        };
        if self.awaits_key() {
            return Err(SyntaxError(position, "a key must be plain text".to_owned()));
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
    ) -> Result<NodeId, SyntaxError> {
        self.copies += 1;
        let Some(source) = self.document.node(from) else {
            return Err(SyntaxError(alias, "an alias refers to nothing".to_owned()));
        };
        self.copied_bytes += source.bytes();
        if self.copies > MAX_COPIES || self.copied_bytes > MAX_COPIED_BYTES {
            return Err(SyntaxError(alias, "aliases repeat too much".to_owned()));
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
    ) -> Result<Vec<NodeId>, SyntaxError> {
        let copies = items.into_iter().map(|item| {
            let step = self.document.node(item).map(|node| node.step.clone());
            self.copy(item, Some(parent), step.unwrap_or(Step::Root), alias)
        });
        copies.collect()
    }
}

/// Why quotes may be missing.
const QUOTES: &str = "a text that begins with any of * & ! { [ @ ` % or has `: `, ` #` or, between \
                      braces, { } [ ] or a comma in it, stands in quotes";

fn syntax(error: &ScanError, text: &str) -> SyntaxError {
    let position = (error.marker().line(), error.marker().col() + 1);
    if let Some(error) = item_without_space(text, position.0) {
        return error;
    }
    let cause = error.info();
    let columns = "the keys of a mapping begin in the same column, and so do the items of a list";
    let help = if cause.contains("tabs") {
        "indent with spaces: YAML takes no tabs there".to_owned()
    } else if cause.contains("block mapping") || cause.contains("block collection") {
        format!("check the indentation: {columns}")
    } else if cause.contains("mapping values") {
        format!("{QUOTES};\nor the line is indented too far: {columns}")
    } else {
        QUOTES.to_owned()
    };
    SyntaxError(position, format!("this is not valid YAML: {cause}\n{help}"))
}

/// `-name: login` is a key `-name` for YAML, which notices only at what follows that this is no item.
fn item_without_space(text: &str, line: usize) -> Option<SyntaxError> {
    let until = text.lines().enumerate().take(line);
    let written = until.filter(|(_, text)| {
        let text = text.trim_start();
        !text.is_empty() && !text.starts_with('#')
    });
    let last = written.collect::<Vec<_>>().into_iter().rev().take(2);
    last.filter_map(|(index, text)| {
        let item = text.trim_start();
        let rest = item.strip_prefix('-')?;
        let is_key = rest.starts_with(|first: char| first.is_alphabetic() || first == '"');
        (is_key && (rest.contains(": ") || rest.ends_with(':'))).then(|| {
            let message = format!(
                "this is not valid YAML: an item of a list begins with `- `, with a space\n\
                 write `- {rest}`"
            );
            SyntaxError((index + 1, text.len() - item.len() + 1), message)
        })
    })
    .next()
}
