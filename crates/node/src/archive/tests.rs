use super::*;

/// An archive of a folder with files around the sizes of a block and a piece.
fn packed() -> (tempfile::TempDir, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("journal")).unwrap();
    for (name, size) in [("identity", 61), ("journal/1.log", PIECE + 1), ("empty", 0), ("block", BLOCK), (LOCK, 3)] {
        fs::write(folder.path().join(name), vec![b'a'; size]).unwrap();
    }
    let mut packer = Packer::new(folder.path()).unwrap();
    let mut archive = Vec::new();
    while let Some(piece) = packer.next().unwrap() {
        archive.extend_from_slice(&piece);
    }
    (folder, archive)
}

fn check(archive: &[u8]) -> Result<Unpacked, ArchiveError> {
    let mut unpacker = Unpacker::new(None);
    unpacker.feed(archive)?;
    unpacker.finish()
}

#[test]
fn unpacked_files_are_those_that_were_packed_in_pieces_of_any_size() {
    let (folder, archive) = packed();
    for size in [1, 7, BLOCK, 100_000, archive.len()] {
        let target = tempfile::tempdir().unwrap();
        let mut unpacker = Unpacker::new(Some(target.path()));
        archive.chunks(size).try_for_each(|piece| unpacker.feed(piece)).unwrap();
        let bytes = (61 + PIECE + 1 + BLOCK) as u64;
        assert_eq!(unpacker.finish().unwrap(), Unpacked { files: 4, bytes });
        for name in ["identity", "journal/1.log", "empty", "block"] {
            assert_eq!(fs::read(target.path().join(name)).unwrap(), fs::read(folder.path().join(name)).unwrap());
        }
        assert!(!target.path().join(LOCK).exists());
    }
}

#[test]
fn every_changed_byte_of_a_file_and_every_cut_is_refused() {
    let (_folder, archive) = packed();
    assert!(check(&archive).is_ok());
    // The two empty blocks at the end carry nothing, so that a cut there is harmless.
    let end = archive.len() - 2 * BLOCK;
    for cut in (0..end - 300).step_by(509).chain([BLOCK, BLOCK + 1]) {
        assert!(matches!(check(&archive[..cut]), Err(ArchiveError::Incomplete)), "cut at {cut}");
    }
    for at in (0..end).step_by(127) {
        let mut changed = archive.clone();
        changed[at] ^= 1;
        let zeros = |at: usize| archive[at] == 0 && check(&changed).is_ok();
        assert!(check(&changed).is_err() || zeros(at), "byte {at}");
    }
    let file = archive.iter().position(|byte| *byte == b'a').unwrap();
    let mut changed = archive.clone();
    changed[file + BLOCK + 5] ^= 1;
    assert!(check(&changed).is_err());
}

#[test]
fn an_archive_of_something_else_is_refused() {
    for (bytes, message) in [
        (vec![0; 2 * BLOCK], "this is not an archive"),
        (vec![b'x'; BLOCK], "this is not an archive"),
        (header("a", 0).unwrap(), "the archive ends early"),
    ] {
        let error = check(&bytes).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let sums = [header(SUMS, 0).unwrap(), vec![0; 2 * BLOCK]].concat();
    assert!(check(&sums).unwrap_err().to_string().contains("no data folder"));
    let (_folder, archive) = packed();
    let more = [archive, header("b", 0).unwrap()].concat();
    assert!(check(&more).unwrap_err().to_string().contains("goes on after SHA256SUMS"));
}

/// A name with `..` would let an archive write anywhere.
#[test]
fn a_name_that_leads_out_of_the_folder_is_refused() {
    for name in ["../a", "/etc/passwd", "a/../b", "a/b/c", ".hidden", "", "a b", "a//b", &"a".repeat(100)] {
        assert!(!is_allowed(name), "{name}");
        assert!(header(name, 0).is_err(), "{name}");
    }
    let mut evil = header("aa/a", 0).unwrap();
    evil[..4].copy_from_slice(b"../a");
    let sum = checksum(&evil);
    evil[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    assert!(check(&evil).unwrap_err().to_string().contains("does not belong into a backup"));
}

#[test]
fn sizes_beyond_eight_gibibytes_are_kept() {
    for size in [0, 1, OCTAL_MAX - 1, OCTAL_MAX, u64::MAX] {
        assert_eq!(parse_header(&header("a", size).unwrap()).unwrap(), ("a".to_owned(), size));
    }
}

#[test]
fn tar_and_sha256sum_read_an_archive() {
    let (_folder, archive) = packed();
    let target = tempfile::tempdir().unwrap();
    fs::write(target.path().join("backup.tar"), &archive).unwrap();
    let run = |program: &str, words: &[&str]| {
        std::process::Command::new(program).args(words).current_dir(target.path()).output()
    };
    let Ok(unpacked) = run("tar", &["xf", "backup.tar"]) else { return };
    assert!(unpacked.status.success(), "{unpacked:?}");
    let summed = run("sha256sum", &["--check", "--strict", SUMS]).unwrap();
    assert!(summed.status.success(), "{summed:?}");
}
