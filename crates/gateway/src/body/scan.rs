//! One pass over a request's body.

use std::ops::Range;

use super::fields::{Treatment, documented, elsewhere};
use super::{BodyRefusal, CallBody, Cap, Finding, StreamOptions};
use crate::api::{Api, Endpoint};
use crate::json::{Kind, Malformed, Reader, fold};

/// Different findings in one body. More are refused whatever the configuration says.
const FINDINGS_MAX: usize = 32;
/// The maximum length of a `type` and of similar names in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Types of content that are text: their bytes bound the input that they cause.
const TEXT_TYPES: [&str; 13] = [
    "text",
    "input_text",
    "output_text",
    "refusal",
    "thinking",
    "redacted_thinking",
    "reasoning_text",
    "summary_text",
    "tool_use",
    "tool_result",
    "tool_reference",
    "search_result",
    "mid_conv_system",
];
/// Types of content that are media: each costs a configured maximum.
const MEDIA_TYPES: [&str; 8] =
    ["image_url", "input_image", "image", "file", "input_file", "document", "video_url", "input_video"];
const AUDIO_TYPES: [&str; 3] = ["input_audio", "audio_url", "audio"];
/// Types of items of a response's input that carry all of their content.
const ITEM_TYPES: [&str; 5] =
    ["message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"];
const TOOL_TYPES: [&str; 2] = ["function", "custom"];

const PART_KEYS: [&str; 12] = [
    "type",
    "content",
    "source",
    "image_url",
    "video_url",
    "file",
    "file_id",
    "file_data",
    "file_url",
    "input_audio",
    "audio_url",
    "audio",
];

/// The origin of an image or document.
enum Source {
    Text,
    Media,
}

pub(super) fn scan(endpoint: Endpoint, body: &[u8]) -> Result<CallBody, BodyRefusal> {
    let mut reader = Reader::new(body)?;
    let mut scan =
        Scan { body: CallBody::empty(endpoint, body.len()), model: None, user: None, safety_identifier: None };
    if reader.kind()? != Kind::Object {
        return Err(Malformed::Syntax { at: reader.at(), what: "expected an object" }.into());
    }
    let (open, _) = reader.object(|reader, key| scan.member(reader, key))?;
    reader.end()?;
    let Scan { body: mut call, model, user, safety_identifier } = scan;
    call.open = open;
    let (model, model_at) = model.ok_or(BodyRefusal::Missing { field: "model" })?;
    call.model = model;
    call.model_at = model_at;
    call.user = user.or(safety_identifier);
    Ok(call)
}

struct Scan {
    body: CallBody,
    model: Option<(String, Range<usize>)>,
    user: Option<String>,
    safety_identifier: Option<String>,
}

/// The known name that a key equals. A key that equals one but for case is refused.
fn known(names: &[&'static str], key: &str) -> Result<Option<&'static str>, Malformed> {
    if let Some(name) = names.iter().find(|name| **name == key) {
        return Ok(Some(name));
    }
    match looks_like(names.iter().copied(), key) {
        Some(known) => Err(Malformed::KeyCase { found: key.to_owned(), known }),
        None => Ok(None),
    }
}

fn looks_like(mut names: impl Iterator<Item = &'static str>, key: &str) -> Option<&'static str> {
    if key.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
        return None;
    }
    let folded = fold(key);
    names.find(|name| *name == folded)
}

fn invalid<T>(field: &str, found: impl Into<String>, allowed: &'static str) -> Result<T, BodyRefusal> {
    Err(BodyRefusal::Invalid { field: field.to_owned(), found: found.into(), allowed })
}

/// A whole number, or null.
fn count(reader: &mut Reader<'_>, field: &str) -> Result<Option<u32>, BodyRefusal> {
    const ALLOWED: &str = "a whole number of at most 4294967295";
    match reader.kind()? {
        Kind::Null => Ok(reader.null().map(|()| None)?),
        Kind::Number => {
            let number = reader.number()?;
            match number.parse() {
                Ok(tokens) => Ok(Some(tokens)),
                Err(_) => invalid(field, number.chars().take(NAME_BYTES_MAX).collect::<String>(), ALLOWED),
            }
        }
        other => invalid(field, other.name(), ALLOWED),
    }
}

/// True, false, or null.
fn flag(reader: &mut Reader<'_>, field: &str) -> Result<Option<bool>, BodyRefusal> {
    match reader.kind()? {
        Kind::Null => Ok(reader.null().map(|()| None)?),
        Kind::Bool => Ok(Some(reader.bool()?)),
        other => invalid(field, other.name(), "true or false"),
    }
}

/// A short name, or null.
fn name(reader: &mut Reader<'_>, field: &str) -> Result<Option<String>, BodyRefusal> {
    const ALLOWED: &str = "a string of at most 64 bytes";
    match reader.kind()? {
        Kind::Null => Ok(reader.null().map(|()| None)?),
        Kind::String => match reader.string()?.decode() {
            Some(text) if text.len() <= NAME_BYTES_MAX => Ok(Some(text.into_owned())),
            Some(_) => invalid(field, "a longer one", ALLOWED),
            None => invalid(field, "half of a surrogate pair", ALLOWED),
        },
        other => invalid(field, other.name(), ALLOWED),
    }
}

/// A value that can be an attribute, or nothing: a caller who sends an unusable user is one who sends none.
fn attribute(reader: &mut Reader<'_>) -> Result<Option<String>, BodyRefusal> {
    if reader.kind()? != Kind::String {
        reader.skip()?;
        return Ok(None);
    }
    let text = reader.string()?;
    if text.raw_len() > earmark_core::ATTRIBUTE_VALUE_BYTES_MAX.saturating_mul(6) {
        return Ok(None);
    }
    let value = text.decode().filter(|value| earmark_policy::Attributes::new([("user", value.as_ref())]).is_ok());
    Ok(value.map(std::borrow::Cow::into_owned))
}

impl Scan {
    fn member(&mut self, reader: &mut Reader<'_>, key: &str) -> Result<(), BodyRefusal> {
        let endpoint = self.body.endpoint;
        let fields = || documented(endpoint).iter().chain(elsewhere(endpoint));
        let Some(field) = fields().find(|field| field.name == key) else {
            if let Some(known) = looks_like(fields().map(|field| field.name), key) {
                return Err(Malformed::KeyCase { found: key.to_owned(), known }.into());
            }
            reader.skip()?;
            return Ok(());
        };
        let name = field.name;
        match field.treatment {
            Treatment::Forwarded => reader.skip().map(drop)?,
            Treatment::Model => self.model(reader)?,
            Treatment::Stream => self.body.stream = flag(reader, name)?.unwrap_or(false),
            Treatment::StreamOptions => self.stream_options(reader)?,
            Treatment::Cap => {
                let start = reader.at();
                let tokens = count(reader, name)?;
                self.body.caps.push(Cap { field: name, tokens, at: start..reader.at() });
            }
            Treatment::Choices => self.body.choices = self.body.choices.max(count(reader, name)?.unwrap_or(1)),
            Treatment::Prompts => self.prompts(reader)?,
            Treatment::Thinking => self.thinking(reader)?,
            Treatment::Prediction => {
                if reader.kind()? == Kind::Null {
                    reader.null()?;
                } else {
                    self.body.prediction_bytes = reader.skip()?.len();
                }
            }
            Treatment::Messages => self.objects(reader, name, Scan::message)?,
            Treatment::Content => self.content(reader, name)?,
            Treatment::Items if reader.kind()? == Kind::String => reader.string().map(drop)?,
            Treatment::Items => self.objects(reader, name, Scan::item)?,
            Treatment::Tools => self.objects(reader, name, Scan::tool)?,
            Treatment::ContextEdits => self.context_edits(reader, name)?,
            Treatment::User if name == "user" => self.user = attribute(reader)?,
            Treatment::User => self.safety_identifier = attribute(reader)?,
            Treatment::Metadata => self.metadata(reader)?,
            Treatment::RefusedInside(inner, allowed) => self.refused_inside(reader, name, inner, allowed)?,
            Treatment::Refused(allowed) => self.refused(reader, name, name, allowed)?,
        }
        Ok(())
    }

    fn find(&mut self, name: String, field: &str) -> Result<(), BodyRefusal> {
        if let Some(finding) = self.body.findings.iter_mut().find(|finding| finding.name == name) {
            finding.count = finding.count.saturating_add(1);
            return Ok(());
        }
        if self.body.findings.len() >= FINDINGS_MAX {
            return Err(BodyRefusal::NotAllowed { field: field.to_owned(), name });
        }
        self.body.findings.push(Finding { name, field: field.to_owned(), count: 1 });
        Ok(())
    }

    fn model(&mut self, reader: &mut Reader<'_>) -> Result<(), BodyRefusal> {
        const ALLOWED: &str = "a string of 1 to 256 bytes without control characters";
        let kind = reader.kind()?;
        if kind != Kind::String {
            return invalid("model", kind.name(), ALLOWED);
        }
        let start = reader.at();
        let model = reader.string()?.decode().map(std::borrow::Cow::into_owned);
        let is_allowed = |model: &String| {
            let bytes = 1..=earmark_core::ATTRIBUTE_VALUE_BYTES_MAX;
            bytes.contains(&model.len()) && !model.chars().any(char::is_control)
        };
        match model.filter(is_allowed) {
            Some(model) => self.model = Some((model, start..reader.at())),
            None => return invalid("model", "another", ALLOWED),
        }
        Ok(())
    }

    fn stream_options(&mut self, reader: &mut Reader<'_>) -> Result<(), BodyRefusal> {
        let kind = reader.kind()?;
        let start = reader.at();
        match kind {
            Kind::Null => {
                reader.null()?;
                self.body.stream_options = StreamOptions::Null(start..reader.at());
            }
            Kind::Object => {
                let mut include_usage = None;
                let (open, members) = reader.object(|reader, key| {
                    if known(&["include_usage"], key)?.is_none() {
                        return Ok(reader.skip().map(drop)?);
                    }
                    let start = reader.at();
                    let asked = flag(reader, "stream_options.include_usage")?.unwrap_or(false);
                    include_usage = Some((asked, start..reader.at()));
                    Ok::<(), BodyRefusal>(())
                })?;
                self.body.include_usage_asked = include_usage.as_ref().is_some_and(|(asked, _)| *asked);
                let include_usage_at = include_usage.map(|(_, at)| at);
                self.body.stream_options = StreamOptions::Object { open, is_empty: members == 0, include_usage_at };
            }
            other => return invalid("stream_options", other.name(), "an object"),
        }
        Ok(())
    }

    fn prompts(&mut self, reader: &mut Reader<'_>) -> Result<(), BodyRefusal> {
        if reader.kind()? != Kind::Array {
            return Ok(reader.skip().map(drop)?);
        }
        let mut numbers = 0_usize;
        let items = reader.array(|reader| {
            if reader.kind()? == Kind::Number {
                numbers = numbers.saturating_add(1);
            }
            reader.skip().map(drop)
        })?;
        // A list of numbers is one prompt, in tokens.
        self.body.prompts = if numbers == items { 1 } else { items };
        Ok(())
    }

    fn thinking(&mut self, reader: &mut Reader<'_>) -> Result<(), BodyRefusal> {
        if reader.kind()? != Kind::Object {
            return Ok(reader.skip().map(drop)?);
        }
        reader.object(|reader, key| {
            if known(&["budget_tokens"], key)?.is_none() {
                return Ok(reader.skip().map(drop)?);
            }
            self.body.thinking_budget = count(reader, "thinking.budget_tokens")?.unwrap_or(0);
            Ok::<(), BodyRefusal>(())
        })?;
        Ok(())
    }

    fn metadata(&mut self, reader: &mut Reader<'_>) -> Result<(), BodyRefusal> {
        if reader.kind()? != Kind::Object {
            return Ok(reader.skip().map(drop)?);
        }
        reader.object(|reader, key| {
            if known(&["user_id"], key)?.is_none() {
                return Ok(reader.skip().map(drop)?);
            }
            self.user = attribute(reader)?;
            Ok::<(), BodyRefusal>(())
        })?;
        Ok(())
    }

    /// A field that is refused unless its value is harmless. A list of allowed texts is harmless too.
    fn refused(
        &mut self,
        reader: &mut Reader<'_>,
        field: &str,
        name_in_findings: &str,
        allowed: &[&str],
    ) -> Result<(), BodyRefusal> {
        match reader.kind()? {
            Kind::Null => return Ok(reader.null()?),
            Kind::Bool if !reader.bool()? => return Ok(()),
            Kind::Bool => {}
            Kind::String if allowed.is_empty() => {
                if reader.string()?.raw_len() == 0 {
                    return Ok(());
                }
            }
            Kind::String => match name(reader, field)? {
                Some(value) if allowed.contains(&value.as_str()) => return Ok(()),
                Some(value) => return self.find(format!("{name_in_findings}.{value}"), field),
                None => {}
            },
            Kind::Array => {
                let mut refused = false;
                reader.array(|reader| {
                    if reader.kind()? == Kind::String {
                        let text = reader.string()?.decode();
                        refused |= !text.is_some_and(|text| allowed.contains(&text.as_ref()));
                        return Ok(());
                    }
                    refused = true;
                    reader.skip().map(drop)
                })?;
                if !refused {
                    return Ok(());
                }
            }
            Kind::Object | Kind::Number => reader.skip().map(drop)?,
        }
        self.find(name_in_findings.to_owned(), field)
    }

    fn refused_inside(
        &mut self,
        reader: &mut Reader<'_>,
        field: &'static str,
        inner: &'static str,
        allowed: &[&str],
    ) -> Result<(), BodyRefusal> {
        if reader.kind()? != Kind::Object {
            return Ok(reader.skip().map(drop)?);
        }
        let path = format!("{field}.{inner}");
        reader.object(|reader, key| match known(&[inner], key)? {
            Some(_) => self.refused(reader, &path, &path, allowed),
            None => Ok(reader.skip().map(drop)?),
        })?;
        Ok(())
    }

    /// A list of objects, or null.
    fn objects(
        &mut self,
        reader: &mut Reader<'_>,
        field: &str,
        mut object: impl FnMut(&mut Scan, &mut Reader<'_>, &str) -> Result<(), BodyRefusal>,
    ) -> Result<(), BodyRefusal> {
        match reader.kind()? {
            Kind::Null => return Ok(reader.null()?),
            Kind::Array => {}
            other => return invalid(field, other.name(), "a list of objects"),
        }
        reader.array(|reader| match reader.kind()? {
            Kind::Object => object(self, reader, field),
            other => invalid(field, other.name(), "a list of objects"),
        })?;
        Ok(())
    }

    fn message(&mut self, reader: &mut Reader<'_>, field: &str) -> Result<(), BodyRefusal> {
        reader.object(|reader, key| match known(&["content", "audio"], key)? {
            Some("content") => self.content(reader, field),
            Some(_) => self.refused(reader, field, "audio", &[]),
            None => Ok(reader.skip().map(drop)?),
        })?;
        Ok(())
    }

    fn item(&mut self, reader: &mut Reader<'_>, field: &str) -> Result<(), BodyRefusal> {
        let (mut kind, mut has_role, mut has_encrypted_content) = (None, false, false);
        reader.object(|reader, key| {
            match known(&["type", "role", "content", "output", "encrypted_content"], key)? {
                Some("type") => kind = name(reader, "input.type")?,
                Some("role") => has_role = reader.kind()? == Kind::String,
                Some("encrypted_content") => has_encrypted_content = reader.kind()? == Kind::String,
                Some(_) => return self.content(reader, field),
                None => {}
            }
            if key != "type" {
                reader.skip()?;
            }
            Ok::<(), BodyRefusal>(())
        })?;
        match kind.as_deref() {
            None if has_role => Ok(()),
            // An item with an id alone is a reference.
            None => self.find("input.item_reference".to_owned(), field),
            Some(kind) if ITEM_TYPES.contains(&kind) => Ok(()),
            Some("reasoning") if has_encrypted_content => Ok(()),
            Some(other) => self.find(format!("input.{other}"), field),
        }
    }

    fn tool(&mut self, reader: &mut Reader<'_>, field: &str) -> Result<(), BodyRefusal> {
        let mut kind = None;
        reader.object(|reader, key| {
            match known(&["type"], key)? {
                Some(_) => kind = name(reader, "tools.type")?,
                None => reader.skip().map(drop)?,
            }
            Ok::<(), BodyRefusal>(())
        })?;
        match kind {
            None => Ok(()),
            Some(kind) if TOOL_TYPES.contains(&kind.as_str()) => Ok(()),
            Some(other) => self.find(format!("tools.{other}"), field),
        }
    }

    fn context_edits(&mut self, reader: &mut Reader<'_>, field: &str) -> Result<(), BodyRefusal> {
        if reader.kind()? != Kind::Object {
            return self.refused(reader, field, field, &[]);
        }
        reader.object(|reader, key| match known(&["edits"], key)? {
            Some(_) => self.objects(reader, field, Scan::context_edit),
            None => Ok(reader.skip().map(drop)?),
        })?;
        Ok(())
    }

    fn context_edit(&mut self, reader: &mut Reader<'_>, field: &str) -> Result<(), BodyRefusal> {
        let mut kind = None;
        reader.object(|reader, key| {
            match known(&["type"], key)? {
                Some(_) => kind = name(reader, "context_management.edits.type")?,
                None => reader.skip().map(drop)?,
            }
            Ok::<(), BodyRefusal>(())
        })?;
        match kind {
            Some(kind) if kind.starts_with("clear_") => Ok(()),
            other => self.find(format!("{field}.{}", other.unwrap_or_default()), field),
        }
    }

    /// Content: a text, a part, or a list of either.
    fn content(&mut self, reader: &mut Reader<'_>, field: &str) -> Result<(), BodyRefusal> {
        match reader.kind()? {
            Kind::Object => self.part(reader, field),
            Kind::Array => {
                reader.array(|reader| match reader.kind()? {
                    Kind::Object => self.part(reader, field),
                    _ => Ok(reader.skip().map(drop)?),
                })?;
                Ok(())
            }
            _ => Ok(reader.skip().map(drop)?),
        }
    }

    fn part(&mut self, reader: &mut Reader<'_>, field: &str) -> Result<(), BodyRefusal> {
        let (mut kind, mut source, mut media) = (None, None, 0_u32);
        reader.object(|reader, key| {
            match known(&PART_KEYS, key)? {
                Some("type") => kind = name(reader, "content.type")?,
                Some("content") => self.content(reader, field)?,
                Some("source") => source = self.source(reader, field)?,
                Some("file_id") => self.refused(reader, field, "file_id", &[])?,
                Some("input_audio" | "audio_url" | "audio") => self.refused(reader, field, "audio", &[])?,
                Some(_) => media = media.saturating_add(u32::from(self.media(reader, field)?)),
                None => reader.skip().map(drop)?,
            }
            Ok::<(), BodyRefusal>(())
        })?;
        media = media.saturating_add(u32::from(matches!(source, Some(Source::Media))));
        match kind.as_deref() {
            None => {}
            Some(kind) if TEXT_TYPES.contains(&kind) => {}
            Some(kind) if MEDIA_TYPES.contains(&kind) && matches!(source, Some(Source::Text)) => {}
            Some(kind) if MEDIA_TYPES.contains(&kind) => media = media.max(1),
            Some(kind) if AUDIO_TYPES.contains(&kind) => self.find("audio".to_owned(), field)?,
            Some(other) => self.find(format!("content.{other}"), field)?,
        }
        self.body.media = self.body.media.saturating_add(media);
        Ok(())
    }

    /// The bytes of an image or file, or its URL. They are not text, so they are not counted as input.
    fn media(&mut self, reader: &mut Reader<'_>, field: &str) -> Result<bool, BodyRefusal> {
        match reader.kind()? {
            Kind::Null => return Ok(reader.null().map(|()| false)?),
            Kind::String => {
                let bytes = reader.string()?.raw_len();
                self.body.media_bytes = self.body.media_bytes.saturating_add(bytes);
            }
            Kind::Object => {
                reader.object(|reader, key| match known(&["url", "file_data", "file_id"], key)? {
                    Some("file_id") => self.refused(reader, field, "file_id", &[]),
                    Some(_) if reader.kind()? == Kind::String => {
                        let bytes = reader.string()?.raw_len();
                        self.body.media_bytes = self.body.media_bytes.saturating_add(bytes);
                        Ok(())
                    }
                    _ => Ok(reader.skip().map(drop)?),
                })?;
            }
            _ => reader.skip().map(drop)?,
        }
        Ok(true)
    }

    /// The source of an image or document in Anthropic's form. A text is the source of a search result.
    fn source(&mut self, reader: &mut Reader<'_>, field: &str) -> Result<Option<Source>, BodyRefusal> {
        if reader.kind()? != Kind::Object {
            reader.skip()?;
            return Ok(None);
        }
        let (mut kind, mut bytes) = (None, 0_usize);
        reader.object(|reader, key| {
            match known(&["type", "data", "url", "content", "file_id"], key)? {
                Some("type") => kind = name(reader, "source.type")?,
                Some("content") => self.content(reader, field)?,
                Some("file_id") => self.refused(reader, field, "file_id", &[])?,
                Some(_) if reader.kind()? == Kind::String => {
                    bytes = bytes.saturating_add(reader.string()?.raw_len());
                }
                _ => reader.skip().map(drop)?,
            }
            Ok::<(), BodyRefusal>(())
        })?;
        match kind.as_deref() {
            Some("text" | "content") => Ok(Some(Source::Text)),
            Some("base64" | "url") => {
                self.body.media_bytes = self.body.media_bytes.saturating_add(bytes);
                Ok(Some(Source::Media))
            }
            None => Ok(Some(Source::Media)),
            Some("file") => self.find("file_id".to_owned(), field).map(|()| Some(Source::Media)),
            Some(other) => self.find(format!("source.{other}"), field).map(|()| Some(Source::Media)),
        }
    }
}

/// Whether a cap of 0 bounds the output.
pub(super) fn zero_generates_nothing(endpoint: Endpoint) -> bool {
    // Anthropic documents 0 as "no answer". Some servers of OpenAI's API read it as "no cap".
    endpoint.api() == Some(Api::Anthropic)
}
