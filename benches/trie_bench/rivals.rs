//! The published indexes: smg's `kv-index` and NVIDIA Dynamo's `dynamo-kv-router`.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use dynamo_kv_router::indexer::concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheStoreData, KvCacheStoredBlockData,
    LocalBlockHash, RouterEvent,
};
use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock, StringTree};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::engines::{Index, Scratch};
use crate::workload::{BACKENDS, CHUNK, Call, chain};

/// smg's tree of texts: match and insert in one walk, no hashing.
pub struct Strings {
    tree: StringTree,
    tenants: Vec<String>,
}

impl Strings {
    pub fn new() -> Strings {
        let tenants = (0..BACKENDS).map(|slot| format!("http://backend-{slot}:8000")).collect();
        Strings { tree: StringTree::new(), tenants }
    }
}

impl Index for Strings {
    fn prime(&self, call: &Call, scratch: &mut Scratch) {
        self.call(call, scratch);
    }

    fn call(&self, call: &Call, _: &mut Scratch) -> usize {
        let tenant = &self.tenants[usize::from(call.backend)];
        self.tree.match_and_insert(&call.text, tenant).matched_char_count
    }

    fn in_chunks(&self) -> bool {
        false
    }
}

/// The hashes of each chunk by itself, which is what the event-fed indexes take.
fn contents(text: &str, hashes: &mut Vec<u64>) {
    hashes.clear();
    hashes.extend(text.as_bytes().chunks_exact(CHUNK).map(|chunk| xxh3_64_with_seed(chunk, kv_index::XXH3_SEED)));
}

/// The same as `kv-index` itself makes them from token ids; four bytes stand for a token.
fn own_contents(text: &str, hashes: &mut Vec<u64>) {
    let token = |word: &[u8]| u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    let tokens: Vec<u32> = text.as_bytes().chunks_exact(4).map(token).collect();
    hashes.clear();
    hashes.extend(kv_index::compute_request_content_hashes(&tokens, CHUNK / 4).into_iter().map(|hash| hash.0));
}

/// smg's index of block chains, fed by the engines' events: a call hashes and looks up.
pub struct Chains {
    contents: fn(&str, &mut Vec<u64>),
    index: ChainIndex,
    workers: Vec<(u32, Mutex<ChainBlockMap>)>,
}

impl Chains {
    pub fn new(contents: fn(&str, &mut Vec<u64>)) -> Chains {
        let index = ChainIndex::new();
        let worker = |slot| index.intern_worker(&format!("http://backend-{slot}:8000")).expect("few workers");
        let workers = (0..BACKENDS).map(|slot| (worker(slot), Mutex::new(ChainBlockMap::new()))).collect();
        Chains { contents, index, workers }
    }
}

impl Index for Chains {
    fn prime(&self, call: &Call, scratch: &mut Scratch) {
        let mut sequence = Vec::new();
        chain(call.text.as_bytes(), &mut sequence);
        (self.contents)(&call.text, &mut scratch.key);
        let block = |(&content, &sequence)| StoredBlock {
            seq_hash: SequenceHash(sequence),
            content_hash: ContentHash(content),
        };
        let blocks: Vec<StoredBlock> = scratch.key.iter().zip(&sequence).map(block).collect();
        let (worker, map) = &self.workers[usize::from(call.backend)];
        let mut map = map.lock().expect("no panic under the lock");
        self.index.apply_stored(*worker, &blocks, None, &mut map).expect("a chain from the root");
    }

    fn call(&self, call: &Call, scratch: &mut Scratch) -> usize {
        (self.contents)(&call.text, &mut scratch.key);
        let mut longest = 0;
        self.index.score_into(&scratch.key, |&hash| hash, false, |_, blocks| longest = longest.max(blocks));
        longest as usize * CHUNK
    }

    fn inserts(&self) -> bool {
        false
    }
}

/// Dynamo's concurrent compressed radix tree, fed through its own event thread: a call hashes and looks up.
pub struct Dynamo {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    feed: Mutex<Option<(flume::Sender<WorkerTask>, JoinHandle<()>)>>,
}

impl Dynamo {
    pub fn new() -> Dynamo {
        let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
        let (events, inbox) = flume::unbounded();
        let shared = tree.clone();
        let writer = std::thread::spawn(move || shared.worker(inbox, None).expect("the event thread ends well"));
        Dynamo { tree, feed: Mutex::new(Some((events, writer))) }
    }
}

impl Index for Dynamo {
    fn prime(&self, call: &Call, scratch: &mut Scratch) {
        let mut sequence = Vec::new();
        chain(call.text.as_bytes(), &mut sequence);
        contents(&call.text, &mut scratch.key);
        let block = |(&content, &sequence)| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(sequence),
            tokens_hash: LocalBlockHash(content),
            mm_extra_info: None,
        };
        let blocks = scratch.key.iter().zip(&sequence).map(block).collect();
        let data = KvCacheEventData::Stored(KvCacheStoreData { parent_hash: None, start_position: None, blocks });
        let event = RouterEvent::new(u64::from(call.backend), KvCacheEvent { event_id: 0, data, dp_rank: 0 });
        let feed = self.feed.lock().expect("no panic under the lock");
        let (events, _) = feed.as_ref().expect("priming comes before settling");
        events.send(WorkerTask::Event(event)).expect("the event thread lives");
    }

    fn call(&self, call: &Call, scratch: &mut Scratch) -> usize {
        contents(&call.text, &mut scratch.key);
        let sequence: Vec<LocalBlockHash> = scratch.key.iter().map(|&hash| LocalBlockHash(hash)).collect();
        let scores = self.tree.find_matches(&sequence, false).scores;
        scores.values().copied().max().unwrap_or(0) as usize * CHUNK
    }

    fn settle(&self) {
        let feed = self.feed.lock().expect("no panic under the lock").take();
        if let Some((events, writer)) = feed {
            drop(events);
            writer.join().expect("the event thread ends well");
        }
    }

    fn inserts(&self) -> bool {
        false
    }
}

pub type Rival = (&'static str, fn() -> Box<dyn Index>);

/// Every rival by its name.
pub const RIVALS: [Rival; 6] = [
    ("smg StringTree", || Box::new(Strings::new())),
    ("smg ChainIndex", || Box::new(Chains::new(own_contents))),
    ("smg ChainIndex, bytes", || Box::new(Chains::new(contents))),
    ("Dynamo compressed tree", || Box::new(Dynamo::new())),
    ("sharded RwLock map", || Box::new(crate::engines::ShardedMap::new())),
    ("production-stack HashTrie", || Box::new(crate::engines::PlainTrie::new())),
];
