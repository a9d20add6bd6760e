//! What strangers and operators send, as fuzz targets feed it in; there is nothing here in a build
//! for use.
//!
//! Each function panics when an invariant breaks. `fuzz/` calls them with made-up input, and the
//! tests below with the corpus that is checked in.

pub use crate::config::fuzzing::configuration;
pub use crate::middleware::decoy::fuzzing::template;
pub use crate::proxy::fuzzing::{hop_by_hop, request, response};
pub use crate::rules::fuzzing::{credentials, forwarded, path, x_forwarded_for};
pub use crate::store::fuzzing::replies;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    type Target = fn(&[u8]);

    const TARGETS: &[(&str, Target)] = &[
        ("configuration", configuration),
        ("credentials", credentials),
        ("forwarded", forwarded),
        ("hop_by_hop", hop_by_hop),
        ("path", path),
        ("replies", replies),
        ("request", request),
        ("response", response),
        ("template", template),
        ("x_forwarded_for", x_forwarded_for),
    ];

    fn fuzz() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz"))
    }

    #[test]
    fn the_corpus_of_every_fuzz_target_is_survived() {
        for (target, run) in TARGETS {
            let corpus = fs::read_dir(fuzz().join("corpus").join(target));
            let inputs: Vec<_> = corpus.unwrap().collect();
            assert!(!inputs.is_empty(), "fuzz/corpus/{target} is empty");
            for input in inputs {
                run(&fs::read(input.unwrap().path()).unwrap());
            }
        }
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
