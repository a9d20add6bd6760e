//! `weir init`: a configuration to begin with, from flags or three questions.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use weir_rules::HashKey;
use weir_yaml::{HumanDuration, HumanDurationError, Severity};

use super::new_files::{NewFiles, WriteError};
use super::{BAD_CONFIGURATION, checked::Checked};

/// The app that is named if the answer is empty.
const APP: &str = "http://127.0.0.1:3000";

/// What the configuration should have.
#[derive(Args, Debug)]
pub(super) struct InitArgs {
    /// The URL of the app behind the gateway. Asked for on a terminal if it is not given
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,

    /// How many requests each client address may send, such as 100/1m, which is the default. Asked
    /// for on a terminal if no option is given
    #[arg(long, value_name = "COUNT/PERIOD")]
    limit: Option<Rate>,

    /// A Redis that several gateways share, such as redis://127.0.0.1:6379/0. Asked for on a terminal
    /// if no option is given
    #[arg(long, value_name = "URL", conflicts_with = "memory")]
    redis: Option<String>,

    /// Keep the buckets in memory, which is the default
    #[arg(long)]
    memory: bool,

    /// Where the gateway listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
}

/// So many requests in a period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    count: u64,
    period: HumanDuration,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || "write a number and a period, such as 100/1m or 5/s".to_owned();
        let (count, period) = text.split_once('/').ok_or_else(malformed)?;
        let (count, period) = (count.trim(), period.trim());
        let period = match period.starts_with(|first: char| first.is_ascii_alphabetic()) {
            true => format!("1{period}").parse(),
            false => period.parse(),
        };
        Ok(Self {
            count: count
                .parse()
                .ok()
                .filter(|count| *count > 0)
                .ok_or_else(malformed)?,
            period: period.map_err(|error: HumanDurationError| match error {
                HumanDurationError::Spelled(_, meant) => format!("write {count}/{meant}"),
                _ => malformed(),
            })?,
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.period)
    }
}

impl Rate {
    const DEFAULT: Self = Self {
        count: 100,
        period: HumanDuration(std::time::Duration::from_secs(60)),
    };

    /// The options of an override with this rate.
    pub(super) fn options(self) -> String {
        let Self { count, period } = self;
        format!("--burst {count} --count {count} --period {period}")
    }

    /// As many requests as a page and its images are: a fifth of the count, but no fewer than five
    /// of a small one, which would deny the second request of a browser.
    fn burst(self) -> u64 {
        self.count.div_ceil(5).max(self.count.min(5))
    }
}

/// What was answered.
struct Choices {
    upstream: String,
    limit: Rate,
    redis: Option<String>,
}

impl Choices {
    /// Whether the URL of Redis may have a password.
    fn has_password(&self) -> bool {
        let url = self.redis.as_deref();
        url.is_some_and(|url| weir_yaml::without_passwords(url) != url)
    }

    /// Why a configuration with these answers is refused, as far as it is for what stands under this
    /// key.
    fn refused_for(&self, key: &str) -> Option<String> {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
        let files = [
            ("gateway.yaml", gateway_yaml(self, listen)),
            ("limits/defaults.yaml", limits_yaml(self)),
        ];
        let files: HashMap<PathBuf, Vec<u8>> = files
            .map(|(path, text)| (path.into(), text.into_bytes()))
            .into();
        let path = Path::new("gateway.yaml");
        let read = weir_config::read_in_memory(files, path, &HashKey::random());
        let found = read.outcome.err()?;
        let errors = found
            .iter()
            .filter(|found| found.severity == Severity::Error);
        let mut of_key = errors.filter(|found| found.location.path.starts_with(key));
        of_key.next().map(|found| match &found.help {
            Some(help) => format!("{}: {help}", found.message),
            None => found.message.clone(),
        })
    }
}

/// Writes a configuration and says what to do with it.
pub(super) fn run(config: &Path, args: InitArgs) -> ExitCode {
    let listen = args.listen;
    let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    let choices = match is_terminal {
        true => ask(args, &mut io::stdin().lock(), &mut io::stderr()),
        false => without_questions(args),
    };
    let written = choices.map_err(|error| (error, BAD_CONFIGURATION));
    let written = written.and_then(|choices| {
        let files = new_files(config, &choices, listen);
        files.write().map_err(|error| match error {
            WriteError::Configuration(_) => (error.to_string(), BAD_CONFIGURATION),
            _ => (error.to_string(), 1),
        })?;
        Ok(files)
    });
    match written {
        Ok(files) => {
            let _ = writeln!(io::stdout(), "wrote {}", files.names());
            if files.is_private() {
                let told = "holds the password of Redis, so only its owner may read it";
                let _ = writeln!(io::stdout(), "{} {told}", config.display());
            }
            Checked::read(config).print();
            let _ = writeln!(io::stdout(), "{}", next_steps(config));
            ExitCode::SUCCESS
        }
        Err((error, code)) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::from(code)
        }
    }
}

fn new_files(config: &Path, choices: &Choices, listen: SocketAddr) -> NewFiles {
    let (gateway, limits) = (gateway_yaml(choices, listen), limits_yaml(choices));
    let files = NewFiles::new(config, &gateway, &limits);
    match choices.has_password() {
        true => files.private(),
        false => files,
    }
}

/// How to serve a configuration that was written, and how to try it.
pub(super) fn next_steps(config: &Path) -> String {
    let option = match config == Path::new("gateway.yaml") {
        true => String::new(),
        false => format!(" --config {}", config.display()),
    };
    format!(
        "serve it: weir{option}\n\
         ask what a request would meet: weir{option} explain --path / --ip 203.0.113.9"
    )
}

fn without_questions(args: InitArgs) -> Result<Choices, String> {
    let no_upstream = "name the app behind the gateway: --upstream http://127.0.0.1:3000";
    Ok(Choices {
        upstream: args.upstream.ok_or(no_upstream)?,
        limit: args.limit.unwrap_or(Rate::DEFAULT),
        redis: args.redis,
    })
}

/// Asks for what the flags do not say. Once a flag is given, the user knows them: what has a default
/// is asked for no more, as the answer may be the next line of a block that was pasted.
fn ask(args: InitArgs, answers: &mut dyn BufRead, out: &mut dyn Write) -> Result<Choices, String> {
    let asks_all =
        args.upstream.is_none() && args.limit.is_none() && args.redis.is_none() && !args.memory;
    let mut choices = Choices {
        upstream: args.upstream.clone().unwrap_or_default(),
        limit: args.limit.unwrap_or(Rate::DEFAULT),
        redis: args.redis,
    };
    if args.upstream.is_none() {
        let question = "Where is the app?";
        choices.upstream = answer(answers, out, question, APP, |upstream| {
            let redis = None;
            let limit = Rate::DEFAULT;
            let choices = Choices {
                upstream,
                limit,
                redis,
            };
            choices
                .refused_for("upstreams")
                .map_or(Ok(choices.upstream), Err)
        })?;
    }
    if asks_all {
        let question = "How many requests may each client address send?";
        let default = Rate::DEFAULT.to_string();
        choices.limit = answer(answers, out, question, &default, |rate| rate.parse())?;
        let question = "Which Redis do several gateways share? Empty for one gateway";
        choices.redis = answer(answers, out, question, "", |redis| {
            let redis = Some(redis).filter(|redis| !redis.is_empty());
            let choices = Choices {
                upstream: APP.to_owned(),
                limit: Rate::DEFAULT,
                redis,
            };
            choices.refused_for("store").map_or(Ok(choices.redis), Err)
        })?;
    }
    Ok(choices)
}

/// Asks until the answer is `fit`.
fn answer<T>(
    answers: &mut dyn BufRead,
    out: &mut dyn Write,
    question: &str,
    default: &str,
    fit: impl Fn(String) -> Result<T, String>,
) -> Result<T, String> {
    let shown = match default.is_empty() {
        true => String::new(),
        false => format!(" [{default}]"),
    };
    loop {
        let mut line = String::new();
        let asked = write!(out, "{question}{shown} ").and_then(|()| out.flush());
        let read = asked.and_then(|()| answers.read_line(&mut line));
        let answer = match read.map_err(|error| error.to_string())? {
            0 => return Err("\nno answer, so nothing was written".to_owned()),
            _ if line.trim().is_empty() => default,
            _ => line.trim(),
        };
        match fit(answer.to_owned()) {
            Ok(answer) => return Ok(answer),
            Err(error) => writeln!(out, "{error}").map_err(|error| error.to_string())?,
        }
    }
}

/// A text in quotes, which JSON and YAML share.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn gateway_yaml(choices: &Choices, listen: SocketAddr) -> String {
    let store = match &choices.redis {
        Some(url) => format!(
            "# If Redis fails, each gateway limits alone.\nstore:\n  redis: {{url: {}, on_failure: local}}\n",
            quoted(url)
        ),
        None => "# Several gateways share their buckets in Redis:\n\
                 # store:\n#   redis: {url: \"redis://127.0.0.1:6379/0\", on_failure: local}\n"
            .to_owned(),
    };
    let private = match choices.has_password() {
        true => {
            "# Only its owner may read this file, as it holds the password of Redis; \
             `password: {file: PATH}`\n# keeps that elsewhere.\n"
        }
        false => "",
    };
    let (upstream, listen) = (quoted(&choices.upstream), quoted(&listen.to_string()));
    format!(
        r#"
# `weir check` reads this file and limits/defaults.yaml and reports every error; `weir` serves them.
# Changes take effect within two seconds.
{private}
listen:
  - address: {listen}

# Health, metrics, the dashboard, and what `weir top` and other commands ask.
admin: {{address: "127.0.0.1:9901", dashboard: true}}

# Behind a load balancer, list it here; otherwise all clients count as one.
# client_address: {{trusted_proxies: [10.0.0.0/8]}}

{store}
upstreams:
  app: {{servers: [{upstream}]}}

# Web pages of other origins can read denials, if the app lets them read its responses.
defaults: {{cors: mirror}}

routes:
  - name: everything
    match: {{path: "/*"}}
    upstream: app
    limits: [RequestsPerAddress]

# `weir ban add abusers ADDRESS` keeps a client out for an hour. With `strikes: {{limits:
# RequestsPerAddress, count: 100, period: 1m}}` beside `per`, clients that ignore denials are banned
# too. The first 20 denials of a client that does not wait are no strikes (`workers: 20`), as they may
# be those of 20 workers, so 120 ban it.
bans:
  abusers: {{per: address, for: 1h}}

# Addresses and networks that never come in.
block: {{addresses: []}}
"#
    )
}

fn limits_yaml(choices: &Choices) -> String {
    let Rate { count, period } = choices.limit;
    let burst = choices.limit.burst();
    format!(
        "# Each client address may send {burst} requests at once, and {count} each {period} in the long run.\n\
         RequestsPerAddress: {{per: address, burst: {burst}, count: {count}, period: {period}}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(redis: Option<&str>) -> InitArgs {
        InitArgs {
            upstream: None,
            limit: None,
            redis: redis.map(str::to_owned),
            memory: false,
            listen: "127.0.0.1:8080".parse().unwrap(),
        }
    }

    fn asked(flags: InitArgs, answers: &str) -> (Choices, String) {
        let mut asked = Vec::new();
        let choices = ask(flags, &mut answers.as_bytes(), &mut asked).unwrap();
        (choices, String::from_utf8(asked).unwrap())
    }

    #[test]
    fn with_a_flag_nothing_that_has_a_default_is_asked_for() {
        let (choices, questions) = asked(args(Some("redis://10.0.0.1/0")), "\n5/s\n");
        assert_eq!(choices.upstream, APP);
        assert_eq!(choices.limit.to_string(), "100/1m");
        assert_eq!(choices.redis.as_deref(), Some("redis://10.0.0.1/0"));
        assert_eq!(questions, "Where is the app? [http://127.0.0.1:3000] ");
        let upstream = Some("http://127.0.0.1:3001".to_owned());
        let flags = InitArgs {
            upstream,
            ..args(None)
        };
        let (choices, questions) = asked(flags, "");
        assert_eq!(
            (choices.limit.to_string().as_str(), choices.redis),
            ("100/1m", None)
        );
        assert_eq!(questions, "");
    }

    #[test]
    fn a_wrong_answer_is_told_and_asked_for_again() {
        let answers = "localhost\nhttp://127.0.0.1:3001\nmany\n5/s\nhttp://r\n\n";
        let (choices, questions) = asked(args(None), answers);
        assert_eq!(choices.upstream, "http://127.0.0.1:3001");
        assert_eq!(
            (choices.limit.to_string().as_str(), choices.redis),
            ("5/1s", None)
        );
        for question in ["Where is the app?", "How many requests", "Which Redis"] {
            assert_eq!(questions.matches(question).count(), 2, "{questions}");
        }
    }

    #[test]
    fn an_empty_answer_is_the_default() {
        let answers = "http://127.0.0.1:3001\n\n\n";
        let choices = ask(args(None), &mut answers.as_bytes(), &mut Vec::new()).unwrap();
        assert_eq!((choices.limit.burst(), choices.redis), (20, None));
        for (rate, burst) in [("1/1m", 1), ("5/1m", 5), ("10/1m", 5), ("60/1h", 12)] {
            assert_eq!(rate.parse::<Rate>().unwrap().burst(), burst, "{rate}");
        }
    }

    #[test]
    fn without_a_terminal_the_app_is_never_guessed() {
        assert!(without_questions(args(None)).is_err());
    }

    #[test]
    fn an_end_of_the_answers_is_not_taken_for_a_default() {
        let ended = ask(args(None), &mut "\n".as_bytes(), &mut Vec::new());
        assert!(ended.is_err());
    }

    #[test]
    fn a_rate_needs_a_number_and_a_period() {
        for (text, rate) in [("100/1m", "100/1m"), ("5/s", "5/1s"), (" 3 / 2h ", "3/2h")] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), rate);
        }
        for text in ["100", "0/1m", "x/1m", "5/", "5/1", "-1/s"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        for (text, told) in [("100/min", "write 100/1m"), ("5/1 Hour", "write 5/1h")] {
            assert_eq!(text.parse::<Rate>().unwrap_err(), told);
        }
    }
}
