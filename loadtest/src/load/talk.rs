//! One conversation from its first turn to its last.

use std::cell::RefCell;
use std::time::Instant;

use serde_json::{Value, json};

use super::client::Client;
use super::plan::Plan;
use super::stats::Stats;
use super::transcripts;

/// Runs conversation `index` of the plan, whose first turn is meant for the instant `begins`. A turn that fails ends it: what would follow has no answer to build on.
pub(crate) async fn run(index: usize, begins: Instant, plan: &Plan, client: &Client, stats: &RefCell<Stats>) {
    if !plan.transcripts.is_empty() {
        return replay(index, begins, plan, client, stats).await;
    }
    let mut messages: Vec<Value> = Vec::new();
    if !plan.system.is_empty() {
        messages.push(json!({"role": "system", "content": plan.system}));
    }
    let mut engines = Vec::new();
    let mut intended = begins;
    for turn in 0..plan.turns {
        messages.push(json!({"role": "user", "content": plan.message(index, turn)}));
        tokio::time::sleep_until(intended.into()).await;
        match client.chat(&messages, intended).await {
            Ok(sample) => {
                stats.borrow_mut().answer(turn, &sample);
                engines.extend(sample.engine);
                messages.push(json!({"role": "assistant", "content": sample.text}));
            }
            Err(kind) => {
                let mut stats = stats.borrow_mut();
                stats.error(kind);
                stats.skipped += (plan.turns - turn - 1) as u64;
                break;
            }
        }
        intended = Instant::now() + plan.pause(index, turn);
    }
    stats.borrow_mut().conversation(&engines);
}

/// Sends each turn of a recorded conversation; the server's answers are measured and not built on.
async fn replay(index: usize, begins: Instant, plan: &Plan, client: &Client, stats: &RefCell<Stats>) {
    let talk = &plan.transcripts[index % plan.transcripts.len()];
    let ends: Vec<usize> = transcripts::turns(talk).collect();
    let mut engines = Vec::new();
    let mut intended = begins;
    for (turn, &end) in ends.iter().enumerate() {
        tokio::time::sleep_until(intended.into()).await;
        match client.chat(&talk[..end], intended).await {
            Ok(sample) => {
                stats.borrow_mut().answer(turn, &sample);
                engines.extend(sample.engine);
            }
            Err(kind) => {
                let mut stats = stats.borrow_mut();
                stats.error(kind);
                stats.skipped += (ends.len() - turn - 1) as u64;
                break;
            }
        }
        intended = Instant::now() + plan.pause(index, turn);
    }
    stats.borrow_mut().conversation(&engines);
}
