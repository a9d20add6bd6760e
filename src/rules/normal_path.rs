//! Paths as routes see them.
