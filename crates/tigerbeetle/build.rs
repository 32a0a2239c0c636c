//! Compiles `memory.c`, which keeps the memory functions of glibc in a program that links TigerBeetle's client.

fn main() {
    println!("cargo:rerun-if-changed=src/memory.c");
    let target = |what: &str| std::env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    let is_known = matches!(target("ARCH").as_str(), "x86_64" | "aarch64");
    // Other C libraries are linked statically or have other names.
    if target("OS") == "linux" && target("ENV") == "gnu" && is_known {
        cc::Build::new().file("src/memory.c").opt_level(2).flag("-ffreestanding").compile("earmark_memory");
    }
}
