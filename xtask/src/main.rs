//! The tasks of this repository: `cargo xtask <task>`.
//!
//! This crate has no dependencies, so that `cargo xtask verify` builds on a fresh machine.

mod api;
mod attack;
mod bench_gateway;
mod console;
mod deploy;
mod envoy;
mod gateway;
mod grpc;
mod instructions;
mod licences;
mod monitoring;
mod plant;
mod postgres;
mod python;
mod python_client;
mod redis;
mod run;
mod served;
mod setup;
mod soak;
mod tidy;
mod tigerbeetle;
mod typescript;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use plant::Plant;
use run::Failure;

const HELP: &str = "\
The tasks of this repository.

  cargo xtask verify              run every check that CI runs; changes no file
  cargo xtask setup               install what verify needs, as its first step does, or name all that is missing
  cargo xtask tidy                check only the rules that cargo and clippy do not know
  cargo xtask api                 check only the server against its OpenAPI document
  cargo xtask grpc                check only the server with a Python gRPC client
  cargo xtask python              check only the Python client
  cargo xtask typescript          check only the TypeScript client, with Node
  cargo xtask gateway             check only the gateway, with the SDKs of OpenAI and Anthropic
  cargo xtask gateway --llama     check the gateway before llama.cpp, which pip compiles for many minutes
  cargo xtask console             check only the console, in Chromium; --screenshots FOLDER keeps pictures
  cargo xtask monitoring          write the dashboards and alerts in deploy/monitoring, from the metrics of a server
  cargo xtask monitoring --check  check only these files, with Prometheus
  cargo xtask envoy               check only Envoy's rate limit service, with a real Envoy
  cargo xtask deploy              check only the image, the unit, the package and the manifests in deploy/
  cargo xtask fixtures            write the data of this version that later versions must open; changes files
  cargo xtask licences            check only the licences of the dependencies
  cargo xtask soak [--minutes N]  run the random tests for longer, 10 minutes by default
  cargo xtask attack [--nodes 3 | --gateway]  attack a server or a gateway as one tenant, and measure what two others notice
  cargo xtask instructions        count the instructions of the server for one reserve or call, with valgrind
  cargo xtask redis               compare reserves per second with Redis, and gRPC streams with HTTP
  cargo xtask bench-gateway       measure calls through a gateway against the same calls made directly
  cargo xtask plant [BUG]         plant bugs in a copy of the tree and check that the simulation finds them
  cargo xtask help                show this text

Examples:

  cargo xtask verify
  cargo xtask setup
  cargo xtask tidy
  cargo xtask api
  cargo xtask grpc
  cargo xtask python
  cargo xtask typescript
  cargo xtask gateway
  cargo xtask console --screenshots /tmp/console
  cargo xtask monitoring --check
  cargo xtask envoy
  cargo xtask deploy
  cargo xtask deploy --binary target/debug/earmark
  cargo xtask fixtures
  cargo xtask licences
  cargo xtask soak --minutes 60
  cargo xtask attack --binary target/release/earmark --seconds 10
  cargo xtask attack --nodes 3 --only all --seconds 3600
  cargo xtask instructions --binary target/profiling/earmark --events 10
  cargo xtask instructions --request denied -- --decisions-bytes 0
  cargo xtask instructions -- --otlp-endpoint http://127.0.0.1:4317 --trace-sample 0.01
  cargo xtask redis --binary target/release/earmark --rounds 5
  cargo xtask bench-gateway --seconds 60 --streams 1000
  cargo xtask plant stale-leader
";

/// The arguments of cargo that write the fixtures.
const WRITE_FIXTURES: &str =
    "test --package earmark --test cli --locked -- --ignored --exact upgrade::the_fixtures_of_this_version_are_written";

#[derive(Debug, PartialEq, Eq)]
enum Task {
    Verify,
    Setup,
    Tidy,
    Api,
    Grpc,
    Python,
    TypeScript,
    Gateway,
    GatewayLlama,
    Console(console::Options),
    Monitoring { is_check: bool },
    Envoy,
    Deploy { binary: Option<PathBuf> },
    Fixtures,
    Licences,
    Soak { minutes: u64 },
    Attack(attack::Options),
    Instructions(instructions::Options),
    Redis(redis::Options),
    BenchGateway(bench_gateway::Options),
    Plant(Plant),
    Help,
}

fn parse(args: &[&str]) -> Result<Task, Failure> {
    match args {
        ["verify"] => Ok(Task::Verify),
        ["tidy"] => Ok(Task::Tidy),
        ["api"] => Ok(Task::Api),
        ["grpc"] => Ok(Task::Grpc),
        ["setup"] => Ok(Task::Setup),
        ["python"] => Ok(Task::Python),
        ["typescript"] => Ok(Task::TypeScript),
        ["gateway"] => Ok(Task::Gateway),
        ["gateway", "--llama"] => Ok(Task::GatewayLlama),
        ["console", "--help" | "-h"] => Ok(Task::Help),
        ["console", options @ ..] => console::Options::parse(options).map(Task::Console),
        ["monitoring"] => Ok(Task::Monitoring { is_check: false }),
        ["monitoring", "--check"] => Ok(Task::Monitoring { is_check: true }),
        ["envoy"] => Ok(Task::Envoy),
        ["deploy"] => Ok(Task::Deploy { binary: None }),
        ["deploy", "--binary", binary] => Ok(Task::Deploy { binary: Some(binary.into()) }),
        ["fixtures"] => Ok(Task::Fixtures),
        ["licences"] => Ok(Task::Licences),
        ["soak"] => Ok(Task::Soak { minutes: soak::MINUTES_DEFAULT }),
        ["soak", "--minutes", minutes] => match minutes.parse() {
            Ok(minutes) if (1..=soak::MINUTES_MAX).contains(&minutes) => Ok(Task::Soak { minutes }),
            _ => Err(Failure::Usage(format!("--minutes: found {minutes:?}, allowed are 1 to {}", soak::MINUTES_MAX))),
        },
        ["attack", "--help" | "-h"] => Ok(Task::Help),
        ["attack", options @ ..] => attack::Options::parse(options).map(Task::Attack),
        ["instructions" | "redis" | "bench-gateway", "--help" | "-h"] => Ok(Task::Help),
        ["instructions", options @ ..] => instructions::Options::parse(options).map(Task::Instructions),
        ["redis", options @ ..] => redis::Options::parse(options).map(Task::Redis),
        ["bench-gateway", options @ ..] => bench_gateway::Options::parse(options).map(Task::BenchGateway),
        ["plant"] => Ok(Task::Plant(Plant { only: None })),
        ["plant", bug] if !bug.starts_with('-') => Ok(Task::Plant(Plant { only: Some((*bug).into()) })),
        [] | ["help" | "--help" | "-h", ..] | [_, "--help" | "-h"] => Ok(Task::Help),
        _ => Err(Failure::Usage(format!(
            "found {:?}, allowed are verify, setup, tidy, api, grpc, python, typescript, gateway [--llama], console, monitoring [--check], envoy, deploy, fixtures, licences, soak [--minutes N], attack, instructions, redis, bench-gateway, plant [BUG] and help",
            args.join(" ")
        ))),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into()).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = parse(&args).and_then(|task| match task {
        Task::Verify => verify::verify(),
        Task::Setup => setup::prepare(),
        Task::Tidy => tidy::tidy(),
        Task::Api => python::prepare().and_then(|()| api::check()),
        Task::Grpc => python::prepare().and_then(|()| grpc::check()),
        Task::Python => python::prepare().and_then(|()| python_client::check()),
        Task::Gateway => python::prepare().and_then(|()| typescript::prepare()).and_then(|()| gateway::check()),
        Task::GatewayLlama => python::prepare().and_then(|()| gateway::check_llama()),
        Task::Deploy { binary } => python::prepare().and_then(|()| {
            deploy::prepare();
            deploy::check(binary)
        }),
        Task::Fixtures => postgres::prepare().and_then(|()| run::run(&mut run::command("cargo", WRITE_FIXTURES))),
        Task::TypeScript => typescript::prepare().and_then(|()| typescript::check()),
        Task::Console(options) => console::check(&options),
        Task::Monitoring { is_check: false } => monitoring::write(),
        Task::Monitoring { is_check: true } => monitoring::check(),
        Task::Envoy => python::prepare().and_then(|()| envoy::check()),
        Task::Licences => licences::check(),
        Task::Soak { minutes } => soak::soak(minutes),
        Task::Attack(options) => attack::attack(&options),
        Task::Instructions(options) => instructions::count(&options),
        Task::Redis(options) => redis::compare(&options),
        Task::BenchGateway(options) => bench_gateway::bench(&options),
        Task::Plant(what) => plant::plant(&what),
        Task::Help => {
            print!("{HELP}");
            Ok(())
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::from(if matches!(failure, Failure::Usage(_)) { 2 } else { 1 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_parsed() {
        for (args, task) in [
            (&["verify"][..], Task::Verify),
            (&["tidy"], Task::Tidy),
            (&["api"], Task::Api),
            (&["grpc"], Task::Grpc),
            (&["setup"], Task::Setup),
            (&["python"], Task::Python),
            (&["typescript"], Task::TypeScript),
            (&["gateway"], Task::Gateway),
            (&["gateway", "--llama"], Task::GatewayLlama),
            (&["console"], Task::Console(console::Options::default())),
            (&["monitoring"], Task::Monitoring { is_check: false }),
            (&["monitoring", "--check"], Task::Monitoring { is_check: true }),
            (&["envoy"], Task::Envoy),
            (&["deploy"], Task::Deploy { binary: None }),
            (&["deploy", "--binary", "a"], Task::Deploy { binary: Some("a".into()) }),
            (&["fixtures"], Task::Fixtures),
            (&["licences"], Task::Licences),
            (&["soak"], Task::Soak { minutes: 10 }),
            (&["soak", "--minutes", "1"], Task::Soak { minutes: 1 }),
            (&["plant"], Task::Plant(Plant { only: None })),
            (&["plant", "x"], Task::Plant(Plant { only: Some("x".into()) })),
            (&["soak", "--help"], Task::Help),
            (&["help"], Task::Help),
            (&[], Task::Help),
        ] {
            assert_eq!(parse(args).unwrap(), task, "{args:?}");
        }
    }

    #[test]
    fn unknown_arguments_are_refused_with_the_allowed_ones() {
        for (args, message) in [
            (
                &["verfy"][..],
                "found \"verfy\", allowed are verify, setup, tidy, api, grpc, python, typescript, gateway [--llama], console, monitoring [--check], envoy, deploy, fixtures, licences, soak [--minutes N], attack, instructions, redis, bench-gateway, plant [BUG] and help",
            ),
            (
                &["verify", "--fast"],
                "found \"verify --fast\", allowed are verify, setup, tidy, api, grpc, python, typescript, gateway [--llama], console, monitoring [--check], envoy, deploy, fixtures, licences, soak [--minutes N], attack, instructions, redis, bench-gateway, plant [BUG] and help",
            ),
            (&["soak", "--minutes", "0"], "--minutes: found \"0\", allowed are 1 to 10080"),
            (&["soak", "--minutes", "ten"], "--minutes: found \"ten\", allowed are 1 to 10080"),
            (&["soak", "--minutes", "10081"], "--minutes: found \"10081\", allowed are 1 to 10080"),
        ] {
            assert_eq!(parse(args).unwrap_err().to_string(), message, "{args:?}");
        }
    }
}
