use earmark_core::{TxId, UnixMs};

use super::*;
use crate::callers::{ChangeEntry, ChangeKind, CreditCursor};

/// A list of changes with these times, in pages like those of a backend. `None` is scanned but not listed.
struct List {
    times: Vec<Option<u64>>,
    is_book: bool,
    looked_at_max: usize,
}

impl List {
    fn place(&self, number: usize) -> ChangeCursor {
        match self.is_book {
            true => ChangeCursor::of_book(number as u64),
            // Three items become visible together.
            false if number == 0 => ChangeCursor::default(),
            false => {
                let (commit, given) = (1 + (number as u64 - 1) / 3, 1 + (number as u64 - 1) % 3);
                ChangeCursor::of_credit(CreditCursor { commit, given })
            }
        }
    }

    fn page(&self, after: ChangeCursor, page_size: usize) -> ChangePage {
        let meant =
            if self.is_book { ChangeCursor::of_book(after.book) } else { ChangeCursor::of_credit(after.credit) };
        let first = (0..=self.times.len()).find(|number| self.place(*number) == meant).unwrap();
        let mut page = ChangePage::default();
        for number in first + 1..=self.times.len() {
            if page.entries.len() == page_size || number - first > self.looked_at_max {
                page.next = Some(self.place(number - 1));
                break;
            }
            if let Some(at) = self.times[number - 1] {
                page.entries.push(entry(at, self.place(number)));
            }
        }
        page
    }
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
            client: "billing".parse().unwrap(),
            sequence: 1,
            operations: vec![],
        },
    }
}

/// Reads all pages, and checks that reading can continue at each entry's cursor.
fn read(book: &List, credit: &List, page_size: usize) -> Vec<u64> {
    let (mut times, mut after, mut pages) = (Vec::new(), ChangeCursor::default(), 0);
    loop {
        let page = merge(after, page_size, book.page(after, page_size), credit.page(after, page_size));
        assert!(page.entries.len() <= page_size);
        for (count, entry) in page.entries.iter().enumerate() {
            // Continuing after an entry starts with the entry behind it.
            let rest =
                merge(entry.place, page_size, book.page(entry.place, page_size), credit.page(entry.place, page_size));
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
        (vec![Some(1), Some(4)], vec![]),
        (vec![], vec![Some(2), None, None, None, Some(9)]),
        (vec![Some(1), None, Some(5), Some(6)], vec![Some(2), Some(3), None, Some(7), Some(8)]),
        (vec![None; 9], vec![Some(2), Some(3)]),
        (vec![Some(9); 5], vec![Some(1), Some(2), Some(3), Some(4), Some(10), None, None]),
    ];
    for (book, credit) in lists {
        let mut expected: Vec<u64> = book.iter().chain(&credit).copied().flatten().collect();
        expected.sort_unstable();
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
