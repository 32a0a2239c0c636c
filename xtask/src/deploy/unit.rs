//! The systemd unit: its syntax, and its exposure as systemd measures it.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Checked, failed, has, read, write_failed};
use crate::run::{self, Failure};

const UNIT: &str = "deploy/systemd/earmark.service";
/// The program as the unit names it.
const INSTALLED: &str = "/usr/bin/earmark";
/// The highest exposure, in tenths: 2.0 of 10.
const EXPOSURE_MAX: u32 = 20;

pub(super) fn check(binary: &Path, scratch: &Path) -> Result<Checked, Failure> {
    if !has("systemd-analyze") {
        return Ok(Checked::Skipped("systemd-analyze is missing; apt-get install systemd".into()));
    }
    // The program is not installed here.
    let unit = scratch.join("earmark.service");
    let text = read(&run::root().join(UNIT))?.replace(INSTALLED, &binary.display().to_string());
    fs::write(&unit, text).map_err(write_failed(&unit))?;
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&unit);
    let output = verify.output().map_err(|source| Failure::Start { line: run::line(&verify), source })?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || said.contains("earmark.service:") {
        return Err(failed(format!("{UNIT}: {said}")));
    }
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", "--no-pager"]).arg(&unit);
    let report = run::output(&mut security).ok_or_else(|| failed(format!("`{}` failed", run::line(&security))))?;
    match exposure(&report) {
        Some(tenths) if tenths <= EXPOSURE_MAX => {
            Ok(Checked::Passed(format!("exposure {}.{} of 10", tenths / 10, tenths % 10)))
        }
        _ => Err(failed(format!("{UNIT}: the exposure is above {EXPOSURE_MAX} tenths\n{report}"))),
    }
}

/// The exposure in tenths, of the last line of the report.
fn exposure(report: &str) -> Option<u32> {
    let (_, level) = report.rsplit_once("exposure level for ")?;
    let (_, level) = level.split_once(": ")?;
    let (whole, tenths) = level.split_whitespace().next()?.split_once('.')?;
    Some(whole.parse::<u32>().ok()? * 10 + tenths.parse::<u32>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exposure_is_read_from_the_last_line() {
        let report = "x UMask= 0.1\n\n-> Overall exposure level for earmark.service: 1.2 OK :-)\n";
        assert_eq!(exposure(report), Some(12));
        assert_eq!(exposure("-> Overall exposure level for a.service: 10.0 UNSAFE"), Some(100));
        assert_eq!(exposure("nothing"), None);
    }
}
