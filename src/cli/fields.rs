//! What the fields of the API are called on the command line: a complaint about a field names the flag that set it.

/// Fields with the flag or argument that sets each, where that is not the name of the field with dashes.
const FLAGS: &[(&str, &str)] = &[
    ("name", "NAME"),
    ("uri", "--url"),
    ("command", "COMMAND"),
    ("args", "COMMAND"),
    ("headers", "--header"),
    ("auth_type", "--token, --username"),
    ("auth_config", "--token, --username"),
    ("sharing", "--shared"),
    ("transport", "--sse"),
    ("tool_name", "TOOL"),
    ("arguments", "JSON"),
    ("approval_id", "--approval"),
    ("side_effect_level", "--level"),
    ("requires_approval", "--approval"),
    ("approval_waiver", "--waive-approval"),
    ("rate_limit_per_minute", "--rate"),
    ("descriptor_digest", "--seen"),
    ("scopes", "--scope"),
    ("expires_at", "--expires-in"),
    ("project_id", "--project"),
    ("audit_id", "ENTRY"),
    ("secrets", "--secret"),
    ("entity_id", "--about"),
    ("limit", "--lines"),
    ("server_id", "SERVER"),
];

/// The flag or argument for the field at `location`: `body`, `query`, `path` or `header` and the way to the field.
/// `path` is that of the request.
pub(crate) fn flag(location: &[String], path: &str) -> String {
    let steps: Vec<&str> = location.iter().skip(1).map(String::as_str).collect();
    let is_code = path == "/tools" || path.starts_with("/tools/");
    match steps.as_slice() {
        [] if path == "/tools" => "the tool".to_owned(),
        [] => "the request".to_owned(),
        // A call has a time with a unit, a definition and a policy have milliseconds.
        ["timeout_ms"] if path.ends_with("/invoke-tool") || path.ends_with("/test-run") => {
            "--timeout".to_owned()
        }
        ["secret_refs", name] => format!("--secret {name}"),
        [field, ..] if is_code && code_flag(field).is_some() => {
            code_flag(field).unwrap_or_default().to_owned()
        }
        ["limits", bound] | ["auth_config", bound @ ("token" | "username" | "password")] => dashed(bound),
        ["args", position] => match position.parse::<usize>() {
            Ok(position) => format!("argument {} of COMMAND", position + 1),
            Err(_) => "COMMAND".to_owned(),
        },
        ["env", name] => format!("--env {name}"),
        ["headers", name] | ["auth_config", "headers", name] => format!("--header {name}"),
        ["secrets", rest @ ..] if !rest.is_empty() => format!("--secret {}", rest.join(".")),
        [first, ..] => FLAGS
            .iter()
            .find(|(field, _)| field == first)
            .map_or_else(|| dashed(first), |(_, flag)| (*flag).to_owned()),
    }
}

/// The flag or argument for a field of a code tool. A field of a list may come with its place, as in `source_roots[0]`.
fn code_flag(field: &str) -> Option<&'static str> {
    let (name, _) = field.split_once('[').unwrap_or((field, ""));
    Some(match name {
        "family" | "name" => "NAME",
        "version" => "VERSION",
        "reference" => "TOOL",
        "version_constraint" => "--constraint",
        "module_path" | "callable_name" => "--callable",
        "source_roots" => "--source",
        "package_roots" => "--packages",
        "args" => "--arg",
        "input" => "JSON",
        "secret_refs" => "--secret",
        "successor_tool_id" => "--successor",
        _ => return None,
    })
}

fn dashed(field: &str) -> String {
    format!("--{}", field.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_flags() {
        for (location, path, wanted) in [
            ("body.limits.timeout_ms", "/mcp-servers", "--timeout-ms"),
            (
                "body.timeout_ms",
                "/mcp-servers/srv_1/tools/echo/policy",
                "--timeout-ms",
            ),
            ("body.timeout_ms", "/mcp-servers/srv_1/invoke-tool", "--timeout"),
            ("body.visibility", "/mcp-servers", "--visibility"),
            ("body.args.0", "/mcp-servers", "argument 1 of COMMAND"),
            ("body.env.A", "/mcp-servers", "--env A"),
            ("body.auth_config.token", "/mcp-servers", "--token"),
            (
                "body.secrets.auth_config.token",
                "/mcp-servers/restore",
                "--secret auth_config.token",
            ),
            ("body.source_roots[0]", "/tools", "--source"),
            ("body.package_roots.1", "/tools", "--packages"),
            ("body.module_path", "/tools", "--callable"),
            ("body.args.0", "/tools", "--arg"),
            ("body.version", "/tools", "VERSION"),
            ("body.secret_refs.TOKEN", "/tools", "--secret TOKEN"),
            ("body.limits.memory_bytes", "/tools", "--memory-bytes"),
            ("query.constraint", "/tools/resolve?reference=a", "--constraint"),
            ("body.timeout_ms", "/tools/ctl_1/test-run", "--timeout"),
            ("query.status", "/mcp-servers", "--status"),
            ("body.name", "/mcp-servers", "NAME"),
            ("body", "/mcp-servers", "the request"),
        ] {
            let location: Vec<_> = location.split('.').map(str::to_owned).collect();
            assert_eq!(flag(&location, path), wanted);
        }
    }
}
