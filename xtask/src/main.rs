//! The chores of this repository, as `cargo xtask <chore>`.
//!
//! No dependencies: `cargo xtask verify` is the first thing that runs on a fresh machine, and what it
//! needs must build there.

mod api;
mod grpc;
mod licences;
mod plant;
mod postgres;
mod python;
mod run;
mod served;
mod soak;
mod tidy;
mod tigerbeetle;
mod verify;

use std::process::ExitCode;

use plant::Plant;
use run::Failure;

const HELP: &str = "\
The chores of this repository.

  cargo xtask verify              everything that must hold before a change goes in; reads only
  cargo xtask tidy                only the checks of verify that cargo and clippy do not know
  cargo xtask api                 only the server against its own OpenAPI document
  cargo xtask grpc                only the server asked over gRPC by a client in Python
  cargo xtask licences            only the licences of the dependencies
  cargo xtask soak [--minutes N]  the long versions of the random tests, 10 minutes by default
  cargo xtask plant [BUG] [--search]  bugs put into a copy of the tree, which the simulation must find
  cargo xtask help                this text

Examples:

  cargo xtask verify
  cargo xtask tidy
  cargo xtask api
  cargo xtask grpc
  cargo xtask licences
  cargo xtask soak --minutes 60
  cargo xtask plant stale-leader
";

#[derive(Debug, PartialEq, Eq)]
enum Chore {
    Verify,
    Tidy,
    Api,
    Grpc,
    Licences,
    Soak { minutes: u64 },
    Plant(Plant),
    Help,
}

fn parse(args: &[&str]) -> Result<Chore, Failure> {
    match args {
        ["verify"] => Ok(Chore::Verify),
        ["tidy"] => Ok(Chore::Tidy),
        ["api"] => Ok(Chore::Api),
        ["grpc"] => Ok(Chore::Grpc),
        ["licences"] => Ok(Chore::Licences),
        ["soak"] => Ok(Chore::Soak { minutes: soak::MINUTES_DEFAULT }),
        ["soak", "--minutes", minutes] => match minutes.parse() {
            Ok(minutes) if (1..=soak::MINUTES_MAX).contains(&minutes) => Ok(Chore::Soak { minutes }),
            _ => Err(Failure::Usage(format!(
                "--minutes: found {minutes:?}, allowed are 1 to {}",
                soak::MINUTES_MAX
            ))),
        },
        ["plant"] => Ok(Chore::Plant(Plant { only: None, search: false })),
        ["plant", "--search"] => Ok(Chore::Plant(Plant { only: None, search: true })),
        ["plant", bug] if !bug.starts_with('-') => {
            Ok(Chore::Plant(Plant { only: Some((*bug).into()), search: false }))
        }
        ["plant", bug, "--search"] => Ok(Chore::Plant(Plant { only: Some((*bug).into()), search: true })),
        [] | ["help" | "--help" | "-h", ..] | [_, "--help" | "-h"] => Ok(Chore::Help),
        _ => Err(Failure::Usage(format!(
            "found {:?}, allowed are verify, tidy, api, grpc, licences, soak [--minutes N], plant [BUG] and help",
            args.join(" ")
        ))),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into()).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = parse(&args).and_then(|chore| match chore {
        Chore::Verify => verify::verify(),
        Chore::Tidy => tidy::tidy(),
        Chore::Api => python::prepare().and_then(|()| api::check()),
        Chore::Grpc => python::prepare().and_then(|()| grpc::check()),
        Chore::Licences => licences::check(),
        Chore::Soak { minutes } => soak::soak(minutes),
        Chore::Plant(what) => plant::plant(&what),
        Chore::Help => {
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
    fn every_chore_is_known_by_its_name() {
        for (args, chore) in [
            (&["verify"][..], Chore::Verify),
            (&["tidy"], Chore::Tidy),
            (&["api"], Chore::Api),
            (&["grpc"], Chore::Grpc),
            (&["licences"], Chore::Licences),
            (&["soak"], Chore::Soak { minutes: 10 }),
            (&["soak", "--minutes", "1"], Chore::Soak { minutes: 1 }),
            (&["plant"], Chore::Plant(Plant { only: None, search: false })),
            (&["plant", "x", "--search"], Chore::Plant(Plant { only: Some("x".into()), search: true })),
            (&["soak", "--help"], Chore::Help),
            (&["help"], Chore::Help),
            (&[], Chore::Help),
        ] {
            assert_eq!(parse(args).unwrap(), chore, "{args:?}");
        }
    }

    #[test]
    fn other_words_are_refused_with_what_is_allowed() {
        for (args, message) in [
            (
                &["verfy"][..],
                "found \"verfy\", allowed are verify, tidy, api, grpc, licences, soak [--minutes N], plant [BUG] and help",
            ),
            (
                &["verify", "--fast"],
                "found \"verify --fast\", allowed are verify, tidy, api, grpc, licences, soak [--minutes N], plant [BUG] and help",
            ),
            (&["soak", "--minutes", "0"], "--minutes: found \"0\", allowed are 1 to 10080"),
            (&["soak", "--minutes", "ten"], "--minutes: found \"ten\", allowed are 1 to 10080"),
            (&["soak", "--minutes", "10081"], "--minutes: found \"10081\", allowed are 1 to 10080"),
        ] {
            assert_eq!(parse(args).unwrap_err().to_string(), message, "{args:?}");
        }
    }
}
