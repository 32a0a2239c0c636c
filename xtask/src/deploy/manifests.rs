//! Kubernetes manifests: built by kustomize, and checked strictly against the schemas of Kubernetes.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Checked, copy, failed, has, read, write_failed};
use crate::python;
use crate::run::{self, Failure};

const FOLDER: &str = "deploy/kubernetes";
/// The kind of the Prometheus operator, whose schema is not one of Kubernetes.
const WITHOUT_SCHEMA: &str = "ServiceMonitor";

pub(super) fn check(binary: &Path, scratch: &Path) -> Result<Checked, Failure> {
    let folder = run::root().join(FOLDER);
    let built = scratch.join("built.yaml");
    let text = match has_kustomize() {
        true => run::output(&mut run::command("kubectl", &format!("kustomize {FOLDER}")))
            .ok_or_else(|| failed(format!("`kubectl kustomize {FOLDER}` failed")))?,
        false => all_files(&folder)?,
    };
    fs::write(&built, &text).map_err(write_failed(&built))?;
    let mut validate = python::program("kubernetes-validate");
    validate.arg("--strict").arg(&built);
    let output = validate.output().map_err(|source| Failure::Start { line: run::line(&validate), source })?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let unknown = said.lines().filter(|line| line.contains("find schema") && !line.contains(WITHOUT_SCHEMA)).count();
    let (passed, wanted) = (said.matches(" passed for resource ").count(), resources(&text));
    if !output.status.success() || unknown > 0 || passed + text.matches(WITHOUT_SCHEMA).count() < wanted {
        return Err(failed(format!("{FOLDER}: {passed} of {wanted} resources are valid\n{said}")));
    }
    settings(binary, &folder, scratch)?;
    let how = if has_kustomize() { "built by kustomize" } else { "without kustomize (install kubectl)" };
    Ok(Checked::Passed(format!("{passed} resources, {how}")))
}

/// Checks the file of settings as the server reads it, without the certificates that only a cluster has.
fn settings(binary: &Path, folder: &Path, scratch: &Path) -> Result<(), Failure> {
    let file = scratch.join("earmark.toml");
    let text = read(&folder.join("earmark.toml"))?;
    let is_present = |line: &&str| !line.starts_with("tls_") && !line.starts_with("peer_listen");
    let kept: Vec<&str> = text.lines().filter(is_present).chain(["insecure_plaintext = true"]).collect();
    copy(&folder.join("earmark.toml"), &file)?;
    fs::write(&file, kept.join("\n") + "\n").map_err(write_failed(&file))?;
    run::run(Command::new(binary).args(["config", "check"]).arg(&file).current_dir(scratch))
}

fn has_kustomize() -> bool {
    has_kubectl() && run::output(&mut run::command("kubectl", "kustomize --help")).is_some()
}

pub(super) fn has_kubectl() -> bool {
    run::output(&mut run::command("kubectl", "version --client")).is_some() || has("kubectl")
}

/// The manifests as they are in the tree.
fn all_files(folder: &Path) -> Result<String, Failure> {
    let list = read(&folder.join("kustomization.yaml"))?;
    let names = list.lines().filter_map(|line| line.trim().strip_prefix("- ")).filter(|name| name.ends_with(".yaml"));
    let texts: Result<Vec<String>, Failure> = names.map(|name| read(&folder.join(name))).collect();
    Ok(texts?.join("\n---\n"))
}

fn resources(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("kind:")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_manifest_is_listed_in_the_kustomization() {
        let folder = run::root().join(FOLDER);
        let list = read(&folder.join("kustomization.yaml")).unwrap();
        for entry in fs::read_dir(&folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(name == "kustomization.yaml" || list.contains(&format!("- {name}\n")), "{name}");
        }
        assert_eq!(resources(&all_files(&folder).unwrap()), 10);
    }
}
