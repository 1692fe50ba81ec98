//! The whole control plane as an HTTP server, in a host's own `main`.
//!
//! ```sh
//! cargo run --example http_server --features http
//! ```
//!
//! It makes `caliber.db` in the working directory and prints a token for its first administrator.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::error::Error;
use std::time::{Duration, SystemTime};

use caliber::core::TokenRequest;
use caliber::core::principal::{Principal, Scope, Scopes, Surface};
use caliber::http::HttpSettings;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut config = caliber::Config::at("caliber.db");
    config.policy.launch = vec!["/usr/local/bin/mcp-server-git --repository /srv/repository".parse()?];
    let caliber = caliber::open(config).await?;

    // The host decides who may do what. Here it makes one token, for an hour.
    let host = Principal::local_administrator();
    let request = TokenRequest {
        subject: "ada".parse()?,
        project: None,
        scopes: Scopes::NONE.with(Scope::Admin),
        label: "first administrator".to_owned(),
        expires_at: Some((SystemTime::now() + Duration::from_secs(3_600)).into()),
    };
    let token = caliber.create_token((&host, Surface::Library), request).await?;

    // Both end when the host says so: requests first, then the background work (refreshes, sweeps, retention).
    let (stop, stop_work) = (CancellationToken::new(), CancellationToken::new());
    let work = tokio::spawn({
        let (caliber, stop) = (caliber.clone(), stop_work.clone());
        async move { caliber.run(stop, Duration::from_secs(10)).await }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8640").await?;
    println!(
        "http://{}/docs  token: {}",
        listener.local_addr()?,
        token.text.expose()
    );
    tokio::spawn({
        let stop = stop.clone();
        async move { tokio::signal::ctrl_c().await.map(|()| stop.cancel()) }
    });
    caliber::http::serve(listener, caliber, HttpSettings::default(), stop).await?;
    stop_work.cancel();
    work.await??;
    Ok(())
}
