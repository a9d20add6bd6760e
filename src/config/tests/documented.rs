//! The checked-in configuration and the reference hold to the code.
