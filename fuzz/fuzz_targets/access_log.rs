#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::fuzzing::access_log(input));
