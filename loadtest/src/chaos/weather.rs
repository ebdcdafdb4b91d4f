//! What happens to the engines and to the router's own process while clients talk to it.
//!
//! The first engine is always well, but for moments in which all are gone; the others stall, break, die and come back.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::wire::{Pace, Wire};
use super::{Random, Shared};

/// How an engine may be, each as likely as the others. `none` is well.
const FAULTS: &[&str] = &[
    "none",
    "none",
    "none",
    "hang",
    "hang-after-head",
    "reset-before-head",
    "fin-before-head",
    "reset-after=2",
    "fin-in-chunk",
    "short-length",
    "bad-chunk",
    "slow-bytes=1",
    "delay=300",
    "surplus",
    "close",
    "status=500",
    "refuse",
    "deaf",
];

/// All engines are gone for so long.
const BLACKOUT: Duration = Duration::from_millis(1_500);
const TAKES_OVER_WITHIN: Duration = Duration::from_secs(30);

/// The engines, and the configuration that names them.
pub(super) struct Engines {
    pub(super) ports: Vec<u16>,
    /// An engine that no client is sent to, by which the others get their faults.
    pub(super) door: u16,
    pub(super) config: PathBuf,
}

#[derive(Debug, Default)]
pub(super) struct Happened {
    pub(super) faults: u64,
    pub(super) restarts: u64,
    pub(super) blackouts: u64,
    pub(super) reloads: u64,
    pub(super) takeovers: u64,
}

impl Engines {
    /// Writes the configuration with these engines.
    pub(super) fn write_config(&self, ports: &[u16]) -> Result<(), String> {
        let list: String = ports.iter().map(|port| format!("  - http://127.0.0.1:{port}\n")).collect();
        let aside = self.config.with_extension("aside");
        fs::write(&aside, format!("static_backends:\n{list}"))
            .and_then(|()| fs::rename(&aside, &self.config))
            .map_err(|error| format!("{}: {error}", self.config.display()))
    }

    /// Gives an engine a fault, or makes it well by `none`.
    pub(super) async fn set(&self, port: u16, fault: &str) -> Result<(), String> {
        self.order(self.door, &format!("/debug/fault?set={fault}&port={port}")).await.map(drop)
    }

    /// What an engine has counted; the engine must be well.
    pub(super) async fn count(&self, port: u16, name: &str) -> Result<u64, String> {
        let text = self.ask(port, "GET", "/debug/requests").await?;
        let journal: serde_json::Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        journal[name].as_u64().ok_or_else(|| format!("engine {port} does not count {name}"))
    }

    async fn order(&self, port: u16, path: &str) -> Result<Vec<u8>, String> {
        self.ask(port, "POST", path).await
    }

    async fn ask(&self, port: u16, method: &str, path: &str) -> Result<Vec<u8>, String> {
        let wrong = |why: &str| format!("engine {port}, {method} {path}: {why}");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut wire = Wire::connect(address).await.map_err(|error| wrong(&error.to_string()))?;
        let request = format!("{method} {path} HTTP/1.1\r\nHost: e\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        wire.send(request.as_bytes()).await;
        let answer = wire.answer(Pace::FAST).await.map_err(|ended| wrong(&ended.to_string()))?;
        if answer.status == 200 { Ok(answer.body) } else { Err(wrong(&answer.head)) }
    }

    pub(super) async fn all_well(&self) -> Result<(), String> {
        for port in &self.ports {
            self.set(*port, "none").await?;
        }
        self.write_config(&self.ports)
    }
}

/// Changes the weather about once a second until the time is over. Errors: something that is no fault of the router's.
pub(super) async fn change(shared: &Shared, seed: u64) -> Result<Happened, String> {
    let mut random = Random(seed ^ 0x5745_4154);
    let mut happened = Happened::default();
    let engines = &shared.engines;
    let (mut next_blackout, mut next_takeover) = (8, 4);
    for second in 0_u64.. {
        if shared.over() {
            break;
        }
        let port = engines.ports[1 + random.below(engines.ports.len() - 1)];
        let fault = random.one_of(FAULTS);
        engines.set(port, fault).await?;
        happened.faults += u64::from(fault != "none");
        if random.below(5) == 0 {
            engines.order(engines.ports[0], "/debug/restart").await?;
            happened.restarts += 1;
        }
        if random.below(5) == 0 {
            let keep = |port: &&u16| **port == engines.ports[0] || random.below(4) > 0;
            let ports: Vec<u16> = engines.ports.iter().filter(keep).copied().collect();
            engines.write_config(&ports)?;
            shared.router.borrow().signal(Signal::HUP);
            happened.reloads += 1;
        }
        if second >= next_blackout {
            next_blackout = second + 15 + random.below(15) as u64;
            blackout(engines).await?;
            happened.blackouts += 1;
        }
        // The last process shall live long, so that what it keeps shows.
        if second >= next_takeover && shared.elapsed() < shared.lasts.mul_f64(0.5) {
            next_takeover = second + 10 + random.below(10) as u64;
            take_over(shared).await;
            happened.takeovers += 1;
        }
        tokio::time::sleep(Duration::from_millis(600 + random.below(600) as u64)).await;
    }
    engines.all_well().await?;
    shared.router.borrow().signal(Signal::HUP);
    Ok(happened)
}

async fn blackout(engines: &Engines) -> Result<(), String> {
    for port in &engines.ports {
        engines.set(*port, "refuse").await?;
    }
    tokio::time::sleep(BLACKOUT).await;
    for port in &engines.ports {
        engines.set(*port, "none").await?;
    }
    Ok(())
}

async fn take_over(shared: &Shared) {
    let before = shared.router.borrow().takeovers();
    shared.router.borrow().signal(Signal::USR2);
    let began = Instant::now();
    while shared.router.borrow().takeovers() == before {
        if began.elapsed() > TAKES_OVER_WITHIN {
            shared.violated("nobody took over within 30 s of SIGUSR2".to_owned());
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
