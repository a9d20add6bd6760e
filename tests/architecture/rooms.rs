//! Each optional feature has a room: the files that are about it alone. Which other files name it is
//! listed in `rooms.txt`, and so are the knots, which name many features. Both lists only shrink: a
//! file that is not listed must name no feature, and a line that is no longer true is to be deleted.
//!
//! A file names a feature by an identifier in its code. Comments, strings and tests do not count.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use crate::manifests::crates_of_a_decision;
use crate::source::{code_of, crates, is_in_name, rust_files, src, without_tests};

const LISTED: &str = include_str!("rooms.txt");

/// How many files are listed outside of rooms, knots apart. Whoever lists one more has to raise it here
/// as well, and to say why.
/// HTTP/3 is named where its keys are read and where the listening sockets are.
/// The limits of descriptors are Envoy's, and the limiter's crate hands them on.
/// The peers whose connections are refused are named where connections are accepted and where sockets
/// are set up; and a ban in a dry run refuses none.
/// What a route does with its decoys, and what a decision does where requests are shed, is said by these
/// names again where it had been said by synonyms: a reader of `route.rs` or `pipeline.rs` knows both. The
/// way of a request names as well where its client is told of its delay.
/// What was shed is among the counts of the last minute.
const MOST_FILES: usize = 284;

/// How many knots there are, and how many features they name together.
const MOST_KNOTS: (usize, usize) = (0, 0);

/// How often crates ask for the feature `gateway`, how many files list the fields of a log line (those
/// that read lines do not count), and how many structs hold the facts of a request; the last two are
/// listed below. The first stays at 0: what the gateway alone needs is a crate that the limiter does not
/// depend on. Structs are counted more widely than they were: also those with bounds, the variants of
/// enums, and more fields.
const MOST_FIGURES: (usize, usize, usize) = (0, 1, 17);

/// A file is a knot that names so many features.
const KNOT: usize = 6;

/// A knot may have so many code lines less than are listed.
const LINES_TO_SPARE: usize = 100;

struct Feature {
    name: &'static str,
    /// Files, and folders with a slash at the end.
    rooms: &'static [&'static str],
    /// The words of identifiers that name it, such as `header edits` for `HeaderEdits` and
    /// `header_edits`; `*` stands for the rest of a word. What `!` precedes names it not.
    words: &'static [&'static str],
}

const FEATURES: [Feature; 26] = [
    Feature {
        name: "compression",
        rooms: &["crates/compression/"],
        words: &["compress*", "content coding"],
    },
    Feature {
        name: "CORS",
        rooms: &["crates/middleware/src/steps/cors/"],
        words: &["cors", "preflight*"],
    },
    Feature {
        name: "header edits",
        rooms: &["crates/middleware/src/steps/header_edits/"],
        words: &["header edits"],
    },
    Feature {
        name: "HSTS",
        rooms: &[
            "crates/middleware/src/steps/hsts/",
            "crates/config/src/gateway/https.rs",
        ],
        words: &["hsts", "strict transport security"],
    },
    Feature {
        name: "gRPC statuses",
        rooms: &[
            "crates/middleware/src/steps/grpc.rs",
            "crates/middleware/src/decoy/call_reply.rs",
        ],
        words: &["grpc"],
    },
    Feature {
        name: "error pages",
        rooms: &["crates/middleware/src/steps/error_pages/"],
        words: &["error pages"],
    },
    Feature {
        name: "decoys",
        rooms: &[
            "crates/middleware/src/decoy/",
            "crates/middleware/src/no_decoys.rs",
            "crates/middleware/src/route_decoys/",
        ],
        words: &["decoy*", "shadow*"],
    },
    Feature {
        name: "bans",
        rooms: &[
            "crates/rules/src/ban/",
            "crates/middleware/src/access/bans/",
            "crates/middleware/src/access/treatment/",
            "crates/middleware/src/rate_limit/kept_out.rs",
            "crates/telemetry/src/metrics/bans.rs",
            "crates/config/src/access/bans/",
            "crates/replay/src/ruleset/access.rs",
            "src/app/features/bans/",
            "src/cli/ban.rs",
        ],
        words: &["ban", "bans", "banned", "strike*", "tarpit*"],
    },
    Feature {
        name: "refused peers",
        rooms: &[
            "crates/socket-filter/",
            "crates/server/src/peer_filter.rs",
            "crates/telemetry/src/metrics/refusals.rs",
            "crates/middleware/src/access/",
            "crates/config/src/access/bans/",
            "src/app/features/bans/",
        ],
        words: &[
            "refused peer*",
            "peer filter*",
            "in kernel",
            "socket filter*",
        ],
    },
    Feature {
        name: "access lists",
        rooms: &[
            "crates/rules/src/access_list.rs",
            "crates/config/src/access/lists.rs",
        ],
        words: &["access list*"],
    },
    Feature {
        name: "shedding",
        rooms: &[
            "crates/limit/src/concurrency/",
            "crates/limit/src/overload.rs",
            "crates/middleware/src/concurrency/",
            "crates/middleware/src/overload/",
            "crates/middleware/src/rate_limit/deferred_slot.rs",
            "crates/middleware/src/rate_limit/held_slot.rs",
            "crates/middleware/src/rate_limit/shed.rs",
            "crates/telemetry/src/metrics/overload.rs",
            "crates/config/src/routes/concurrency/",
            "src/app/features/overload.rs",
            "src/app/features/shedding/",
        ],
        words: &["shed*", "concurrency", "overload*", "priorit*"],
    },
    Feature {
        name: "in-flight leases",
        rooms: &[
            "crates/limit/src/in_flight.rs",
            "crates/store/src/leases/",
            "crates/store/src/memory/leases.rs",
            "crates/redis/src/lease_commands.rs",
            "crates/redis/src/leases.rs",
            "crates/middleware/src/rate_limit/in_flight.rs",
            "crates/middleware/src/rate_limit/lease_request.rs",
        ],
        words: &["lease*"],
    },
    Feature {
        name: "prefetched units",
        rooms: &[
            "crates/limit/src/prefetch.rs",
            "crates/redis/src/prefetch/",
            "crates/config/src/limits/prefetch.rs",
            "crates/config/src/limits/prefetched.rs",
        ],
        words: &["prefetch*"],
    },
    Feature {
        name: "delayed requests",
        rooms: &["crates/middleware/src/rate_limit/delay/"],
        words: &[
            "delay",
            "delayed",
            "delays",
            "!connection attempt delay",
            "!worker delay",
            "!min delays",
        ],
    },
    Feature {
        name: "dry runs",
        rooms: &[
            "crates/config/src/gateway/drawn_shares.rs",
            "crates/config/src/routes/concurrency/shares.rs",
            "crates/rules/src/enforcement.rs",
        ],
        words: &["enforce*", "would deny"],
    },
    Feature {
        name: "Envoy's service",
        rooms: &[
            "crates/envoy/",
            "crates/config/src/gateway/envoy/",
            "crates/middleware/src/rate_limit/descriptors.rs",
            "src/app/envoy.rs",
        ],
        words: &[
            "envoy*",
            "descriptor limits",
            "asked descriptor*",
            "decided descriptor*",
        ],
    },
    Feature {
        name: "passwords",
        rooms: &[
            "crates/passwords/",
            "crates/middleware/src/rate_limit/look_ahead.rs",
            "crates/middleware/src/verifiers.rs",
        ],
        words: &["basic auth*", "password*"],
    },
    Feature {
        name: "JWT",
        rooms: &[
            "crates/rules/src/jwt/",
            "crates/config/src/gateway/account/jwt.rs",
            "src/app/features/jwks/",
        ],
        words: &["jwt*", "jwk*"],
    },
    Feature {
        name: "ACME",
        rooms: &[
            "crates/config/src/gateway/listen/acme.rs",
            "crates/server/src/challenges.rs",
            "src/app/sockets/acme/",
        ],
        words: &["acme"],
    },
    Feature {
        name: "takeover",
        rooms: &[
            "crates/server/src/no_takeover.rs",
            "crates/server/src/takeover.rs",
        ],
        words: &["takeover"],
    },
    Feature {
        name: "fleet",
        rooms: &[
            "crates/console/src/fleet/",
            "src/app/fleet/",
            "src/app/admin_api/fleet.rs",
        ],
        words: &["fleet"],
    },
    Feature {
        name: "OTLP",
        rooms: &[
            "crates/config/src/gateway/process/otlp.rs",
            "crates/telemetry/src/metrics/spans.rs",
            "crates/telemetry/src/no_otlp.rs",
            "crates/telemetry/src/otlp.rs",
            "src/app/features/otlp.rs",
        ],
        words: &["otlp"],
    },
    Feature {
        name: "HTTP/3",
        rooms: &[
            "crates/http3/",
            "crates/config/src/gateway/listen/http3.rs",
            "src/app/sockets/http3.rs",
            "src/app/sockets/no_http3.rs",
        ],
        words: &["http3", "quic"],
    },
    Feature {
        name: "sticky servers",
        rooms: &[
            "crates/config/src/routes/balancing/sticky.rs",
            "crates/proxy/src/sticky.rs",
        ],
        words: &["sticky"],
    },
    Feature {
        name: "SRV records",
        rooms: &["src/app/features/srv.rs"],
        words: &["srv"],
    },
    Feature {
        name: "request buffering",
        rooms: &[
            "crates/config/src/routes/request_buffering.rs",
            "crates/proxy/src/request_buffering.rs",
        ],
        words: &["request buffering"],
    },
];

/// What some files mean by identifiers that would name a feature elsewhere.
struct OtherMeaning {
    feature: &'static str,
    meaning: &'static str,
    /// Files, and folders with a slash at the end.
    files: &'static [&'static str],
    identifiers: &'static [&'static str],
}

const OTHER_MEANINGS: [OtherMeaning; 6] = [
    OtherMeaning {
        feature: "shedding",
        meaning: "which servers come first: the priority of an SRV record, or that of a backup",
        files: &[
            "crates/proxy/src/balance/server_state.rs",
            "crates/proxy/src/endpoint.rs",
            "crates/proxy/src/resolver.rs",
            "crates/proxy/src/settings.rs",
        ],
        identifiers: &["of_priority", "priorities", "priority"],
    },
    OtherMeaning {
        feature: "shedding",
        meaning: "a type of frames of HTTP/2",
        files: &["crates/server/src/http2_frames.rs"],
        identifiers: &["PRIORITY"],
    },
    OtherMeaning {
        feature: "delayed requests",
        meaning: "what an interval of tokio does about ticks that it missed",
        files: &[
            "crates/redis/src/leases.rs",
            "src/app/admin_api/events.rs",
            "src/app/gateway.rs",
        ],
        identifiers: &["Delay"],
    },
    OtherMeaning {
        feature: "delayed requests",
        meaning: "how late the event loop of a worker is",
        files: &[
            "crates/limit/src/overload.rs",
            "crates/middleware/src/overload/",
            "crates/telemetry/src/metrics/overload.rs",
            "src/app/features/overload.rs",
            "src/app/features/shedding/",
        ],
        identifiers: &[
            "DEFAULT_MAX_DELAY",
            "MAX_MAX_DELAY",
            "MIN_MAX_DELAY",
            "delay",
            "delay_ms",
            "delays",
            "max_delay",
            "set_max_delay",
        ],
    },
    OtherMeaning {
        feature: "delayed requests",
        meaning: "the latency of the real responses, which a decoy takes as well",
        files: &[
            "crates/middleware/src/decoy/mod.rs",
            "crates/middleware/src/decoy/value_pattern.rs",
        ],
        identifiers: &["delay"],
    },
    OtherMeaning {
        feature: "delayed requests",
        meaning: "how long who shows a wrong token is kept waiting",
        files: &["src/app/admin_api/wrong_tokens.rs"],
        identifiers: &["DELAY", "MAX_DELAY"],
    },
];

impl OtherMeaning {
    fn is_meant(&self, feature: &str, path: &str, identifier: &str) -> bool {
        self.feature == feature
            && self.identifiers.contains(&identifier)
            && is_among(self.files, path)
    }
}

/// Whether a file is one of these, or in one of these folders, which have a slash at the end.
fn is_among(files: &[&str], path: &str) -> bool {
    let is_in = |one: &&str| *one == path || one.ends_with('/') && path.starts_with(*one);
    files.iter().any(is_in)
}

impl Feature {
    fn is_room(&self, file: &str) -> bool {
        is_among(self.rooms, file)
    }

    fn is_named_by(&self, identifier: &[String]) -> bool {
        let excepted = self
            .words
            .iter()
            .filter_map(|words| words.strip_prefix('!'));
        let mut named = self.words.iter().filter(|words| !words.starts_with('!'));
        named.any(|words| contains(identifier, words))
            && !excepted
                .into_iter()
                .any(|words| contains(identifier, words))
    }
}

/// The places of the features that an identifier names, where it means nothing else.
fn features_of(identifier: &str) -> Vec<usize> {
    let words = words_of(identifier);
    let features = FEATURES.iter().enumerate();
    let named = features.filter(|(_, feature)| feature.is_named_by(&words));
    named.map(|(at, _)| at).collect()
}

/// Whether an identifier has these words one after the other.
fn contains(identifier: &[String], words: &str) -> bool {
    let words: Vec<_> = words.split(' ').collect();
    let fits = |(word, wanted): (&String, &&str)| match wanted.strip_suffix('*') {
        Some(begin) => word.starts_with(begin),
        None => word == wanted,
    };
    let mut places = identifier.windows(words.len());
    places.any(|place| place.iter().zip(&words).all(fits))
}

/// The words of an identifier, in lower case.
fn words_of(identifier: &str) -> Vec<String> {
    let mut words = Vec::new();
    for part in identifier.split('_').filter(|part| !part.is_empty()) {
        let chars: Vec<_> = part.chars().collect();
        let mut start = 0;
        for at in 1..chars.len() {
            let follows_lower = !chars[at - 1].is_uppercase();
            let precedes_lower = chars.get(at + 1).is_some_and(|next| next.is_lowercase());
            if chars[at].is_uppercase() && (follows_lower || precedes_lower) {
                words.push(chars[start..at].iter().collect::<String>());
                start = at;
            }
        }
        words.push(chars[start..].iter().collect());
    }
    words.iter().map(|word| word.to_lowercase()).collect()
}

/// The identifiers of code, without those in comments and strings.
fn identifiers(code: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    let mut rest = code;
    while let Some(first) = rest.trim_start().chars().next() {
        rest = rest.trim_start();
        let length = if let Some(length) = passed_over(rest) {
            length
        } else if is_in_name(first) {
            let length = rest.find(|char| !is_in_name(char));
            let length = length.unwrap_or(rest.len());
            found.insert(&rest[..length]);
            length
        } else {
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    found
}

/// The length of the comment, string or character that code begins with, if it does.
fn passed_over(code: &str) -> Option<usize> {
    if !code.starts_with(['/', '\'', '"', 'b', 'r']) {
        return None;
    }
    let until = |start: usize, end: &str| {
        let length = code[start..].find(end).map(|at| start + at + end.len());
        length.unwrap_or(code.len())
    };
    if code.starts_with("//") {
        return Some(until(2, "\n"));
    }
    if code.starts_with("/*") {
        return Some(until(2, "*/"));
    }
    if let Some(character) = code.strip_prefix('\'') {
        let mut chars = character.char_indices();
        return match (chars.next()?.1, chars.next()?.1) {
            ('\\', _) => Some(until(3, "'")),
            (_, '\'') => Some(2 + chars.next().map_or(1, |(at, _)| at - 1)),
            _ => Some(1),
        };
    }
    let raw = code.strip_prefix("br").or_else(|| code.strip_prefix('r'));
    if let Some(raw) = raw {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            return Some(until(code.len() - raw.len() + hashes + 1, &end));
        }
    }
    let text = code
        .strip_prefix('"')
        .or_else(|| code.strip_prefix("b\""))?;
    let begin = code.len() - text.len();
    let mut is_escaped = false;
    let end = text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    Some(end.map_or(code.len(), |end| begin + end + 1))
}

/// A file of the product.
struct File {
    code_lines: usize,
    /// The features that it names, by their place in the table; those too whose room it is.
    named: BTreeSet<usize>,
    /// What it means by identifiers that name a feature elsewhere: the places in the table, with the
    /// identifiers.
    other_meanings: BTreeSet<(usize, String)>,
    of_gateway: usize,
    /// How many of [`LOG_FIELDS`] it has the names of.
    fields: usize,
    /// How many fields of a log line it names by the table's constants.
    field_constants: usize,
    text: String,
}

impl File {
    /// `name` is the path within the package; `features` keeps the features that identifiers name.
    fn read(path: &Path, name: &str, features: &mut HashMap<String, Vec<usize>>) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let code = code_of(&text);
        let code_lines = code.lines().filter(|line| !line.trim().is_empty());
        let (mut named, mut other_meanings) = (BTreeSet::new(), BTreeSet::new());
        for identifier in identifiers(without_tests(&text)) {
            let known = features.entry(identifier.to_owned());
            for feature in known.or_insert_with(|| features_of(identifier)) {
                let of_feature = FEATURES[*feature].name;
                let mut others = OTHER_MEANINGS.iter();
                match others.position(|other| other.is_meant(of_feature, name, identifier)) {
                    Some(other) => other_meanings.insert((other, identifier.to_owned())),
                    None => named.insert(*feature),
                };
            }
        }
        Self {
            code_lines: code_lines.count(),
            named,
            other_meanings,
            of_gateway: code.matches("feature = \"gateway\"").count(),
            fields: LOG_FIELDS.iter().filter(|it| code.contains(*it)).count(),
            field_constants: field_constants(&code),
            text: code,
        }
    }
}

/// How many constants of a log line's fields code names. What `tracing` has in a module of the same name
/// are a few functions.
fn field_constants(code: &str) -> usize {
    let named = code.match_indices("field::").filter_map(|(at, found)| {
        let name = &code[at + found.len()..];
        let is_whole = !code[..at].ends_with(is_in_name);
        let end = name.find(|char| !is_in_name(char))?;
        (is_whole && name.starts_with(char::is_lowercase)).then(|| &name[..end])
    });
    named.collect::<BTreeSet<_>>().len()
}

/// The files of the product by their paths, read once for all tests.
fn files() -> &'static BTreeMap<String, File> {
    static FILES: OnceLock<BTreeMap<String, File>> = OnceLock::new();
    FILES.get_or_init(|| {
        let folders = crates().into_iter().map(|(_, folder)| folder);
        let paths = folders
            .chain([src()])
            .flat_map(|folder| rust_files(&folder));
        let named = |path: &Path| {
            let within = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap();
            within.to_str().unwrap().to_owned()
        };
        let mut features = HashMap::new();
        paths
            .map(|path| {
                let name = named(&path);
                let file = File::read(&path, &name, &mut features);
                (name, file)
            })
            .collect()
    })
}

/// The files outside of its room that name a feature.
fn outside(at: usize) -> impl Iterator<Item = &'static str> {
    let names = move |(path, file): &(&'static String, &File)| {
        file.named.contains(&at) && !FEATURES[at].is_room(path)
    };
    files().iter().filter(names).map(|(path, _)| path.as_str())
}

/// The lines that `rooms.txt` should have under each of its headings.
fn found() -> BTreeMap<&'static str, BTreeSet<String>> {
    let features = FEATURES.iter().enumerate();
    let outside = features.map(|(at, feature)| {
        let paths = outside(at).map(str::to_owned);
        (feature.name, paths.collect())
    });
    let knots = knots().map(|(path, file)| {
        let begin = format!("{path} {} ", file.named.len());
        format!("{begin}{}", most_lines(&begin, file.code_lines))
    });
    outside.chain([("knots", knots.collect())]).collect()
}

/// The most code lines of a knot, as listed if that is near: a repair of a few lines changes no list.
fn most_lines(begin: &str, lines: usize) -> usize {
    let listed = LISTED
        .lines()
        .find_map(|line| line.trim().strip_prefix(begin));
    let listed = listed.and_then(|most| most.parse().ok());
    listed
        .filter(|most| (lines..lines + LINES_TO_SPARE).contains(most))
        .unwrap_or(lines)
}

fn knots() -> impl Iterator<Item = (&'static String, &'static File)> {
    let files = files().iter();
    files.filter(|(_, file)| file.named.len() >= KNOT)
}

/// The lines of `rooms.txt` by their headings, which end with a colon.
fn listed() -> BTreeMap<&'static str, BTreeSet<String>> {
    let mut listed: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let mut heading = "";
    for line in LISTED.lines().filter(|line| !line.is_empty()) {
        match line.strip_suffix(':') {
            Some(name) => heading = name,
            None => assert!(
                listed
                    .entry(heading)
                    .or_default()
                    .insert(line.trim().to_owned()),
                "{heading}: {line} is listed twice"
            ),
        }
    }
    listed
}

#[test]
fn the_lists_never_grow_unnoticed() {
    let files = (0..FEATURES.len()).map(|at| outside(at).count());
    assert_eq!(
        files.sum::<usize>(),
        MOST_FILES,
        "lower MOST_FILES, or raise it and say why"
    );
    let named: usize = knots().map(|(_, file)| file.named.len()).sum();
    assert_eq!(
        (knots().count(), named),
        MOST_KNOTS,
        "lower MOST_KNOTS, or raise it and say why"
    );
}

/// A feature that is renamed would empty its list, and a room may be named for nothing.
#[test]
fn the_words_of_each_feature_name_it_in_its_own_room() {
    for (at, feature) in FEATURES.iter().enumerate() {
        let mut own = files().iter().filter(|(path, _)| feature.is_room(path));
        let named = own.any(|(_, file)| file.named.contains(&at));
        assert!(named, "{}", feature.name);
    }
}

#[test]
fn no_further_file_names_a_feature_outside_of_its_room() {
    let (listed, none) = (listed(), BTreeSet::new());
    let complaints = found().into_iter().flat_map(|(heading, found)| {
        let listed = listed.get(heading).unwrap_or(&none);
        let further = found.difference(listed);
        let further = further.map(|line| format!("{heading}: not listed: {line}"));
        let gone = listed.difference(&found);
        let gone = gone.map(|line| format!("{heading}: no longer so: {line}"));
        further.chain(gone).collect::<Vec<_>>()
    });
    let complaints: Vec<_> = complaints.collect();
    assert!(
        complaints.is_empty(),
        "tests/architecture/rooms.txt only shrinks. Move to the feature's room what names it in a \
         file that is not listed. Delete what is no longer so. A knot has its number of features \
         and the most code lines, and both are only lowered. {complaints:#?}"
    );
    let unknown: Vec<_> = listed
        .keys()
        .filter(|it| !found().contains_key(*it))
        .collect();
    assert!(unknown.is_empty(), "no such feature: {unknown:?}");
}

/// An exception that is needed no more would hide who names the feature later.
#[test]
fn no_other_meaning_is_listed_that_no_file_has() {
    for (at, other) in OTHER_MEANINGS.iter().enumerate() {
        let has = |path: &str, identifier: Option<&str>| {
            let mut files = files().iter().filter(|(name, _)| is_among(&[path], name));
            files.any(|(_, file)| {
                let mut meanings = file.other_meanings.iter();
                meanings.any(|(of, found)| *of == at && identifier.is_none_or(|it| it == found))
            })
        };
        for path in other.files {
            assert!(has(path, None), "{path}: {}", other.meaning);
        }
        for identifier in other.identifiers {
            let mut paths = other.files.iter();
            let found = paths.any(|path| has(path, Some(identifier)));
            assert!(found, "{identifier}: {}", other.meaning);
        }
    }
}

/// Where steps on responses are listed, beside their rooms.
const LISTS_OF_STEPS: [&str; 2] = [
    "crates/middleware/src/steps/mod.rs",
    "crates/config/src/routes/schema/steps.rs",
];

/// The names of steps that are no [`Feature`] of the table: their files and folders have them.
fn further_steps() -> BTreeSet<&'static str> {
    let listed = |path: &str| FEATURES.iter().any(|feature| feature.is_room(path));
    let within = files().keys().filter_map(|path| {
        let name = path.strip_prefix("crates/middleware/src/steps/")?;
        let name = name.split(['/', '.']).next()?;
        (!listed(path) && !matches!(name, "mod" | "response_step")).then_some(name)
    });
    within.collect()
}

/// A new step takes no change of this file and of the lists beside it.
#[test]
fn a_step_is_named_in_its_room_and_where_steps_are_listed_alone() {
    for step in further_steps() {
        let words = step.replace('_', " ");
        let room = format!("crates/middleware/src/steps/{step}");
        let is_own = |path: &str| path.starts_with(&room) || LISTS_OF_STEPS.contains(&path);
        let others = files().iter().filter(|(path, file)| {
            let mut identifiers = identifiers(&file.text).into_iter();
            !is_own(path) && identifiers.any(|it| contains(&words_of(it), &words))
        });
        let others: Vec<_> = others.map(|(path, _)| path).collect();
        assert!(
            others.is_empty(),
            "{step} is named in {others:?}: move that code to its room, or give the room a longer \
             name if they mean something else by these words; its key may be called as you like"
        );
    }
}

#[test]
fn every_room_exists() {
    let rooms = FEATURES.iter().flat_map(|feature| feature.rooms);
    for room in rooms {
        assert!(files().keys().any(|file| file.starts_with(room)), "{room}");
    }
}

/// Who reads fields of a log line by the table's constants.
const READERS_OF_LOG_FIELDS: [&str; 1] = [
    // It reads the fields that a replay needs, and has a slot of a request for each of them.
    "crates/replay/src/format/json.rs",
];

/// A dozen fields of a log line.
const LOG_FIELDS: [&str; 12] = [
    "decided_by",
    "decided_ns",
    "delay_ms",
    "duration_ms",
    "in_flight",
    "priority",
    "request_id",
    "store_ms",
    "upstream_error",
    "upstream_ms",
    "upstream_status",
    "user_agent",
];

/// The structs that hold facts of one request, by their files and names.
const REQUEST_FACTS: [(&str, &str); 17] = [
    // These four hold the record of a log line, or of a connection, and pass on its facts.
    ("crates/middleware/src/access_log.rs", "LogLine"),
    ("crates/middleware/src/access_log.rs", "Record"),
    ("crates/middleware/src/lib.rs", "RequestContext"),
    ("crates/telemetry/src/access_log.rs", "RequestFinished"),
    ("crates/middleware/src/identify.rs", "ClientIdentity"),
    ("crates/middleware/src/identify.rs", "RequestHead"),
    (
        "crates/middleware/src/rate_limit/response_context.rs",
        "ResponseContext",
    ),
    ("crates/replay/src/format/json.rs", "LogEntry"),
    ("crates/replay/src/format/mod.rs", "Details"),
    ("crates/replay/src/format/mod.rs", "LogLine"),
    ("crates/replay/src/format/mod.rs", "RawLine"),
    ("crates/replay/src/replayer.rs", "RecordedResponse"),
    ("crates/rules/src/descriptors.rs", "DescriptorValues"),
    ("crates/rules/src/key_source.rs", "RequestAttributes"),
    ("crates/rules/src/route/mod.rs", "RequestParts"),
    ("crates/telemetry/src/access_log.rs", "CountedRequest"),
    ("crates/telemetry/src/access_log.rs", "LoggedRequest"),
];

/// Fields that hold them.
const FACTS: [&str; 31] = [
    "account",
    "answered",
    "at",
    "began",
    "bytes",
    "captures",
    "client",
    "complete",
    "decision",
    "ended",
    "extensions",
    "headers",
    "host",
    "identity",
    "method",
    "path",
    "peer",
    "query",
    "referer",
    "request_id",
    "route",
    "scheme",
    "secure",
    "status",
    "target",
    "timestamp",
    "took",
    "uri",
    "user_agent",
    "verdict",
    "version",
];

/// Structs with such fields that are about no request, or are the form in which users write one or
/// are shown one.
const NO_REQUESTS: [(&str, &str); 8] = [
    ("crates/config/src/routes/schema/mod.rs", "Match"),
    ("crates/config/src/settings.rs", "Settings"),
    ("crates/proxy/src/demo.rs", "ReceivedRequest"),
    ("crates/replay/src/format/mod.rs", "DetailSet"),
    ("crates/replay/src/format/seen.rs", "LogNeeds"),
    ("crates/rules/src/route/mod.rs", "RouteMatcher"),
    ("src/app/admin_api/explain.rs", "Explained"),
    ("src/cli/mod.rs", "ExplainArgs"),
];

/// A struct with more of these fields holds a request's facts.
const MOST_FACTS: usize = 2;

/// The marks of code outside of comments, strings and characters, with their places.
fn marks(code: &str) -> impl Iterator<Item = (usize, char)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(length) = passed_over(&code[at..]) {
            at += length;
        }
        let mark = code[at..].chars().next()?;
        at += mark.len_utf8();
        Some((at - mark.len_utf8(), mark))
    })
}

/// The marks of code that are in no brackets of these kinds within it, with their places. The first
/// one of a pair is in none itself.
fn marks_outside(code: &str, brackets: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut depth, mut last) = (0_usize, ' ');
    marks(code).filter(move |(_, mark)| {
        let is_arrow = last == '-' && *mark == '>';
        last = *mark;
        let side = brackets.find(*mark).filter(|_| !is_arrow);
        let before = depth;
        match side.map(|side| side % 2) {
            Some(0) => depth += 1,
            Some(_) => depth = depth.saturating_sub(1),
            None => {}
        }
        before == 0
    })
}

/// The code between the brace that it begins with and the one that closes that.
fn in_braces(code: &str) -> &str {
    let within = &code[1..];
    let closing = marks_outside(within, "{}").find(|(_, mark)| *mark == '}');
    &within[..closing.map_or(within.len(), |(at, _)| at)]
}

/// What is declared with this keyword and a body in braces: the names and the bodies.
fn bodies<'c>(code: &'c str, keyword: &str) -> Vec<(&'c str, &'c str)> {
    let declared = code.match_indices(keyword).filter_map(|(at, _)| {
        let rest = &code[at + keyword.len()..];
        let name = &rest[..rest.find(|char| !is_in_name(char))?];
        let bounds = &rest[name.len()..];
        let mut ends =
            marks_outside(bounds, "()[]<>").filter(|(_, mark)| ['{', ';'].contains(mark));
        let (start, end) = ends.next()?;
        (end == '{' && !name.is_empty()).then(|| (name, in_braces(&bounds[start..])))
    });
    declared.collect()
}

/// The variants of an enum with this body that name their fields: the names and the fields.
fn variants(body: &str) -> Vec<(&str, &str)> {
    let opening = marks_outside(body, "()[]{}").filter(|(_, mark)| *mark == '{');
    let named = opening.map(|(at, _)| {
        let before = body[..at].trim_end();
        let name = before
            .rfind(|char| !is_in_name(char))
            .map_or(0, |end| end + 1);
        (&before[name..], in_braces(&body[at..]))
    });
    named.collect()
}

/// How many facts of requests fields hold.
fn facts(fields: &str) -> usize {
    let parts = fields
        .split([',', '\n'])
        .filter_map(|part| part.split_once(':'));
    let named = parts.filter(|(_, of_type)| !of_type.starts_with(':'));
    let names = named.filter_map(|(field, _)| field.split_whitespace().last());
    names.filter(|name| FACTS.contains(name)).count()
}

/// The structs of code and the variants of its enums, each with how many facts of requests it holds.
fn holders(code: &str) -> Vec<(String, usize)> {
    let structs = bodies(code, "struct ").into_iter();
    let structs = structs.map(|(name, fields)| (name.to_owned(), facts(fields)));
    let enums = bodies(code, "enum ").into_iter();
    let of_enums = enums.flat_map(|(of, body)| {
        let variants = variants(body).into_iter();
        variants.map(move |(name, fields)| (format!("{of}::{name}"), facts(fields)))
    });
    structs.chain(of_enums).collect()
}

#[test]
fn no_struct_holds_the_facts_of_a_request_unnoticed() {
    let mut unnoticed = Vec::new();
    for (path, file) in files() {
        for (name, facts) in holders(&file.text) {
            let listed = [&REQUEST_FACTS[..], &NO_REQUESTS];
            let is_listed = listed.iter().any(|list| list.contains(&(path, &name)));
            if facts > MOST_FACTS && !is_listed {
                unnoticed.push(format!("{path}: {name} has {facts} facts of a request"));
            }
        }
    }
    assert!(
        unnoticed.is_empty(),
        "use a struct that has them, or list them: {unnoticed:#?}"
    );
    let held = |(path, name): &(&str, &str)| {
        let declared = files().get(*path).map(|file| holders(&file.text));
        let mut declared = declared.into_iter().flatten();
        declared.find_map(|(known, facts)| (known == *name).then_some(facts))
    };
    for listed in &REQUEST_FACTS {
        assert!(
            held(listed).is_some(),
            "there is no {listed:?}: delete the line"
        );
    }
    for listed in &NO_REQUESTS {
        let needs_line = held(listed).is_some_and(|facts| facts > MOST_FACTS);
        assert!(needs_line, "{listed:?} is in no doubt: delete the line");
    }
}

#[test]
fn fields_are_found_behind_bounds_and_in_variants() {
    let code = "struct A<F: Fn(u8) -> [u8; 2], const N: usize>
        where F: Fn(u8) -> u8 { path: Vec<(http::Uri, F)>, #[x = \"{\"] pub(crate) host: u8, }
        struct B<F: Fn(u8)>(F, [u8; 2]); struct C; pub enum D<T> { E, F(T),
        G { at: u8, client: u8, status: Option<route::Id> }, H { other: u8 } }
        fn f() { let path: u8 = 1; }";
    let found = holders(code);
    let found: Vec<_> = found
        .iter()
        .map(|(name, facts)| (&**name, *facts))
        .collect();
    assert_eq!(found, [("A", 2), ("D::G", 3), ("D::H", 0)]);
}

/// Prints them all with `cargo test --test architecture -- --nocapture figures`.
#[test]
fn the_figures_of_the_house_never_grow_unnoticed() {
    println!("| feature | files that name it | outside of its room |\n|---|--:|--:|");
    for (at, feature) in FEATURES.iter().enumerate() {
        let all = files()
            .values()
            .filter(|file| file.named.contains(&at))
            .count();
        println!("| {} | {all} | {} |", feature.name, outside(at).count());
    }
    println!("\n| knot | features | code lines |\n|---|--:|--:|");
    for (path, file) in knots() {
        println!("| `{path}` | {} | {} |", file.named.len(), file.code_lines);
    }
    let lines = |wanted: &dyn Fn(&str) -> bool| -> usize {
        let files = files().iter().filter(|(path, _)| wanted(path));
        files.map(|(_, file)| file.code_lines).sum()
    };
    let is_tool = |path: &str| {
        [
            "crates/replay/",
            "crates/import/",
            "src/cli/replay.rs",
            "src/cli/import.rs",
        ]
        .iter()
        .any(|tool| path.starts_with(tool))
    };
    let knot_lines: usize = knots().map(|(_, file)| file.code_lines).sum();
    let crates = files()
        .iter()
        .filter(|(path, _)| path.starts_with("crates/"));
    let of_gateway: usize = crates.map(|(_, file)| file.of_gateway).sum();
    let most_fields = LOG_FIELDS.len() / 2;
    let tables = files().values();
    let tables = tables.filter(|file| file.fields >= most_fields).count();
    let readers = files().iter();
    let readers = readers.filter(|(_, file)| file.field_constants >= most_fields);
    let readers: Vec<_> = readers.map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        readers, READERS_OF_LOG_FIELDS,
        "whoever shows or reads the fields of a line goes through the table of them"
    );
    let structs = REQUEST_FACTS.len();
    println!("\n| figure | |\n|---|--:|");
    println!("| knots | {} ({knot_lines} code lines) |", knots().count());
    println!("| code lines of the product | {} |", lines(&|_| true));
    println!(
        "| those without replay and import | {} |",
        lines(&|path| !is_tool(path))
    );
    let decide = crates_of_a_decision();
    let decide = |path: &str| {
        decide
            .iter()
            .any(|folder| path.starts_with(folder.as_str()))
    };
    println!(
        "| those of the crates where a limit decides | {} |",
        lines(&decide)
    );
    println!("| `cfg(feature = \"gateway\")` in crates | {of_gateway} |");
    println!(
        "| files that list the fields of a log line | {tables} table, {} reader |",
        readers.len()
    );
    println!("| structs with the facts of a request | {structs} |");
    let found = (of_gateway, tables, structs);
    assert_eq!(
        found, MOST_FIGURES,
        "lower MOST_FIGURES, or raise it and say why"
    );
}

#[test]
fn identifiers_are_found_outside_of_comments_and_strings() {
    let code = r####"fn a<'b>(c: &'b str) { /* d */ e("f \" g", '"', 'h', '\'', r#"i " j"#, b"k") // l
        m }"####;
    let found: Vec<_> = identifiers(code).into_iter().collect();
    assert_eq!(found, ["a", "b", "c", "e", "fn", "m", "str"]);
}

#[test]
fn identifiers_name_features_by_their_words() {
    let names = |identifier: &str| {
        let named = features_of(identifier).into_iter();
        named.map(|at| FEATURES[at].name).collect::<Vec<_>>()
    };
    assert_eq!(names("HeaderEdits"), ["header edits"]);
    assert_eq!(names("STRICT_TRANSPORT_SECURITY"), ["HSTS"]);
    assert_eq!(names("checks_ban"), ["bans"]);
    assert_eq!(names("bandwidth"), [""; 0]);
    assert_eq!(names("CONNECTION_ATTEMPT_DELAY"), [""; 0]);
    assert_eq!(names("JWTKeys"), ["JWT"]);
}
