//! The certificate recipe of docs/operating.md.

use std::process::Command;

/// The authority had no `keyUsage`, so Python 3.13 rejected the server.
#[test]
fn the_certificates_of_the_operating_guide_pass_strict_verification() {
    let guide = include_str!("../../../../docs/operating.md");
    let (_, section) = guide.split_once("### Creating certificates with openssl").unwrap();
    let recipes = section.split("```sh\n").skip(1).take(2).map(|block| block.split("```").next().unwrap());
    let verify = "openssl verify -x509_strict -CAfile nodes-ca.pem node3.pem\n\
                  openssl verify -x509_strict -CAfile ca.pem server.pem\n";
    let script = format!("set -e\n{}\n{verify}", recipes.collect::<Vec<_>>().join("\n"));
    let folder = tempfile::tempdir().unwrap();
    let ran = Command::new("sh").args(["-c", &script]).current_dir(folder.path()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
