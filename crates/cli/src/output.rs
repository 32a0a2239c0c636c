//! Standard output: text and tables for people, JSON for programs.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use earmark_admission::utc_from;
use earmark_client::http::is_hidden;
pub(crate) use earmark_client::http::visible;
use earmark_core::{UnixMs, redact_api_keys};
use serde::Serialize;

use crate::failure::Failure;

/// Prints `text`, made safe for a terminal. A closed pipe, such as that of `head`, is not a failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    write(&visible_lines(text))
}

/// Prints data for a program, such as CSV: the exact text into a file or a pipe, and made safe on a terminal.
pub(crate) fn print_data(text: &str) -> Result<(), Failure> {
    if io::stdout().is_terminal() { print(&text.replace("\r\n", "\n")) } else { write(text) }
}

/// Writes text that is safe where it goes. A closed pipe is not a failure.
fn write(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match printed {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|source| Failure::System { what: "standard output", source }),
    }
}

/// Prints a message on standard error, made safe for a terminal and without API keys. A closed standard error is
/// ignored, because there is no other place for the message.
pub(crate) fn complain(message: &str) {
    _ = writeln!(io::stderr(), "{}", visible_lines(&redact_api_keys(message)));
}

/// Prints `value` as one JSON object on one line.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::System { what: "standard output", source: error.into() })?;
    print(&(escaped(&text) + "\n"))
}

/// One word of a command that a person may copy into a shell: quoted where the shell would read it differently.
pub(crate) fn shell_word(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":._@+-/=%".contains(&byte);
    if text.bytes().all(is_plain) { Cow::Borrowed(text) } else { Cow::Owned(format!("'{text}'")) }
}

/// Each line of `text` with visible characters only.
pub(crate) fn visible_lines(text: &str) -> String {
    text.split('\n').map(visible).collect::<Vec<_>>().join("\n")
}

/// JSON in which hidden characters are escapes. They occur in strings only, so the value stays the same.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if is_hidden(character) {
            let mut units = [0; 2];
            text.extend(character.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            text.push(character);
        }
    }
    text
}

/// Prints `value` as JSON, or its text for people.
pub(crate) fn show<T: Serialize>(is_json: bool, value: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
    if is_json { print_json(value) } else { print(&text(value)) }
}

/// `1234567` as `1,234,567`.
pub(crate) fn thousands(number: u128) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats `duration` with about three digits and a unit.
pub(crate) fn time(duration: Duration) -> String {
    let us = duration.as_secs_f64() * 1e6;
    match us {
        us if us < 999.5 => format!("{us:.0} us"),
        us if us < 9_995.0 => format!("{:.2} ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0} ms", us / 1e3),
        us if us < 9_995_000.0 => format!("{:.1} s", us / 1e6),
        us => format!("{:.0} s", us / 1e6),
    }
}

/// Formats `seconds` in the largest unit that divides it: `90 s`, `5 min`, `1 h`, `1 d`.
pub(crate) fn seconds(seconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400, "d"), (3_600, "h"), (60, "min")];
    for (size, unit) in UNITS {
        if seconds > 0 && seconds.is_multiple_of(size) {
            return format!("{} {unit}", thousands((seconds / size).into()));
        }
    }
    format!("{} s", thousands(seconds.into()))
}

/// Formats a time as UTC with its distance from now: `2023-11-14T22:13:20Z (3 min ago)`.
pub(crate) fn date(unix_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    utc_from(UnixMs::new(unix_ms), UnixMs::new(u64::try_from(now).unwrap_or(u64::MAX)))
}

/// The columns of the terminal behind standard output; `None` if it is not a terminal.
pub(crate) fn width() -> Option<usize> {
    size().map(|(width, _)| width)
}

/// The columns and lines of the terminal behind standard output; `None` if it is not a terminal.
pub(crate) fn size() -> Option<(usize, usize)> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, height)| (width.0.into(), height.0.into()))
}

/// The colour of a line on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Red,
    Yellow,
    Bold,
}

/// A line in a colour, unless `NO_COLOR` is set. The line must be safe for a terminal already.
pub(crate) fn painted(line: &str, colour: Option<Colour>) -> String {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let code = match colour.filter(|_| !is_plain) {
        Some(Colour::Red) => "31",
        Some(Colour::Yellow) => "33",
        Some(Colour::Bold) => "1",
        None => return line.to_owned(),
    };
    format!("\x1b[{code}m{line}\x1b[0m")
}

/// Prints lines, made safe for a terminal. On a terminal each has its colour.
pub(crate) fn print_painted(text: &str, colours: &[Option<Colour>]) -> Result<(), Failure> {
    if size().is_none() {
        return print(text);
    }
    let colour = |place: usize| colours.get(place).copied().flatten();
    let lines = text.lines().enumerate().map(|(place, line)| painted(&visible(line), colour(place)) + "\n");
    write(&lines.collect::<String>())
}

/// Formats `rows` like [`table`], in lines of at most `width` characters: the first column is cut where it is too wide.
pub(crate) fn fitted<const COLUMNS: usize>(rows: &[[String; COLUMNS]], width: Option<usize>) -> String {
    /// Characters that are left of a key in the narrowest terminal.
    const FIRST_MIN: usize = 12;
    let Some(width) = width else { return table(rows) };
    let widest = |column: usize| rows.iter().map(|row| visible(&row[column]).chars().count()).max().unwrap_or(0);
    let others: usize = (1..COLUMNS).map(|column| widest(column) + 2).sum();
    let most = width.saturating_sub(others).max(FIRST_MIN);
    let cut = |row: &[String; COLUMNS]| {
        let mut row = row.clone();
        if let Some(first) = row.first_mut()
            && visible(first).chars().count() > most
        {
            let mut text: String = visible(first).chars().take(most - 1).collect();
            text.push('\u{2026}');
            *first = text;
        }
        row
    };
    table(&rows.iter().map(cut).collect::<Vec<_>>())
}

/// Formats `rows` with aligned columns. The first row is the header.
pub(crate) fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| rows.iter().map(|row| visible(&row[column]).chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let line: String = row.iter().zip(widths).map(|(cell, width)| format!("{:<width$}  ", visible(cell))).collect();
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567"), (100_000, "100,000")]
        {
            assert_eq!(thousands(number), text);
        }
    }

    #[test]
    fn times_are_rounded_and_have_units() {
        for (us, text) in [
            (0, "0 us"),
            (999, "999 us"),
            (1_000, "1.00 ms"),
            (9_994, "9.99 ms"),
            (12_345, "12 ms"),
            (999_499, "999 ms"),
            (999_999, "1.0 s"),
            (61_000_000, "61 s"),
        ] {
            assert_eq!(time(Duration::from_micros(us)), text, "{us}");
        }
    }

    #[test]
    fn seconds_take_the_largest_unit_that_divides_them() {
        for (number, text) in
            [(0, "0 s"), (60, "1 min"), (90, "90 s"), (3_600, "1 h"), (86_400, "1 d"), (366 * 86_400, "366 d")]
        {
            assert_eq!(seconds(number), text);
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["KEY", "KIND"], ["a:rpm", "rolling"], ["b", "c"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "KEY    KIND\na:rpm  rolling\nb      c\n");
        assert_eq!(table::<2>(&[]), "");
    }

    #[test]
    fn a_table_fits_the_terminal_by_a_shorter_first_column() {
        let rows = [["KEY", "KIND"], ["tenant:acme:gpt-4o:rpm", "rolling"]].map(|row| row.map(str::to_owned));
        assert_eq!(fitted(&rows, None), table(&rows));
        assert_eq!(fitted(&rows, Some(80)), table(&rows));
        assert_eq!(fitted(&rows, Some(24)), "KEY              KIND\ntenant:acme:gp\u{2026}  rolling\n");
        assert_eq!(fitted(&rows, Some(1)), "KEY           KIND\ntenant:acme\u{2026}  rolling\n");
    }

    #[test]
    fn json_keeps_its_value_without_hidden_characters() {
        let value = serde_json::json!({"a\u{202e}": "\u{1b}[2J\u{9b}\u{2066}\u{e0041}é\n"});
        let text = escaped(&value.to_string());
        assert_eq!(text, r#"{"a\u202e":"\u001b[2J\u009b\u2066\udb40\udc41é\n"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn a_line_has_its_colour_and_nothing_else_changes() {
        if std::env::var_os("NO_COLOR").is_none() {
            assert_eq!(painted("a", Some(Colour::Red)), "\x1b[31ma\x1b[0m");
        }
        assert_eq!(painted("a", None), "a");
    }

    #[test]
    fn a_cell_cannot_break_its_row() {
        let rows = [["KEY".to_owned(), "KIND".to_owned()], ["a\nb".to_owned(), "\u{1b}[2J".to_owned()]];
        assert_eq!(table(&rows), "KEY   KIND\na\\nb  \\u{1b}[2J\n");
    }
}
