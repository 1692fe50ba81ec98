//! What the whole path (facts, admission, ledger, gateway; SQLite with full sync) adds to a call.

use std::time::{Duration, Instant};

use caliber_core::policy::{SideEffectLevel, ToolPolicy};

use crate::bare;
use crate::measure::{Row, median, micros};
use crate::setup::{Bench, remote};
use crate::upstream::{Echo, Everything};

/// A pooled read-level call against a bare session to the same server, in turns: first the official
/// `server-everything`, then a server that does no work at all, where nothing hides what is added.
pub async fn read_level() -> anyhow::Result<Vec<Row>> {
    const RATIO: &str = "pooled read-level call : bare rmcp session, server-everything, median";
    const ADDED: &str = "added to a call of a server that does no work, median";
    let mut rows = Vec::new();
    match Everything::start().await? {
        None => rows.push(Row::skipped(RATIO, "run tests/peers/install first")),
        Some(everything) => {
            let arguments = serde_json::json!({ "message": "twenty bytes of text" });
            let (alone, governed) = in_turns(&everything.url, "echo", &arguments, 20, 50).await?;
            let detail = format!(" ({:.0} µs against {:.0} µs)", micros(governed), micros(alone));
            rows.push(Row::at_most(
                RATIO,
                micros(governed) / micros(alone),
                " ×",
                1.3,
                detail,
            ));
        }
    }
    let url = Echo::new(10).serve().await?;
    let arguments = serde_json::json!({ "text": "twenty bytes of text" });
    let (alone, governed) = in_turns(&url, "echo-0", &arguments, 30, 100).await?;
    let detail = format!(" ({:.0} µs against {:.0} µs)", micros(governed), micros(alone));
    let added = micros(governed.saturating_sub(alone));
    rows.push(Row::at_most(ADDED, added, " µs", 300.0, detail));
    Ok(rows)
}

/// The medians of a call through rmcp alone and through caliber, in `blocks` turns of `calls` each.
async fn in_turns(
    url: &str,
    tool: &str,
    arguments: &serde_json::Value,
    blocks: usize,
    calls: usize,
) -> anyhow::Result<(Duration, Duration)> {
    let bench = Bench::open(Vec::new()).await?;
    let server = bench.register("upstream", remote(url)).await?;
    bench.open_tool(&server, tool, ToolPolicy::allow_read()).await?;
    let session = bare::open(url).await?;
    let (mut alone, mut governed) = (Vec::new(), Vec::new());
    for block in 0..blocks {
        for _ in 0..calls {
            let start = Instant::now();
            bare::call(&session, tool, arguments).await?;
            alone.push(start.elapsed());
        }
        for _ in 0..calls {
            let start = Instant::now();
            bench
                .caliber
                .invoke(&bench.admin, bench.request(&server, tool, arguments)?)
                .await?;
            governed.push(start.elapsed());
        }
        // The first turn of each warms up.
        if block == 0 {
            alone.clear();
            governed.clear();
        }
    }
    Ok((median(alone), median(governed)))
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

    // One after the other: each waits for its intent; the settlements are written together.
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
            "synced commits that a write-level call waits for, alone",
            per_call.floor(),
            "",
            1.0,
            format!(" ({per_call:.2} with those that settle many calls together)"),
        ),
        Row::at_most(
            "synced commits of a write-level call, 64 at once",
            shared,
            "",
            1.0,
            detail,
        ),
    ])
}
