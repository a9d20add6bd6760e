//! The recipes of `docs/LIMITS.md`, as they stand there.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::gateway::WEIR;
use super::{Gateway, Upstream};

/// What the document says instead of the address of an app.
const APP: &str = "http://127.0.0.1:3000";

/// What no reader has to be told: free ports, and no reload but those that are asked for.
const BASIS: &str = "listen: [{address: \"127.0.0.1:0\"}]\n\
                     admin: {address: \"127.0.0.1:0\"}\n\
                     workers: 2\n\
                     watch: false\n";

/// The files that stand under a heading. One under a deeper heading has those of the headings
/// above it as well, except where it has a file of the same name.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) heading: String,
    level: usize,
    /// Whether a file stands right under the heading.
    is_one: bool,
    files: BTreeMap<String, String>,
}

/// What every recipe may name.
fn common() -> BTreeMap<String, String> {
    let key = "0123456789abcdef0123456789abcdef";
    BTreeMap::from([("hash.key".to_owned(), key.to_owned())])
}

impl Recipe {
    /// All that the document has, in its order.
    pub(crate) fn all() -> Vec<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/LIMITS.md");
        let text = fs::read_to_string(path).expect("docs/LIMITS.md");
        let mut all: Vec<Self> = Vec::new();
        let mut fence: Option<(&str, String)> = None;
        for line in text.lines() {
            match &mut fence {
                Some((language, block)) if line == "```" => {
                    if *language == "yaml" {
                        all.last_mut().expect("a heading").add(block);
                    }
                    fence = None;
                }
                Some((_, block)) => *block = format!("{block}{line}\n"),
                None => match line.strip_prefix("```") {
                    Some(language) => fence = Some((language, String::new())),
                    None if line.starts_with('#') => all.push(Self::under(line, &all)),
                    None => {}
                },
            }
        }
        assert!(fence.is_none(), "a block does not end");
        all.retain(|it| it.is_one);
        all
    }

    /// The one under this heading.
    pub(crate) fn named(heading: &str) -> Self {
        let mut all = Self::all().into_iter();
        all.find(|it| it.heading == heading).expect(heading)
    }

    /// What stands under a heading after these.
    fn under(line: &str, before: &[Self]) -> Self {
        let heading = line.trim_start_matches('#');
        let level = line.len() - heading.len();
        let above = before.iter().rev().find(|it| it.level < level);
        Self {
            heading: heading.trim().to_owned(),
            level,
            is_one: false,
            files: above.map_or_else(common, |it| it.files.clone()),
        }
    }

    /// Adds a block, whose first line names its file.
    fn add(&mut self, block: &str) {
        let first = block.lines().next().and_then(|it| it.strip_prefix("# "));
        let name = first.unwrap_or_else(|| panic!("no name of a file above {block}"));
        self.files.insert(name.to_owned(), block.to_owned());
        self.is_one = true;
    }

    /// The same with something else in place of a text that stands in it.
    pub(crate) fn with(mut self, text: &str, other: &str) -> Self {
        let found = self.files.values().any(|file| file.contains(text));
        assert!(found, "{} has no {text:?}", self.heading);
        for file in self.files.values_mut() {
            *file = file.replace(text, other);
        }
        self
    }

    /// One more file, such as a secret.
    pub(crate) fn file(mut self, name: &str, text: &str) -> Self {
        self.files.insert(name.to_owned(), text.to_owned());
        self
    }

    /// Starts a gateway before this upstream. Its periods are as many times longer, so that
    /// nothing comes back while a slow machine tries them.
    pub(crate) fn start(&self, upstream: &Upstream) -> Gateway {
        let mut slow = self.clone();
        let app = format!("http://{}", upstream.address());
        slow = slow.with(APP, &app).with("period: 1", "period: 10000");
        let gateway = slow.files.get_mut("gateway.yaml").expect("gateway.yaml");
        gateway.push_str(BASIS);
        Gateway::start(slow.written())
    }

    /// What `weir check` says of it as it stands.
    pub(crate) fn checked(&self) -> String {
        let folder = self.written();
        let mut weir = Command::new(WEIR);
        let output = weir.current_dir(&folder).arg("check").output();
        let output = output.expect("the weir binary");
        let told = [output.stdout, output.stderr].concat();
        String::from_utf8(told).expect("text")
    }

    fn written(&self) -> TempDir {
        let folder = TempDir::with_prefix("weir-recipe-").expect("a temporary folder");
        fs::create_dir(folder.path().join("limits")).expect("a folder");
        for (name, text) in &self.files {
            fs::write(folder.path().join(name), text).expect("a file");
        }
        folder
    }
}
