//! From the tree of the crate `cel` to a [`Condition`]. Expressions that have no meaning over attributes are refused
//! here.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, SourceInfo, operators};
use cel::parser::Parser;

use super::{Comparison, Condition, Number, PartOf, Text};
use crate::attributes::check_name;
use crate::policy::Names;

/// The maximum depth of a compiled condition. Chains of `&&` and `||` count as one level.
pub(super) const DEPTH_MAX: usize = 32;
/// The parser's own bound on recursion, above what [`super::CONDITION_NESTING_MAX`] lets through.
const PARSER_DEPTH_MAX: u16 = 64;
/// The length of a parser's message in characters.
const MESSAGE_CHARS_MAX: usize = 100;

/// The tree of a parsed condition, with its positions in the text.
pub(super) struct Parsed {
    tree: IdedExpr,
    source: SourceInfo,
}

/// Parses a condition that [`super::scan::check`] accepted. Only on a thread with a bounded stack.
pub(super) fn parse(text: &str) -> Result<Parsed, String> {
    let parser = Parser::new().max_recursion_depth(PARSER_DEPTH_MAX).error_recovery_limit(1);
    match parser.parse_with_source_info(text) {
        Ok((tree, source)) => Ok(Parsed { tree, source }),
        Err(errors) => Err(errors.errors.first().map_or_else(
            || "not valid CEL".to_owned(),
            |error| {
                let (line, column) = error.pos;
                // Behind this word is every token that would be allowed.
                let what = error.msg.split(" expecting ").next().unwrap_or_default();
                let shown: String = what.chars().take(MESSAGE_CHARS_MAX).collect();
                format!("at {line}:{column}: {shown}")
            },
        )),
    }
}

impl Parsed {
    /// Compiles it. Attributes become slots of `names`.
    pub(super) fn compile(&self, names: &mut Names) -> Result<Condition, String> {
        let mut compiler = Compiler { source: &self.source, names };
        match compiler.value(&self.tree, DEPTH_MAX)? {
            Value::Condition(condition) => Ok(condition),
            other => Err(compiler.at(&self.tree, format_args!("found {}, allowed is a condition", other.kind()))),
        }
    }
}

/// A compiled part of a condition, by its type.
enum Value {
    Condition(Condition),
    Text(Text),
    Number(Number),
    List(Vec<Text>),
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Value::Condition(_) => "a condition",
            Value::Text(_) => "a text",
            Value::Number(_) => "a number",
            Value::List(_) => "a list",
        }
    }
}

struct Compiler<'a> {
    source: &'a SourceInfo,
    names: &'a mut Names,
}

impl Compiler<'_> {
    fn value(&mut self, tree: &IdedExpr, depth: usize) -> Result<Value, String> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.at(tree, format_args!("found more than {DEPTH_MAX} levels of operators")));
        };
        match &tree.expr {
            Expr::Ident(name) => {
                check_name(name).map_err(|what| self.at(tree, what))?;
                let slot = self.names.slot(name).map_err(|what| self.at(tree, what))?;
                Ok(Value::Text(Text::Attribute(slot)))
            }
            Expr::Literal(literal) => self.literal(tree, literal),
            Expr::List(list) => {
                let text = |element| self.text(element, depth);
                list.elements.iter().map(text).collect::<Result<_, _>>().map(Value::List)
            }
            Expr::Call(call) => self.call(tree, call, depth),
            Expr::Select(_) => Err(self.at(tree, "found a field, allowed are attributes, which have none")),
            Expr::Map(_) | Expr::Struct(_) => Err(self.at(tree, "found a map, allowed are texts and lists of texts")),
            Expr::Comprehension(_) => Err(self.at(tree, "found a macro, allowed are operators")),
            Expr::Unspecified => Err(self.at(tree, "found nothing, allowed is a condition")),
        }
    }

    fn literal(&self, tree: &IdedExpr, literal: &LiteralValue) -> Result<Value, String> {
        match literal {
            LiteralValue::Boolean(value) => Ok(Value::Condition(Condition::Constant(*value.inner()))),
            LiteralValue::String(text) => Ok(Value::Text(Text::Literal(text.inner().into()))),
            LiteralValue::Int(number) => Ok(Value::Number(Number::Literal(*number.inner()))),
            LiteralValue::Bytes(_) | LiteralValue::Double(_) | LiteralValue::Null | LiteralValue::UInt(_) => {
                Err(self.at(tree, "found bytes, a fraction, null or an unsigned number, allowed are texts, whole numbers, true and false"))
            }
        }
    }

    fn call(&mut self, tree: &IdedExpr, call: &CallExpr, depth: usize) -> Result<Value, String> {
        let condition = match (call.func_name.as_str(), call.target.as_deref(), call.args.as_slice()) {
            (operators::LOGICAL_AND, None, [_, _]) => {
                Condition::All(self.chain(tree, operators::LOGICAL_AND, depth)?)
            }
            (operators::LOGICAL_OR, None, [_, _]) => Condition::Any(self.chain(tree, operators::LOGICAL_OR, depth)?),
            (operators::LOGICAL_NOT, None, [inner]) => Condition::Not(Box::new(self.condition(inner, depth)?)),
            (operators::CONDITIONAL, None, [condition, then, otherwise]) => Condition::Choice(Box::new([
                self.condition(condition, depth)?,
                self.condition(then, depth)?,
                self.condition(otherwise, depth)?,
            ])),
            (operators::IN, None, [text, list]) => {
                let text = self.text(text, depth)?;
                match self.value(list, depth)? {
                    Value::List(list) => Condition::OneOf(text, list),
                    other => return Err(self.at(list, format_args!("found {}, allowed is a list", other.kind()))),
                }
            }
            ("startsWith", Some(text), [part]) => self.part(PartOf::Start, text, part, depth)?,
            ("endsWith", Some(text), [part]) => self.part(PartOf::End, text, part, depth)?,
            ("contains", Some(text), [part]) => self.part(PartOf::Anywhere, text, part, depth)?,
            ("size", Some(text), []) | ("size", None, [text]) => {
                return Ok(Value::Number(Number::Size(self.text(text, depth)?)));
            }
            (name, None, [left, right]) if comparison(name).is_some() => {
                let comparison = comparison(name).unwrap_or(Comparison::Equal);
                self.compare(tree, comparison, (left, right), depth)?
            }
            (name, _, _) => {
                let name = name.trim_matches('_');
                let allowed = "allowed are && || ! ?: == != < <= > >= in, startsWith, endsWith, contains and size";
                return Err(self.at(tree, format_args!("found {name}, {allowed}")));
            }
        };
        Ok(Value::Condition(condition))
    }

    /// The operands of a chain of one operator. The parser returns a chain as a balanced tree.
    fn chain(&mut self, tree: &IdedExpr, operator: &str, depth: usize) -> Result<Vec<Condition>, String> {
        let (mut pending, mut conditions) = (vec![tree], Vec::new());
        while let Some(next) = pending.pop() {
            match &next.expr {
                Expr::Call(call) if call.func_name == operator => pending.extend(call.args.iter().rev()),
                _ => conditions.push(self.condition(next, depth)?),
            }
        }
        Ok(conditions)
    }

    fn compare(
        &mut self,
        tree: &IdedExpr,
        comparison: Comparison,
        (left, right): (&IdedExpr, &IdedExpr),
        depth: usize,
    ) -> Result<Condition, String> {
        match (comparison, self.value(left, depth)?, self.value(right, depth)?) {
            (_, Value::Text(left), Value::Text(right)) => Ok(Condition::Texts(comparison, left, right)),
            (_, Value::Number(left), Value::Number(right)) => Ok(Condition::Numbers(comparison, left, right)),
            (Comparison::Equal, Value::Condition(left), Value::Condition(right)) => {
                Ok(Condition::Same(Box::new([left, right])))
            }
            (Comparison::Unequal, Value::Condition(left), Value::Condition(right)) => {
                Ok(Condition::Not(Box::new(Condition::Same(Box::new([left, right])))))
            }
            (_, left, right) => {
                let what = format!("found {} compared with {}, allowed are two texts", left.kind(), right.kind());
                Err(self.at(tree, what + " or two numbers"))
            }
        }
    }

    fn part(&mut self, part_of: PartOf, text: &IdedExpr, part: &IdedExpr, depth: usize) -> Result<Condition, String> {
        Ok(Condition::Part(part_of, self.text(text, depth)?, self.text(part, depth)?))
    }

    fn condition(&mut self, tree: &IdedExpr, depth: usize) -> Result<Condition, String> {
        match self.value(tree, depth)? {
            Value::Condition(condition) => Ok(condition),
            other => Err(self.at(tree, format_args!("found {}, allowed is a condition", other.kind()))),
        }
    }

    fn text(&mut self, tree: &IdedExpr, depth: usize) -> Result<Text, String> {
        match self.value(tree, depth)? {
            Value::Text(text) => Ok(text),
            other => Err(self.at(tree, format_args!("found {}, allowed is a text", other.kind()))),
        }
    }

    /// A mistake with its line and column within the condition.
    fn at(&self, tree: &IdedExpr, what: impl std::fmt::Display) -> String {
        let start =
            self.source.offset_for(tree.id).map_or(0, |(start, _)| usize::try_from(start).unwrap_or(usize::MAX));
        let before = self.source.source.get(..start).unwrap_or_default();
        let line = before.matches('\n').count().saturating_add(1);
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count().saturating_add(1);
        format!("at {line}:{column}: {what}")
    }
}

fn comparison(name: &str) -> Option<Comparison> {
    match name {
        operators::EQUALS => Some(Comparison::Equal),
        operators::NOT_EQUALS => Some(Comparison::Unequal),
        operators::LESS => Some(Comparison::Less),
        operators::LESS_EQUALS => Some(Comparison::AtMost),
        operators::GREATER => Some(Comparison::Greater),
        operators::GREATER_EQUALS => Some(Comparison::AtLeast),
        _ => None,
    }
}
