//! `--watch`: a list that is read and shown again and again.
//!
//! On a terminal the list replaces the one before, without flicker, in as many lines as the screen has. Above it are the
//! server, the time, and the last minutes of reserves. A server that goes away is waited for.

use std::io::{self, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use earmark_admission::utc;
use earmark_core::UnixMs;
use serde::{Deserialize, Serialize};

use crate::client::ClientArgs;
use crate::failure::{Done, Failure};
use crate::output::{self, Colour, thousands, visible};
use crate::request;

/// The longest time between two lists: one hour.
const SECONDS_MAX: u64 = 60 * 60;
/// Moves the cursor to the beginning of the screen.
const HOME: &str = "\x1b[H";
/// Clears the rest of the line.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears the rest of the screen.
const CLEAR_REST: &str = "\x1b[J";
/// Columns of the small chart above a list.
const CHART_WIDTH: usize = 30;

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// Show the list again at this interval in seconds, until interrupted [default with --watch: 2]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    watch: Option<u64>,
}

/// A list as text: its lines, and the colour of each.
pub(crate) struct Listing {
    pub(crate) text: String,
    /// The colours of the lines, from the first on.
    pub(crate) colours: Vec<Option<Colour>>,
}

impl WatchArgs {
    /// Shows a list once, or again and again.
    pub(crate) fn run<T: Serialize>(
        &self,
        client: &ClientArgs,
        read: impl Fn() -> Result<T, Failure>,
        list: impl Fn(&T) -> Listing,
    ) -> Result<Done, Failure> {
        let mut newest = read()?;
        let Some(seconds) = self.watch else {
            show(client, &newest, &list)?;
            return Ok(Done::Ok);
        };
        let screen = output::size().filter(|_| !client.json);
        let mut problem = None;
        loop {
            match screen {
                Some(_) => draw(&header(client, seconds, problem.as_ref()), &list(&newest))?,
                None if problem.is_none() => show(client, &newest, &list)?,
                None => {}
            }
            std::thread::sleep(Duration::from_secs(seconds));
            problem = match read() {
                Ok(list) => {
                    newest = list;
                    None
                }
                Err(failure) if may_pass(&failure) => {
                    if screen.is_none() {
                        output::complain(&format!("{failure}; trying again"));
                    }
                    Some(failure)
                }
                Err(failure) => return Err(failure),
            };
        }
    }
}

fn show<T: Serialize>(client: &ClientArgs, value: &T, list: impl Fn(&T) -> Listing) -> Result<(), Failure> {
    if client.json {
        return output::print_json(value);
    }
    let Listing { text, colours } = list(value);
    output::print_painted(&text, &colours)
}

/// Whether a failure may pass: the server is away or overloaded, or has no leader now.
pub(crate) fn may_pass(failure: &Failure) -> bool {
    match failure {
        Failure::Unreachable { .. } | Failure::NoAnswer { .. } => true,
        Failure::Refused { status, .. } => *status >= 500 || *status == 429,
        _ => false,
    }
}

/// The lines above a list.
fn header(client: &ClientArgs, seconds: u64, problem: Option<&Failure>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let time = utc(UnixMs::new(u64::try_from(now).unwrap_or(u64::MAX)));
    let first = format!("{}  {time}  every {seconds} s, Ctrl-C ends", client.server);
    let second = match problem {
        // First what counts, because a line ends at the edge of the screen.
        Some(failure) => format!("the last list, trying again: {failure}"),
        None => request::get::<Charts>(client, "/v1/charts").map_or_else(|_| String::new(), |charts| charts.line()),
    };
    format!("{first}\n{second}\n\n")
}

/// Draws a screen. Each line is cut at the width of the terminal, so that none wraps.
fn draw(header: &str, list: &Listing) -> Result<(), Failure> {
    let Some((width, height)) = output::size() else { return Ok(()) };
    let head = header.lines().count();
    let mut screen = HOME.to_owned();
    let lines = header.lines().chain(list.text.lines());
    for (place, line) in lines.take(height.saturating_sub(1)).enumerate() {
        let line: String = visible(line).chars().take(width).collect();
        let colour = place.checked_sub(head).and_then(|place| list.colours.get(place).copied().flatten());
        screen += &output::painted(&line, colour);
        screen += CLEAR_LINE;
        screen.push('\n');
    }
    screen += CLEAR_REST;
    let mut stdout = io::stdout().lock();
    let drawn = stdout.write_all(screen.as_bytes()).and_then(|()| stdout.flush());
    drawn.map_err(|source| Failure::System { what: "standard output", source })
}

/// The answer of `GET /v1/charts`.
#[derive(Deserialize)]
struct Charts {
    step_seconds: u64,
    until_unix_ms: u64,
    points: Vec<Point>,
}

#[derive(Deserialize)]
struct Point {
    at_unix_ms: u64,
    allowed: u64,
    denied: u64,
    refused: u64,
    failed: u64,
    p99_us: Option<u64>,
}

impl Charts {
    /// The reserves of the last minutes as a row of bars, and the figures of the last step that is over.
    fn line(&self) -> String {
        let step_ms = self.step_seconds.saturating_mul(1_000).max(1);
        let over = self.until_unix_ms.saturating_sub(step_ms);
        let point = |back: usize| {
            let at = over.saturating_sub(step_ms.saturating_mul(back as u64));
            self.points.iter().find(|point| point.at_unix_ms == at)
        };
        let total = |point: &Point| {
            [point.denied, point.refused, point.failed]
                .iter()
                .fold(point.allowed, |sum, count| sum.saturating_add(*count))
        };
        let totals: Vec<u64> = (1..=CHART_WIDTH).rev().map(|back| point(back).map_or(0, total)).collect();
        let rate = |count: u64| thousands((count / self.step_seconds.max(1)).into());
        let newest = point(1);
        let p99 = newest
            .and_then(|point| point.p99_us)
            .map(|us| format!(", 99% within {}", output::time(Duration::from_micros(us))));
        format!(
            "reserves {} {}/s, {}/s denied{}",
            bars(&totals),
            rate(newest.map_or(0, total)),
            rate(newest.map_or(0, |point| point.denied)),
            p99.unwrap_or_default(),
        )
    }
}

/// A row of bars, the largest as high as a line.
fn bars(values: &[u64]) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let largest = values.iter().copied().max().unwrap_or(0).max(1);
    let height = |value: &u64| (u128::from(*value) * 8).div_ceil(u128::from(largest)) as usize;
    values.iter().map(|value| BARS.get(height(value)).copied().unwrap_or('█')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_their_share_of_the_largest() {
        assert_eq!(bars(&[0, 1, 4, 8]), " ▁▄█");
        assert_eq!(bars(&[0, 0]), "  ");
        assert_eq!(bars(&[u64::MAX, 1]), "█▁");
    }

    #[test]
    fn the_last_step_that_is_over_is_in_figures() {
        let point = |at_unix_ms, allowed, denied| Point {
            at_unix_ms,
            allowed,
            denied,
            refused: 0,
            failed: 0,
            p99_us: Some(1_500),
        };
        let charts = Charts {
            step_seconds: 10,
            until_unix_ms: 1_000_000,
            points: vec![point(970_000, 500, 0), point(980_000, 9_000, 1_000), point(990_000, 7, 0)],
        };
        let line = charts.line();
        assert!(line.ends_with(" ▁█ 1,000/s, 100/s denied, 99% within 1.50 ms"), "{line}");
        let none = Charts { points: Vec::new(), ..charts };
        assert!(none.line().ends_with(" 0/s, 0/s denied"), "{}", none.line());
    }

    #[test]
    fn only_a_failure_that_may_pass_is_waited_for() {
        let refused = |status| Failure::Refused { status, error: String::new(), message: String::new() };
        for (failure, is_waited_for) in [
            (refused(503), true),
            (refused(429), true),
            (refused(401), false),
            (refused(400), false),
            (Failure::NoAnswer { url: String::new(), what: String::new() }, true),
            (Failure::Usage(String::new()), false),
        ] {
            assert_eq!(may_pass(&failure), is_waited_for, "{failure}");
        }
    }
}
