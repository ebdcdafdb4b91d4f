//! The flags of `trieway top`.

use std::time::Duration;

use clap::Parser;

use super::cli::text_of;
use super::{BackendUrl, ConfigError, Failure, Secret};

/// Which router to look at, and how often.
pub struct TopOptions {
    pub url: BackendUrl,
    pub interval: Duration,
    pub api_key: Option<Secret>,
}

/// Shows what a running router does, live in the terminal
#[derive(Parser)]
#[command(name = "trieway top", version)]
struct Args {
    /// The router, http://host:port
    #[arg(long, default_value = "http://127.0.0.1:8001", value_parser = BackendUrl::parse)]
    url: BackendUrl,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,
    /// The router's --api-key, if it has one
    #[arg(long, env = "TRIEWAY_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<Secret>,
}

/// The options of a command line that begins with `trieway top`; `None` for every other one.
pub fn top_from_args(args: &[String]) -> Option<Result<TopOptions, Failure>> {
    let rest = args.get(2..).filter(|_| args[1] == "top")?;
    let parsed = Args::try_parse_from(std::iter::once("trieway top").chain(rest.iter().map(String::as_str)));
    Some(match parsed {
        Ok(Args { url, interval, api_key }) => Ok(TopOptions { url, interval: Duration::from_secs(interval), api_key }),
        Err(mut error) if error.use_stderr() => {
            let text = text_of(&mut error);
            let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            Err(Failure::Refuse(ConfigError::new(&line)))
        }
        Err(error) => Err(Failure::Print(error.to_string())),
    })
}
