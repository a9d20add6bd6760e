//! What strangers and operators send, as fuzz targets feed it in; there is nothing here in a build
//! for use.
//!
//! Each function panics when an invariant breaks. `fuzz/` calls them with made-up input, and the
//! tests below with the corpus that is checked in.

pub use weir_config::fuzz_configuration as configuration;
pub use weir_import::fuzz_import as import;
pub use weir_middleware::decoy::fuzz_template as template;
pub use weir_proxy::fuzzing::{hop_by_hop, request, response};
pub use weir_redis::fuzzing::replies;
pub use weir_replay::fuzz_log as access_log;
pub use weir_rules::fuzzing::{credentials, forwarded, path, x_forwarded_for};
pub use weir_server::fuzzing::plain_request;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};
    use std::{env, fs, panic};

    use proptest::collection::vec;
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom;
    use rand::{RngExt, SeedableRng};

    use super::*;

    type Target = fn(&[u8]);

    const TARGETS: &[(&str, Target)] = &[
        ("access_log", access_log),
        ("configuration", configuration),
        ("credentials", credentials),
        ("forwarded", forwarded),
        ("hop_by_hop", hop_by_hop),
        ("import", import),
        ("path", path),
        ("plain_request", plain_request),
        ("replies", replies),
        ("request", request),
        ("response", response),
        ("template", template),
        ("x_forwarded_for", x_forwarded_for),
    ];

    fn fuzz() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz"))
    }

    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let folder = fs::read_dir(fuzz().join("corpus").join(target)).unwrap();
        let inputs = folder.map(|file| fs::read(file.unwrap().path()).unwrap());
        let inputs: Vec<_> = inputs.collect();
        assert!(!inputs.is_empty(), "fuzz/corpus/{target} is empty");
        inputs
    }

    #[test]
    fn the_corpus_of_every_fuzz_target_is_survived() {
        for (target, run) in TARGETS {
            corpus(target).iter().for_each(|input| run(input));
        }
    }

    /// Seconds for each target in place of [`MUTATIONS`], as CI sets them.
    const SECONDS: &str = "WEIR_FUZZ_SECONDS";

    const MUTATIONS: usize = 100;

    #[test]
    fn mutations_of_every_corpus_are_survived() {
        let seconds = env::var(SECONDS).map_or(0, |seconds| seconds.parse().unwrap());
        let mut random = StdRng::seed_from_u64(rand::random());
        for (target, run) in TARGETS {
            let corpus = corpus(target);
            let (start, mut runs) = (Instant::now(), 0);
            while runs < MUTATIONS || start.elapsed() < Duration::from_secs(seconds) {
                let input = mutated(&corpus, &mut random);
                let survived = panic::catch_unwind(|| run(&input)).is_ok();
                assert!(survived, "{target} breaks on b\"{}\"", input.escape_ascii());
                runs += 1;
            }
            println!("{target}: {runs} mutated inputs");
        }
    }

    /// An input of the corpus after a few changes: parts of it are repeated, left out, replaced by
    /// parts of another input, or by any bytes.
    fn mutated(corpus: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
        let mut input = corpus.choose(random).unwrap().clone();
        for _ in 0..random.random_range(1..=4) {
            let part = {
                let other = corpus.choose(random).unwrap();
                match random.random_range(0..4) {
                    0 => Vec::new(),
                    1 => vec![random.random(); random.random_range(1..=4)],
                    2 => input[range(input.len(), random)].to_vec(),
                    _ => other[range(other.len(), random)].to_vec(),
                }
            };
            input.splice(range(input.len(), random), part);
        }
        input
    }

    fn range(len: usize, random: &mut StdRng) -> std::ops::Range<usize> {
        let start = random.random_range(0..=len);
        // Short ranges are what leaves an input near to what it was.
        let longest = (len - start).min(if random.random() { 4 } else { len });
        start..start + random.random_range(0..=longest)
    }

    #[test]
    fn no_fuzz_target_is_left_out() {
        let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
        let targets = fs::read_dir(fuzz().join("fuzz_targets")).unwrap();
        assert_eq!(targets.count(), TARGETS.len());
        for (target, _) in TARGETS {
            let program = format!("fuzz_targets/{target}.rs");
            assert!(
                manifest.contains(&program),
                "{program} is not in Cargo.toml"
            );
            let program = fs::read_to_string(fuzz().join(program)).unwrap();
            assert!(program.contains(&format!("weir::fuzzing::{target}(")));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_input_is_survived(
            bytes in vec(any::<u8>(), 0..80),
            text in "([/%;=,\"\\\\:.\\[\\]a0\n|]|for|GET / HTTP/1.1\r\n|\\{\\{|\\PC){0,60}"
        ) {
            for (_, run) in TARGETS {
                run(&bytes);
                run(text.as_bytes());
            }
        }
    }
}
