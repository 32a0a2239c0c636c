//! Checks the files with a real Prometheus: it scrapes a server, evaluates every expression, and tests every alert.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use super::FOLDER;
use super::scraped::{Scraped, Started, free_address};
use crate::run::{self, Failure};

/// Time for Prometheus to scrape the server.
const SCRAPE_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(500);
const SKIPPED: &str = "skipped: the checks with Prometheus, because prometheus or promtool is not on the PATH; \
                       on Debian: apt-get install prometheus";

pub(super) fn prepare() {
    if !is_installed() {
        run::apt_install("--no-install-recommends prometheus");
    }
    println!("{}", if is_installed() { "prometheus: found" } else { SKIPPED });
}

fn is_installed() -> bool {
    ["prometheus", "promtool"].iter().all(|name| run::output(&mut run::command(name, "--version")).is_some())
}

pub(super) fn check(scraped: &Scraped, expressions: &[String]) -> Result<(), Failure> {
    if !is_installed() {
        println!("{SKIPPED}");
        return Ok(());
    }
    run::run(&mut run::command("promtool", &format!("check rules {FOLDER}/alerts.yml")))?;
    run::run(&mut run::command("promtool", &format!("test rules {FOLDER}/alerts.test.yml")))?;
    let server = start(scraped)?;
    let url = format!("http://{}", server.address);
    wait_for_scrapes(&url)?;
    let mut wrong = Vec::new();
    for expression in expressions {
        if query(&url, expression).is_none() {
            wrong.push(format!("Prometheus cannot evaluate: {expression}"));
        }
    }
    wrong.iter().for_each(|line| println!("{line}"));
    match wrong.len() {
        0 => println!("Prometheus evaluated {} expressions of dashboards and alerts", expressions.len()),
        violations => return Err(Failure::Untidy { violations }),
    }
    Ok(())
}

/// Starts a Prometheus that scrapes the server and the gateway every second, with the alerts.
fn start(scraped: &Scraped) -> Result<Started, Failure> {
    let (path, address) = (scraped.folder.join("prometheus.yml"), free_address()?);
    let rules = run::root().join(FOLDER).join("alerts.yml");
    let config = format!(
        "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files:\n  - '{}'\nscrape_configs:\n  \
         - job_name: earmark\n    static_configs:\n      - targets: ['{}', '{}']\n",
        rules.display(),
        scraped.address(),
        scraped.gateway
    );
    fs::write(&path, config).map_err(|source| Failure::Write { path: path.clone(), source })?;
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", path.display()));
    command.arg(format!("--storage.tsdb.path={}", scraped.folder.join("prometheus").display()));
    command.arg(format!("--web.listen-address={address}")).arg("--log.level=error");
    Started::new(command, address, "/-/ready")
}

/// The result of an expression; `None` if it cannot be evaluated.
fn query(url: &str, expression: &str) -> Option<String> {
    run::output(Command::new("promtool").args(["query", "instant", url, expression]))
}

/// Waits until both targets were scraped, and the series of a defined limit is there.
fn wait_for_scrapes(url: &str) -> Result<(), Failure> {
    let mut waited = Duration::ZERO;
    let scraped = "count(up == 1) == 2 and on() (earmark_limit_fullness{key=\"gpt-4o:rpm\"} == 0)";
    while query(url, scraped).is_none_or(|result| result.trim().is_empty()) {
        if waited >= SCRAPE_MAX {
            return Err(Failure::Server(
                "was not scraped by Prometheus: a target is down, or a limit has no series".into(),
            ));
        }
        sleep(LOOK);
        waited += LOOK;
    }
    Ok(())
}
