//! What would become of a descriptor that Envoy sends, for `weir explain`.

use std::fmt::{self, Write};
use std::path::Path;

use weir_config::{EnvoyService, Settings};
use weir_limit::time::{Clock, SystemClock};
use weir_rules::{DescriptorEntry, DescriptorValues};
use weir_yaml::Diagnostics;

use super::{explained, limits};

/// The descriptor to explain.
#[derive(Clone, Debug)]
pub struct Descriptor {
    /// The domain of the call.
    pub domain: String,
    /// Keys and values, in their order.
    pub entries: Vec<(String, String)>,
}

/// Explains the treatment of `descriptor` by the configuration at `path`.
///
/// # Errors
/// When the configuration is in error.
pub fn explain_descriptor(path: &Path, descriptor: &Descriptor) -> Result<String, Diagnostics> {
    explained(path, |out, settings| write(out, settings, descriptor))
}

/// Parses an entry.
///
/// # Errors
/// When it is not one, with what to write instead.
pub fn parse_entry(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn write(out: &mut String, settings: &Settings, descriptor: &Descriptor) -> fmt::Result {
    let domain = &descriptor.domain;
    let entries = descriptor.entries.iter();
    let entries: Vec<DescriptorEntry<'_>> =
        entries.map(|(key, value)| (&**key, &**value)).collect();
    let texts: Vec<_> = entries
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    writeln!(out, "{} of {domain}", texts.join(", "))?;
    let Some(envoy) = &settings.envoy else {
        return writeln!(out, "\nlimits: none, as `decide.envoy` is not configured");
    };
    let Some(rules) = envoy.domains.get(domain.as_str()) else {
        return write_domains(out, envoy);
    };
    let Some(index) = rules.find(&entries) else {
        return writeln!(out, "\nlimits: none, as no rule limits such a descriptor");
    };
    let values = DescriptorValues::new(&entries, &settings.account);
    let mut written = envoy.rules.iter();
    let rule = written.find(|rule| rule.domain == *domain && rule.limit == Some(index));
    if let Some(rule) = rule {
        writeln!(out, "\nrule: {}", rule.entries)?;
    }
    let now = SystemClock.now();
    let facts = values.attributes(domain, now);
    match envoy.route.policy.limits.get(index) {
        Some(usage) => {
            let found = values.matching(usage, domain, now);
            limits::write_limit(out, settings, &envoy.route, (usage, &found), &facts)
        }
        None => Ok(()),
    }
}

fn write_domains(out: &mut String, envoy: &EnvoyService) -> fmt::Result {
    let mut known: Vec<&str> = envoy.domains.keys().map(|domain| &**domain).collect();
    known.sort_unstable();
    writeln!(
        out,
        "\nlimits: none, as only these domains have any: {}",
        known.join(", ")
    )
}
