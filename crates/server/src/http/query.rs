//! Query parameters.

use earmark_admission::ChangeCursor;
use percent_encoding::percent_decode_str;

use super::reply::Reply;
use super::shape::{Field, Shape};

/// Decodes and checks query parameters. Unknown and repeated ones are rejected. A `+` is literal, since names may have one.
pub(super) fn read(query: Option<&str>, fields: &'static [Field]) -> Result<Vec<(String, String)>, Reply> {
    let mut found: Vec<(String, String)> = Vec::new();
    for part in query.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let (name, value) = (decode(name)?, decode(value)?);
        let Some(field) = fields.iter().find(|field| field.name == name) else {
            let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
            let allowed = match names.is_empty() {
                true => "this path has no query parameters".into(),
                false => format!("allowed are {}", names.join(" and ")),
            };
            return Err(Reply::invalid(&format!("query: found {name:?}, {allowed}")));
        };
        if found.iter().any(|(earlier, _)| *earlier == name) {
            return Err(Reply::invalid(&format!("{name}: given twice; give each parameter once")));
        }
        check(field, &value)?;
        found.push((name, value));
    }
    Ok(found)
}

fn check(field: &Field, value: &str) -> Result<(), Reply> {
    let wrong = match &field.shape {
        Shape::Name(name) => name.explain(&field.name, value),
        Shape::Integer { min, max } => {
            let is_plain = value.bytes().all(|byte| byte.is_ascii_digit());
            let is_allowed = is_plain && value.parse().is_ok_and(|found: u64| (*min..=*max).contains(&found));
            (!is_allowed).then(|| format!("{}: found {value:?}, allowed are integers from {min} to {max}", field.name))
        }
        Shape::Choice(texts) => {
            let is_allowed = texts.contains(&value);
            (!is_allowed).then(|| format!("{}: found {value:?}, allowed are {}", field.name, texts.join(", ")))
        }
        Shape::Choices(texts) => {
            let found: Vec<&str> = value.split(',').collect();
            let is_new = |place: usize| !found[..place].contains(&found[place]);
            let is_allowed = (0..found.len()).all(|place| texts.contains(&found[place]) && is_new(place));
            let allowed = texts.join(", ");
            (!is_allowed)
                .then(|| format!("{}: found {value:?}, allowed are {allowed}, each once, with commas", field.name))
        }
        Shape::Text { bytes_max } => {
            let found = value.len();
            (found > *bytes_max).then(|| format!("{}: found {found} bytes, allowed are up to {bytes_max}", field.name))
        }
        Shape::LogPosition => {
            let wrong = |error| format!("{}: found {value:?}, {error}", field.name);
            value.parse::<ChangeCursor>().err().map(wrong)
        }
        other => Some(format!("{}: {other:?} cannot stand in a query", field.name)),
    };
    wrong.map_or(Ok(()), |wrong| Err(Reply::invalid(&wrong)))
}

fn decode(text: &str) -> Result<String, Reply> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| Reply::invalid("query: percent-encoded bytes are not UTF-8"))
}
