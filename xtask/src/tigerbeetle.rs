//! Reports whether the tests on a real TigerBeetle ran.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Prints one line. A skipped test passes, so the line shows that it did not run.
pub(crate) fn report() {
    println!("{}", line(find(env::var_os("TB_BIN").as_deref(), env::var_os("PATH").as_deref()).as_deref()));
}

/// The binary that the tests use: `TB_BIN`, else `tigerbeetle` on the `PATH`.
fn find(tb_bin: Option<&OsStr>, path: Option<&OsStr>) -> Option<PathBuf> {
    match tb_bin {
        Some(binary) => Some(PathBuf::from(binary)),
        None => env::split_paths(path?).map(|folder| folder.join("tigerbeetle")).find(|file| file.is_file()),
    }
}

fn line(binary: Option<&Path>) -> String {
    match binary {
        Some(binary) => format!("the tests on TigerBeetle ran with {}", binary.display()),
        None => "skipped: the tests on a real TigerBeetle; the others ran on its stand-in, because there is no tigerbeetle binary; put version 0.17.9 \
                 (https://github.com/tigerbeetle/tigerbeetle/releases) on the PATH or name it in TB_BIN"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_is_tb_bin_or_on_the_path() {
        let named = find(Some(OsStr::new("/opt/tigerbeetle")), None);
        assert_eq!(named.as_deref(), Some(Path::new("/opt/tigerbeetle")));
        assert_eq!(find(None, None), None);
        assert_eq!(find(None, Some(OsStr::new("/no/such/folder"))), None);
    }

    #[test]
    fn one_line_says_whether_they_ran() {
        assert_eq!(line(Some(Path::new("/a/tigerbeetle"))), "the tests on TigerBeetle ran with /a/tigerbeetle");
        let skipped = line(None);
        assert!(skipped.starts_with("skipped: "), "{skipped}");
        assert!(skipped.contains("TB_BIN") && !skipped.contains('\n'), "{skipped}");
    }
}
