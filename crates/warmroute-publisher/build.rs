//! Gives the shared object its name for the dynamic linker: programs that were linked with it find a
//! later file with the same functions, and no file with other ones.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libwarmroute_publisher.so.0");
    }
}
