//! Another configuration while the router runs: a dynamic file that changed, or SIGHUP.
//!
//! What is valid is put into force as a whole: one swap of the snapshot, by which the trie, the counters, every backend that
//! stays and every running stream are left as they are. What is not is refused as a whole, with a line that says what and
//! where.
//!
//! The file's contents are compared, not its times: so a replaced file, a swapped link (as Kubernetes does it), and a clock
//! that was set back are all seen, and a file that was only touched is not.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::plane::Plane;
use crate::config::{Config, ConfigError, Failure, Source};

/// Between two looks at the files.
const EVERY: Duration = Duration::from_secs(1);
/// A file that changed is read again after this long, until it says the same twice: it may be half written.
const SETTLE: Duration = Duration::from_millis(50);
const MOST_READS: u32 = 20;

/// What the files were at a look; the line is why they could not be read.
type Look = Result<Source, ConfigError>;

/// The SIGHUPs of this process. From here on they no longer end it.
pub(super) fn hangups() -> Option<Signal> {
    signal(SignalKind::hangup())
        .inspect_err(|error| tracing::error!("SIGHUP will end the process, it cannot be handled: {error}"))
        .ok()
}

pub(super) async fn run(plane: Arc<Plane>, mut hangups: Option<Signal>) {
    let mut in_force = plane.shared.config.source.clone();
    let mut seen = Ok(in_force.clone());
    loop {
        let asked = tokio::select! {
            () = tokio::time::sleep(EVERY) => false,
            () = next(&mut hangups) => true,
        };
        if !asked && !in_force.is_dynamic() {
            continue;
        }
        let look = settled(&in_force, &seen, asked).await;
        if look == seen && !asked {
            continue;
        }
        seen = look.clone();
        let wanted = look.and_then(|source| source.config().map_err(error));
        match wanted.and_then(|config| same_discovery(&plane, config)) {
            Ok(config) => {
                tell_fixed(&in_force, &config.source);
                in_force = config.source.clone();
                let generation = plane.configure(&config);
                tracing::info!("configuration {generation} is in force: {}", summary(&config));
            }
            Err(why) => {
                tracing::error!("the configuration stays as it is: {why}");
                plane.refuse(why);
            }
        }
    }
}

async fn next(hangups: &mut Option<Signal>) {
    if let Some(signal) = hangups
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// The files as they are once they have stopped changing.
async fn settled(source: &Source, seen: &Look, asked: bool) -> Look {
    let mut look = read(source).await;
    if look == *seen && !asked {
        return look;
    }
    for _ in 0..MOST_READS {
        tokio::time::sleep(SETTLE).await;
        let later = read(source).await;
        if later == look {
            break;
        }
        look = later;
    }
    look
}

/// On a thread that may wait: the file may be on a server.
async fn read(source: &Source) -> Look {
    let source = source.clone();
    let read = tokio::task::spawn_blocking(move || source.again()).await;
    read.unwrap_or_else(|error| Err(ConfigError::new(&format!("the files cannot be read: {error}"))))
}

/// Whoever finds the backends was started with the process.
fn same_discovery(plane: &Plane, config: Config) -> Result<Config, ConfigError> {
    if config.kubernetes == plane.shared.config.kubernetes {
        Ok(config)
    } else {
        Err(ConfigError::new("--service-discovery and the --k8s flags are in force only after a restart"))
    }
}

fn error(failure: Failure) -> ConfigError {
    match failure {
        Failure::Print(text) => ConfigError::new(&text),
        Failure::Refuse(error) => error,
    }
}

fn tell_fixed(before: &Source, after: &Source) {
    let keys = before.differs_for_good(after);
    if !keys.is_empty() {
        tracing::warn!("these keys are in force only after a restart: {}", keys.join(", "));
    }
}

fn summary(config: &Config) -> String {
    let backends = config.backends.len();
    let plural = if backends == 1 { "" } else { "s" };
    format!("{backends} backend{plural}, policy {}", config.routing.policy.as_str())
}
