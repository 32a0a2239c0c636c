//! Cursors of the change log.

use std::fmt;
use std::str::FromStr;

/// Most digits of a number in a cursor. Such a number always fits 64 bits.
const DIGITS_MAX: usize = 19;

/// A position in the change log, which is read from the newest change to the oldest. With credit in SQL the log merges
/// two lists, so the cursor has a position in both. Its text form is `12` or `12-345.2`. The default is the start, at
/// the newest change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCursor {
    /// Journal records with a smaller number follow; 0 at the start.
    pub book: u64,
    /// The position in the transactions of the SQL credit store.
    pub credit: CreditCursor,
}

/// A position in a list of commits, newest first. The items of a commit become visible together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditCursor {
    /// The commit of the last item read. Smaller ones follow; 0 at the start and at the end.
    pub commit: u64,
    /// The number of items read of that commit, from its last one on.
    pub given: u64,
}

impl CreditCursor {
    /// Behind the oldest commit.
    pub const END: CreditCursor = CreditCursor { commit: 0, given: 1 };

    /// Whether this is the position before the newest commit.
    #[must_use]
    pub fn is_start(self) -> bool {
        self == CreditCursor::default()
    }
}

/// The text is not a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the `next` of a page or the `place` of a change")]
pub struct ChangeCursorError;

impl ChangeCursor {
    /// The position behind the oldest journal record, which has number 1.
    pub const BOOK_END: u64 = 1;
    /// The text form, as a regular expression.
    pub const PATTERN: &str = "^[0-9]{1,19}(-[0-9]{1,19}\\.[0-9]{1,19})?$";

    /// Behind a journal record.
    #[must_use]
    pub const fn of_book(number: u64) -> ChangeCursor {
        ChangeCursor { book: number, credit: CreditCursor { commit: 0, given: 0 } }
    }

    /// Behind a transaction of the SQL credit store.
    #[must_use]
    pub const fn of_credit(credit: CreditCursor) -> ChangeCursor {
        ChangeCursor { book: 0, credit }
    }
}

impl fmt::Display for ChangeCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChangeCursor { book, credit: CreditCursor { commit, given } } = *self;
        write!(f, "{book}")?;
        if self.credit.is_start() { Ok(()) } else { write!(f, "-{commit}.{given}") }
    }
}

impl FromStr for ChangeCursor {
    type Err = ChangeCursorError;

    fn from_str(text: &str) -> Result<ChangeCursor, ChangeCursorError> {
        let Some((book, credit)) = text.split_once('-') else {
            return Ok(ChangeCursor::of_book(number(text)?));
        };
        let (commit, given) = credit.split_once('.').ok_or(ChangeCursorError)?;
        let credit = CreditCursor { commit: number(commit)?, given: number(given)? };
        Ok(ChangeCursor { book: number(book)?, credit })
    }
}

fn number(text: &str) -> Result<u64, ChangeCursorError> {
    let is_plain = text.len() <= DIGITS_MAX && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { text.parse().map_err(|_| ChangeCursorError) } else { Err(ChangeCursorError) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_what_its_text_says() {
        let both = ChangeCursor { book: 12, credit: CreditCursor { commit: 345, given: 2 } };
        for (place, text) in [
            (ChangeCursor::default(), "0"),
            (ChangeCursor::of_book(12), "12"),
            (both, "12-345.2"),
            (ChangeCursor::of_credit(both.credit), "0-345.2"),
            (ChangeCursor { book: ChangeCursor::BOOK_END, credit: CreditCursor::END }, "1-0.1"),
        ] {
            assert_eq!(place.to_string(), text);
            assert_eq!(text.parse(), Ok(place));
        }
        assert_eq!("9999999999999999999".parse(), Ok(ChangeCursor::of_book(9_999_999_999_999_999_999)));
    }

    #[test]
    fn anything_else_is_none() {
        for text in [
            "",
            "-",
            "-1",
            "+1",
            "1-",
            "1-2",
            "1-2.",
            "1-.2",
            "1-2.3.4",
            "1-2-3.4",
            " 1",
            "1.2",
            "0x1",
            "12345678901234567890",
            "1-12345678901234567890.1",
            "١",
        ] {
            assert_eq!(text.parse::<ChangeCursor>(), Err(ChangeCursorError), "{text}");
        }
    }
}
