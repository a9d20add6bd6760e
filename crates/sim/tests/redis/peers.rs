//! A connection to a real server and one to a simulated server, which get the same bytes.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_sim::random::Random;
use weir_sim::redis::{ClientId, Output, Sentinel, Server};
use weir_testing::{RedisServer, uninterrupted};

/// A command: its words.
pub(crate) type Words = Vec<Vec<u8>>;

/// How the replies to a command may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Likeness {
    /// Not by a byte.
    Same,
    /// Numbers may be this far from each other, those below zero excepted.
    Near(i64),
    /// Their numbers and texts may be any.
    Form,
}

/// What is simulated.
pub(crate) trait Simulated {
    fn open(&mut self) -> ClientId;
    fn receive(&mut self, client: ClientId, bytes: &[u8]) -> Vec<Output>;
}

impl Simulated for Server {
    fn open(&mut self) -> ClientId {
        Self::open(self).unwrap()
    }

    fn receive(&mut self, client: ClientId, bytes: &[u8]) -> Vec<Output> {
        Self::receive(self, client, bytes, now())
    }
}

impl Simulated for Sentinel {
    fn open(&mut self) -> ClientId {
        Self::open(self).unwrap()
    }

    fn receive(&mut self, client: ClientId, bytes: &[u8]) -> Vec<Output> {
        Self::receive(self, client, bytes, now())
    }
}

/// Both servers, as one client of each.
pub(crate) struct Peers<S = Server> {
    real: UnixStream,
    /// The simulated server.
    pub(crate) simulated: S,
    client: ClientId,
    /// What was sent, and answered, for the message of a failure.
    story: String,
}

impl<S: Simulated> Peers<S> {
    pub(crate) fn new(real: &RedisServer, mut simulated: S) -> Self {
        let real = connect(real);
        let client = simulated.open();
        Self {
            real,
            simulated,
            client,
            story: String::new(),
        }
    }

    /// Other connections to the same servers.
    pub(crate) fn reconnect(&mut self, real: &RedisServer) {
        self.real = connect(real);
        self.client = self.simulated.open();
    }

    /// Sends a command to both, and compares what they reply.
    #[track_caller]
    pub(crate) fn check(&mut self, text: &str) -> String {
        self.check_likeness(text, Likeness::Same)
    }

    /// Sends commands to both in one piece, or in random pieces to the simulated one, and compares
    /// each reply.
    #[track_caller]
    pub(crate) fn check_all(
        &mut self,
        commands: &[(Words, Likeness)],
        cuts: Option<&mut Random>,
    ) -> Vec<Vec<u8>> {
        let bytes: Vec<u8> = commands
            .iter()
            .flat_map(|(words, _)| encode(words))
            .collect();
        self.real.write_all(&bytes).unwrap();
        let real = self.read_real(commands.len());
        let simulated = self.ask_simulated(&bytes, cuts);
        let simulated = split_all(&simulated);
        for (at, (words, likeness)) in commands.iter().enumerate() {
            let (one, other) = (&real[at], simulated.get(at).cloned().unwrap_or_default());
            let _ = writeln!(self.story, "{}\n    {}", shown(words), one.escape_ascii());
            assert!(
                are_alike(one, &other, *likeness),
                "{}\nthe simulated server replies\n    {}",
                self.recent(),
                other.escape_ascii()
            );
        }
        assert_eq!(real.len(), simulated.len(), "{}", self.recent());
        real
    }

    /// Sends a command whose replies differ in this way.
    #[track_caller]
    pub(crate) fn check_likeness(&mut self, text: &str, likeness: Likeness) -> String {
        let words = text.split_whitespace().map(|word| word.as_bytes().to_vec());
        let reply = self.check_all(&[(words.collect(), likeness)], None);
        String::from_utf8_lossy(&reply[0]).into_owned()
    }

    /// What both reply to a command.
    pub(crate) fn replies(&mut self, text: &str) -> [Vec<u8>; 2] {
        let words = text.split_whitespace().map(|word| word.as_bytes().to_vec());
        let bytes = encode(&words.collect());
        self.real.write_all(&bytes).unwrap();
        [self.read_real(1).concat(), self.ask_simulated(&bytes, None)]
    }

    /// Reads what comes from the real server without having been asked for, so many values.
    pub(crate) fn hear_real(&mut self, count: usize) -> Vec<Vec<u8>> {
        self.read_real(count)
    }

    /// Sends bytes that are no command to both, and compares all that comes until both close.
    #[track_caller]
    pub(crate) fn check_until_closed(&mut self, bytes: &[u8]) -> String {
        self.real.write_all(bytes).unwrap();
        let mut real = Vec::new();
        let _ = self.real.read_to_end(&mut real);
        let outputs = self.simulated.receive(self.client, bytes);
        assert_eq!(outputs.last(), Some(&Output::Close(self.client)));
        let real = real.escape_ascii().to_string();
        assert_eq!(real, written(outputs).escape_ascii().to_string());
        real
    }

    fn recent(&self) -> String {
        let lines: Vec<_> = self.story.lines().collect();
        let first = lines.len().saturating_sub(60);
        lines[first..].join("\n")
    }

    fn read_real(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut received = Vec::new();
        let mut chunk = [0; 65_536];
        loop {
            let replies = split_all(&received);
            if replies.len() >= count {
                return replies;
            }
            let length = uninterrupted(|| self.real.read(&mut chunk));
            let length = length.expect("redis-server replies");
            assert!(length > 0, "redis-server closes\n{}", self.recent());
            received.extend_from_slice(&chunk[..length]);
        }
    }

    fn ask_simulated(&mut self, bytes: &[u8], cuts: Option<&mut Random>) -> Vec<u8> {
        let mut pieces = vec![bytes];
        if let Some(random) = cuts {
            while let Some(rest) = pieces.pop() {
                let cut = random.index(rest.len() + 1);
                pieces.push(&rest[..cut]);
                if cut == rest.len() {
                    break;
                }
                pieces.push(&rest[cut..]);
            }
        }
        let receive = |piece| self.simulated.receive(self.client, piece);
        written(pieces.into_iter().flat_map(receive).collect())
    }
}

fn connect(real: &RedisServer) -> UnixStream {
    let stream = UnixStream::connect(real.socket()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

pub(crate) fn written(outputs: Vec<Output>) -> Vec<u8> {
    let writes = outputs.into_iter().filter_map(|output| match output {
        Output::Write(_, bytes) => Some(bytes),
        Output::Close(_) => None,
    });
    writes.flatten().collect()
}

pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

pub(crate) fn encode(words: &Words) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn shown(words: &Words) -> String {
    let words = words.iter().map(|word| word.escape_ascii().to_string());
    words.collect::<Vec<_>>().join(" ")
}

/// The replies in these bytes, those that are complete.
pub(crate) fn split_all(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut replies = Vec::new();
    while let Some(length) = length(bytes) {
        let (reply, rest) = bytes.split_at(length);
        replies.push(reply.to_vec());
        bytes = rest;
    }
    replies
}

/// How long the first reply is, if all of it is there.
fn length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || {
        std::str::from_utf8(&bytes[1..line - 2])
            .unwrap()
            .parse::<i64>()
            .unwrap()
    };
    let values = match bytes[0] {
        b'$' | b'=' if number() >= 0 => {
            let whole = line + usize::try_from(number()).unwrap() + 2;
            return (bytes.len() >= whole).then_some(whole);
        }
        b'*' | b'>' | b'~' => number().max(0),
        b'%' => 2 * number(),
        _ => 0,
    };
    let mut end = line;
    for _ in 0..values {
        end += length(&bytes[end..])?;
    }
    Some(end)
}

pub(crate) fn are_alike(one: &[u8], other: &[u8], likeness: Likeness) -> bool {
    match likeness {
        Likeness::Same => one == other,
        Likeness::Form => form(one) == form(other),
        Likeness::Near(distance) => match (integer(one), integer(other)) {
            (Some(one @ 0..), Some(other @ 0..)) => (one - other).abs() <= distance,
            _ => one == other,
        },
    }
}

fn integer(reply: &[u8]) -> Option<i64> {
    let digits = reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The kinds of all values in a reply, and how many elements there are.
fn form(reply: &[u8]) -> String {
    let mut form = String::new();
    let mut rest = reply;
    while let Some(line) = rest.windows(2).position(|pair| pair == b"\r\n") {
        let kind = rest[0];
        form.push(char::from(kind));
        let mut end = line + 2;
        match kind {
            b'*' | b'%' | b'>' => form.push_str(&String::from_utf8_lossy(&rest[1..line])),
            b'$' | b'=' => end = length(rest).unwrap_or(rest.len()),
            _ => {}
        }
        rest = &rest[end..];
    }
    form
}
