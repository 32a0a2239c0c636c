//! Text files that a command line names, of bounded size.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::failure::Failure;

/// Reads a file of at most `bytes_max`; `-` reads standard input.
pub(crate) fn read(path: &Path, bytes_max: usize) -> Result<String, Failure> {
    let shown = path.display();
    let most = (bytes_max as u64).saturating_add(1);
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => std::io::stdin().take(most).read_to_string(&mut text),
        false => File::open(path).and_then(|file| file.take(most).read_to_string(&mut text)),
    };
    read.map_err(|error| match error.kind() {
        ErrorKind::InvalidData => Failure::Usage(format!("{shown}: not text in UTF-8")),
        _ => Failure::Usage(format!("{shown}: cannot read it: {error}")),
    })?;
    if text.len() > bytes_max {
        return Err(Failure::Usage(format!("{shown}: found more than {bytes_max} bytes, allowed are {bytes_max}")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_missing_or_too_long_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        assert!(read(&path, 3).unwrap_err().to_string().contains("a.toml"));
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read(&path, 3).unwrap(), "abc");
        assert!(read(&path, 2).unwrap_err().to_string().ends_with("found more than 2 bytes, allowed are 2"));
    }
}
