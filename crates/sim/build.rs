//! Lets the `getrandom` of `world::os` be found by `dlsym` as well, by which the crate of that name
//! looks for it.

fn main() {
    println!("cargo:rustc-link-arg=-Wl,--export-dynamic-symbol=getrandom");
}
