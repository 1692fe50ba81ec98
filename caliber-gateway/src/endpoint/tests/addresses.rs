//! Looking addresses up and checking them.

use super::*;

#[tokio::test]
async fn no_spelling_reaches_an_address_that_is_not_dialled() {
    let sentinel = Sentinel::start(EMPTY).await;
    let port = sentinel.port;
    let names: &[(&str, &[&[&str]])] = &[
        ("loopback.test", &[&["127.0.0.1"]]),
        ("mixed.test", &[&["93.184.215.14", "127.0.0.1"]]),
        ("mapped.test", &[&["::ffff:127.0.0.1"]]),
        ("nat64.test", &[&["64:ff9b::7f00:1"]]),
        ("six.test", &[&["::1"]]),
        ("private.test", &[&["10.0.0.1"]]),
        ("ula.test", &[&["fd00::1"]]),
        ("link.test", &[&["169.254.1.1"]]),
        ("metadata.test", &[&["169.254.169.254"]]),
        ("carrier.test", &[&["100.64.0.1"]]),
        ("any.test", &[&["0.0.0.0"]]),
        ("localhost.", &[&["127.0.0.1"]]),
    ];
    let endpoints = with_names(EndpointSettings::default(), names);
    let hosts = names.iter().map(|(name, _)| *name).chain([
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[::]",
        "169.254.169.254",
        "10.1",
        "0",
    ]);
    for host in hosts {
        let url = format!("http://{host}:{port}/mcp");
        let error = endpoints.remote_client(&remote(&url), soon()).await.unwrap_err();
        assert_eq!(
            error.reason(),
            Some(ReasonCode::AddressBlocked),
            "{host}: {error}"
        );
        assert_eq!(error.kind(), ErrorKind::Denied, "{host}");
        // Where the host is a name, its address is nobody's business.
        if host.ends_with(".test") {
            let shown = format!("{error} {error:?}");
            assert!(
                !shown.contains("127.0.0.1") && !shown.contains("10.0.0.1"),
                "{shown}"
            );
        }
    }
    // Odd spellings of this machine are read as what they are: an address that says loopback and is.
    for host in ["2130706433", "0x7f.1", "0177.0.0.1", "127.1"] {
        let url = format!("http://{host}:{port}/mcp");
        let (_, url) = endpoints.remote_client(&remote(&url), soon()).await.unwrap();
        assert_eq!(url.host_str(), Some("127.0.0.1"), "{host}");
    }
    assert_eq!(sentinel.hits(), 0);
}

#[tokio::test]
async fn a_name_is_dialled_at_the_addresses_that_were_checked() {
    let sentinel = Sentinel::start(EMPTY).await;
    let names: &[(&str, &[&[&str]])] = &[("sidecar.test", &[&["127.0.0.1"]])];
    let endpoints = with_names(attested("sidecar.test", sentinel.port), names);
    let target = remote(&format!("http://sidecar.test:{}/mcp", sentinel.port));
    let (client, url) = endpoints.remote_client(&target, soon()).await.unwrap();
    assert_eq!(client.get(url).send().await.unwrap().status(), 200);
    assert_eq!(sentinel.hits(), 1);
    // The same client dials no other name, not even one that every machine knows.
    let elsewhere = format!("http://localhost:{}/", sentinel.port);
    assert!(client.get(elsewhere).send().await.unwrap_err().is_connect());
    assert_eq!(sentinel.hits(), 1);
}

#[tokio::test]
async fn a_name_that_turns_to_loopback_is_refused_at_the_next_look() {
    let sentinel = Sentinel::start(EMPTY).await;
    let names: &[(&str, &[&[&str]])] = &[("turning.test", &[&["93.184.215.14"], &["127.0.0.1"]])];
    let target = remote(&format!("http://turning.test:{}/mcp", sentinel.port));
    let anew = EndpointSettings {
        cache_time: Duration::ZERO,
        ..EndpointSettings::default()
    };
    let endpoints = with_names(anew, names);
    assert!(endpoints.remote_client(&target, soon()).await.is_ok());
    let error = endpoints.remote_client(&target, soon()).await.unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::AddressBlocked));
    // Within the cache time nobody asks again: the first answer is what is dialled.
    let endpoints = with_names(EndpointSettings::default(), names);
    for _ in 0..3 {
        assert!(endpoints.remote_client(&target, soon()).await.is_ok());
    }
    assert_eq!(sentinel.hits(), 0);
}

#[tokio::test]
async fn inspection_tells_every_address_and_dials_none() {
    let names: &[(&str, &[&[&str]])] = &[
        ("mixed.test", &[&["127.0.0.1", "93.184.215.14", "127.0.0.1"]]),
        ("empty.test", &[&[]]),
    ];
    let endpoints = with_names(EndpointSettings::default(), names);
    let addresses = async |url: &str| match endpoints
        .inspect(&definition(Endpoint::StreamableHttp(remote(url))))
        .await
    {
        EndpointFacts::Remote { addresses } => addresses,
        other => panic!("{other:?}"),
    };
    let expected: Vec<IpAddr> = vec!["93.184.215.14".parse().unwrap(), "127.0.0.1".parse().unwrap()];
    assert_eq!(addresses("https://mixed.test/mcp").await, Some(expected));
    assert_eq!(addresses("https://empty.test/mcp").await, None);
    assert_eq!(addresses("https://absent.test/mcp").await, None);
    assert_eq!(
        addresses("https://[::1]/mcp").await,
        Some(vec!["::1".parse().unwrap()])
    );
    assert_eq!(addresses("ftp://mixed.test/").await, None);
}

#[tokio::test]
async fn a_host_that_cannot_be_found_says_so() {
    let many: Vec<String> = (0..=255).map(|last| format!("93.184.215.{last}")).collect();
    let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
    many.push("93.184.216.1");
    let names: &[(&str, &[&[&str]])] = &[("empty.test", &[&[]]), ("many.test", &[&many])];
    let endpoints = with_names(EndpointSettings::default(), names);
    for host in ["empty.test", "absent.test", "many.test"] {
        let error = endpoints
            .remote_client(&remote(&format!("http://{host}/")), soon())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Upstream, "{host}");
        assert_eq!(error.reason(), Some(ReasonCode::ConnectFailed), "{host}");
        assert!(error.message().contains(host), "{error}");
    }
}

#[tokio::test]
async fn a_resolver_that_hangs_is_not_waited_for() {
    let settings = EndpointSettings {
        lookups: 1,
        dns_timeout: Duration::from_millis(100),
        ..EndpointSettings::default()
    };
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let resolver = Resolver::new(&settings, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::pending())
    });
    let mut endpoints = Endpoints::with_resolver(settings, resolver);
    let begun = Instant::now();
    let error = endpoints
        .remote_client(&remote("http://hanging.test/"), soon())
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Some(ReasonCode::ConnectFailed));
    assert!(begun.elapsed() >= Duration::from_millis(100));
    // The lookup that hangs holds the one place; the next does not begin, and is not waited for either.
    endpoints.resolver.timeout = Duration::from_secs(60);
    let error = endpoints
        .remote_client(
            &remote("http://other.test/"),
            Deadline::after(Duration::from_millis(100)),
        )
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.reason(), Some(ReasonCode::Timeout));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn urls_that_cannot_be_used_are_refused_without_being_shown() {
    let endpoints = Endpoints::new(EndpointSettings::default());
    for (url, reason) in [
        ("canary-44", ReasonCode::UrlInvalid),
        ("ftp://localhost/canary-44", ReasonCode::UrlInvalid),
        ("file:///canary-44", ReasonCode::UrlInvalid),
        ("http://canary-44@localhost/", ReasonCode::CredentialsInUrl),
        ("http://:canary-44@localhost/", ReasonCode::CredentialsInUrl),
    ] {
        let error = endpoints.remote_client(&remote(url), soon()).await.unwrap_err();
        assert_eq!(error.reason(), Some(reason), "{url}");
        assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
    }
}
