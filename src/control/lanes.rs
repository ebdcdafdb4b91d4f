//! The numbers of the (server, model) pairs that are counted apart.
//!
//! A pair keeps its number for the life of the process, also when its backend leaves and returns: counters never go back.

use std::collections::HashMap;

use crate::metrics::shard::MAX_LANES;

/// What the pairs beyond [`MAX_LANES`] are shown as, together.
const OTHER: &str = "other";

#[derive(Default)]
pub(super) struct Lanes {
    numbers: HashMap<(String, String), u32>,
    pairs: Vec<(String, String)>,
}

impl Lanes {
    /// The number of this pair; all pairs beyond the last number share it.
    pub(super) fn number(&mut self, server: &str, model: &str) -> u32 {
        if let Some(&number) = self.numbers.get(&(server.to_owned(), model.to_owned())) {
            return number;
        }
        let last = MAX_LANES - 1;
        if self.pairs.len() >= last {
            return last as u32;
        }
        let pair = (server.to_owned(), model.to_owned());
        let number = self.pairs.len() as u32;
        self.pairs.push(pair.clone());
        self.numbers.insert(pair, number);
        number
    }

    /// Server and model of a number.
    pub(super) fn pair(&self, number: u32) -> (&str, &str) {
        self.pairs.get(number as usize).map_or((OTHER, OTHER), |(server, model)| (server, model))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_keeps_its_number_and_the_last_one_is_shared() {
        let mut lanes = Lanes::default();
        assert_eq!((lanes.number("a", ""), lanes.number("a", "m"), lanes.number("a", "")), (0, 1, 0));
        for i in 2..MAX_LANES + 10 {
            assert_eq!(lanes.number("b", &i.to_string()) as usize, i.min(MAX_LANES - 1));
        }
        assert_eq!(lanes.pair(1), ("a", "m"));
        assert_eq!(lanes.pair(MAX_LANES as u32 - 2), ("b", (MAX_LANES - 2).to_string().as_str()));
        assert_eq!(lanes.pair(MAX_LANES as u32 - 1), (OTHER, OTHER));
    }
}
