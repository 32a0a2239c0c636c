//! Every flag and argument of every command refuses a wrong value.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command, CommandFactory as _};

use crate::Cli;

/// A value that nothing with a form accepts.
const WRONG: &str = "\u{1}?";

/// Whether a value is a path, or a text that the command or the server checks.
fn is_free(arg: &Arg) -> bool {
    let kind = arg.get_value_parser().type_id();
    [TypeId::of::<String>(), TypeId::of::<OsString>(), TypeId::of::<PathBuf>()].iter().any(|free| kind == *free)
}

fn accepts(arg: &Arg, value: &str) -> bool {
    let alone = Arg::new("value").long("value").value_parser(arg.get_value_parser().clone());
    Command::new("check").arg(alone).try_get_matches_from(["check", &format!("--value={value}")]).is_ok()
}

/// Notes the arguments that have a form and accept the wrong value, and counts those that refuse it.
fn visit(command: &Command, path: &str, found: &mut Vec<String>) -> usize {
    let takes_value = |arg: &&Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let mut refusing = 0;
    for arg in command.get_arguments().filter(takes_value).filter(|arg| !is_free(arg)) {
        if accepts(arg, WRONG) {
            found.push(format!("{path}{arg}"));
        } else {
            refusing += 1;
        }
    }
    let below = |sub: &Command| visit(sub, &format!("{path}{} ", sub.get_name()), found);
    refusing + command.get_subcommands().map(below).sum::<usize>()
}

#[test]
fn every_flag_of_every_command_refuses_a_wrong_value() {
    let mut found = Vec::new();
    let refusing = visit(&Cli::command(), "", &mut found);
    assert!(found.is_empty(), "these accept {WRONG:?}: {found:#?}");
    assert!(refusing > 200, "{refusing} flags were tried");
}
