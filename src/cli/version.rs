//! `weir --version`: which source the command was built from, and with what.

use std::sync::LazyLock;

/// The commit, which whoever builds a release gives to the compiler. A build script that asked git
/// would build the package again after each commit.
const COMMIT: Option<&str> = option_env!("WEIR_COMMIT");

static LONG: LazyLock<String> = LazyLock::new(|| {
    let (version, commit) = (env!("CARGO_PKG_VERSION"), COMMIT.unwrap_or("unknown"));
    let (features, platform) = (features().join(", "), platform());
    format!("{version}\ncommit: {commit}\nfeatures: {features}\nplatform: {platform}")
});

/// The version in several lines.
pub(super) fn long() -> &'static str {
    &LONG
}

/// The features that builds differ by.
fn features() -> Vec<&'static str> {
    let optional = [
        ("gateway", true),
        ("jemalloc", cfg!(feature = "jemalloc")),
        ("http3", cfg!(feature = "http3")),
        ("otlp", cfg!(feature = "otlp")),
    ];
    let built = optional.into_iter().filter(|(_, is_built)| *is_built);
    built.map(|(name, _)| name).collect()
}

fn platform() -> String {
    let libc = match () {
        () if cfg!(target_env = "musl") => "-musl",
        () if cfg!(target_env = "gnu") => "-gnu",
        () => "",
    };
    format!("{}-{}{libc}", std::env::consts::ARCH, std::env::consts::OS)
}
