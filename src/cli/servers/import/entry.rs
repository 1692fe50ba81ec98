//! One entry of a client's settings: where its server runs, and what of it means nothing here.

use std::collections::BTreeMap;

use caliber::core::secret::ConfigValue;
use caliber::core::server::{Endpoint, RemoteEndpoint, StdioEndpoint};
use caliber::core::text::{escaped, shown};
use serde_json::{Map, Value};

/// One entry of the file while it is read.
pub(super) struct Entry<'a> {
    server: &'a Map<String, Value>,
    /// What is wrong with it.
    pub(super) problems: Vec<String>,
    /// What is done otherwise than it says.
    pub(super) notes: Vec<String>,
}

impl<'a> Entry<'a> {
    pub(super) fn new(server: &'a Map<String, Value>) -> Self {
        Self {
            server,
            problems: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Where the server runs, and the same as a request.
    pub(super) fn endpoint(&mut self) -> Option<(Endpoint, Map<String, Value>)> {
        let url = self.text("url").or_else(|| self.text("serverUrl"));
        let command = self.text("command");
        match (command, url) {
            (Some(_), Some(_)) => {
                self.problems
                    .push("it has a command and a url; keep one of them".to_owned());
                None
            }
            (None, None) => {
                self.problems
                    .push("it has neither a command nor a url".to_owned());
                None
            }
            (Some(command), None) => {
                let args = self.words("args");
                let env = self.values("env");
                let body = Map::from_iter([
                    ("transport".to_owned(), "stdio".into()),
                    ("command".to_owned(), command.as_str().into()),
                    ("args".to_owned(), args.clone().into()),
                    ("env".to_owned(), written(&env)),
                ]);
                Some((
                    Endpoint::Stdio(StdioEndpoint {
                        command,
                        args,
                        env: config(&env),
                    }),
                    body,
                ))
            }
            (None, Some(url)) => {
                let headers = self.values("headers");
                let word = self
                    .text("type")
                    .or_else(|| self.text("transport"))
                    .unwrap_or_default();
                let transport = match word.as_str() {
                    "" | "http" | "streamable-http" | "streamableHttp" | "streamable_http" => {
                        "streamable-http"
                    }
                    "sse" => "sse",
                    other => {
                        self.problems.push(format!(
                            "type: {} is no transport of a url; use http or sse",
                            shown(other)
                        ));
                        return None;
                    }
                };
                let remote = RemoteEndpoint {
                    url: url.clone(),
                    headers: config(&headers),
                };
                let body = Map::from_iter([
                    ("transport".to_owned(), transport.into()),
                    ("uri".to_owned(), url.into()),
                    ("headers".to_owned(), written(&headers)),
                ]);
                let endpoint = if transport == "sse" {
                    Endpoint::Sse(remote)
                } else {
                    Endpoint::StreamableHttp(remote)
                };
                Some((endpoint, body))
            }
        }
    }

    fn text(&mut self, key: &str) -> Option<String> {
        match self.server.get(key)? {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            _ => {
                self.problems.push(format!("{key}: it is no text"));
                None
            }
        }
    }

    fn words(&mut self, key: &str) -> Vec<String> {
        match self.server.get(key) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(words)) => {
                let mut read = Vec::new();
                for (index, word) in words.iter().enumerate() {
                    match word.as_str() {
                        Some(word) if word.contains("${input:") || word.contains("${env:") => {
                            self.problems.push(format!(
                                "{key}[{index}]: arguments are passed on as they are; write the value out"
                            ));
                        }
                        Some(word) => read.push(word.to_owned()),
                        None => self.problems.push(format!("{key}[{index}]: it is no text")),
                    }
                }
                read
            }
            Some(_) => {
                self.problems.push(format!("{key}: it is no list of texts"));
                Vec::new()
            }
        }
    }

    /// Values that may be secret. Nothing of them is repeated.
    fn values(&mut self, key: &str) -> BTreeMap<String, String> {
        let mut read = BTreeMap::new();
        match self.server.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::Object(values)) => {
                for (name, value) in values {
                    let place = format!("{key}.{}", escaped(name, 120));
                    let text = match value {
                        Value::String(text) => text.clone(),
                        Value::Number(_) | Value::Bool(_) => value.to_string(),
                        _ => {
                            self.problems.push(format!("{place}: it is no text"));
                            continue;
                        }
                    };
                    if text.starts_with("${input:") {
                        let problem =
                            "the client asks its user for it; write the value or env://NAME in its place";
                        self.problems.push(format!("{place}: {problem}"));
                        continue;
                    }
                    let variable = text
                        .strip_prefix("${env:")
                        .and_then(|rest| rest.strip_suffix('}'));
                    let text = variable.map_or_else(|| text.clone(), |name| format!("env://{name}"));
                    if let ConfigValue::Reference(reference) = ConfigValue::from_input(&text) {
                        self.notes
                            .push(format!("{place} is looked up as {reference} where caliber runs"));
                    }
                    read.insert(name.clone(), text);
                }
            }
            Some(_) => self.problems.push(format!("{key}: it is no object of texts")),
        }
        read
    }

    /// Members that mean something to the client and nothing here are told; what would change what runs is refused.
    pub(super) fn unknown(&mut self) {
        for key in self.server.keys() {
            match key.as_str() {
                "command" | "args" | "env" | "url" | "serverUrl" | "headers" | "type" | "transport"
                | "disabled" => {}
                "cwd" => self
                    .problems
                    .push("cwd: every server gets a private working directory; remove it".to_owned()),
                "envFile" => self
                    .problems
                    .push("envFile: write its values into env, or refer to them".to_owned()),
                "autoApprove" | "alwaysAllow" => {
                    self.notes
                        .push(format!("{key}: tools are opened by classifying them, one by one"));
                }
                other => self.notes.push(format!("{} means nothing here", shown(other))),
            }
        }
    }
}

fn config(values: &BTreeMap<String, String>) -> BTreeMap<String, ConfigValue> {
    values
        .iter()
        .map(|(name, value)| (name.clone(), ConfigValue::from_input(value)))
        .collect()
}

fn written(values: &BTreeMap<String, String>) -> Value {
    values
        .iter()
        .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        .collect()
}
