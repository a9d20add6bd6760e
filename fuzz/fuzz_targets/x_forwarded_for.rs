#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::rules::fuzzing::x_forwarded_for(input));
