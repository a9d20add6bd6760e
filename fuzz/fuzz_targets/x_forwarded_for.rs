#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| weir::fuzzing::x_forwarded_for(input));
