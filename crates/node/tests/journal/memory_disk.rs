//! A disk in memory that forgets what was not synced, and refuses what it is told to.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use earmark_node::{Disk, DiskFile};
use rand::Rng;
use rand::rngs::StdRng;

#[derive(Debug, Default)]
pub struct MemoryDisk {
    names: Mutex<Names>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Names {
    live: BTreeMap<String, Arc<MemoryFile>>,
    synced: BTreeMap<String, Arc<MemoryFile>>,
}

#[derive(Debug, Default)]
struct Counts {
    read_bytes: AtomicU64,
    /// How many changes succeed before one fails, and all after it; 0 for no failure.
    changes_left: AtomicU64,
    /// What happens once, in the middle of the next read.
    meanwhile: Meanwhile,
}

#[derive(Default)]
struct Meanwhile(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Counts {
    fn change(&self) -> io::Result<()> {
        match self.changes_left.load(Ordering::Relaxed) {
            0 => Ok(()),
            1 => Err(io::Error::from(io::ErrorKind::StorageFull)),
            left => {
                self.changes_left.store(left - 1, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

#[derive(Debug)]
struct MemoryFile {
    contents: Mutex<Contents>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Contents {
    live: Vec<u8>,
    synced: Vec<u8>,
}

impl MemoryDisk {
    pub fn new() -> Arc<MemoryDisk> {
        Arc::new(MemoryDisk::default())
    }

    /// All files as they are now, by name.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let names = self.names.lock().unwrap();
        let each = |(name, file): (&String, &Arc<MemoryFile>)| {
            (name.clone(), file.contents.lock().unwrap().live.clone())
        };
        names.live.iter().map(each).collect()
    }

    /// A disk with these files.
    pub fn of(files: &BTreeMap<String, Vec<u8>>) -> Arc<MemoryDisk> {
        let disk = MemoryDisk::default();
        for (name, bytes) in files {
            let contents = Mutex::new(Contents { live: bytes.clone(), synced: bytes.clone() });
            let file = Arc::new(MemoryFile { contents, counts: Arc::clone(&disk.counts) });
            disk.names.lock().unwrap().live.insert(name.clone(), Arc::clone(&file));
            disk.names.lock().unwrap().synced.insert(name.clone(), file);
        }
        Arc::new(disk)
    }

    /// The disk as a power cut may leave it: of what was not synced, any part is there.
    pub fn crash(&self, random: &mut StdRng) -> Arc<MemoryDisk> {
        let names = self.names.lock().unwrap();
        let mut all: Vec<&String> = names.live.keys().chain(names.synced.keys()).collect();
        all.sort_unstable();
        all.dedup();
        let mut files = BTreeMap::new();
        for name in all {
            let (live, synced) = (names.live.get(name), names.synced.get(name));
            let is_same = live.zip(synced).is_some_and(|(live, synced)| Arc::ptr_eq(live, synced));
            let file = if is_same || random.r#gen() { live } else { synced };
            if let Some(file) = file {
                files.insert(name.clone(), file.contents.lock().unwrap().crash(random));
            }
        }
        MemoryDisk::of(&files)
    }

    /// Lets so many more changes succeed.
    pub fn fail_after(&self, changes: u64) {
        self.counts.changes_left.store(changes + 1, Ordering::Relaxed);
    }

    /// Does something in the middle of the next read.
    pub fn meanwhile(&self, what: impl FnOnce() + Send + 'static) {
        *self.counts.meanwhile.0.lock().unwrap() = Some(Box::new(what));
    }

    pub fn read_bytes(&self) -> u64 {
        self.counts.read_bytes.load(Ordering::Relaxed)
    }
}

impl Contents {
    fn crash(&self, random: &mut StdRng) -> Vec<u8> {
        let shared = self.synced.iter().zip(&self.live).take_while(|(synced, live)| synced == live).count();
        match random.gen_range(0..4) {
            0 => self.synced.clone(),
            1 => self.live.clone(),
            2 => self.live[..random.gen_range(shared..=self.live.len())].to_vec(),
            _ => {
                // The length reached the disk and the bytes did not.
                let mut bytes = self.live.clone();
                let from = random.gen_range(shared..=bytes.len());
                bytes[from..].fill(0);
                bytes
            }
        }
    }
}

impl Disk for MemoryDisk {
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn DiskFile>> {
        let mut names = self.names.lock().unwrap();
        if let Some(file) = names.live.get(path) {
            return Ok(Arc::clone(file) as Arc<dyn DiskFile>);
        }
        if !create {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        self.counts.change()?;
        let file = Arc::new(MemoryFile { contents: Mutex::default(), counts: Arc::clone(&self.counts) });
        names.live.insert(path.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn create_dir(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let prefix = format!("{path}/");
        let names = self.names.lock().unwrap();
        Ok(names.live.keys().filter_map(|name| name.strip_prefix(&prefix)).map(str::to_owned).collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.counts.change()?;
        let mut names = self.names.lock().unwrap();
        let file = names.live.remove(from).ok_or(io::ErrorKind::NotFound)?;
        names.live.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.counts.change()?;
        self.names.lock().unwrap().live.remove(path).map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, _path: &str) -> io::Result<()> {
        self.counts.change()?;
        let mut names = self.names.lock().unwrap();
        names.synced = names.live.clone();
        Ok(())
    }

    fn offload(&self, work: Box<dyn FnOnce() + Send>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move { work() })
    }

    fn show(&self, path: &str) -> String {
        format!("/data/{path}")
    }
}

impl DiskFile for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let meanwhile = self.counts.meanwhile.0.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        let contents = self.contents.lock().unwrap();
        let from = usize::try_from(offset).unwrap();
        let bytes = contents.live.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        self.counts.read_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut contents = self.contents.lock().unwrap();
        let from = usize::try_from(offset).unwrap();
        // A disk that is full takes a part.
        let (bytes, result) = match self.counts.change() {
            Ok(()) => (bytes, Ok(())),
            Err(error) => (&bytes[..bytes.len() / 2], Err(error)),
        };
        let len = contents.live.len().max(from + bytes.len());
        contents.live.resize(len, 0);
        contents.live[from..from + bytes.len()].copy_from_slice(bytes);
        result
    }

    fn sync(&self) -> io::Result<()> {
        self.counts.change()?;
        let mut contents = self.contents.lock().unwrap();
        contents.synced = contents.live.clone();
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.counts.change()?;
        self.contents.lock().unwrap().live.resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.contents.lock().unwrap().live.len() as u64)
    }
}
