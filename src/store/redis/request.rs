//! Commands as Redis reads them, written one after another into one piece of memory.

/// Room for the takes of three limits.
const BYTES: usize = 1024;

/// Commands that travel together.
#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    bytes: Vec<u8>,
    replies: usize,
}

impl Request {
    /// No command yet, and room for those of a usual batch.
    pub(super) fn roomy() -> Self {
        Self {
            bytes: Vec::with_capacity(BYTES),
            replies: 0,
        }
    }

    /// How many commands there are, and as many replies.
    pub(super) fn len(&self) -> usize {
        self.replies
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies == 0
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Begins a command of so many words. Each of them has to follow.
    pub(super) fn begin(&mut self, words: &[u8]) -> &mut Self {
        self.replies += 1;
        self.words(words)
    }

    /// Begins a command of so many words, with its name for the first. The others have to follow.
    pub(super) fn command(&mut self, words: usize, name: &str) -> &mut Self {
        let mut digits = itoa::Buffer::new();
        self.begin(b"*").words(digits.format(words).as_bytes());
        self.words(b"\r\n").word(name.as_bytes())
    }

    /// Words in the form in which Redis reads them.
    pub(super) fn words(&mut self, words: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(words);
        self
    }

    /// A word.
    pub(super) fn word(&mut self, word: &[u8]) -> &mut Self {
        let mut digits = itoa::Buffer::new();
        self.bytes.push(b'$');
        self.words(digits.format(word.len()).as_bytes());
        self.words(b"\r\n").words(word).words(b"\r\n")
    }

    /// A number as a word.
    pub(super) fn int(&mut self, number: impl itoa::Integer) -> &mut Self {
        let mut digits = itoa::Buffer::new();
        self.word(digits.format(number).as_bytes())
    }
}

/// The commands in words, each in a line of its own. It reads them as Redis does.
#[cfg(test)]
pub(super) fn text(fill: impl FnOnce(&mut Request)) -> String {
    let mut request = Request::default();
    fill(&mut request);
    let commands = super::replies::Replies::new(request.bytes)
        .values()
        .unwrap();
    assert_eq!(commands.len(), request.replies);
    let line = |command: redis::Value| {
        let words: Vec<Vec<u8>> = redis::from_redis_value(command).unwrap();
        let words = words.iter().map(|word| word.escape_ascii().to_string());
        words.collect::<Vec<_>>().join(" ")
    };
    let lines: Vec<_> = commands.into_iter().map(line).collect();
    lines.join("\n")
}
