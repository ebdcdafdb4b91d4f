//! The trie beside its rivals, on the same calls in the same process, with the answers asserted.
//!
//! `cargo bench --bench trie [-- SECTION ...]`, sections: calls share sizes memory quiet churn raise bound. Text calls come from
//! TRIEWAY_TRACES/tau_bench_airline.json; without it synthetic conversations of the same shape take their place.
//! README.md says what each figure means.

#[path = "trie_bench/engines.rs"]
mod engines;
#[path = "trie_bench/measure.rs"]
mod measure;
#[path = "trie_bench/rivals.rs"]
mod rivals;
#[path = "trie_bench/sections.rs"]
mod sections;
#[path = "trie_bench/share.rs"]
mod share;
#[path = "trie_bench/workload.rs"]
mod workload;

#[global_allocator]
static ALLOCATOR: measure::Counting = measure::Counting;

const SECTIONS: [(&str, fn()); 8] = [
    ("calls", sections::calls),
    ("share", share::share),
    ("sizes", sections::sizes),
    ("memory", sections::memory),
    ("quiet", sections::quiet),
    ("churn", sections::churn),
    ("raise", sections::raise),
    ("bound", sections::bound),
];

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let [child, engine, copies, distinct] = &asked[..]
        && child == "memory-of"
    {
        let number = |word: &String| word.parse().expect("a number");
        return sections::memory_of(engine, number(copies), number(distinct));
    }
    if asked.len() == 1 && asked[0] == "bound-alone" {
        return sections::bound_alone();
    }
    for (name, section) in SECTIONS {
        if asked.is_empty() || asked.iter().any(|word| word == name) {
            println!("\n## {name}");
            section();
        }
    }
}
