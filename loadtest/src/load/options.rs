//! The flags of `trieway-loadtest load`.

use clap::Args;

/// What is asked of a server, and how fast.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The server: http://HOST:PORT[/BASE]; chats go to BASE/v1/chat/completions
    #[arg(long, default_value = "http://127.0.0.1:8001")]
    pub url: String,
    /// Conversations, each with a first message of its own
    #[arg(long, default_value_t = 20, value_name = "COUNT")]
    pub conversations: usize,
    /// Turns of each; a turn sends all that was said before, the server's own answers included
    #[arg(long, default_value_t = 5, value_name = "COUNT", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub turns: usize,
    /// Replay these conversations' own messages instead (JSON, such as tau-bench's); --conversations bounds how many
    #[arg(long, value_name = "FILE")]
    pub transcripts: Option<String>,
    /// System prompt, the same in all conversations; 0: none
    #[arg(long, default_value_t = 2000, value_name = "BYTES")]
    pub system_bytes: usize,
    /// Message of the user in each turn
    #[arg(long, default_value_t = 500, value_name = "BYTES")]
    pub turn_bytes: usize,
    /// Conversation starts per second, at random instants (Poisson); 0: all at once
    #[arg(long, default_value_t = 5.0, value_name = "PER_SECOND")]
    pub rate: f64,
    /// Conversations under way at most; the next begins when one has ended (closed loop: a slow server then sees less load)
    #[arg(long, value_name = "COUNT", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub at_once: Option<usize>,
    /// Mean pause between an answer and the next turn; each pause is between half and one and a half of it
    #[arg(long, default_value_t = 500, value_name = "MS")]
    pub think_ms: u64,
    /// Requests under way at most; one that has to wait for another counts the wait
    #[arg(long, default_value_t = 1024, value_name = "COUNT", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub concurrency: usize,
    /// Ask for streamed answers (the default)
    #[arg(long, overrides_with = "no_stream")]
    pub stream: bool,
    /// Ask for whole answers
    #[arg(long)]
    pub no_stream: bool,
    /// Length of each answer
    #[arg(long, default_value_t = 32, value_name = "TOKENS")]
    pub max_tokens: u64,
    /// Model to ask for
    #[arg(long, default_value = "fake-llm", value_name = "NAME")]
    pub model: String,
    /// Sent as Authorization: Bearer KEY
    #[arg(long, env = "LOADTEST_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<String>,
    /// A further request field, as 'Name: value'; may be repeated
    #[arg(long, value_name = "FIELD")]
    pub header: Vec<String>,
    /// Texts, arrivals and pauses are the same for the same seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A request that takes longer has failed
    #[arg(long, default_value_t = 120.0, value_name = "SECONDS")]
    pub timeout_s: f64,
    /// How many engines there are, for the spread of load; left out: those that answered
    #[arg(long, value_name = "COUNT")]
    pub engines: Option<usize>,
    /// Also write the report as JSON; -: to stdout, in place of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    /// Exit code 0 even when requests failed
    #[arg(long)]
    pub allow_errors: bool,
}
