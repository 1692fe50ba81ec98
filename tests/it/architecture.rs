//! The dependency rule, and rules about the tree that no compiler holds.

use std::collections::BTreeSet;

use cargo_metadata::{DependencyKind, MetadataCommand};

fn metadata() -> cargo_metadata::Metadata {
    MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .no_deps()
        .exec()
        .unwrap()
}

/// The direct dependencies of a package that its users get, too.
fn shipped_dependencies(package: &cargo_metadata::Package) -> BTreeSet<String> {
    let shipped = package
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind != DependencyKind::Development);
    shipped.map(|dependency| dependency.name.clone()).collect()
}

#[test]
fn libraries_depend_on_core_and_on_no_sibling() {
    let metadata = metadata();
    let siblings: BTreeSet<_> = metadata
        .packages
        .iter()
        .map(|package| package.name.to_string())
        .collect();
    assert!(siblings.len() >= 7, "the workspace lost packages: {siblings:?}");
    for package in metadata
        .packages
        .iter()
        .filter(|package| !matches!(package.name.as_str(), "caliber" | "benches"))
    {
        let allowed: &[&str] = match package.name.as_str() {
            "caliber-core" | "caliber-servers" => &[],
            _ => &["caliber-core"],
        };
        let used: Vec<_> = shipped_dependencies(package)
            .intersection(&siblings)
            .cloned()
            .collect();
        assert_eq!(used, allowed, "{} breaks the dependency rule", package.name);
    }
}

#[test]
fn foreign_crates_stay_at_their_edge() {
    let edges: [(&str, &[&str]); 6] = [
        ("rmcp", &["caliber-gateway", "caliber-servers", "caliber-http"]),
        ("diesel", &["caliber-store"]),
        ("diesel-async", &["caliber-store"]),
        ("axum", &["caliber-http", "caliber-servers"]),
        ("rusqlite", &["caliber-servers"]),
        ("libc", &["caliber-sandbox"]),
    ];
    // The benches compare with the foreign crates themselves.
    for package in metadata()
        .packages
        .into_iter()
        .filter(|package| package.name.as_str() != "benches")
    {
        let used = shipped_dependencies(&package);
        for (foreign, allowed) in edges {
            let is_edge = allowed.contains(&package.name.as_str());
            assert!(
                is_edge || !used.contains(foreign),
                "{} uses {foreign}",
                package.name
            );
        }
    }
}

#[test]
fn every_direct_dependency_has_its_line() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/dependencies.md")).unwrap();
    for package in metadata().packages {
        for dependency in package
            .dependencies
            .iter()
            .filter(|dependency| dependency.path.is_none())
        {
            let name = &dependency.name;
            assert!(
                page.contains(&format!("`{name}`")),
                "docs/dependencies.md says nothing about {name}"
            );
        }
    }
}

/// No `mod.rs`, no ignored doctest, no ignored test: what is there runs.
#[test]
fn nothing_is_skipped() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pending: Vec<_> = ["src", "tests/it", "benches", "examples"]
        .map(|folder| root.join(folder))
        .into();
    pending.extend(
        metadata()
            .packages
            .iter()
            .map(|package| package.manifest_path.parent().unwrap().as_std_path().to_owned())
            .filter(|folder| folder != root),
    );
    let mut seen = 0;
    while let Some(folder) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                seen += 1;
                let text = std::fs::read_to_string(&path).unwrap();
                let name = path.display();
                assert!(
                    path.file_name().unwrap() != "mod.rs",
                    "{name}: use name.rs and a folder"
                );
                for forbidden in [
                    concat!("#[", "ignore"),
                    concat!("```", "ignore"),
                    concat!("todo", "!("),
                    concat!("unimplemented", "!("),
                ] {
                    assert!(!text.contains(forbidden), "{name} holds {forbidden}");
                }
            }
        }
    }
    assert!(seen > 50, "only {seen} files were looked at");
}
