//! Asks the linker of the shipped program to keep equal functions once.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    // rustc's own linker for this target has the option; one that the builder chose may not have it.
    let is_own_linker = of("TARGET") == "x86_64-unknown-linux-gnu"
        && of("RUSTC_LINKER").is_empty()
        && of("CARGO_ENCODED_RUSTFLAGS").is_empty();
    // Only the profile `dist` is optimised for size.
    if is_own_linker && of("OPT_LEVEL") == "z" {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
