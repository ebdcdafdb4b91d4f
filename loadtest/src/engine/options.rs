//! The flags of `trieway-loadtest engine`.

use clap::Args;

use super::faults::{self, Fault};

/// What the engines of one process are like.
#[derive(Args, Clone, Debug)]
#[command(after_help = faults::help())]
pub struct Options {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: std::net::IpAddr,
    /// One engine for each port, comma-separated; 0: any free port. The ports are printed on stdout, one a line
    #[arg(long, visible_alias = "ports", value_delimiter = ',', value_name = "PORT,…")]
    pub port: Vec<u16>,
    /// One engine for each port of a range, as 9001-9004
    #[arg(long, value_name = "FIRST-LAST", value_parser = port_range)]
    pub port_range: Option<(u16, u16)>,
    /// Threads to spread the engines over
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Models served, comma-separated; a request without model gets the first
    #[arg(long, value_delimiter = ',', default_value = "fake-llm", value_name = "NAME,…")]
    pub model: Vec<String>,
    /// Capacity of the KV cache of each engine, in tokens
    #[arg(long, default_value_t = 20_000_000, value_name = "TOKENS")]
    pub kv_tokens: usize,
    /// Tokens in a block of the KV cache; a token is 4 bytes of prompt text
    #[arg(long, default_value_t = 16, value_name = "TOKENS", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub block_tokens: usize,
    /// Speed of computing a prompt's tokens that are not cached, one prompt after another; 0: at once
    #[arg(long, default_value_t = 0.0, value_name = "RATE")]
    pub prefill_tokens_per_s: f64,
    /// Speed of each answer; 0: at once
    #[arg(long, default_value_t = 0.0, value_name = "RATE")]
    pub decode_tokens_per_s: f64,
    /// Requests that prefill or decode at once, the rest wait; 0: no limit
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    pub max_running: usize,
    /// Tokens of an answer whose request has no max_tokens
    #[arg(long, default_value_t = 16, value_name = "TOKENS")]
    pub default_max_tokens: u64,
    /// Send a stream's head with its first token; otherwise at once, as vLLM does
    #[arg(long)]
    pub late_head: bool,
    /// Close connections that are idle for so long, as uvicorn does
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS")]
    pub keep_alive_s: f64,
    /// Misbehave on every POST below /v1 (the request header X-Fault wins)
    #[arg(long, value_name = "FAULT")]
    pub fault: Option<Fault>,
    /// Misbehave only on every Nth of those requests
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub fault_every: u64,
    /// Misbehave on every path but /debug, health and metrics included
    #[arg(long)]
    pub fault_all: bool,
    /// Stop by itself
    #[arg(long, value_name = "SECONDS")]
    pub stop_after: Option<f64>,
    /// Stop when the process that started this one ends
    #[arg(long)]
    pub die_with_parent: bool,
}

impl Options {
    /// The ports that were asked for.
    pub(crate) fn ports(&self) -> Result<Vec<u16>, String> {
        let mut ports = self.port.clone();
        if let Some((first, last)) = self.port_range {
            ports.extend(first..=last);
        }
        if ports.is_empty() {
            return Err("name a port: --port 9001, --ports 9001,9002, --port-range 9001-9004 or --port 0".into());
        }
        Ok(ports)
    }
}

fn port_range(text: &str) -> Result<(u16, u16), String> {
    let wrong = || format!("{text:?} is not a range of ports like 9001-9004");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let (first, last) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
    if first == 0 || first > last { Err(wrong()) } else { Ok((first, last)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_goes_up() {
        assert_eq!(port_range("9001-9004"), Ok((9001, 9004)));
        for wrong in ["9001", "9004-9001", "0-3", "1-70000", "a-b"] {
            assert!(port_range(wrong).is_err(), "{wrong}");
        }
    }
}
