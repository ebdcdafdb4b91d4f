//! How many client connections the process's limit of open files carries.
//!
//! A connection whose request runs needs two descriptors, its own and one to a backend. Were all of them given to clients,
//! nobody could be served: so at most half of what is left for connections goes to clients.

use crate::config::Config;

/// Descriptors for the control plane, logs and what else a process has open.
const RESERVE: u64 = 64;
/// A worker's listening socket, its ring or epoll set, and what its runtime adds.
const A_WORKER: u64 = 4;

/// Lowers `--max-connections` to what a limit of `descriptors` carries, and says so.
pub fn fit(config: &mut Config, descriptors: u64) -> Option<String> {
    let wanted = config.max_connections;
    let taken = RESERVE + A_WORKER * config.workers as u64 + config.backends.len() as u64;
    let carried = usize::try_from(descriptors.saturating_sub(taken) / 2).unwrap_or(usize::MAX).max(1);
    if carried >= wanted {
        return None;
    }
    config.max_connections = carried;
    Some(format!(
        "--max-connections is {carried} and not {wanted}: the limit of open files, {descriptors}, carries no more (ulimit -n)"
    ))
}

#[cfg(test)]
mod tests {
    use super::fit;
    use crate::config::from_args;

    #[test]
    fn clients_get_half_of_what_is_left_and_never_more_than_was_asked_for() {
        let args = ["trieway", "--static-backends", "http://a:1", "--workers", "2", "--max-connections", "1000"]
            .map(str::to_owned);
        for (descriptors, connections) in [(u64::MAX, 1000), (2073, 1000), (2071, 999), (256, 91), (10, 1)] {
            let mut config = from_args(&args).expect("valid");
            let said = fit(&mut config, descriptors);
            assert_eq!((config.max_connections, said.is_some()), (connections, connections < 1000), "{descriptors}");
        }
    }
}
