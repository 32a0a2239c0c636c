//! `cargo xtask monitoring`: writes the Grafana dashboards and Prometheus alerts in `deploy/monitoring`.
//!
//! They are made from the list of metrics that a running server and gateway describe, so they name no metric that does
//! not exist, and no metric is missing from the dashboards. `verify` compares them with the committed files. Where
//! Prometheus is installed it also scrapes the server, evaluates every expression and tests every alert.

mod alerts;
mod dashboards;
mod metrics;
mod prometheus;
mod scraped;

use std::fs;
use std::path::PathBuf;

use crate::run::{self, Failure};
use crate::served;
use metrics::Metrics;
use scraped::Scraped;

/// The folder of the files, from the repository root.
const FOLDER: &str = "deploy/monitoring";

/// A generated file.
struct Generated {
    name: &'static str,
    text: String,
}

impl Generated {
    fn path(&self) -> PathBuf {
        run::root().join(FOLDER).join(self.name)
    }
}

fn generate(metrics: &Metrics) -> Result<Vec<Generated>, Failure> {
    let mut wrong = dashboards::problems(metrics);
    wrong.extend(alerts::problems(metrics));
    if !wrong.is_empty() {
        return fail(&wrong);
    }
    Ok(vec![
        Generated { name: "earmark-service.json", text: dashboards::service(metrics) },
        Generated { name: "earmark-cluster.json", text: dashboards::cluster(metrics) },
        Generated { name: "alerts.yml", text: alerts::rules() },
        Generated { name: "alerts.test.yml", text: alerts::tests() },
    ])
}

fn fail<T>(wrong: &[String]) -> Result<T, Failure> {
    wrong.iter().for_each(|line| println!("{line}"));
    Err(Failure::Untidy { violations: wrong.len() })
}

/// Installs Prometheus if that is possible. Without it the check compares files only, and says so.
pub(crate) fn prepare() {
    prometheus::prepare();
}

/// Writes the files.
pub(crate) fn write() -> Result<(), Failure> {
    let scraped = Scraped::start(&served::build()?)?;
    for file in generate(&scraped.metrics()?)? {
        let path = file.path();
        let failed = |source| Failure::Write { path: path.clone(), source };
        fs::create_dir_all(run::root().join(FOLDER)).map_err(failed)?;
        fs::write(&path, &file.text).map_err(failed)?;
        println!("{FOLDER}/{}", file.name);
    }
    Ok(())
}

/// Compares the files with what would be written, and checks them with Prometheus.
pub(crate) fn check() -> Result<(), Failure> {
    let scraped = Scraped::start(&served::build()?)?;
    let files = generate(&scraped.metrics()?)?;
    let is_stale = |file: &&Generated| fs::read_to_string(file.path()).ok().as_deref() != Some(&file.text);
    let stale = files.iter().filter(is_stale);
    let stale: Vec<String> = stale
        .map(|file| format!("{FOLDER}/{}: differs from what the metrics say; run cargo xtask monitoring", file.name))
        .collect();
    if !stale.is_empty() {
        return fail(&stale);
    }
    let mut expressions = dashboards::expressions(&scraped.metrics()?);
    expressions.extend(alerts::expressions());
    prometheus::check(&scraped, &expressions)
}
