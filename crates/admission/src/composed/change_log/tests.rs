use earmark_core::{TxId, UnixMs};

use super::*;
use crate::callers::{ChangeEntry, ChangeKind, CreditCursor};

/// A list of changes with these times, newest first, in pages like those of a backend. `None` is scanned but not listed.
struct List {
    times: Vec<Option<u64>>,
    is_book: bool,
    looked_at_max: usize,
}

impl List {
    /// The commit of an item. Up to three items become visible together.
    fn commit(&self, item: usize) -> u64 {
        1 + (self.times.len() - 1 - item) as u64 / 3
    }

    /// The cursor behind an item.
    fn place(&self, item: usize) -> ChangeCursor {
        if self.is_book {
            return ChangeCursor::of_book((self.times.len() - item) as u64);
        }
        let commit = self.commit(item);
        let given = (0..=item).filter(|earlier| self.commit(*earlier) == commit).count() as u64;
        ChangeCursor::of_credit(CreditCursor { commit, given })
    }

    /// The number of items before a cursor.
    fn skipped(&self, after: ChangeCursor) -> usize {
        let items = 0..self.times.len();
        match after.credit {
            _ if self.is_book && after.book == 0 => 0,
            _ if self.is_book => items.filter(|item| self.place(*item).book >= after.book).count(),
            CreditCursor::END => self.times.len(),
            credit if credit.is_start() => 0,
            credit => {
                let newer = items.filter(|item| self.commit(*item) > credit.commit).count();
                newer + credit.given as usize
            }
        }
    }

    fn page(&self, after: ChangeCursor, page_size: usize) -> ChangePage {
        let first = self.skipped(after);
        let mut page = ChangePage::default();
        for item in first..self.times.len() {
            if page.entries.len() == page_size || item - first >= self.looked_at_max {
                page.next = Some(self.place(item - 1));
                break;
            }
            if let Some(at) = self.times[item] {
                page.entries.push(entry(at, self.place(item)));
            }
        }
        page
    }
}

fn merged(book: &List, credit: &List, after: ChangeCursor, page_size: usize) -> ChangePage {
    let query = ChangeQuery { after, ..ChangeQuery::all(page_size) };
    merge(query, book.page(after, page_size), credit.page(after, page_size))
}

fn entry(at: u64, place: ChangeCursor) -> ChangeEntry {
    ChangeEntry {
        place,
        at: UnixMs::new(at),
        actor: "user:7".parse().unwrap(),
        namespace: "default".parse().unwrap(),
        vault: None,
        what: ChangeKind::Transaction {
            tx_id: TxId(at.into()),
            log_index: at,
            id: earmark_core::WriteId::Sequence { client: "billing".parse().unwrap(), sequence: 1 },
            operations: vec![],
            limits: vec![],
        },
    }
}

/// Reads all pages, and checks that reading can continue at each entry's cursor.
fn read(book: &List, credit: &List, page_size: usize) -> Vec<u64> {
    let (mut times, mut after, mut pages) = (Vec::new(), ChangeCursor::default(), 0);
    loop {
        let page = merged(book, credit, after, page_size);
        assert!(page.entries.len() <= page_size);
        for (count, entry) in page.entries.iter().enumerate() {
            // Continuing after an entry starts with the entry behind it.
            let rest = merged(book, credit, entry.place, page_size);
            if let (Some(here), Some(there)) = (page.entries.get(count + 1), rest.entries.first()) {
                assert_eq!(here.at, there.at);
            }
        }
        times.extend(page.entries.iter().map(|entry| entry.at.get()));
        pages += 1;
        assert!(pages < 1_000, "it goes on for ever");
        match page.next {
            Some(next) => {
                assert_ne!(next, after, "it stands still");
                after = next;
            }
            None => return times,
        }
    }
}

#[test]
fn two_lists_are_one_by_time_whatever_the_size_of_its_pages() {
    let lists = [
        (vec![], vec![]),
        (vec![Some(4), Some(1)], vec![]),
        (vec![], vec![Some(9), None, None, None, Some(2)]),
        (vec![Some(6), Some(5), None, Some(1)], vec![Some(8), Some(7), None, Some(3), Some(2)]),
        (vec![None; 9], vec![Some(3), Some(2)]),
        (vec![Some(9); 5], vec![None, None, Some(10), Some(4), Some(3), Some(2), Some(1)]),
    ];
    for (book, credit) in lists {
        let mut expected: Vec<u64> = book.iter().chain(&credit).copied().flatten().collect();
        expected.sort_unstable_by(|one, other| other.cmp(one));
        for looked_at_max in [1, 2, 100] {
            let book = List { times: book.clone(), is_book: true, looked_at_max };
            let credit = List { times: credit.clone(), is_book: false, looked_at_max };
            for page_size in 1..7 {
                let found = read(&book, &credit, page_size);
                assert_eq!(found, expected, "{page_size} on a page, {looked_at_max} looked at");
            }
        }
    }
}

/// Clocks differ. A list whose times go back is still read in its own order, each change once.
#[test]
fn nothing_is_lost_or_doubled_where_times_go_back() {
    let book = List { times: vec![Some(5), Some(1), Some(6)], is_book: true, looked_at_max: 2 };
    let credit = List { times: vec![Some(7), Some(2), Some(3)], is_book: false, looked_at_max: 2 };
    for page_size in 1..7 {
        let mut found = read(&book, &credit, page_size);
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3, 5, 6, 7]);
    }
}

/// At equal times the Book goes first, so that the order is the same on every page.
#[test]
fn the_book_goes_first_at_equal_times() {
    let book = List { times: vec![Some(5), Some(5)], is_book: true, looked_at_max: 9 };
    let credit = List { times: vec![Some(5), Some(5)], is_book: false, looked_at_max: 9 };
    for page_size in 1..5 {
        let (mut places, mut after) = (Vec::new(), ChangeCursor::default());
        loop {
            let page = merged(&book, &credit, after, page_size);
            places.extend(page.entries.iter().map(|entry| entry.place.to_string()));
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        // Behind the last record of the Book, the cursor of a later page says that the Book has ended.
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        assert_eq!(places, ["2-1.0", "1-1.0", "1-1.1", "1-1.2"]);
    }
}

/// A page starts at the newest change. Changes made while the next pages are read are not listed among older ones.
#[test]
fn changes_made_meanwhile_are_not_listed_on_later_pages() {
    let list = |times: &[u64], is_book| {
        let times = times.iter().map(|at| Some(*at)).collect();
        List { times, is_book, looked_at_max: 9 }
    };
    for (book, credit, newer_book, newer_credit) in [
        (vec![1], vec![9, 8], vec![10, 1], vec![9, 8]),
        // A new item is a commit of its own: the three before it are one.
        (vec![], vec![9, 8, 7], vec![10], vec![11, 9, 8, 7]),
        (vec![9, 8], vec![], vec![9, 8], vec![10]),
        (vec![9, 8], vec![3, 2, 1], vec![9, 8], vec![10, 3, 2, 1]),
    ] {
        let first = merged(&list(&book, true), &list(&credit, false), ChangeCursor::default(), 1);
        assert_eq!(first.entries[0].at.get(), 9);
        let (book, credit) = (list(&newer_book, true), list(&newer_credit, false));
        for after in [first.next.unwrap(), first.entries[0].place] {
            assert_eq!(merged(&book, &credit, after, 1).entries[0].at.get(), 8);
        }
    }
}
