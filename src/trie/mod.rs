//! The lock-free hash trie from prompt prefixes to backends; no IO.
