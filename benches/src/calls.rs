//! What the whole path (facts, admission, ledger, gateway; SQLite with full sync) adds to a call.

use std::time::{Duration, Instant};

use caliber_core::policy::{SideEffectLevel, ToolPolicy};

use crate::bare;
use crate::measure::{Row, median, micros};
use crate::setup::{Bench, remote};
use crate::upstream::Echo;

const BLOCKS: usize = 30;
const CALLS_PER_BLOCK: usize = 100;

/// A pooled read-level call against a bare session to the same server, in turns.
pub async fn read_level() -> anyhow::Result<Vec<Row>> {
    let url = Echo::new(10).serve().await?;
    let bench = Bench::open(Vec::new()).await?;
    let server = bench.register("echo", remote(&url)).await?;
    bench
        .open_tool(&server, "echo-0", ToolPolicy::allow_read())
        .await?;
    let session = bare::open(&url).await?;
    let arguments = serde_json::json!({ "text": "twenty bytes of text" });

    let (mut alone, mut governed) = (Vec::new(), Vec::new());
    for block in 0..BLOCKS {
        for _ in 0..CALLS_PER_BLOCK {
            let start = Instant::now();
            bare::call(&session, "echo-0", &arguments).await?;
            alone.push(start.elapsed());
        }
        for _ in 0..CALLS_PER_BLOCK {
            let start = Instant::now();
            bench
                .caliber
                .invoke(&bench.admin, bench.request(&server, "echo-0", &arguments)?)
                .await?;
            governed.push(start.elapsed());
        }
        // The first block of each warms up.
        if block == 0 {
            alone.clear();
            governed.clear();
        }
    }
    let (alone, governed) = (median(alone), median(governed));
    let detail = format!(" ({:.0} µs against {:.0} µs)", micros(governed), micros(alone));
    let ratio = micros(governed) / micros(alone);
    Ok(vec![Row::at_most(
        "pooled read-level call : bare rmcp session, median",
        ratio,
        " ×",
        1.3,
        detail,
    )])
}

/// What a write-level call adds to a read-level one, in synced commits; and how 64 at once share them.
pub async fn write_level() -> anyhow::Result<Vec<Row>> {
    let url = Echo::new(10).serve().await?;
    let bench = Bench::open(Vec::new()).await?;
    let server = bench.register("echo", remote(&url)).await?;
    bench
        .open_tool(&server, "echo-0", ToolPolicy::allow_read())
        .await?;
    let write = ToolPolicy {
        side_effect_level: SideEffectLevel::Write,
        approval_waiver: Some("a measurement".into()),
        ..ToolPolicy::allow_read()
    };
    bench.open_tool(&server, "echo-1", write).await?;
    let arguments = serde_json::json!({ "text": "twenty bytes of text" });
    for tool in ["echo-0", "echo-1"] {
        bench
            .caliber
            .invoke(&bench.admin, bench.request(&server, tool, &arguments)?)
            .await?;
    }

    // In order: before its answer, a write-level call waits for its intent and for its settlement.
    let before = bench.store.statistics().transactions;
    const CALLS: u64 = 50;
    for _ in 0..CALLS {
        bench
            .caliber
            .invoke(&bench.admin, bench.request(&server, "echo-1", &arguments)?)
            .await?;
    }
    let per_call = (bench.store.statistics().transactions - before) as f64 / CALLS as f64;

    let before = bench.store.statistics().transactions;
    let mut calls = tokio::task::JoinSet::new();
    let start = Instant::now();
    for _ in 0..64 {
        let (caliber, admin) = (bench.caliber.clone(), bench.admin.clone());
        let request = bench.request(&server, "echo-1", &arguments)?;
        calls.spawn(async move { caliber.invoke(&admin, request).await });
    }
    while let Some(call) = calls.join_next().await {
        call??;
    }
    let together: Duration = start.elapsed();
    let shared = (bench.store.statistics().transactions - before) as f64 / 64.0;
    let detail = format!(" (all 64 in {:.1} ms)", together.as_secs_f64() * 1e3);
    Ok(vec![
        Row::at_most(
            "synced commits of one write-level call, alone",
            per_call,
            "",
            2.0,
            " (intent and settlement)".into(),
        ),
        Row::at_most(
            "synced commits of one write-level call, 64 at once",
            shared,
            "",
            1.0,
            detail,
        ),
    ])
}
