//! Files and folders that only their owner may read: 0600 and 0700. Other systems than Unix have no such modes.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::path::Path;

/// The permissions of the group and of others.
#[cfg(unix)]
const FOREIGN_BITS: u32 = 0o077;
/// Depth of folders that are restricted; the data folder of a node with backups has 4.
const DEPTH_MAX: usize = 8;

/// Options that create a file for its owner only. A file that exists keeps its permissions: see [`restrict`].
#[must_use]
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Creates or truncates a file, and makes it readable by its owner only.
///
/// # Errors
/// When the file cannot be created, or belongs to another user.
pub fn create_private(path: &Path) -> io::Result<File> {
    let file = private_file().write(true).create(true).truncate(true).open(path)?;
    restrict_one(path, &file.metadata()?)?;
    Ok(file)
}

/// Creates a folder and its missing parents for their owner only.
///
/// # Errors
/// When the file system fails.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Takes the permissions of the group and of others from a file, or from a folder and everything in it. Logs what cannot
/// be changed, such as files of another user. Does nothing if the path is missing, and does not follow links.
pub fn restrict(path: &Path) {
    restrict_within(path, DEPTH_MAX);
}

fn restrict_within(path: &Path, depth: usize) {
    let restricted = fs::symlink_metadata(path).and_then(|about| {
        if about.is_symlink() {
            return Ok(());
        }
        // A mounted volume may belong to root, while its content belongs to this user.
        let restricted = restrict_one(path, &about);
        if about.is_dir() && depth > 0 {
            for entry in readable(path)? {
                restrict_within(&entry?.path(), depth.saturating_sub(1));
            }
        }
        restricted
    });
    match restricted {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot restrict the permissions to the owner");
        }
        Ok(()) | Err(_) => {}
    }
}

/// The entries of a folder. One that this user cannot read, such as `lost+found`, has no file of theirs.
fn readable(folder: &Path) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None.into_iter().flatten()),
        entries => Ok(Some(entries?).into_iter().flatten()),
    }
}

#[cfg(unix)]
fn restrict_one(path: &Path, about: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = about.permissions().mode();
    // A device or a pipe belongs to the system: everyone needs /dev/null.
    let is_ours = about.is_file() || about.is_dir();
    if !is_ours || mode & FOREIGN_BITS == 0 {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode & !FOREIGN_BITS))
}

#[cfg(not(unix))]
fn restrict_one(_: &Path, _: &Metadata) -> io::Result<()> {
    Ok(())
}

/// A warning about a file with a secret that the group or others can read or write; `None` if only its owner can.
#[must_use]
pub fn exposure(path: &Path) -> Option<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
        (mode & FOREIGN_BITS != 0).then(|| {
            let path = path.display();
            format!("{path} holds a secret that other users can read (mode {mode:03o}); run: chmod 600 {path}")
        })
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn everything_in_a_folder_becomes_its_owners() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        let (inner, file) = (folder.path().join("a/b"), folder.path().join("a/b/journal"));
        fs::create_dir_all(&inner).unwrap();
        fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(outside.path(), folder.path().join("link")).unwrap();
        for (path, mode) in [(folder.path(), 0o755), (&inner, 0o775), (&file, 0o644), (outside.path(), 0o644)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        restrict(folder.path());
        assert_eq!([folder.path(), &inner, &file].map(mode), [0o700, 0o700, 0o600]);
        assert_eq!(mode(outside.path()), 0o644, "a link is not followed");
        restrict(&folder.path().join("missing"));
    }

    /// A sequence file that was a link to `/dev/null` took the device from every other user of the machine.
    #[test]
    fn a_socket_keeps_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        restrict(folder.path());
        assert_eq!((mode(folder.path()), mode(&path)), (0o700, 0o666));
    }

    #[test]
    fn new_files_are_their_owners_and_others_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let (inner, file) = (folder.path().join("a/b"), folder.path().join("a/b/key"));
        create_private_dir(&inner).unwrap();
        create_private(&file).unwrap();
        assert_eq!((mode(&inner), mode(&file)), (0o700, 0o600));
        assert_eq!(exposure(&file), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let path = file.display();
        let warning = format!("{path} holds a secret that other users can read (mode 640); run: chmod 600 {path}");
        assert_eq!(exposure(&file), Some(warning));
        create_private(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
    }
}
