//! Lists: discovery of many tools, and a page of many servers.

use std::time::Instant;

use caliber_core::TokenRequest;
use caliber_core::principal::Surface;
use caliber_core::principal::{Scope, Scopes};
use caliber_core::token::NewToken;

use crate::bare;
use crate::measure::{Row, median, micros};
use crate::setup::{Bench, remote};
use crate::upstream::Echo;

/// Discovery of 1,000 tools, less what rmcp alone takes to connect and list them.
pub async fn discovery() -> anyhow::Result<Row> {
    const TOOLS: usize = 1_000;
    let url = Echo::new(TOOLS).serve().await?;
    let bench = Bench::open(Vec::new()).await?;
    let server = bench.register("many", remote(&url)).await?;
    let (mut alone, mut governed) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        let start = Instant::now();
        let session = bare::open(&url).await?;
        anyhow::ensure!(
            session.list_all_tools().await?.len() == TOOLS,
            "the bare list is short"
        );
        alone.push(start.elapsed());
        drop(session);
        let start = Instant::now();
        bench
            .caliber
            .discover((&bench.admin, Surface::Library), &server)
            .await?;
        governed.push(start.elapsed());
    }
    anyhow::ensure!(bench.tools(&server).await? == 1_000, "the inventory is short");
    let (alone, governed) = (median(alone), median(governed));
    let own = micros(governed.saturating_sub(alone)) / 1e3;
    let detail = format!(
        " ({:.0} ms, of which rmcp alone {:.0} ms)",
        micros(governed) / 1e3,
        micros(alone) / 1e3
    );
    Ok(Row::at_most(
        "discovery of 1,000 tools, our own time",
        own,
        " ms",
        200.0,
        detail,
    ))
}

/// `GET /mcp-servers` of 50 out of 10,000, over a kept-alive connection.
pub async fn servers_page() -> anyhow::Result<Row> {
    const SERVERS: usize = 10_000;
    let bench = Bench::open(Vec::new()).await?;
    let mut registrations = tokio::task::JoinSet::new();
    for number in 0..SERVERS {
        let (caliber, admin) = (bench.caliber.clone(), bench.admin.clone());
        let registration =
            crate::setup::registration(&format!("server-{number:05}"), remote("http://127.0.0.1:9/mcp"))?;
        registrations.spawn(async move {
            caliber
                .register_server((&admin, Surface::Library), registration)
                .await
        });
        if registrations.len() >= 256
            && let Some(done) = registrations.join_next().await
        {
            done??;
        }
    }
    while let Some(done) = registrations.join_next().await {
        done??;
    }
    let request = TokenRequest {
        subject: "bench".parse()?,
        project: None,
        scopes: Scopes::NONE.with(Scope::Admin),
        label: String::new(),
        expires_at: None,
    };
    let NewToken { text, .. } = bench
        .caliber
        .create_token((&bench.admin, Surface::Library), request)
        .await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let settings = caliber_http::HttpSettings::default();
    let url = format!(
        "http://{}{}/mcp-servers?limit=50",
        listener.local_addr()?,
        settings.prefix.as_str()
    );
    let stop = tokio_util::sync::CancellationToken::new();
    let serving = tokio::spawn(caliber_http::serve(
        listener,
        bench.caliber.clone(),
        settings,
        stop.clone(),
    ));
    let client = bare::http_client()?;
    let mut times = Vec::new();
    for turn in 0..220 {
        let start = Instant::now();
        let answer = client
            .get(&url)
            .bearer_auth(text.expose())
            .send()
            .await?
            .error_for_status()?;
        let body: serde_json::Value = serde_json::from_slice(&answer.bytes().await?)?;
        if turn >= 20 {
            times.push(start.elapsed());
        }
        let items = body
            .get("data")
            .and_then(serde_json::Value::as_array)
            .map_or(0, Vec::len);
        anyhow::ensure!(items == 50, "the page holds {items} servers");
    }
    stop.cancel();
    serving.await??;
    let page = micros(median(times)) / 1e3;
    Ok(Row::at_most(
        "GET /mcp-servers, 50 of 10,000, median",
        page,
        " ms",
        5.0,
        String::new(),
    ))
}
