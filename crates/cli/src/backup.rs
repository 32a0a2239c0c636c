//! `earmark backup` and `earmark restore`: a backup as one file, and a data folder from it.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use earmark_admission::{BackupName, create_private_dir, private_file};
use earmark_core::UnixMs;
use earmark_node::{ArchiveError, Backup, NodeError, RealDisk, Unpacked, Unpacker, recover};
use serde_json::json;

use crate::client::{self, Client, ClientArgs};
use crate::failure::{Done, Failure};
use crate::output::{self, thousands};
use crate::serve::runtime;

pub(crate) const HELP: &str = "\
Streams everything that was acknowledged before the command as one tar file, which is checked while it arrives. Its last
member SHA256SUMS has the checksums of the others; without it the file is incomplete. The server keeps serving, and needs
room for a second copy of its data meanwhile. Needs the key of an admin of namespace default.

Credit in a database (--credits) and limits on TigerBeetle (--ledger) are not part of it: back them up too.

Examples:
  earmark backup > earmark.tar
  earmark backup /backups/earmark.tar --server https://earmark-1:7878
  earmark backup /backups --keep 168
  earmark backup | age -r age1... > earmark.tar.age";

pub(crate) const RESTORE_HELP: &str = "\
Writes the data folder of a new cluster with one node. It has an identity of its own, so it can run beside the original
and never joins it. Callers' keys are those of the backup. DIR must be empty, but for the lost+found of a new volume, or
not exist. DIR/.restoring is used meanwhile. Run it as the user of the server, who must own the files.

Examples:
  earmark restore earmark.tar /var/lib/earmark
  age -d earmark.tar.age | earmark restore - /var/lib/earmark
  earmark serve --data /var/lib/earmark";

const PATH: &str = "/v1/admin/cluster/backup";
/// The parts of a name before and after the time.
const PREFIX: &str = "earmark-";
const SUFFIX: &str = ".tar";
/// Follows the name of a backup until it is complete.
const PARTIAL: &str = ".partial";
/// Bytes of a time such as 20261118T093000Z.
const TIME_LEN: usize = 16;
/// The folder in a data folder in which a restore works, so that it needs one writable volume only.
const WORK: &str = ".restoring";
/// The restored data in it.
const DATA: &str = "data";
/// Bytes read from a file at once.
const PIECE: usize = 256 << 10;

#[derive(Args, Debug)]
pub(crate) struct BackupArgs {
    /// New file for the backup, or a folder, in which it is named after the time [default: standard output]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Keep only the newest N backups that are named after the time, with a folder as FILE
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RestoreArgs {
    /// The file of `earmark backup`; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// New data folder to write; it must be empty or not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Print the result as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn backup(args: &BackupArgs) -> Result<Done, Failure> {
    let folder = args.file.as_deref().filter(|path| path.is_dir());
    if args.keep.is_some() && folder.is_none() {
        return Err(Failure::Usage("--keep: name a folder that exists as FILE".into()));
    }
    let Some(path) = args.file.as_deref().map(|path| if path.is_dir() { path.join(name_now()) } else { path.into() })
    else {
        if io::stdout().is_terminal() {
            return Err(Failure::Usage("a backup is not text: redirect it, or name a file".into()));
        }
        if args.client.json {
            return Err(Failure::Usage("--json: name a file, because the backup goes to standard output".into()));
        }
        let mut out = io::stdout().lock();
        download(&args.client, &mut out)?;
        out.flush().map_err(|source| Failure::System { what: "writing the backup", source })?;
        return Ok(Done::Ok);
    };
    let path = &*path;
    if path.exists() {
        return Err(Failure::Usage(format!("{}: the file exists; choose another name", path.display())));
    }
    if args.keep.is_some() {
        folder
            .map_or(Ok(()), remove_partial)
            .map_err(|source| Failure::System { what: "removing unfinished backups", source })?;
    }
    let partial = with_suffix(path, PARTIAL);
    let failed = |source| Failure::System { what: "writing the backup", source };
    let unusable = |error| Failure::Usage(format!("{}: {error}", path.display()));
    let mut file = private_file().write(true).create(true).truncate(true).open(&partial).map_err(unusable)?;
    // Where a file system has no locks, leftovers stay.
    _ = file.try_lock();
    let written = download(&args.client, &mut file).and_then(|unpacked| {
        file.sync_all().and_then(|()| fs::rename(&partial, path)).and_then(|()| sync_parent(path)).map_err(failed)?;
        Ok(unpacked)
    });
    if written.is_err() {
        // The failure is reported; a leftover only takes space.
        _ = fs::remove_file(&partial);
    }
    let Unpacked { files, bytes } = written?;
    if let (Some(folder), Some(keep)) = (folder, args.keep) {
        remove_older(folder, keep as usize)
            .map_err(|source| Failure::System { what: "removing old backups", source })?;
    }
    let made = json!({"path": path.display().to_string(), "files": files, "bytes": bytes});
    output::show(args.client.json, &made, |_| {
        format!("{}: {} files, {} bytes\n", path.display(), thousands(files as u128), thousands(bytes.into()))
    })?;
    Ok(Done::Ok)
}

/// The name of a backup that is made now: `earmark-20261118T093000Z.tar`.
fn name_now() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = UnixMs::new(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
    format!("{PREFIX}{}{SUFFIX}", BackupName::of_time(now).as_str())
}

/// Whether this is the name of a backup after the time.
fn is_of_time(name: &str) -> bool {
    let time = name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix(SUFFIX));
    time.is_some_and(|time| time.len() == TIME_LEN && time.starts_with(|c: char| c.is_ascii_digit()))
}

fn file_names(folder: &Path) -> io::Result<Vec<String>> {
    let entries: io::Result<Vec<_>> = fs::read_dir(folder)?.collect();
    Ok(entries?.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// Removes all backups of a folder that are named after the time, but for the newest `keep`.
fn remove_older(folder: &Path, keep: usize) -> io::Result<()> {
    let mut names = file_names(folder)?;
    names.retain(|name| is_of_time(name));
    // Times sort like their names.
    names.sort_unstable();
    let old = names.len().saturating_sub(keep);
    names.iter().take(old).try_for_each(|name| fs::remove_file(folder.join(name)))
}

/// Removes what killed backups left in a folder: it would fill the disk. A backup that is being written is locked.
fn remove_partial(folder: &Path) -> io::Result<()> {
    let mut names = file_names(folder)?;
    names.retain(|name| name.strip_suffix(PARTIAL).is_some_and(is_of_time));
    for path in names.iter().map(|name| folder.join(name)) {
        if File::open(&path)?.try_lock().is_ok() {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Writes the archive of a server, and checks it meanwhile.
fn download(args: &ClientArgs, to: &mut impl Write) -> Result<Unpacked, Failure> {
    let mut check = Unpacker::new(None);
    client::block_on(async {
        let take = |piece: &[u8]| {
            check.feed(piece).map_err(refused)?;
            to.write_all(piece).map_err(|source| Failure::System { what: "writing the backup", source })
        };
        Client::new(&args.url())?.download(PATH, take).await.map(drop)
    })?;
    check.finish().map_err(refused)
}

fn refused(error: ArchiveError) -> Failure {
    Failure::Conflict(format!("the backup: {error}"))
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    std::path::absolute(path)?.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

pub(crate) fn restore(args: &RestoreArgs) -> Result<Done, Failure> {
    let folder = &args.folder;
    let shown = folder.display();
    let work = folder.join(WORK);
    if work.exists() {
        return Err(Failure::Usage(format!("{}: left by an interrupted restore; empty {shown} first", work.display())));
    }
    let is_new = !folder.exists();
    if !is_new && !is_free(folder) {
        return Err(Failure::Usage(format!("{shown}: the folder is not empty; restore into a new one")));
    }
    create_private_dir(&work)
        .map_err(|error| Failure::Usage(format!("{}: {error}; it needs the user of the server", work.display())))?;
    let restored = restore_in(&work, &args.file).and_then(|made| {
        move_all(&work.join(DATA), folder)
            .map_err(|source| Failure::System { what: "moving the restored files", source })?;
        Ok(made)
    });
    // The result is reported; a leftover is named by the next restore.
    _ = fs::remove_dir_all(if is_new && restored.is_err() { folder } else { &work });
    let made = restored?;
    let cluster = format!("{:032x}", made.identity.cluster);
    let answer = json!({
        "cluster_id": cluster,
        "node_id": made.identity.node,
        "last_log_index": made.index,
        "journal_records": made.journal.records,
    });
    output::show(args.json, &answer, |_| {
        format!(
            "{shown} is node {} of the new cluster {cluster}, with {} journal records\n\
             start it: earmark serve --data {shown}\n",
            made.identity.node,
            thousands(made.journal.records.into())
        )
    })?;
    Ok(Done::Ok)
}

/// Whether a folder has at most what a new file system has.
fn is_free(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|entries| entries.flatten().all(|entry| entry.file_name() == "lost+found"))
}

/// Unpacks a backup into a folder and writes the data folder of a new cluster beside it.
fn restore_in(work: &Path, file: &Path) -> Result<Backup, Failure> {
    let backup = work.join("backup");
    create_private_dir(&backup).map_err(|source| Failure::System { what: "making the folder to unpack", source })?;
    unpack(file, &backup)?;
    let disk = |path: &Path| {
        let disk = RealDisk::new(path);
        disk.map(Arc::new).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
    };
    let recovered = recover(disk(&backup)?, disk(&work.join(DATA))?, None);
    Ok(runtime()?.block_on(recovered).map_err(NodeError::from)?)
}

/// Moves everything in a data folder, the identity last: without it no server starts on the folder.
fn move_all(from: &Path, to: &Path) -> io::Result<()> {
    let entries: io::Result<Vec<_>> = fs::read_dir(from)?.map(|entry| Ok(entry?.file_name())).collect();
    let (identity, others): (Vec<_>, Vec<_>) = entries?.into_iter().partition(|name| name == "identity");
    for names in [others, identity] {
        names.iter().try_for_each(|name| fs::rename(from.join(name), to.join(name)))?;
        File::open(to)?.sync_all()?;
    }
    Ok(())
}

fn unpack(file: &Path, folder: &Path) -> Result<Unpacked, Failure> {
    let unreadable = |error: io::Error| Failure::Usage(format!("{}: {error}", file.display()));
    let mut from: Box<dyn Read> = match file == Path::new("-") {
        true => Box::new(io::stdin().lock()),
        false => Box::new(File::open(file).map_err(unreadable)?),
    };
    let wrong = |error: ArchiveError| Failure::Usage(format!("{}: {error}", file.display()));
    let (mut unpacker, mut piece) = (Unpacker::new(Some(folder)), vec![0; PIECE]);
    loop {
        match from.read(&mut piece).map_err(unreadable)? {
            0 => return unpacker.finish().map_err(wrong),
            read => unpacker.feed(piece.get(..read).unwrap_or_default()).map_err(wrong)?,
        }
    }
}
