//! Namespaces by number.
//!
//! A namespace exists as long as it has a run of blocks: clients choose salts, so the number of
//! past namespaces must not cost memory.

use std::{collections::HashMap, fmt::Write, sync::Arc};

use kv_blocks::{Namespace, PromptIdentity, SequenceHash};
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::Xxh3;

/// Number of a namespace while it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NamespaceId(u32);

/// A namespace in the form that runs use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunNamespace {
    pub(crate) key: u64,
    pub(crate) id: NamespaceId,
}

/// A namespace in use.
#[derive(Debug)]
pub(crate) struct NamespaceEntry {
    pub(crate) namespace: Arc<Namespace>,
    /// Its key in this index.
    key: u64,
    /// Digest, equal on every machine.
    pub(crate) digest: u64,
    pub(crate) salt_digest: Option<Arc<str>>,
    uses: u64,
    bytes: u64,
}

/// All namespaces in use.
#[derive(Debug)]
pub(crate) struct NamespaceTable {
    /// Makes keys unpredictable.
    secret: u64,
    by_namespace: HashMap<Arc<Namespace>, NamespaceId>,
    slots: Vec<Option<NamespaceEntry>>,
    free: Vec<u32>,
    bytes: u64,
}

impl NamespaceTable {
    /// Creates an empty table.
    pub(crate) fn new(secret: u64) -> Self {
        Self {
            secret,
            by_namespace: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            bytes: 0,
        }
    }

    pub(crate) fn find(&self, namespace: &Namespace) -> Option<NamespaceId> {
        self.by_namespace.get(namespace).copied()
    }

    pub(crate) fn get(&self, id: NamespaceId) -> &NamespaceEntry {
        self.slots[id.0 as usize]
            .as_ref()
            .expect("a number in use belongs to a namespace in use")
    }

    /// Returns a namespace in use in the form that runs use.
    pub(crate) fn in_runs(&self, id: NamespaceId) -> RunNamespace {
        let key = self.get(id).key;
        RunNamespace { key, id }
    }

    /// Adds one use of a namespace, which the caller removes later.
    pub(crate) fn enter(&mut self, namespace: &Namespace) -> RunNamespace {
        let id = match self.find(namespace) {
            Some(id) => {
                self.add_use(id);
                id
            }
            None => self.add(namespace),
        };
        self.in_runs(id)
    }

    /// Adds a namespace with one use.
    fn add(&mut self, namespace: &Namespace) -> NamespaceId {
        let namespace = Arc::new(namespace.clone());
        let names = namespace.model.len() + length(&namespace.lora) + length(&namespace.salt);
        let bytes = 256 + names as u64;
        let space = NamespaceEntry {
            key: key(&namespace, self.secret),
            digest: digest(&namespace),
            salt_digest: namespace.salt.as_deref().map(salt_digest),
            namespace: Arc::clone(&namespace),
            uses: 1,
            bytes,
        };
        let id = if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(space);
            NamespaceId(slot)
        } else {
            let slot = u32::try_from(self.slots.len())
                .expect("the memory budget allows fewer namespaces than that");
            self.slots.push(Some(space));
            NamespaceId(slot)
        };
        self.bytes += bytes;
        self.by_namespace.insert(namespace, id);
        id
    }

    /// Adds one use.
    pub(crate) fn add_use(&mut self, id: NamespaceId) {
        self.slots[id.0 as usize]
            .as_mut()
            .expect("only a namespace in use gets another use")
            .uses += 1;
    }

    /// Removes one use; the last one ends the namespace.
    pub(crate) fn release(&mut self, id: NamespaceId) {
        let slot = &mut self.slots[id.0 as usize];
        let space = slot.as_mut().expect("as many uses end as began");
        space.uses -= 1;
        if space.uses == 0 {
            self.bytes -= space.bytes;
            self.by_namespace.remove(&space.namespace);
            *slot = None;
            self.free.push(id.0);
        }
    }

    /// Returns all namespaces in use, with their use counts.
    #[cfg(test)]
    pub(crate) fn uses(&self) -> std::collections::BTreeMap<NamespaceId, u64> {
        self.by_namespace
            .values()
            .map(|id| (*id, self.get(*id).uses))
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_namespace.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn length(text: &Option<Arc<str>>) -> usize {
    text.as_ref().map_or(0, |text| text.len())
}

/// Returns a namespace's key, which cannot be predicted without `secret`.
pub(crate) fn key(namespace: &Namespace, secret: u64) -> u64 {
    let mut hash = Xxh3::with_seed(secret);
    feed(namespace, |bytes| hash.update(bytes));
    hash.digest()
}

fn digest(namespace: &Namespace) -> u64 {
    let mut hash = Xxh3::new();
    feed(namespace, |bytes| hash.update(bytes));
    hash.digest()
}

fn feed(namespace: &Namespace, mut take: impl FnMut(&[u8])) {
    for part in [
        Some(&namespace.model),
        namespace.lora.as_ref(),
        namespace.salt.as_ref(),
    ] {
        // The length in front, plus one for a part that exists, separates the parts.
        take(&part.map_or(0, |part| part.len() as u64 + 1).to_le_bytes());
        take(part.map_or(&b""[..], |part| part.as_bytes()));
    }
    take(&namespace.block_size.tokens().to_le_bytes());
    take(&[match namespace.identity {
        PromptIdentity::Tokens => 0,
        PromptIdentity::TextPrefix => 1,
    }]);
}

/// Returns the shown form of a block's hash. In a namespace with a salt it is keyed by the salt:
/// the first 8 bytes, big-endian, of SHA-256 over the salt's length (8 bytes, little-endian), the
/// salt, and the hash (8 bytes, little-endian). A reader who does not know the salt cannot look up
/// the hash of guessed tokens; a tenant's salt is secret only with `tenants.salt_secret_file`.
pub fn shown_hash(namespace: &Namespace, hash: SequenceHash) -> SequenceHash {
    let Some(salt) = &namespace.salt else {
        return hash;
    };
    let digest = Sha256::new()
        .chain_update((salt.len() as u64).to_le_bytes())
        .chain_update(salt.as_bytes())
        .chain_update(hash.0.to_le_bytes())
        .finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    SequenceHash(u64::from_be_bytes(first))
}

/// Returns the shown form of a salt, 16 hex digits: the salt itself is a secret between a tenant
/// and the engines.
pub fn salt_digest(salt: &str) -> Arc<str> {
    let mut hex = String::new();
    for byte in &Sha256::digest(salt.as_bytes())[..8] {
        write!(hex, "{byte:02x}").expect("writing to memory does not fail");
    }
    hex.into()
}
