//! Processes: what a pool spares, and what an idle server keeps.

use std::path::PathBuf;
use std::time::Instant;

use caliber_core::policy::ToolPolicy;
use caliber_policy::settings::{ArgumentRule, LaunchRule};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt};
use rmcp::transport::TokioChildProcess;

use crate::bare;
use crate::measure::{Row, median, micros};
use crate::setup::{Bench, stdio};

const MODULE: [&str; 4] = ["-m", "mcp_server_time", "--local-timezone", "UTC"];

/// Where the official servers are installed.
pub fn peers() -> PathBuf {
    let here = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/peers/installed"));
    let folder = std::env::var_os("CALIBER_TEST_PEERS").map_or_else(here, PathBuf::from);
    folder.canonicalize().unwrap_or(folder)
}

/// A pooled call to the official time server against starting it for each call.
pub async fn connect_per_call() -> anyhow::Result<Vec<Row>> {
    const WHAT: &str = "start mcp-server-time for each call : pooled call, median";
    let python = peers().join("python-mcp2/bin/python");
    if !python.exists() {
        return Ok(vec![Row::skipped(WHAT, "run tests/peers/install first")]);
    }
    // The interpreter is a link into its environment, and has to stay one.
    let python = python.to_string_lossy().into_owned();
    let arguments = serde_json::json!({ "timezone": "UTC" });
    let mut fresh = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        let mut command = tokio::process::Command::new(&python);
        command.args(MODULE);
        let session = bare::client()
            .serve_with_lifecycle(TokioChildProcess::new(command)?, ClientLifecycleMode::Initialize)
            .await?;
        bare::call(&session, "get_current_time", &arguments).await?;
        fresh.push(start.elapsed());
        session.cancel().await?;
    }
    let rule = LaunchRule {
        executable: python.clone(),
        arguments: ArgumentRule::Exact(MODULE.map(str::to_owned).to_vec()),
    };
    let bench = Bench::open(vec![rule]).await?;
    let server = bench.register("time", stdio(&python, &MODULE)).await?;
    bench
        .open_tool(&server, "get_current_time", ToolPolicy::allow_read())
        .await?;
    let mut pooled = Vec::new();
    for turn in 0..300 {
        let start = Instant::now();
        bench
            .caliber
            .invoke(
                &bench.admin,
                bench.request(&server, "get_current_time", &arguments)?,
            )
            .await?;
        if turn >= 20 {
            pooled.push(start.elapsed());
        }
    }
    let (fresh, pooled) = (median(fresh), median(pooled));
    let detail = format!(
        " ({:.0} ms against {:.2} ms)",
        micros(fresh) / 1e3,
        micros(pooled) / 1e3
    );
    bench.caliber.close(std::time::Duration::from_secs(5)).await?;
    Ok(vec![Row::at_least(
        WHAT,
        micros(fresh) / micros(pooled),
        " ×",
        100.0,
        detail,
    )])
}

/// Builds the command, in the profile that is measured, beside this program; its path.
async fn build_command() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own
        .parent()
        .ok_or_else(|| anyhow::anyhow!("this program stands in no folder"))?;
    let target = folder
        .parent()
        .ok_or_else(|| anyhow::anyhow!("{} stands in no target folder", folder.display()))?;
    let built = tokio::process::Command::new(env!("CARGO"))
        .args([
            "build",
            "--release",
            "--features",
            "cli",
            "--bin",
            "caliber",
            "--quiet",
            "--manifest-path",
        ])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .status()
        .await?;
    anyhow::ensure!(built.success(), "the command cannot be built: {built}");
    Ok(target.join("release/caliber"))
}

/// The resident memory of `caliber serve` that has been asked a few things.
pub async fn idle_memory() -> anyhow::Result<Vec<Row>> {
    const WHAT: &str = "idle caliber serve, resident";
    let command = build_command().await?;
    let bench = Bench::open(Vec::new()).await?;
    let ready = bench.folder().join("listening");
    let mut server = tokio::process::Command::new(command)
        .args(["serve", "--listen", "127.0.0.1:0"])
        .arg("--database")
        .arg(bench.folder().join("serve.db"))
        .arg("--listening-file")
        .arg(&ready)
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let deadline = Instant::now() + std::time::Duration::from_secs(20);
    while !ready.exists() {
        anyhow::ensure!(Instant::now() < deadline, "caliber serve did not come up");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let address = std::fs::read_to_string(&ready)?;
    let client = bare::http_client()?;
    for path in ["healthz", "readyz", "openapi.json"] {
        client
            .get(format!("http://{}/{path}", address.trim()))
            .send()
            .await?
            .error_for_status()?
            .bytes()
            .await?;
    }
    let id = server.id().unwrap_or_default();
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let resident = status.lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?
            .trim()
            .strip_suffix(" kB")?
            .trim()
            .parse::<f64>()
            .ok()
    });
    server.start_kill()?;
    server.wait().await?;
    let resident = resident.ok_or_else(|| anyhow::anyhow!("the resident memory cannot be read"))? / 1024.0;
    Ok(vec![Row::at_most(WHAT, resident, " MiB", 40.0, String::new())])
}
