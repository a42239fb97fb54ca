//! `leasehold engines`: the capabilities of each engine, including those that are not in this
//! build.

use clap::{Args, ValueEnum};
use leasehold::engine::sql::{self, Dialect};
use leasehold::engine::{Capabilities, Expiry, Fairness, Fencing, Reach};
use leasehold::registry::{self, EngineEntry, Technique};
use serde::Serialize;

use crate::duration::format_duration;
use crate::exit::Failure;
use crate::output;

/// The text after the options in `leasehold engines --help`.
// Lines stay within 79 characters, so that an 80-column terminal does not wrap them.
const AFTER_HELP: &str = "\
Examples:
  leasehold engines                 the capabilities of each engine
  leasehold engines --json          the same, for programs
  leasehold engines --ddl mysql     the tables that the locks need
  leasehold engines --ddl mysql | mysql -u root -p shop
  leasehold engines --ddl postgres --schema ops | psql -U postgres shop

Tables:
  mysql: and postgres: create their tables at first use. If the user in the
  URL lacks that privilege, an administrator runs the output of --ddl, whose
  comments name the privileges to grant: SELECT, INSERT and UPDATE only.
  --table and --schema are the URL's table= and schema=.";

/// List the engines and their capabilities
///
/// With --ddl: print the statements that create a database engine's tables, for an administrator to
/// run.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP, after_help = "`leasehold engines --help` has examples.")]
pub(crate) struct EnginesArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Print the CREATE TABLE statements for this database, and the privileges that are needed
    #[arg(long, value_name = "DATABASE", conflicts_with = "json")]
    ddl: Option<Database>,
    /// The prefix of the tables' names, as table= in the URL [default: leasehold]
    #[arg(long, value_name = "NAME", requires = "ddl")]
    table: Option<String>,
    /// The schema of the tables, as schema= in the URL; PostgreSQL only
    #[arg(long, value_name = "NAME", requires = "ddl")]
    schema: Option<String>,
}

/// The value of --ddl.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Database {
    /// MySQL and MariaDB
    Mysql,
    /// PostgreSQL
    Postgres,
}

/// One engine of `engines --json`.
#[derive(Debug, Serialize)]
struct EngineJson {
    scheme: &'static str,
    feature: &'static str,
    example: &'static str,
    about: &'static str,
    in_this_build: bool,
    /// `None` if the engine is not in this build.
    capabilities: Option<CapabilitiesJson>,
    techniques: Vec<TechniqueJson>,
}

/// One technique of a database engine, which the URL selects with `technique=`.
#[derive(Debug, Serialize)]
struct TechniqueJson {
    technique: &'static str,
    about: &'static str,
    capabilities: CapabilitiesJson,
}

/// The capabilities of an engine or a technique.
#[derive(Debug, Serialize)]
struct CapabilitiesJson {
    reach: &'static str,
    /// Whether it has shared locks, for readers.
    shared: bool,
    /// Whether it has semaphores.
    permits: bool,
    reentry: bool,
    fairness: &'static str,
    fencing: &'static str,
    expiry: &'static str,
    inspection: bool,
    force_release: bool,
    records: bool,
    min_ttl_seconds: f64,
    max_ttl_seconds: f64,
    /// The faults that the guarantees survive.
    survives: &'static str,
    /// The faults that break the guarantees.
    breaks: &'static str,
    /// A warning to every user of the engine; empty if there is none.
    caution: &'static str,
}

impl From<&Capabilities> for CapabilitiesJson {
    fn from(capabilities: &Capabilities) -> Self {
        Self {
            reach: reach_name(capabilities.reach),
            shared: capabilities.shared,
            permits: capabilities.permits,
            reentry: capabilities.reentrancy,
            fairness: fairness_name(capabilities.fairness),
            fencing: fencing_name(capabilities.fencing),
            expiry: match capabilities.expiry {
                Expiry::Lease => "lease",
                Expiry::LeaseOrProcessDeath => "lease-or-death",
            },
            inspection: capabilities.inspection,
            force_release: capabilities.force_release,
            records: capabilities.records,
            min_ttl_seconds: capabilities.min_ttl.as_secs_f64(),
            max_ttl_seconds: capabilities.max_ttl.as_secs_f64(),
            survives: capabilities.tolerates,
            breaks: capabilities.fails_when,
            caution: capabilities.warning,
        }
    }
}

/// Prints the engines and their capabilities, or with --ddl a database's statements; returns the
/// exit code.
pub(crate) fn run_engines(args: &EnginesArgs) -> Result<u8, Failure> {
    let dialect = match args.ddl {
        None => return print_engines(args.json),
        Some(Database::Mysql) => Dialect::MySql,
        Some(Database::Postgres) => Dialect::Postgres,
    };
    output::write_stdout(&sql::ddl(dialect, args.table.as_deref(), args.schema.as_deref())?)?;
    Ok(0)
}

fn print_engines(json: bool) -> Result<u8, Failure> {
    let entries = registry::entries();
    let text = if json {
        output::to_json_line(&entries.iter().map(entry_to_json).collect::<Vec<_>>())
    } else {
        let mut text = format_table(&entries);
        entries.iter().for_each(|entry| text.push_str(&format_details(entry)));
        text
    };
    output::write_stdout(&text)?;
    Ok(0)
}

fn entry_to_json(entry: &EngineEntry) -> EngineJson {
    EngineJson {
        scheme: entry.scheme,
        feature: entry.feature,
        example: entry.example,
        about: entry.summary,
        in_this_build: entry.capabilities.is_some(),
        capabilities: entry.capabilities.as_ref().map(CapabilitiesJson::from),
        techniques: entry.techniques.iter().map(technique_to_json).collect(),
    }
}

fn technique_to_json(technique: &Technique) -> TechniqueJson {
    TechniqueJson {
        technique: technique.name,
        about: technique.summary,
        capabilities: (&technique.capabilities).into(),
    }
}

/// The table of all engines, and of the techniques that are not an engine's default.
fn format_table(entries: &[EngineEntry]) -> String {
    let mut table = output::new_table(&[
        "ENGINE",
        "SHARED BY",
        "MODES",
        "ORDER",
        "TOKENS",
        "FREED BY",
        "RE-ENTRY",
        "SEE",
        "EVICT",
        "RECORDS",
        "TTL",
    ]);
    for entry in entries {
        let scheme = format!("{}:", entry.scheme);
        match &entry.capabilities {
            Some(can) => table.add_row(engine_row(scheme, can)),
            None => table.add_row([scheme, "not in this build".to_owned()]),
        };
        // The first technique is the engine's default, in the row above.
        for one in entry.techniques.iter().skip(1) {
            table.add_row(engine_row(format!("  {}", one.name), &one.capabilities));
        }
    }
    output::format_wide_table(&table)
}

/// The row of an engine or a technique in the table; `scheme` is its first cell.
fn engine_row(scheme: String, capabilities: &Capabilities) -> [String; 11] {
    let modes = [("exclusive", true), ("shared", capabilities.shared), ("slots", capabilities.permits)];
    let modes: Vec<_> = modes.into_iter().filter(|(_, can)| *can).map(|(mode, _)| mode).collect();
    let freed = match capabilities.expiry {
        Expiry::Lease => "lease's end",
        Expiry::LeaseOrProcessDeath => "lease's end, holder's death",
    };
    [
        scheme,
        reach_name(capabilities.reach).to_owned(),
        modes.join(" "),
        fairness_name(capabilities.fairness).to_owned(),
        fencing_name(capabilities.fencing).to_owned(),
        freed.to_owned(),
        yes_or_no(capabilities.reentrancy),
        yes_or_no(capabilities.inspection),
        yes_or_no(capabilities.force_release),
        yes_or_no(capabilities.records),
        format!("{} to {}", format_duration(capabilities.min_ttl), format_duration(capabilities.max_ttl)),
    ]
}

/// The lines about one engine below the table.
fn format_details(entry: &EngineEntry) -> String {
    let mut text = format!("\n{}:  {}\n  like      {}\n", entry.scheme, entry.summary, entry.example);
    match &entry.capabilities {
        Some(can) if entry.techniques.is_empty() => text.push_str(&format_faults(can, "  ")),
        Some(_) => {
            for one in &entry.techniques {
                text.push_str(&format!("  ?technique={}  {}\n", one.name, one.summary));
                text.push_str(&format_faults(&one.capabilities, "    "));
            }
        }
        None => text.push_str(&format!("  needs     cargo feature `{}`\n", entry.feature)),
    }
    text
}

/// Which faults the engine survives, and which break its guarantees.
fn format_faults(capabilities: &Capabilities, indent: &str) -> String {
    let mut text =
        format!("{indent}survives  {}\n{indent}breaks    {}\n", capabilities.tolerates, capabilities.fails_when);
    if !capabilities.warning.is_empty() {
        text.push_str(&format!("{indent}caution   {}\n", capabilities.warning));
    }
    text
}

fn reach_name(reach: Reach) -> &'static str {
    match reach {
        Reach::Process => "process",
        Reach::Host => "host",
        Reach::Network => "network",
    }
}

fn fairness_name(fairness: Fairness) -> &'static str {
    match fairness {
        Fairness::Fifo => "fifo",
        Fairness::None => "none",
    }
}

fn fencing_name(fencing: Fencing) -> &'static str {
    match fencing {
        Fencing::Volatile => "volatile",
        Fencing::Durable => "durable",
    }
}

fn yes_or_no(is_supported: bool) -> String {
    if is_supported { "yes" } else { "no" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_help_line_exceeds_80_columns() {
        for line in AFTER_HELP.lines() {
            assert!(line.chars().count() < 80, "{line}");
        }
    }
}
