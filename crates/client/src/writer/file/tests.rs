use std::cell::RefCell;

use tempfile::TempDir;

use super::*;

fn scope() -> Scope {
    Scope { namespace: "default".parse().unwrap(), vault: Some("main".parse().unwrap()) }
}

fn open(path: &Path) -> Result<(SequenceFile, Option<Record>), SequenceFileError> {
    SequenceFile::open(path.to_owned(), &scope(), &"billing".parse().unwrap())
}

fn record(committed: u64, stamp: u64) -> Record {
    let content = ContentHash::of(&[]);
    let unfinished = Some(Unfinished { sequence: committed + 1, content, is_fenced: false });
    Record { committed, unfinished, stamp }
}

fn no_observer(_: Step) {}

#[test]
fn a_stored_record_is_read_again() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("seq");
    let (mut file, found) = open(&path).unwrap();
    assert_eq!(found, None);
    file.store(record(7, 1), &no_observer).unwrap();
    drop(file);
    let (mut file, found) = open(&path).unwrap();
    assert_eq!(found, Some(Record { stamp: 0, ..record(7, 1) }));
    file.store(Record { committed: 8, unfinished: None, stamp: 1 }, &no_observer).unwrap();
    drop(file);
    assert_eq!(open(&path).unwrap().1, Some(Record { committed: 8, unfinished: None, stamp: 0 }));
}

/// Sequence files of earlier versions look like this.
#[test]
fn the_format_never_changes() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("seq");
    open(&path).unwrap().0.store(record(7, 1), &no_observer).unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "{\"version\":1,\"namespace\":\"default\",\"vault\":\"main\",\"client_id\":\"billing\",\"committed\":7,\
         \"unfinished\":{\"sequence\":8,\
         \"content\":\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\",\"is_fenced\":false}}\n\
         eee8cc03fcf444afe33db0150c4b1306afad15e38e0bf861abadc1e6d9fc73aa\n"
    );
}

#[test]
fn a_record_is_stored_in_steps_that_never_leave_half_of_it() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("seq");
    let (mut file, _) = open(&path).unwrap();
    file.store(record(1, 1), &no_observer).unwrap();
    let steps = RefCell::new(Vec::new());
    file.store(record(2, 2), &|step| {
        let found = fs::read_to_string(&path).unwrap();
        steps.borrow_mut().push((step, found.contains("\"committed\":2")));
    })
    .unwrap();
    let expected = [
        (Step::Writing, false),
        (Step::Written, false),
        (Step::Flushed, false),
        (Step::Renamed, true),
        (Step::Stored, true),
    ];
    assert_eq!(steps.into_inner(), expected);
}

#[test]
fn an_older_record_never_replaces_a_newer_one() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("seq");
    let (mut file, _) = open(&path).unwrap();
    file.store(record(2, 5), &no_observer).unwrap();
    file.store(record(1, 4), &no_observer).unwrap();
    drop(file);
    assert_eq!(open(&path).unwrap().1.unwrap().committed, 2);
}

#[test]
fn one_writer_at_a_time_has_the_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("seq");
    let first = open(&path).unwrap();
    assert!(matches!(open(&path), Err(SequenceFileError::InUse { .. })));
    drop(first);
    assert!(open(&path).is_ok());
}

#[test]
fn a_file_of_another_writer_is_refused_by_name() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("seq");
    open(&path).unwrap().0.store(record(1, 1), &no_observer).unwrap();
    let other = Scope { vault: None, ..scope() };
    let Err(error) = SequenceFile::open(path, &other, &"audit".parse().unwrap()) else {
        panic!("the file belongs to another writer");
    };
    let message = error.to_string();
    assert!(
        message.ends_with(
            "it belongs to client billing in vault main of namespace default, not to client audit in namespace default"
        ),
        "{message}"
    );
}

#[test]
fn a_damaged_file_is_never_taken_for_an_intact_or_a_missing_one() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("seq");
    open(&path).unwrap().0.store(record(7, 1), &no_observer).unwrap();
    let sound = fs::read(&path).unwrap();
    for index in 0..sound.len() {
        let mut flipped = sound.clone();
        flipped[index] ^= 4;
        fs::write(&path, &flipped).unwrap();
        assert!(matches!(open(&path), Err(SequenceFileError::Damaged { .. })), "byte {index} flipped");
        fs::write(&path, &sound[..index]).unwrap();
        // The last line break is optional.
        let is_whole = index + 1 == sound.len();
        assert_eq!(open(&path).is_ok(), is_whole, "cut after {index} bytes");
    }
    fs::write(&path, vec![b' '; 70_000]).unwrap();
    assert!(matches!(open(&path), Err(SequenceFileError::Damaged { .. })));
}

/// A sequence file names clients and vaults, and was readable by every user of the machine.
#[cfg(unix)]
#[test]
fn the_file_and_its_lock_are_their_owners() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("seq");
    let modes = || {
        let entries = fs::read_dir(folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().metadata().unwrap().permissions().mode() & 0o777).collect::<Vec<_>>()
    };
    open(&path).unwrap().0.store(record(7, 1), &no_observer).unwrap();
    assert_eq!(modes(), [0o600, 0o600]);
    for path in [&path, &suffixed(&path, ".lock")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o664)).unwrap();
    }
    drop(open(&path).unwrap());
    assert_eq!(modes(), [0o600, 0o600]);
}
