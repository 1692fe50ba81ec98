//! Lists in one text, with commas between their entries, as environment variables hold them. White space around an
//! entry and empty entries count for nothing.

use std::collections::BTreeSet;
use std::str::FromStr;

use caliber_core::address::{AddressCategory, Sidecar};
use caliber_core::{Error, Result};

use super::{ArgumentRule, LaunchRule, ModulePattern, NamePattern, PYTHON, RemoteHost};

/// Reads a list of remote hosts.
///
/// # Errors
///
/// `Invalid`, naming every entry that is none.
pub fn parse_remote_hosts(text: &str) -> Result<Vec<RemoteHost>> {
    parse_list(text)
}

/// Reads a list of sidecars.
///
/// # Errors
///
/// `Invalid`, naming every entry that is none.
pub fn parse_sidecars(text: &str) -> Result<Vec<Sidecar>> {
    parse_list(text)
}

/// Reads a list of environment names.
///
/// # Errors
///
/// `Invalid`, naming every entry that is none.
pub fn parse_names(text: &str) -> Result<Vec<NamePattern>> {
    parse_list(text)
}

/// Reads a list of modules that code tools may be: exact ones, packages with `.*` behind them, or `*`.
///
/// # Errors
///
/// `Invalid`, naming every entry that is none.
pub fn parse_modules(text: &str) -> Result<Vec<ModulePattern>> {
    parse_list(text)
}

/// Reads a list of blocked categories of addresses. Beside the words of [`AddressCategory`] it knows
/// `other_reserved`, which stands for `cgnat`, `unspecified`, `multicast` and `reserved`.
///
/// # Errors
///
/// `Invalid`, naming every word that is no category.
pub fn parse_blocked_categories(text: &str) -> Result<BTreeSet<AddressCategory>> {
    let spelled_out = text.replace("other_reserved", "cgnat,unspecified,multicast,reserved");
    Ok(parse_list(&spelled_out)?.into_iter().collect())
}

/// Reads the three lists that say what stdio servers may run: executables, and for [`PYTHON`] among them the
/// modules and scripts that it may be given, each with any further arguments. Another executable takes the
/// arguments that are written behind it, and no others unless they end with `*`: `/usr/bin/mcp-git --read-only *`.
///
/// # Errors
///
/// `Invalid`, naming every entry that is none.
pub fn parse_launch_lists(commands: &str, modules: &str, scripts: &str) -> Result<Vec<LaunchRule>> {
    let mut rules = Vec::new();
    for command in words(commands) {
        if command == PYTHON {
            let modules = words(modules).map(|module| ArgumentRule::Module(module.to_owned()));
            let scripts = words(scripts).map(|script| ArgumentRule::Script(script.to_owned()));
            rules.extend(modules.chain(scripts).map(|arguments| LaunchRule {
                executable: PYTHON.to_owned(),
                arguments,
            }));
        } else {
            rules.push(command.parse()?);
        }
    }
    rules.iter().try_for_each(LaunchRule::validate)?;
    Ok(rules)
}

fn parse_list<T: FromStr<Err = Error>>(text: &str) -> Result<Vec<T>> {
    let mut entries = Vec::new();
    let mut problems = Vec::new();
    for word in words(text) {
        match T::from_str(word) {
            Ok(entry) => entries.push(entry),
            Err(error) => problems.extend_from_slice(error.fields()),
        }
    }
    if problems.is_empty() {
        Ok(entries)
    } else {
        Err(Error::invalid_fields(problems))
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_everything_that_is_wrong() {
        let hosts = parse_remote_hosts(" localhost, ,::1,").unwrap();
        assert_eq!(hosts.len(), 2);
        let error = parse_remote_hosts("http://a,ok,*.b").unwrap_err();
        assert_eq!(error.fields().len(), 2);
        assert!(error.to_string().contains("`*.b`"), "{error}");
    }

    #[test]
    fn the_four_categories_of_the_reference_are_all_but_public() {
        let four = parse_blocked_categories("link_local,loopback,private,other_reserved").unwrap();
        let mut all = caliber_core::address::AddressRules::default().blocked;
        assert!(
            all.remove(&AddressCategory::Metadata),
            "which is blocked without being named"
        );
        assert_eq!(four, all);
        assert!(parse_blocked_categories("").unwrap().is_empty());
        assert!(parse_blocked_categories("private,intranet").is_err());
    }

    #[test]
    fn launch_lists_become_rules() {
        let rules =
            parse_launch_lists("${PYTHON}, /usr/bin/mcp-git --stdio *", "caliber_db", "/opt/a.py").unwrap();
        let texts: Vec<_> = rules.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "${PYTHON} -m caliber_db *",
                "${PYTHON} /opt/a.py *",
                "/usr/bin/mcp-git --stdio *"
            ]
        );
        assert!(
            parse_launch_lists("/usr/bin/x", "caliber_db", "").unwrap().len() == 1,
            "modules are for the interpreter only"
        );
        assert!(parse_launch_lists("${PYTHON}", "os; import sys", "").is_err());
        assert!(parse_launch_lists("${PYTHON}", "", "relative.py").is_err());
        assert!(parse_launch_lists("bin/x", "", "").is_err());
    }

    #[test]
    fn sidecars_and_names_are_lists_too() {
        let sidecars = parse_sidecars("http://a:1 10.0.0.0/8,http://b:2 10.0.0.0/8 fd00::/8").unwrap();
        assert_eq!(sidecars.len(), 2);
        assert!(parse_sidecars("mcp-db-relational").is_err());
        assert_eq!(parse_names("API_*, TOKEN").unwrap().len(), 2);
        assert!(parse_names("API KEY").is_err());
        assert_eq!(parse_modules("reports.*, tools").unwrap().len(), 2);
        assert!(parse_modules("reports*").is_err());
    }
}
