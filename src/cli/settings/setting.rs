//! One setting as it is read from a document, a variable or a flag, and shown again.
//!
//! Documents hold typed values. Variables and flags hold text, and every kind of setting has a form as text: lists
//! have commas between their entries, times have a unit.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use caliber::core::address::{AddressCategory, Sidecar};
use caliber::core::sandbox::Guarantee;
use caliber::core::text::shown;
use caliber::http::ApiPrefix;
use caliber::policy::settings::{
    Isolation, IsolationProfile, LaunchRule, ModulePattern, NamePattern, RemoteHost, parse_blocked_categories,
};
use figment::value::Value;

use super::sandbox::SandboxBackend;

/// A place in the settings that a value is read into.
pub(crate) trait Setting {
    /// Takes `value` over, or says what is wrong with it, one text for each problem.
    fn read(&mut self, value: &Value) -> Result<(), Vec<String>>;

    /// The value as it would stand in the file.
    fn show(&self) -> serde_json::Value;

    /// What it takes, for the documents.
    fn form(&self) -> &'static str;
}

impl<T: Setting + ?Sized> Setting for &mut T {
    fn read(&mut self, value: &Value) -> Result<(), Vec<String>> {
        (**self).read(value)
    }

    fn show(&self) -> serde_json::Value {
        (**self).show()
    }

    fn form(&self) -> &'static str {
        (**self).form()
    }
}

/// The text of a value that is no list and no table.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(_, text) => Some(text.clone()),
        Value::Char(_, character) => Some(character.to_string()),
        Value::Bool(_, flag) => Some(flag.to_string()),
        Value::Num(_, number) => number
            .to_u128()
            .map(|number| number.to_string())
            .or_else(|| number.to_i128().map(|number| number.to_string()))
            .or_else(|| number.to_f64().map(|number| number.to_string())),
        _ => None,
    }
}

fn wrong(value: &Value, form: &str) -> Vec<String> {
    vec![match text(value) {
        Some(text) => format!("{} cannot be used; give {form}", shown(&text)),
        None => format!("this kind of value cannot be used; give {form}"),
    }]
}

macro_rules! scalars {
    ($($kind:ty, $form:literal;)*) => {
        $(impl Setting for $kind {
            fn read(&mut self, value: &Value) -> Result<(), Vec<String>> {
                let read = text(value).and_then(|text| text.parse().ok());
                *self = read.ok_or_else(|| wrong(value, $form))?;
                Ok(())
            }

            fn show(&self) -> serde_json::Value {
                serde_json::json!(self)
            }

            fn form(&self) -> &'static str {
                $form
            }
        })*
    };
}

scalars! {
    bool, "true or false";
    u32, "a whole number";
    u64, "a whole number";
    usize, "a whole number";
    SocketAddr, "an address and a port such as 127.0.0.1:8640";
}

impl Setting for String {
    fn read(&mut self, value: &Value) -> Result<(), Vec<String>> {
        *self = text(value).ok_or_else(|| wrong(value, self.form()))?;
        Ok(())
    }

    fn show(&self) -> serde_json::Value {
        self.as_str().into()
    }

    fn form(&self) -> &'static str {
        "text"
    }
}

impl Setting for PathBuf {
    fn read(&mut self, value: &Value) -> Result<(), Vec<String>> {
        let path = text(value).filter(|text| !text.is_empty() && !text.contains('\0'));
        *self = path.ok_or_else(|| wrong(value, self.form()))?.into();
        Ok(())
    }

    fn show(&self) -> serde_json::Value {
        self.to_string_lossy().into()
    }

    fn form(&self) -> &'static str {
        "a path"
    }
}

impl Setting for Duration {
    fn read(&mut self, value: &Value) -> Result<(), Vec<String>> {
        let read = text(value).and_then(|text| humantime::parse_duration(&text).ok());
        *self = read.ok_or_else(|| wrong(value, self.form()))?;
        Ok(())
    }

    fn show(&self) -> serde_json::Value {
        written(*self).into()
    }

    fn form(&self) -> &'static str {
        "a time with its unit, such as 45s, 10m or 90days"
    }
}

/// A time in the largest unit that leaves nothing over, as people write settings.
fn written(time: Duration) -> String {
    let milliseconds = time.as_millis();
    let units = [
        (86_400_000, "days"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1_000, "s"),
        (1, "ms"),
    ];
    let whole = |(size, _): &(u128, &str)| milliseconds >= *size && milliseconds.is_multiple_of(*size);
    match units.into_iter().find(whole) {
        Some((size, unit)) if time.subsec_nanos().is_multiple_of(1_000_000) => {
            format!("{}{unit}", milliseconds / size)
        }
        _ => humantime::format_duration(time).to_string(),
    }
}

/// `none`, or empty text, stands for nothing.
impl<T: Setting + Default> Setting for Option<T> {
    fn read(&mut self, value: &Value) -> Result<(), Vec<String>> {
        if text(value).is_some_and(|text| matches!(text.as_str(), "" | "none")) {
            *self = None;
            return Ok(());
        }
        let mut inner = T::default();
        inner.read(value)?;
        *self = Some(inner);
        Ok(())
    }

    fn show(&self) -> serde_json::Value {
        self.as_ref().map_or_else(|| "none".into(), Setting::show)
    }

    fn form(&self) -> &'static str {
        T::default().form()
    }
}

/// What lists are made of.
pub(crate) trait Entry: serde::Serialize + serde::de::DeserializeOwned {
    const FORM: &'static str;

    /// Reads an entry from its text; the error says what is wrong.
    fn read_text(text: &str) -> Result<Self, String>;
}

macro_rules! entries {
    ($($kind:ty, $form:literal;)*) => {
        $(impl Entry for $kind {
            const FORM: &'static str = $form;

            fn read_text(text: &str) -> Result<Self, String> {
                text.parse().map_err(problem)
            }
        })*
    };
}

entries! {
    LaunchRule, "a list of commands, each with its arguments";
    NamePattern, "a list of names, or beginnings of names with * behind them";
    RemoteHost, "a list of hosts";
    Sidecar, "a list of services, each a URL and the networks of its addresses";
}

impl Entry for ModulePattern {
    const FORM: &'static str = "a list of modules, packages with .* behind them, or *";

    fn read_text(text: &str) -> Result<Self, String> {
        text.parse().map_err(problem)
    }
}

impl Entry for Guarantee {
    const FORM: &'static str = "a list of guarantees";

    fn read_text(text: &str) -> Result<Self, String> {
        super::sandbox::guarantee(text)
    }
}

impl Setting for SandboxBackend {
    fn read(&mut self, value: &Value) -> Result<(), Vec<String>> {
        let word = text(value);
        let found = Self::ALL
            .into_iter()
            .find(|backend| word.as_deref() == Some(backend.as_str()));
        *self = found.ok_or_else(|| wrong(value, self.form()))?;
        Ok(())
    }

    fn show(&self) -> serde_json::Value {
        self.as_str().into()
    }

    fn form(&self) -> &'static str {
        "local, remote or off"
    }
}

impl Entry for PathBuf {
    const FORM: &'static str = "a list of absolute paths";

    fn read_text(text: &str) -> Result<Self, String> {
        let path = Self::from(text);
        if path.is_absolute() {
            Ok(path)
        } else {
            Err(format!("{} is no absolute path", shown(text)))
        }
    }
}

impl Entry for String {
    const FORM: &'static str = "a list of texts";

    fn read_text(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

/// The text of an error without the name of the setting, which stands before it already.
fn problem(error: caliber::Error) -> String {
    match error.fields().first() {
        Some(field) => field.problem.clone(),
        None => error.message().to_owned(),
    }
}

impl<T: Entry> Setting for Vec<T> {
    fn read(&mut self, value: &Value) -> Result<(), Vec<String>> {
        let (mut entries, mut problems) = (Vec::new(), Vec::new());
        let mut take = |entry: Result<T, String>| match entry {
            Ok(entry) => entries.push(entry),
            Err(problem) => problems.push(problem),
        };
        match value {
            Value::Array(_, values) => {
                for value in values {
                    take(match text(value) {
                        Some(text) => T::read_text(&text),
                        None => value.deserialize().map_err(|error| error.kind.to_string()),
                    });
                }
            }
            value => {
                let text = text(value).ok_or_else(|| wrong(value, T::FORM))?;
                text.split(',')
                    .map(str::trim)
                    .filter(|entry| !entry.is_empty())
                    .for_each(|entry| take(T::read_text(entry)));
            }
        }
        if problems.is_empty() {
            *self = entries;
            Ok(())
        } else {
            Err(problems)
        }
    }

    fn show(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn form(&self) -> &'static str {
        T::FORM
    }
}

impl Setting for BTreeSet<AddressCategory> {
    fn read(&mut self, value: &Value) -> Result<(), Vec<String>> {
        let mut words: Vec<String> = Vec::new();
        words.read(value)?;
        *self = parse_blocked_categories(&words.join(",")).map_err(problems)?;
        Ok(())
    }

    fn show(&self) -> serde_json::Value {
        self.iter().map(|category| category.as_str()).collect()
    }

    fn form(&self) -> &'static str {
        "a list of categories of addresses"
    }
}

fn problems(error: caliber::Error) -> Vec<String> {
    match error.fields() {
        [] => vec![error.message().to_owned()],
        fields => fields.iter().map(|field| field.problem.clone()).collect(),
    }
}

/// A command line: a list of words, or one line with white space between them.
#[derive(Debug)]
pub(crate) struct CommandLine<'a>(pub(crate) &'a mut Vec<String>);

impl Setting for CommandLine<'_> {
    fn read(&mut self, value: &Value) -> Result<(), Vec<String>> {
        match value {
            Value::String(_, line) => {
                *self.0 = Isolation::parse_prefix(line).map_err(problems)?;
                Ok(())
            }
            value => self.0.read(value),
        }
    }

    fn show(&self) -> serde_json::Value {
        self.0.show()
    }

    fn form(&self) -> &'static str {
        "a command with its arguments"
    }
}

impl Setting for IsolationProfile {
    fn read(&mut self, value: &Value) -> Result<(), Vec<String>> {
        *self = value.deserialize().map_err(|_| wrong(value, self.form()))?;
        Ok(())
    }

    fn show(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn form(&self) -> &'static str {
        "none or bubblewrap"
    }
}

impl Setting for ApiPrefix {
    fn read(&mut self, value: &Value) -> Result<(), Vec<String>> {
        let read = text(value).and_then(|text| ApiPrefix::from_str(&text).ok());
        *self = read.ok_or_else(|| wrong(value, self.form()))?;
        Ok(())
    }

    fn show(&self) -> serde_json::Value {
        self.as_str().into()
    }

    fn form(&self) -> &'static str {
        "a path such as /caliber, or nothing"
    }
}
